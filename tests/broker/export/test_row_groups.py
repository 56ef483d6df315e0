"""How a segment is written: a row group at a time, so that the process that converts has no more than one in memory."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.journal import segment
from holdfast.journal.reader import RANGE_ROWS
from tests.broker.export.lake import Life


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path)


def test_a_segment_is_written_a_row_group_at_a_time(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "ROW_GROUP_ROWS", 2 * RANGE_ROWS)
    read: list[float] = []
    written_at: list[int] = []
    writing = pq.ParquetWriter.write_table

    def write_table(writer: pq.ParquetWriter, rows: pa.Table, *arguments: int) -> None:
        written_at.append(len(read))
        writing(writer, rows, *arguments)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", write_table)
    for _ in range(5):
        life.enqueue(RANGE_ROWS)
    life.export_all(life.exporter(throttle=read.append))
    assert written_at == [2, 4, 4]  # ranges that were converted before: the third does not fit any more, nor the fifth
    [path] = life.segments()
    metadata = pq.ParquetFile(path).metadata
    groups = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    assert groups == [2 * RANGE_ROWS, 2 * RANGE_ROWS, RANGE_ROWS]
    assert [row["lsn"] for row in life.lake_rows()] == list(range(1, 5 * RANGE_ROWS + 1))


def test_row_groups_are_bounded_in_bytes(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "ROW_GROUP_BYTES", 1)
    for _ in range(3):
        life.enqueue(RANGE_ROWS)
    life.export_all(life.exporter())
    [path] = life.segments()
    assert pq.ParquetFile(path).metadata.num_row_groups == 3
