"""A lake on the store's disk takes no more of it than settling leaves."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from holdfast.broker.export import scheduler as export_scheduler
from holdfast.broker.export.conversion import Converted
from holdfast.broker.export.exporter import Exporter
from holdfast.broker.export.lake_room import LakeRoom
from holdfast.broker.export.worker import InThread
from holdfast.broker.node import Node
from holdfast.config import Config
from holdfast.config.settings import JournalSettings, NodeSettings
from holdfast.config.store_settings import StoreSettings
from holdfast.core.commands import Draft
from holdfast.errors import LakeFull
from holdfast.journal.reader import RawBlockRange
from holdfast.journal.verify import verify
from holdfast.store.memory import MemoryStore
from tests.broker.export.lake import NODE, Life
from tests.waiting import until

KEPT_BYTES = 1_000


class SmallDisk(MemoryStore):
    """Says that so much is left."""

    left: int | None = None

    def room(self) -> int | None:
        return self.left


class Grown(InThread):
    """While it writes, others take the rest of the disk."""

    def __init__(self, store: SmallDisk) -> None:
        self._store = store

    def convert(self, path: Path, node: int, block_ranges: Iterable[RawBlockRange]) -> Converted:
        made = super().convert(path, node, block_ranges)
        self._store.left = -1
        return made


def exporter_of(life: Life, store: SmallDisk, data_dir: Path, converter: InThread | None = None) -> Exporter:
    room = LakeRoom(store, data_dir, life.lake, KEPT_BYTES)
    exporter = Exporter(life.store, life.lake, NODE, 1_000_000, 1 << 30, converter=converter or InThread(), room=room)
    exporter.recover(life.engine.record.exported_lsn)
    return exporter


def put(life: Life, payload: bytes) -> None:
    life.engine.enqueue(("default", "tasks"), [Draft(payload)], "http", life.now)
    life.write()


def segments(life: Life) -> list[Path]:
    return sorted(life.lake.rglob("*.parquet"))


def test_segments_are_as_small_as_the_room_that_is_left(tmp_path: Path) -> None:
    life, store = Life(tmp_path), SmallDisk()
    for _ in range(10):
        put(life, b"x" * 1_000)
    exporter = exporter_of(life, store, tmp_path)
    store.left = KEPT_BYTES + 3_500
    done = life.export_all(exporter)
    assert len(done) >= 4
    assert life.lake_lsns() == list(range(1, 11))


@pytest.mark.parametrize("left", [KEPT_BYTES + 999, KEPT_BYTES, 0, -5])
def test_without_room_for_one_block_nothing_is_written_until_there_is(tmp_path: Path, left: int) -> None:
    life, store = Life(tmp_path), SmallDisk()
    put(life, b"x" * 1_000)
    exporter = exporter_of(life, store, tmp_path)
    store.left = left
    with pytest.raises(LakeFull, match=f"{max(left, 0)} bytes are left"):
        exporter.export(0, force=True)
    assert segments(life) == []
    store.left = None
    life.export_all(exporter)
    assert life.lake_lsns() == [1]


def test_a_segment_for_which_the_reserve_was_needed_is_removed(tmp_path: Path) -> None:
    life, store = Life(tmp_path), SmallDisk()
    life.enqueue(10)
    store.left = 1 << 30
    exporter = exporter_of(life, store, tmp_path, Grown(store))
    with pytest.raises(LakeFull):
        exporter.export(0, force=True)
    assert segments(life) == []
    assert life.lake_lsns() == []


def test_a_lake_on_another_disk_takes_what_it_needs(tmp_path: Path) -> None:
    life, store = Life(tmp_path), SmallDisk()
    life.enqueue(10)
    store.left = 0
    life.export_all(exporter_of(life, store, Path("/proc")))
    assert life.lake_lsns() == list(range(1, 11))


async def test_the_node_says_that_it_waits_and_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_scheduler, "RETRY_SECONDS", 0.005)
    store = SmallDisk()
    config = Config(
        node=NodeSettings(data_dir=tmp_path),
        journal=JournalSettings(segment_rows=1, conversion="thread"),
        store=StoreSettings(min_free_bytes=0),
    )
    node = Node(config, store)
    await node.start()
    store.left = config.store.write_buffer_bytes
    await node.messages.enqueue(("default", "orders"), [Draft(b"1")])
    await until(lambda: bool(node.cell.export_scheduler.failed))
    [part] = [part for part in await node.health.components() if part.name == "journal"]
    assert "which the store needs to lease and settle" in part.problem
    store.left = 1 << 30
    await until(lambda: not node.cell.export_scheduler.failed and not node.cell.export_scheduler.behind)
    await node.stop()
    assert verify(tmp_path / "lake") == []
