"""Lost power leaves each table of the lake as it was before a commit or after it, and the build goes on from there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from holdfast.pipeline.lake.delta import LakeTable
from holdfast.pipeline.lake.lake import Lake
from tests.power.forgetful import SUPPORTED

COMMITS = 5
NODE = 0

BUILD = f"""
import sys
from pathlib import Path
import pyarrow as pa
import pyarrow.parquet as pq
from holdfast.pipeline.lake import delta_log
from holdfast.pipeline.lake.arrow import schema_of
from holdfast.pipeline.lake.lake import Lake

delta_log.CHECKPOINT_VERSIONS = 2
lake = Lake(Path(sys.argv[1]))
with lake.lock():
    lake.prepare()
    for number in range(1, {COMMITS} + 1):
        for table in (lake.events, lake.messages):
            place = table.place()
            place.mkdir(parents=True)
            file = place / "part.parquet"
            column = "lsn" if table is lake.events else "message_id"
            pq.write_table(pa.Table.from_pylist([{{column: number}}], schema_of(table.spec.columns)), file)
            table.commit([file], [], {{{NODE}: number}})
"""


def rows(table: LakeTable, column: str) -> list[int]:
    """Of all files of the table, which must all be there and whole."""
    found: list[int] = []
    for file in table.files():
        found += pq.ParquetFile(table.root / file.path).read([column], use_threads=False).column(0).to_pylist()
    return sorted(found)


def positions(lake: Lake) -> tuple[int, int]:
    """How far `events` and `messages` have come. What they hold must be what their cursors say."""
    cursors = [table.cursor([NODE]).get(NODE, 0) for table in (lake.events, lake.messages)]
    assert rows(lake.events, "lsn") == list(range(1, cursors[0] + 1))
    assert rows(lake.messages, "message_id") == list(range(1, cursors[1] + 1))
    return cursors[0], cursors[1]


@pytest.mark.crash
@pytest.mark.skipif(not SUPPORTED, reason="it stops processes by Linux's ptrace and seccomp")
def test_whenever_power_is_lost_every_table_is_old_or_new(tmp_path: Path) -> None:
    disk, surviving = tmp_path / "disk", tmp_path / "surviving"
    disk.mkdir()
    tracer = [sys.executable, "-m", "tests.power.forgetful", "--every", str(disk), str(surviving)]
    done = subprocess.run(
        [*tracer, sys.executable, "-c", BUILD, str(disk / "lake")], capture_output=True, text=True, check=False
    )
    if "Operation not permitted" in done.stderr:
        pytest.skip("processes may not be traced here")
    assert done.returncode == 0, done.stderr
    seen: list[tuple[int, int]] = []
    for state in sorted(surviving.iterdir()):
        lake = Lake(state / "lake")
        with lake.lock():
            lake.prepare()
            seen.append(positions(lake))
    assert seen == sorted(seen), "what was durable stays so"
    assert all(messages in (events, events - 1) for events, messages in seen), "one is committed before the other"
    assert set(seen) == {(n, m) for n in range(COMMITS + 1) for m in (n - 1, n) if m >= 0}, "each moment was tried"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """With some commits."""
    subprocess.run([sys.executable, "-c", BUILD, str(tmp_path / "lake")], check=True)
    lake = Lake(tmp_path / "lake")
    with lake.lock():
        yield lake


@pytest.mark.parametrize("part", [0, 1, 200], ids=["empty", "one byte", "half"])
def test_a_torn_commit_is_removed_by_the_next_build(lake: Lake, part: int) -> None:
    last = lake.events.root / "_delta_log" / f"{COMMITS:020d}.json"
    last.write_bytes(last.read_bytes()[:part])
    lake.prepare()
    assert positions(lake) == (COMMITS - 1, COMMITS)
    assert lake.events.version == COMMITS - 1


def test_a_torn_checkpoint_is_removed_by_the_next_build(lake: Lake) -> None:
    log = lake.events.root / "_delta_log"
    checkpoints = sorted(log.glob("*.checkpoint*.parquet"))
    assert [path.name[:20] for path in checkpoints] == [f"{version:020d}" for version in (2, 4)]
    checkpoints[-1].write_bytes(b"")
    (log / "_last_checkpoint").write_bytes(b"")
    lake.prepare()
    assert not checkpoints[-1].exists()
    assert positions(lake) == (COMMITS, COMMITS)


def test_what_is_whole_is_left_as_it_is(lake: Lake) -> None:
    log = lake.events.root / "_delta_log"
    before = {path.name: path.read_bytes() for path in log.iterdir()}
    lake.prepare()
    assert {path.name: path.read_bytes() for path in log.iterdir()} == before
