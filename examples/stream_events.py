"""The journal as a stream: every delivery that failed or died, with its error pattern, in a system of your own.

.venv/bin/python examples/stream_events.py LAKE TARGET

Spark Structured Streaming reads the segments as the server exports them: each event once, whatever is killed, because a
batch that is made again overwrites its own files. It ends when it has read what is there (run it by cron); for a stream
that goes on, take `trigger(processingTime="10 seconds")`. To write elsewhere, change `store`: to Kafka, say,
`rows.selectExpr("CAST(message_id AS STRING) AS key", "to_json(struct(*)) AS value").write.format("kafka")`, with the
connector's jar by `--packages`. Needs the extra [spark].
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from holdfast.pipeline.lake.tables import EVENTS
from holdfast.pipeline.spark.session import open_session
from holdfast.pipeline.transformations import failures


def events(spark: SparkSession, lake: Path) -> DataFrame:
    """A stream of the journal. A segment gets its name when it is whole, so none is read in part."""
    reader = spark.readStream.schema(EVENTS.ddl).option("maxFilesPerTrigger", 1_000)
    return reader.parquet(f"file://{lake.resolve()}/journal")


def store(rows: DataFrame, batch: int, target: Path) -> None:
    """A batch, once: made again after a crash, it replaces what the first attempt left."""
    rows.coalesce(1).write.mode("overwrite").parquet(f"file://{target.resolve()}/rows/batch={batch}")


def run(spark: SparkSession, lake: Path, target: Path) -> None:
    rows = failures(events(spark, lake))
    writer = rows.writeStream.foreachBatch(partial(store, target=target))
    checkpoint = f"file://{target.resolve()}/checkpoint"
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


def main() -> None:
    lake, target = map(Path, sys.argv[1:3])
    spark = open_session()
    run(spark, lake, target)
    print(f"{spark.read.parquet(f'file://{target.resolve()}/rows').count()} failures so far")
    spark.stop()


if __name__ == "__main__":
    main()
