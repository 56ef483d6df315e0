"""The lake's transformations as a Spark Declarative Pipeline: spark-pipeline.yml beside it says where the journal is.

`events` is a streaming table, so each segment is read once. Queries of a pipeline may not ask Spark anything, not even
for a schema, as `mapInArrow` does: so `messages` and `queue_minutes` are for other jobs, and `holdfast pipeline build`.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from holdfast.pipeline import transformations
from holdfast.pipeline.lake.tables import EVENTS


def active() -> SparkSession:
    found = SparkSession.active()
    assert found is not None
    return found


@dp.table
def events() -> DataFrame:
    """The journal's segments."""
    spark = active()
    journal = spark.conf.get("holdfast.journal")
    assert journal is not None
    return spark.readStream.schema(EVENTS.ddl).parquet(journal)


@dp.table
def failures() -> DataFrame:
    """What went wrong, with the error's pattern: each failure once, as the journal grows."""
    return transformations.failures(active().readStream.table("events"))


@dp.materialized_view
def causes() -> DataFrame:
    """Failures by queue and cause."""
    return active().read.table("failures").groupBy("queue", "reason", "error_pattern").count()


@dp.materialized_view
def payload_shapes() -> DataFrame:
    """What the payloads of each queue look like, and since when."""
    return transformations.payload_shapes(active().read.table("events"))
