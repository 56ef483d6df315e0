"""The export of the journal goes on after whatever went wrong, and tells of it meanwhile."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from holdfast.broker.export import scheduler as export_scheduler
from holdfast.broker.node import Node
from holdfast.config import Config
from holdfast.config.settings import JournalSettings, NodeSettings
from holdfast.core.commands import Draft, Settlement, Verb
from holdfast.errors import HoldfastError, LakeUnavailable
from holdfast.journal.verify import verify
from holdfast.store import open_store
from holdfast.store.memory import MemoryStore
from tests.waiting import PATIENCE_SECONDS, until


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError(), "internal error: MemoryError()"),
        (ValueError("odd"), "internal error: ValueError('odd')"),
        (LakeUnavailable(path="lake", problem="it is away"), "The journal cannot be written to lake: it is away."),
    ],
)
async def test_an_export_that_failed_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    monkeypatch.setattr(export_scheduler, "RETRY_SECONDS", 0.005)
    settings = JournalSettings(segment_rows=1, conversion="thread")
    node = Node(Config(node=NodeSettings(data_dir=tmp_path), journal=settings), MemoryStore())
    await node.start()
    exporter = node.cell.export_scheduler._exporter
    export, failures = exporter.export, 0

    def fail(after: int, whole: bool) -> None:
        nonlocal failures
        failures += 1
        raise error

    monkeypatch.setattr(exporter, "export", fail)
    await node.messages.enqueue(("default", "orders"), [Draft(b"1")])
    await until(lambda: failures >= 3)
    [journal] = [part for part in await node.health.components() if part.name == "journal"]
    assert journal.problem.startswith(told)
    assert isinstance(error, HoldfastError) is ("internal" not in journal.problem)

    monkeypatch.setattr(exporter, "export", export)
    await until(lambda: node.cell.export_scheduler.behind == 0 and not node.cell.export_scheduler.failed)
    await node.stop()
    assert verify(tmp_path / "lake") == []


def _converters() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [child for child in children if "holdfast.broker.export.worker" in child.cmdline()]


async def test_the_process_that_converts_ends_when_it_has_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_scheduler, "LEAVE_SECONDS", PATIENCE_SECONDS)  # a process takes a while to end
    node = Node(Config(node=NodeSettings(data_dir=tmp_path)), MemoryStore())
    await node.start()
    await node.messages.enqueue(("default", "orders"), [Draft(b"1")])
    await node.cell.export()
    [first] = _converters()
    await node.messages.enqueue(("default", "orders"), [Draft(b"2")])
    monkeypatch.setattr(export_scheduler, "IDLE_SECONDS", 0.001)
    await node.cell.export()
    assert _converters() in ([first], []), "the next segment takes the same process, which may have ended by now"
    await until(lambda: not first.is_running())

    await node.messages.enqueue(("default", "orders"), [Draft(b"3")])
    await node.cell.export()
    assert node.cell.export_scheduler.behind == 0
    await node.stop()
    await until(lambda: _converters() == [])
    assert verify(tmp_path / "lake") == []


async def _worked_off(node: Node, count: int) -> None:
    """Messages that came and went, as segments."""
    for _ in range(count):
        await node.messages.enqueue(("default", "orders"), [Draft(b"x" * 1_000)])
        [leased] = await node.messages.lease(("default", "orders"), "workers", 1)
        settlement = Settlement(leased.message.id, leased.token, Verb.ACK, partition=leased.partition)
        await node.messages.settle(("default", "orders"), "workers", [settlement])
        await node.cell.export()


def _segment_bytes(data_dir: Path) -> int:
    return sum(path.stat().st_size for path in data_dir.rglob("lake/journal/*/*.parquet"))


async def test_a_node_removes_segments_that_are_too_old_and_says_how_large_its_lake_is(tmp_path: Path) -> None:
    settings = JournalSettings(retention=1)
    config = Config(node=NodeSettings(data_dir=tmp_path), journal=settings)
    node = Node(config, open_store("rocks", tmp_path / "store"))
    await node.start()
    scheduler = node.cell.export_scheduler
    await _worked_off(node, 3)

    await scheduler.look_after_lake()

    assert scheduler.lake.removed_bytes > 1_000
    assert list((tmp_path / "lake" / "journal").glob("date=*")) == []
    assert verify(tmp_path / "lake") == []
    [waiting] = (await node.messages.enqueue(("default", "orders"), [Draft(b"1")])).ids
    await node.cell.export()
    await scheduler.look_after_lake()
    [lake] = [part for part in await node.health.components() if part.name == "lake"]
    assert lake.problem == f"old segments stay: message {waiting} is live"
    assert lake.ready
    assert lake.facts["journal_bytes"] == _segment_bytes(tmp_path)
    before = scheduler.lake.journal_bytes
    await node.stop()
    node.store.close()

    node = Node(config, open_store("rocks", tmp_path / "store"))
    await node.start()
    await node.cell.export_scheduler.look_after_lake()
    assert node.cell.export_scheduler.lake.journal_bytes == before
    await node.stop()
    node.store.close()


async def test_messages_of_queues_without_a_journal_need_no_segments(tmp_path: Path) -> None:
    settings = JournalSettings(retention=1, conversion="thread")
    node = Node(Config(node=NodeSettings(data_dir=tmp_path), journal=settings), MemoryStore())
    await node.start()
    await node.queues.create(("default", "silent"), {"journal": "off"})
    await node.messages.enqueue(("default", "silent"), [Draft(b"waits")])
    await _worked_off(node, 1)
    await node.cell.export_scheduler.look_after_lake()
    assert node.cell.export_scheduler.lake.waits_for == ""
    assert node.cell.export_scheduler.lake.removed_bytes > 0
    await node.stop()


async def test_a_lake_that_is_away_is_looked_after_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_scheduler, "LOOK_SECONDS", 0.005)
    settings = JournalSettings(conversion="thread")
    (tmp_path / "lake").write_text("in the way")
    node = Node(Config(node=NodeSettings(data_dir=tmp_path), journal=settings), MemoryStore())
    await node.start()
    (tmp_path / "lake").unlink()
    await until(lambda: node.cell.export_scheduler.lake.free_bytes > 0)
    await node.stop()
