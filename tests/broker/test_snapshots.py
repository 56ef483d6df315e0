"""A consistent point of a node that works: what is live at exactly one lsn, while it goes on."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import pytest_asyncio

from holdfast.broker.node import Node
from holdfast.config import Config
from holdfast.config.settings import JournalSettings, NodeSettings
from holdfast.core.commands import Draft, Settlement, Verb
from holdfast.errors import CopyUnsupported, LimitExceeded, SnapshotFailed
from holdfast.journal.snapshot import Snapshot, read_stream
from holdfast.store import MemoryDisk, MemoryStore, open_store

TASKS = ("default", "tasks")


def config_for(path: Path) -> Config:
    return Config(node=NodeSettings(data_dir=path), journal=JournalSettings(segment_age=3_600_000_000))


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    store = open_store("rocks", tmp_path / "store")
    node = Node(config_for(tmp_path), store)
    await node.start()
    yield node
    await node.stop()
    store.close()


async def taken(node: Node, directory: Path) -> Snapshot:
    taking = await node.snapshots.take()
    try:
        data = b"".join([part async for part in taking.parts()])
    finally:
        taking.close()
    return read_stream(io.BytesIO(data), directory)


async def work(node: Node, count: int) -> None:
    """Enqueue, and ack some of it."""
    await node.messages.enqueue(TASKS, [Draft(b"%d" % n) for n in range(count)])
    leased = await node.messages.lease(TASKS, "workers", count // 2)
    await node.messages.settle(
        TASKS, "workers", [Settlement(one.message.id, one.token, Verb.ACK, partition=one.partition) for one in leased]
    )


async def test_what_is_live_and_what_was_journalled_belong_to_one_lsn(node: Node, tmp_path: Path) -> None:
    await work(node, 40)
    await node.cell.export()
    await work(node, 20)
    stop = asyncio.Event()

    async def go_on() -> None:
        while not stop.is_set():
            await work(node, 8)

    busy = asyncio.create_task(go_on())
    snapshot = await taken(node, tmp_path / "point")
    stop.set()
    await busy
    assert node.cell.engine.record.next_lsn - 1 >= snapshot.last_lsn
    tail = pq.read_table(tmp_path / "point" / "tail.parquet").to_pylist()
    assert [row["lsn"] for row in tail] == list(range(snapshot.exported_lsn + 1, snapshot.last_lsn + 1))
    segments = sorted((tmp_path / "lake" / "journal").rglob("*.parquet"))
    events = [row for path in segments for row in pq.ParquetFile(path).read().to_pylist()]
    events += [row for row in tail if row["lsn"] > max(event["lsn"] for event in events)]
    until = [event for event in events if event["lsn"] <= snapshot.last_lsn]
    stored = {event["message_id"] for event in until if event["event"] == "enqueued"}
    over = {event["message_id"] for event in until if event["event"] == "acked"}
    live = pq.read_table(tmp_path / "point" / "live.parquet").to_pylist()
    assert {row["message_id"] for row in live} == stored - over
    assert [queue.name for queue in snapshot.queues] == ["tasks"]
    assert not list((tmp_path / "snapshots").iterdir()), "the copy is gone"


async def test_one_at_a_time_and_nothing_is_left_of_one_that_was_given_up(node: Node, tmp_path: Path) -> None:
    await work(node, 10)
    taking = await node.snapshots.take()
    with pytest.raises(LimitExceeded):
        await node.snapshots.take()
    taking.close()
    taking.close()
    assert not list((tmp_path / "snapshots").iterdir())
    assert (await taken(node, tmp_path / "point")).last_lsn == node.cell.engine.record.next_lsn - 1


async def test_a_process_that_fails_says_why(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(path: Path) -> None:
        (path / "db").mkdir(parents=True)
        (path / "FORMAT").write_text("99\n")

    monkeypatch.setattr(node.store, "copy_to", nothing)
    with pytest.raises(SnapshotFailed, match="99"):
        await node.snapshots.take()
    assert not list((tmp_path / "snapshots").iterdir())


async def test_what_a_crash_left_goes_with_the_next_start_but_not_what_is_anothers(tmp_path: Path) -> None:
    left = tmp_path / "snapshots" / "left"
    left.mkdir(parents=True)
    memory = Node(config_for(tmp_path), MemoryStore(MemoryDisk()))
    await memory.start()
    assert left.exists()
    with pytest.raises(CopyUnsupported):
        await memory.snapshots.take()
    await memory.stop()
    store = open_store("rocks", tmp_path / "store")
    node = Node(config_for(tmp_path), store)
    await node.start()
    assert not left.exists()
    await node.stop()
    store.close()


def test_a_stream_that_was_cut_short_is_no_snapshot(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cut short"):
        read_stream(io.BytesIO(b"\xff\xff\xff\xff\x10"), tmp_path)
