"""The log has a line when the disk passes its limit and when the store becomes slow, and one when that is over."""

from __future__ import annotations

import threading
from pathlib import Path

from msgspec.structs import replace
from structlog.testing import capture_logs

from holdfast.broker.commit.slow_syncs import FAST_AGAIN_SECONDS, SlowSyncs
from holdfast.broker.node import Node
from holdfast.core.commands import Draft
from holdfast.store.memory import MemoryStore
from holdfast.units import MIB, MILLISECOND, SECOND
from tests.broker.conftest import config_for, running
from tests.waiting import until


class Disk(MemoryStore):
    """A store whose disk has as much room as a test says, and syncs when it lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.free_bytes = 1024 * MIB
        self.syncs = threading.Event()
        self.syncs.set()

    def room(self) -> int:
        return self.free_bytes

    def sync(self) -> None:
        self.syncs.wait()
        super().sync()


async def test_a_disk_that_fills_is_logged_though_nobody_enqueues(tmp_path: Path) -> None:
    disk, now = Disk(), 1_800_000_000 * SECOND
    node = Node(config_for(tmp_path), disk, lambda: now)
    await node.start()

    def look() -> list[tuple[str, str]]:
        nonlocal now
        now += SECOND
        with capture_logs() as lines:
            node.cell.lookout.look()
        return [(line["log_level"], line["event"].partition(":")[0]) for line in lines]

    assert look() == []
    disk.free_bytes = 255 * MIB
    assert look() == [("error", "the disk is nearly full")]
    assert look() == []
    disk.free_bytes = 256 * MIB
    assert look() == [("info", "there is room on the disk again")]
    assert look() == []
    await node.stop()


async def test_a_sync_that_hangs_is_logged_before_it_ends(tmp_path: Path) -> None:
    disk, config = Disk(), config_for(tmp_path)
    config = replace(config, store=replace(config.store, slow_sync=MILLISECOND, sync_in_place_max=0))
    async with running(config, disk) as node:
        await node.queues.create(("default", "q"))
        with capture_logs() as lines:
            disk.syncs.clear()
            submission = node.messages.enqueue(("default", "q"), [Draft(b"m")])

            def logged() -> bool:
                node.cell.lookout.look()
                return bool(lines)

            await until(logged)
            disk.syncs.set()
            await submission
    assert [line["event"] for line in lines] == ["the store is slow: answers wait for it"]
    assert lines[0]["store"] == "memory"


def test_many_slow_syncs_are_one_line_and_so_is_their_end() -> None:
    syncs = SlowSyncs("rocks", 1.0)
    with capture_logs() as lines:
        syncs.ended(1.0, 10.0)
        syncs.look(None, 11.0)
        assert lines == [], "as long as it may take"
        syncs.ended(2.0, 20.0)
        syncs.ended(0.1, 21.0)
        syncs.ended(5.0, 30.0)
        syncs.look(None, 30.0 + FAST_AGAIN_SECONDS - 1)
        assert [line["event"] for line in lines] == ["the store is slow: answers wait for it"]
        syncs.look(85.0, 86.5)  # one hangs
        syncs.look(None, 30.0 + FAST_AGAIN_SECONDS)
        syncs.look(None, 86.5 + FAST_AGAIN_SECONDS)
        assert [line["event"] for line in lines[1:]] == ["the store is fast again"]
        assert (lines[1]["slow_syncs"], lines[1]["longest_seconds"]) == (2, 5.0)
        syncs.look(None, 200.0)
        assert len(lines) == 2
        syncs.ended(3.0, 300.0)
        assert lines[2]["sync_seconds"] == 3.0
