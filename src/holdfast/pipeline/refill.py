"""`load` and `replay`: rows into a queue, from any source that Spark reads, or from the lake's own past.

Both write through one transaction of the data source, so that consumers see everything or nothing, and a job that is
run again under the same `transaction` adds nothing.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast.errors import InvalidArgument
from holdfast.pipeline.fields import matching
from pyspark_holdfast.writing import WRITABLE

SOURCE_PROPERTY = "replayed-from"
"""The property of a replayed message that names the message it repeats."""


def rows_to_load(spark: SparkSession, form: str, path: str, options: dict[str, str], dedup: str = "") -> DataFrame:
    """The rows of a source as messages. Columns that messages have are taken as they are; if there is no `payload` (or
    `value`), the payload is the whole row as JSON. `dedup` names the column of the producer's own id."""
    try:
        found = (
            spark.read.format(form).options(**options).load(path)
            if path
            else spark.read.format(form).options(**options).load()
        )
        if dedup:
            found = found.withColumn("message_id", F.col(dedup).cast("string"))
    except (AnalysisException, ParseException) as error:
        raise InvalidArgument(field="The source", problem=f"cannot be read: {str(error).splitlines()[0]}") from error
    if "payload" not in found.columns and "value" not in found.columns:
        own = [name for name in found.columns if name != "message_id" or not dedup]
        found = found.withColumn("payload", F.to_json(F.struct(*[F.col(f"`{name}`") for name in own])))
    known = [name for name in found.columns if name in {*WRITABLE, "value"}]
    return found.select(*[f"`{name}`" for name in known])


def rows_to_replay(
    events: DataFrame, queue: str, since: datetime | None, until: datetime | None, where: str = ""
) -> DataFrame:
    """Messages that were once stored in a queue, oldest first, as new ones that name their sources."""
    stored = events.where((F.col("event") == "enqueued") & (F.col("queue") == queue) & F.col("payload").isNotNull())
    if since is not None:
        stored = stored.where(F.col("at") >= F.lit(since))
    if until is not None:
        stored = stored.where(F.col("at") < F.lit(until))
    chosen = matching(stored, where)
    # Spark's maps cannot hold a name twice; of those the last counts (session.LAKE_SETTINGS).
    pairs = F.map_from_entries(F.coalesce("properties", F.array().cast(_PAIRS)))
    source = F.create_map(F.lit(SOURCE_PROPERTY), F.col("message_id").cast("string"))
    return chosen.orderBy("at", "node", "lsn").select(
        "payload", "key", "priority", "correlation_id", F.map_concat(pairs, source).alias("properties")
    )


_PAIRS = "array<struct<name: string, value: string>>"


def fill(frame: DataFrame, options: dict[str, str]) -> None:
    """Write messages, all at once."""
    frame.write.format("holdfast").options(**options).mode("append").save()
