"""`make bench-spark`: the pipeline's speed, each figure as a ratio or a rate of one run on this machine.

    python -m benchmarks.spark [EVENTS ...] [--segment-rows ROWS] [--master URL | --cluster]

EVENTS is 1,000,000 unless told otherwise; with several, each is a journal of its own, one after the other in one
session. `--cluster` starts a master and two workers of one core each out of the pip package, on this machine.

Beside the time that passed stands the processor time of everything that took part (the JVM and Python's workers): on a
machine that others use too it is the steadier figure.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from pyspark.sql import DataFrame, SparkSession

from benchmarks.journal import write_journal
from benchmarks.spark_queue import MESSAGES, measure
from holdfast.pipeline.build.build import Build
from holdfast.pipeline.jobs.reconcile import reconcile
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.spark.session import SparkTarget, open_session
from holdfast.pipeline.spark.stages import Stages

EVENTS = 1_000_000
SEGMENT_ROWS = 250_000
ROUNDS = 3
READS = 5
MANY = 2_000_000
"""Journals larger than this are built once cold and once warm, or the session is warm already: that takes long
enough."""


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.spark")
    parser.add_argument("events", nargs="*", type=int, default=[EVENTS])
    parser.add_argument("--segment-rows", type=int, default=SEGMENT_ROWS, help="a small number makes many segments")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--master")
    where.add_argument("--cluster", action="store_true")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory, session(args, Path(directory)) as spark:
        master = spark.conf.get("spark.master")
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Spark {spark.version} on {master}")
        warm = False
        for events in args.events:
            run(spark, Path(directory) / str(events), events, args.segment_rows, warm)
            warm = True
        print()
        measure(spark, MESSAGES)


@contextmanager
def session(args: argparse.Namespace, directory: Path) -> Iterator[SparkSession]:
    """Embedded, at a master, or on a cluster that is started for it."""
    if not args.cluster:
        yield open_session(SparkTarget(master=args.master))
        return
    cluster_of = importlib.import_module("tests.pipeline.cluster").Cluster  # the tests' own
    with cluster_of(directory / "cluster") as cluster:
        spark = open_session(SparkTarget(master=cluster.master, settings=cluster.settings))
        yield spark
        spark.stop()


def run(spark: SparkSession, directory: Path, events: int, segment_rows: int, warm: bool) -> None:
    lake = Lake(directory)
    count = write_journal(lake.path, events, segment_rows=segment_rows)
    size = sum(path.stat().st_size for path in lake.path.rglob("*.parquet"))
    print(f"\n{count:,} events in {len(lake.segments()[0])} segments, {size / 1e6:,.0f} MB")
    stages = Stages()
    rounds = ROUNDS if events <= MANY else 1 if warm else 2
    for number in range(rounds):
        lake.forget_tables()
        stages = Stages()
        kind = "warm" if warm or number else "cold"
        report(f"build, {kind}", count, lambda: built(lake, spark, stages))  # noqa: B023 - called at once
    print("    " + ", ".join(f"{stage.name} {stage.seconds:.2f} s" for stage in stages.stages))
    reading(lake, spark, READS if events <= MANY else 2)
    for number in range(2):
        report(f"reconcile, {'warm' if warm or number else 'first'}", count, lambda: check(lake, spark))


def report(name: str, count: int, work: Callable[[], object]) -> None:
    """Time that passed, and processor time."""
    before = processor_seconds()
    seconds = timed(work)
    spent = processor_seconds() - before
    cores = os.cpu_count() or 1
    print(
        f"{name}: {count / seconds:,.0f} events/s ({seconds:.1f} s); {spent:.1f} s of processor time,"
        f" {count / spent * cores:,.0f} events/s if {cores} cores were free"
    )


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def processor_seconds() -> float:
    """Of this process and all it has started."""
    here = psutil.Process()
    total = 0.0
    for process in (here, *here.children(recursive=True)):
        try:
            used = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += used.user + used.system
    return total


def built(lake: Lake, spark: SparkSession, stages: Stages) -> None:
    with lake.lock():
        Build(lake, spark, stages).run()


def check(lake: Lake, spark: SparkSession) -> None:
    if not reconcile(lake, spark, Stages()).good:
        sys.exit("the synthetic journal does not reconcile")


def reading(lake: Lake, spark: SparkSession, rounds: int) -> None:
    """Events through the table, against Spark's own reader on the same files."""
    for name, use in (("all columns", whole), ("two columns", aggregate)):
        plain: list[float] = []
        ours: list[float] = []
        for _ in range(rounds):
            plain.append(timed(lambda: use(spark.read.parquet(f"file://{lake.path}/journal"))))  # noqa: B023
            ours.append(timed(lambda: use(lake.read(spark, "events"))))  # noqa: B023
        ratio = min(plain) / min(ours)
        print(f"read events, {name}: {ratio:.2f} x spark.read.parquet ({min(ours):.2f} s, {min(plain):.2f} s)")


def whole(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def aggregate(frame: DataFrame) -> None:
    frame.groupBy("queue").agg({"lsn": "max"}).collect()


if __name__ == "__main__":
    main(sys.argv[1:])
