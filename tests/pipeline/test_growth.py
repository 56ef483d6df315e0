"""What the driver holds does not grow with the journal: a year of small segments, by its metadata alone."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import msgspec
import pytest

from holdfast.journal.manifest import SegmentEntry, manifest_path
from holdfast.pipeline.build.build import BATCH_ROWS
from holdfast.pipeline.build.shuffle import PACK_ROWS
from holdfast.pipeline.jobs.reconcile import STEP_ROWS
from holdfast.pipeline.lake.segments import Segment, after, end_of, first_rows, packed, read_manifests

ROWS = 10_000
BYTES_PER_SEGMENT = 2_000


def journal(lake: Path, segments: int) -> None:
    """A manifest of so many segments; the segments themselves need not be there to plan a build."""
    (lake / "journal").mkdir(parents=True)
    entries = [
        SegmentEntry(
            segment=f"date=2026-03-01/0001-{number * ROWS + 1:019d}-{(number + 1) * ROWS:019d}.parquet",
            first_lsn=number * ROWS + 1,
            last_lsn=(number + 1) * ROWS,
            rows=ROWS,
            size_bytes=400_000,
            first_block=number,
            last_block=number,
            sha256="0" * 64,
            previous="0" * 64,
            schema=1,
            number=number + 1,
            written_at="2026-03-01T00:00:00Z",
        )
        for number in range(segments)
    ]
    manifest_path(lake / "journal", 1).write_bytes(b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries))


def planned(lake: Path) -> tuple[int, int, list[list[Segment]], int]:
    """Batches of a build from nothing, the largest number of segments in one, the packs of the first, and bytes."""
    tracemalloc.start()
    try:
        segments = read_manifests(lake)
        left = after(segments, {})
        cursor: dict[int, int] = {}
        batches, most = 0, 0
        first = packed(first_rows(left, BATCH_ROWS), PACK_ROWS)
        while batch := first_rows(left, BATCH_ROWS):
            batches, most = batches + 1, max(most, len(batch))
            cursor = end_of(batch, cursor)
            left = left[len(batch) :]
        assert cursor == {1: max(segment.entry.last_lsn for segment in segments[1])}
        return batches, most, first, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("segments", [1_000, 10_000])
def test_a_batch_is_as_large_however_long_the_journal_is(tmp_path: Path, segments: int) -> None:
    journal(tmp_path, segments)
    batches, most, packs, held = planned(tmp_path)
    assert batches == -(-segments * ROWS // BATCH_ROWS)
    assert most == BATCH_ROWS // ROWS
    assert len(packs) == BATCH_ROWS // PACK_ROWS
    assert len(packed(after(read_manifests(tmp_path), {}), STEP_ROWS)) == -(-segments * ROWS // STEP_ROWS)
    assert held < segments * BYTES_PER_SEGMENT, "a line of the manifest for each segment, and nothing of its events"
