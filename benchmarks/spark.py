"""`make bench-spark`: the pipeline's speed, each figure as a ratio or a rate of one run on this machine.

python -m benchmarks.spark [EVENTS]     1,000,000 unless told otherwise
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.journal import write_journal
from holdfast.pipeline.build import Build
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.reconcile import reconcile
from holdfast.pipeline.session import open_session
from holdfast.pipeline.stages import Stages

ROUNDS = 3


def main(events: int) -> None:
    spark = open_session()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory:
        lake = Lake(Path(directory))
        count = write_journal(lake.path, events)
        print(f"{count:,} events in {len(lake.segments()[0])} segments")
        stages = Stages()
        for round_number in range(ROUNDS):
            lake.forget_tables()
            stages = Stages()
            seconds = timed(lambda: built(lake, spark, stages))  # noqa: B023 - called at once
            kind = "cold" if round_number == 0 else "warm"
            print(f"build, {kind}: {count / seconds:,.0f} events/s ({seconds:.1f} s)")
        for stage in stages.stages:
            print(f"    {stage.name}: {stage.seconds:.2f} s")
        reading(lake, spark)
        seconds = timed(lambda: check(lake, spark))
        print(f"reconcile: {seconds:.1f} s, {count / seconds:,.0f} events/s")


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def built(lake: Lake, spark: SparkSession, stages: Stages) -> None:
    with lake.lock():
        Build(lake, spark, stages).run()


def check(lake: Lake, spark: SparkSession) -> None:
    if not reconcile(lake, spark, Stages()).good:
        sys.exit("the synthetic journal does not reconcile")


def reading(lake: Lake, spark: SparkSession) -> None:
    """Events through the table, against Spark's own reader on the same files."""
    plain = spark.read.parquet(f"file://{lake.path}/journal")
    for name, use in (("all columns", whole), ("two columns", aggregate)):
        times: dict[str, list[float]] = {"ours": [], "plain": []}
        for _ in range(ROUNDS):
            times["plain"].append(timed(lambda: use(plain)))  # noqa: B023
            times["ours"].append(timed(lambda: use(lake.read(spark, "events"))))  # noqa: B023
        ratio = min(times["plain"]) / min(times["ours"])
        print(f"read events, {name}: {ratio:.2f} × spark.read.parquet ({min(times['ours']):.2f} s)")


def whole(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def aggregate(frame: DataFrame) -> None:
    frame.groupBy("queue").agg({"lsn": "max"}).collect()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
