"""The data source `holdfast`, against a real broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from holdfast.client import SyncClient
from holdfast.pipeline.source import Range, _advance, _split
from holdfast.testing import Broker


class Scene:
    def __init__(self, broker: Broker, client: SyncClient, spark: SparkSession) -> None:
        self.broker, self.client, self.spark = broker, client, spark

    def rows(self, count: int) -> DataFrame:
        return self.spark.range(count).selectExpr(
            "concat('n', id) AS value", "concat('k', id % 7) AS key", "5 AS priority"
        )

    def write(self, frame: DataFrame, **options: str) -> None:
        frame.write.format("holdfast").options(url=self.broker.url, **options).mode("append").save()

    def stored(self, queue: str) -> Counter[bytes]:
        return Counter(message.body() for message in self.client.browse(queue))

    def stream(self, tmp_path: Path, **options: str) -> int:
        """Read all that is there into files; how many batches it took."""
        source = self.spark.readStream.format("holdfast").options(
            url=self.broker.url, queue="in", group="spark", **options
        )
        sink = source.load().selectExpr("CAST(payload AS string) AS text", "sequence", "partition").writeStream
        query = (
            sink.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(100)
        return len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")))

    def committed(self) -> bool:
        """Whether the broker has let go of everything: the cursor group is the queue's only one."""
        return not self.stored("in")


@pytest.fixture
def scene(spark: SparkSession) -> Iterator[Scene]:
    with Broker() as broker, broker.sync_client() as client:
        yield Scene(broker, client, spark)


def test_a_written_frame_is_there_once_however_often_the_job_runs(scene: Scene) -> None:
    scene.write(scene.rows(500).repartition(3), queue="in", transactionId="job-1", batchRows="100")
    scene.write(scene.rows(500).repartition(3), queue="in", transactionId="job-1", batchRows="100")
    assert scene.stored("in") == Counter(f"n{number}".encode() for number in range(500))
    one = next(iter(scene.client.browse("in")))
    assert (one.priority, one.key) == (5, f"k{int(one.body()[1:]) % 7}")
    scene.write(scene.rows(4).selectExpr("value", "concat('q', key) AS queue"))
    assert [sum(scene.stored(f"qk{number}").values()) for number in range(4)] == [1, 1, 1, 1]


def test_a_queue_is_read_as_a_frame_and_nothing_is_leased(scene: Scene) -> None:
    scene.write(scene.rows(2500), queue="in")
    frame = scene.spark.read.format("holdfast").options(url=scene.broker.url, queue="in").load()
    found = frame.selectExpr(
        "count(*)", "count(DISTINCT id)", "max(CAST(payload AS string))", "min(priority)"
    ).collect()[0]
    assert tuple(found) == (2500, 2500, "n999", 5)
    assert sum(scene.stored("in").values()) == 2500


def test_a_stream_reads_each_message_once_in_bounded_batches_and_commits_the_last(scene: Scene, tmp_path: Path) -> None:
    scene.client.create_queue("in", {"partitions": 3})
    scene.write(scene.rows(300), queue="in")
    assert scene.stream(tmp_path, maxMessagesPerTrigger="100") == 3
    assert scene.committed(), "also the last batch: Spark itself commits it only with the next data"
    scene.write(scene.spark.range(300, 350).selectExpr("concat('n', id) AS value"), queue="in")
    assert scene.stream(tmp_path, maxMessagesPerTrigger="100", minPartitions="6") == 4
    found = Counter(row[0] for row in scene.spark.read.parquet(str(tmp_path / "out")).select("text").collect())
    assert found == Counter(f"n{number}" for number in range(350))
    assert scene.committed()


def test_a_stream_is_written_in_a_transaction_for_each_batch(scene: Scene, tmp_path: Path) -> None:
    scene.client.create_queue("in", {"partitions": 2})
    scene.write(scene.rows(120), queue="in")
    source = scene.spark.readStream.format("holdfast").options(
        url=scene.broker.url, queue="in", group="copy", maxMessagesPerTrigger="50"
    )
    query = (
        source.load()
        .select("payload", "key")
        .writeStream.format("holdfast")
        .options(url=scene.broker.url, queue="out", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(100)
    assert scene.stored("out") == Counter(f"n{number}".encode() for number in range(120))
    assert scene.committed()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "option 'queue' is needed"),
        ({"queue": "in", "batchrows": "none"}, "batchRows is a whole number"),
        ({"queue": "in", "qeueu": "in"}, "unknown option 'qeueu'"),
    ],
)
def test_wrong_options_are_named(scene: Scene, options: dict[str, str], problem: str) -> None:
    with pytest.raises(Exception, match=problem):
        scene.write(scene.rows(1), **options)


def test_batches_take_an_even_share_of_each_partition_and_never_more_than_their_room() -> None:
    assert _advance({"0": 1, "1": 1}, {"0": 100, "1": 100}, 10) == {"0": 6, "1": 6}
    assert _advance({"0": 1, "1": 1}, {"0": 3, "1": 100}, 10) == {"0": 3, "1": 9}
    assert _advance({"0": 5}, {"0": 5, "1": 4}, 10) == {"0": 5, "1": 4}, "a partition that is new"
    assert _advance({"0": 9}, {"0": 5}, 10) == {"0": 9}, "never back"
    pieces = _split([Range(0, 1, 11), Range(1, 1, 3)], 6)
    assert len(pieces) >= 6
    assert sorted(n for one in pieces if one.partition == 0 for n in range(one.first, one.until)) == list(range(1, 11))
