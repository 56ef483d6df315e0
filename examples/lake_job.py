"""A job of your own with the lake's transformations: what each consumer failed with, from the journal alone.

.venv/bin/python examples/lake_job.py LAKE TARGET

No tables need to be built: the transformations make `messages` out of events. Read by cron, by Airflow or Dagster
(examples/orchestration), or once in a shell. Needs the extra [spark].
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast.pipeline.lake.tables import EVENTS
from holdfast.pipeline.spark.session import open_session
from holdfast.pipeline.transformations import failures, messages


def by_consumer(events: DataFrame) -> DataFrame:
    """Of each consumer: messages done, attempts that failed, and its most frequent error."""
    done = messages(events).where("outcome = 'acked'").groupBy("queue", "consumer").agg(F.count("*").alias("acked"))
    who = events.where("event = 'leased'").select("message_id", "group", "attempt", "consumer")
    failed = (
        failures(events)
        .join(who, ["message_id", "group", "attempt"])
        .groupBy("queue", "consumer")
        .agg(F.count("*").alias("failed"), F.mode("error_pattern").alias("mostly"))
    )
    return done.join(failed, ["queue", "consumer"], "full").na.fill(0, ["acked", "failed"])


def main() -> None:
    lake, target = map(Path, sys.argv[1:3])
    spark = open_session()
    events = spark.read.schema(EVENTS.ddl).parquet(f"file://{lake.resolve()}/journal")
    by_consumer(events).coalesce(1).write.mode("overwrite").parquet(f"file://{target.resolve()}")
    print(f"{spark.read.parquet(f'file://{target.resolve()}').count()} rows")
    spark.stop()


if __name__ == "__main__":
    main()
