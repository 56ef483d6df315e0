"""A query that copies queue `in` to queue `out` batch by batch: here, or as a driver of its own that is to be killed:

python -m tests.pipeline.copying URL DIRECTORY
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.client import SyncClient
from holdfast.client.drafts import draft
from holdfast.pipeline.spark.session import SparkTarget, open_session
from tests.pipeline.faults import FaultySource
from tests.waiting import SPARK_SECONDS

BATCH = 400


def fill(client: SyncClient, count: int, partitions: int = 2) -> None:
    client.create_queue("in", {"partitions": partitions, "max_depth": 0})
    client.create_queue("out", {"partitions": partitions, "max_depth": 0})
    client.send_many("in", [draft(f"n{n}", key=f"k{n % 50}") for n in range(count)])


def copied(client: SyncClient) -> Counter[bytes]:
    return Counter(message.body() for message in client.browse("out"))


def expected(count: int) -> Counter[bytes]:
    return Counter(f"n{n}".encode() for n in range(count))


def start(spark: SparkSession, url: str, path: Path, form: str = "faulty", batch: int = BATCH) -> StreamingQuery:
    """Reads all that is there. `path` is for the checkpoint and for faults."""
    extra = {"faults": str(path)} if form == "faulty" else {}
    source = spark.readStream.format(form).options(
        url=url, queue="in", group="copy", maxMessagesPerTrigger=str(batch), **extra
    )
    sink = source.load().select("payload", "key").writeStream.format(form)
    return (
        sink.options(url=url, queue="out", checkpointLocation=str(path / "checkpoint"), **extra)
        .trigger(availableNow=True)
        .start()
    )


def instead_of(query: StreamingQuery, start_again: Callable[[], StreamingQuery]) -> StreamingQuery:
    """The query, or another that goes on from its checkpoint, if that ended because a Python process did not start
    within Spark's ten seconds: no setting changes them, and a busy machine takes longer."""
    error = query.exception()
    if error is None:
        return query
    assert "Python worker failed to connect back" in str(error), error
    return start_again()


def await_end(query: StreamingQuery, start_again: Callable[[], StreamingQuery]) -> None:
    """Wait until it has read all there is."""
    while True:
        try:
            assert query.awaitTermination(SPARK_SECONDS)
        except StreamingQueryException:
            query = instead_of(query, start_again)
        else:
            return


def main(url: str, path: Path) -> None:
    spark = open_session(SparkTarget(master="local[2,4]", memory=1 << 30, quick=True))
    spark.dataSource.register(FaultySource)
    java = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    for order in path.glob("*.driver"):
        order.write_text(f"{java} {os.getpid()}")
        order.rename(order.with_suffix(""))
    start(spark, url, path).awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
