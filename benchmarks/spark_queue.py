"""The data source against `holdfast serve`: how fast a queue is read as a stream and written in transactions, and how
much of that is the broker's own work. Called by benchmarks/spark.py, or alone:

python -m benchmarks.spark_queue [MESSAGES]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from pyspark.sql import DataFrame, SparkSession

from benchmarks.load.servers import server
from holdfast.client import SyncClient
from holdfast.pipeline.spark.session import open_session

PAYLOAD_BYTES = 200
ROUNDS = 2
MESSAGES = 500_000


def main(messages: int) -> None:
    measure(open_session(), messages)


def measure(spark: SparkSession, messages: int) -> None:
    with server() as served, SyncClient(url := f"http://127.0.0.1:{served.http}") as client:
        broker = psutil.Process(served.pid)
        for number in range(ROUNDS):
            client.create_queue(f"q{number}", {"partitions": 4, "max_depth": 0})
            client.create_group(f"q{number}", "spark", kind="cursor", start="earliest")
            kind = "cold" if number == 0 else "warm"
            rows = spark.range(0, messages, 1, 4).selectExpr(
                f"rpad(CAST(id AS string), {PAYLOAD_BYTES}, 'x') AS payload", "CAST(id % 1000 AS string) AS key"
            )
            measure_step(f"write, {kind}", messages, broker, lambda: write(rows, url, f"q{number}"))  # noqa: B023
            measure_step(f"stream read, {kind}", messages, broker, lambda: stream(spark, url, f"q{number}"))  # noqa: B023
            left = sum(1 for _ in client.browse(f"q{number}", limit=1))
            if left:
                sys.exit("the stream has not committed all that it read")


def measure_step(what: str, messages: int, broker: psutil.Process, work: Callable[[], None]) -> None:
    before, began = broker.cpu_times(), time.perf_counter()
    work()
    seconds, after = time.perf_counter() - began, broker.cpu_times()
    busy = after.user + after.system - before.user - before.system
    print(f"{what}: {messages / seconds:,.0f} messages/s; broker busy {busy:.1f} of {seconds:.1f} s")


def write(rows: DataFrame, url: str, queue: str) -> None:
    rows.write.format("holdfast").options(url=url, queue=queue).mode("append").save()


def stream(spark: SparkSession, url: str, queue: str) -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory:
        source = spark.readStream.format("holdfast").options(url=url, queue=queue, group="spark", columns="key,payload")
        query = (
            source.load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(Path(directory) / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES)
