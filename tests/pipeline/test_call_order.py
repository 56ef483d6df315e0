"""The order in which Spark calls a stream's reader, against its logs: what the commit to the broker stands on.

If this fails with a new version of Spark, read the module docstring of pyspark_holdfast/streams.py first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tests.waiting import SPARK_SECONDS

Offset = dict[str, int]
END = 5


class Recorder(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Five rows, two in a batch. Writes down each call, and how many batches Spark's logs have at that moment."""

    def __init__(self, path: str) -> None:
        self._path = path

    def _record(self, call: str) -> None:
        logs = Path(self._path) / "checkpoint"
        counts = {
            log: sum(file.name.isdecimal() for file in (logs / log).iterdir()) if (logs / log).exists() else 0
            for log in ("offsets", "commits")
        }
        with (Path(self._path) / "calls").open("a") as calls:
            calls.write(f"{call} offsets={counts['offsets']} commits={counts['commits']}\n")

    def initialOffset(self) -> Offset:  # noqa: N802
        self._record("initialOffset")
        return {"0": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._record("prepareForTriggerAvailableNow")

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(2)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        assert isinstance(limit, ReadMaxRows)
        self._record(f"latestOffset({start['0']})")
        return {"0": min(start["0"] + limit.max_rows, END)}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        self._record(f"partitions({start['0']}, {end['0']})")
        return [InputPartition((start["0"], end["0"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self._record(f"read{partition.value}")
        yield pa.record_batch({"n": pa.array(range(*partition.value), pa.int64())})

    def commit(self, end: Offset) -> None:
        self._record(f"commit({end['0']})")


class RecordedSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "recorded"

    def schema(self) -> str:
        return "n bigint"

    def streamReader(self, schema: StructType) -> Recorder:  # noqa: N802
        return Recorder(self.options["path"])


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


@pytest.mark.spark
def test_all_before_the_start_of_latest_offset_is_in_the_commit_log(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(RecordedSource)
    query = (
        spark.readStream.format("recorded")
        .load(str(tmp_path))
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(SPARK_SECONDS)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == [
        "prepareForTriggerAvailableNow offsets=0 commits=0",
        "initialOffset offsets=0 commits=0",
        "latestOffset(0) offsets=0 commits=0",
        "initialOffset offsets=1 commits=0",
        "partitions(0, 2) offsets=1 commits=0",
        "read(0, 2) offsets=1 commits=0",
        "latestOffset(2) offsets=1 commits=1",
        "commit(2) offsets=2 commits=1",
        "partitions(2, 4) offsets=2 commits=1",
        "read(2, 4) offsets=2 commits=1",
        "latestOffset(4) offsets=2 commits=2",
        "commit(4) offsets=3 commits=2",
        "partitions(4, 5) offsets=3 commits=2",
        "read(4, 5) offsets=3 commits=2",
        "latestOffset(5) offsets=3 commits=3",
    ]
