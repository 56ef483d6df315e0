"""The data source `faulty`: the data source `holdfast` that at chosen moments kills somebody, or fails.

Its option `faults` names a directory. A file there with the name of a moment makes it happen, once; what it holds is
the processes to be killed, or nothing: then the task fails.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import InputPartition, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from pyspark_holdfast.options import Options
from pyspark_holdfast.schema import check_schema, schema_of
from pyspark_holdfast.source import HoldfastSource
from pyspark_holdfast.streams import Offset, StreamReader
from pyspark_holdfast.writing import StreamWriter, check_writing


def happens(directory: str, moment: str) -> None:
    file = Path(directory) / moment
    try:
        file.rename(file.with_suffix(".done"))
    except FileNotFoundError:
        return
    victims = file.with_suffix(".done").read_text().split()
    for pid in victims:
        os.kill(int(pid), signal.SIGKILL)
    if not victims:
        raise RuntimeError(f"{moment}, as ordered")


class FaultyReader(StreamReader):
    def __init__(self, options: Options, kinds: dict[str, str], faults: str) -> None:
        super().__init__(options, kinds)
        self._faults = faults

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        if max(start.values()) > 1:
            happens(self._faults, "before-commit")
        return super().latestOffset(start, limit)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(super().read(partition)):
            if number == 0:
                happens(self._faults, "mid-read")
            yield batch


class FaultyWriter(StreamWriter):
    def __init__(self, options: Options, faults: str) -> None:
        super().__init__(options)
        self._faults = faults

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        written = super().write(iterator)
        happens(self._faults, "after-stage")
        return written

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        super().commit(messages, batchId)
        happens(self._faults, "after-publish")


class FaultySource(HoldfastSource):
    @classmethod
    def name(cls) -> str:
        return "faulty"

    def _parts(self) -> tuple[Options, str]:
        given = dict(self.options)
        return Options({name: value for name, value in given.items() if name != "faults"}), given["faults"]

    def schema(self) -> StructType:
        return schema_of("messages", [], "map")

    def streamReader(self, schema: StructType) -> FaultyReader:  # noqa: N802
        options, faults = self._parts()
        return FaultyReader(options, check_schema("messages", schema), faults)

    def streamWriter(self, schema: StructType, overwrite: bool) -> FaultyWriter:  # noqa: N802
        options, faults = self._parts()
        return FaultyWriter(check_writing(options, schema, overwrite), faults)


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
