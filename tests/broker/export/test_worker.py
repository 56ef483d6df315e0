"""Conversion in a process of its own: the same segments, and none lost or doubled when the process is killed."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from holdfast.broker.export import scheduler as export_scheduler
from holdfast.broker.export import worker as export_worker
from holdfast.broker.export.conversion import Converted, InProcess, send
from holdfast.broker.export.exporter import Exporter
from holdfast.broker.export.scheduler import ExportScheduler
from holdfast.broker.export.worker import InThread
from holdfast.broker.node import Node
from holdfast.config import Config
from holdfast.config.settings import JournalSettings, NodeSettings
from holdfast.core.commands import Draft, Verb
from holdfast.core.records import Table
from holdfast.engine.engine import Engine
from holdfast.errors import LakeUnavailable, StoreCorrupt
from holdfast.journal.reader import BlockReader, RawBlockRange
from holdfast.journal.segment import write_segment
from holdfast.journal.verify import verify
from holdfast.store import open_store
from tests.broker.export.lake import NODE, Life
from tests.waiting import PATIENCE_SECONDS


@pytest.fixture
def process() -> Iterator[InProcess]:
    process = InProcess(PATIENCE_SECONDS)
    yield process
    process.close()


def exporter_of(life: Life, process: InProcess, rows: int = 1_000_000) -> Exporter:
    exporter = Exporter(life.store, life.lake, NODE, rows, 1 << 30, converter=process, clock=lambda: life.now)
    exporter.recover(life.engine.record.exported_lsn)
    return exporter


def priorities(pid: int) -> list[int]:
    """The niceness of each thread of a process."""
    return [os.getpriority(os.PRIO_PROCESS, int(thread.name)) for thread in Path(f"/proc/{pid}/task").iterdir()]


def test_a_process_writes_what_a_thread_would(process: InProcess, tmp_path: Path) -> None:
    life, second = Life(tmp_path / "one"), Life(tmp_path / "other")
    for one in (life, second):
        one.every_event()
        one.enqueue(300)
        one.settle(Verb.ACK, 200)
    wanted = life.journal()
    done = life.export_all(exporter_of(life, process, rows=100))
    second.export_all(second.exporter(rows=100))
    assert len(done) > 2
    assert process.pid is not None
    assert "/pandas/" not in Path(f"/proc/{process.pid}/maps").read_text(), "it would take half a second, and 50 MiB"
    assert all(priority > os.getpriority(os.PRIO_PROCESS, 0) for priority in priorities(process.pid))
    assert life.lake_rows() == second.lake_rows()
    assert life.lake_lsns() == [row.lsn for row in wanted]
    assert life.messages() == second.messages(), "the same records have left the store"
    assert life.blocks() == []
    assert verify(life.lake) == []


def test_after_a_segment_whose_records_cannot_be_read_the_next_is_whole(process: InProcess, tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.enqueue(100)
    exporter = exporter_of(life, process)
    convert = process.convert

    def interrupted(path: Path, node: int, block_ranges: Iterable[RawBlockRange]) -> Converted:
        def read() -> Iterator[RawBlockRange]:
            yield from block_ranges
            raise OSError("the disk is gone")

        return convert(path, node, read())

    process.convert = interrupted  # type: ignore[method-assign]
    with pytest.raises(LakeUnavailable, match="the disk is gone"):
        exporter.export(0, force=True)
    assert not list(life.lake.glob("journal/_tmp/*")), "it occupies nothing"
    process.convert = convert  # type: ignore[method-assign]
    life.export_all(exporter)
    assert life.lake_lsns() == list(range(1, 101))
    assert verify(life.lake) == []


class Deadly(InProcess):
    """Its process is killed while it has half of a segment, so many times."""

    def __init__(self, times: int) -> None:
        super().__init__(PATIENCE_SECONDS)
        self.times = times
        self.killed: list[int] = []

    def convert(self, path: Path, node: int, block_ranges: Iterable[RawBlockRange]) -> Converted:
        return super().convert(path, node, _Fatal(self, block_ranges))


class _Fatal:
    def __init__(self, deadly: Deadly, block_ranges: Iterable[RawBlockRange]) -> None:
        self._deadly, self._block_ranges = deadly, block_ranges

    def __iter__(self) -> Iterator[RawBlockRange]:
        for block_range in self._block_ranges:
            yield block_range
            if self._deadly.times:
                self._deadly.times -= 1
                pid = self._deadly.pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                self._deadly.killed.append(pid)


def test_a_process_that_is_killed_is_started_again_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(tmp_path)
    for _ in range(40):
        life.enqueue(10)
        life.settle(Verb.ACK, 5)
    wanted = [row.lsn for row in life.journal()]
    deadly = Deadly(times=1)
    exporter = exporter_of(life, deadly, rows=250)
    life.export_all(exporter)
    assert len(deadly.killed) == 1
    assert deadly.pid not in deadly.killed
    assert life.lake_lsns() == wanted
    assert verify(life.lake) == []
    # One that keeps dying is an error that says so; the rows stay in the store, and go when it no longer does.
    life.enqueue(30)
    more = [row.lsn for row in life.journal()]
    deadly.times = 2
    with pytest.raises(LakeUnavailable, match="keeps dying"):
        exporter.export(life.engine.record.exported_block, force=True)
    assert len(deadly.killed) == 3
    assert [row.lsn for row in life.journal()] == more
    life.export_all(exporter)
    assert life.lake_lsns() == wanted + more
    assert verify(life.lake) == []
    exporter.close()
    assert deadly.pid is None


def test_what_goes_wrong_in_the_process_is_told_as_in_a_thread(process: InProcess, tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.enqueue(3)
    exporter = exporter_of(life, process)
    life.store.write(life.engine.epoch, [(Table.MESSAGES, life.messages()[0], None)])
    with pytest.raises(StoreCorrupt):
        exporter.export(0, force=True)
    with pytest.raises(FileNotFoundError):
        process.convert(tmp_path / "nowhere" / "file", NODE, _block_ranges(tmp_path / "other"))
    assert InThread().convert(tmp_path / "none", NODE, []).rows == 0
    assert process.convert(tmp_path / "none", NODE, []).rows == 0
    assert not (tmp_path / "none").exists()


def _block_ranges(directory: Path) -> Iterator[RawBlockRange]:
    life = Life(directory)
    life.enqueue(3)
    reader = BlockReader(life.store)
    for block_range in reader.block_ranges(1, 10):
        yield reader.raw(block_range)


class Hanging(InProcess):
    """Its first process stands still; `seconds` is its time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.hung: list[int] = []
        self.stands = threading.Event()

    def _started(self) -> subprocess.Popen[bytes]:
        process = super()._started()
        if not self.hung:
            os.kill(process.pid, signal.SIGSTOP)
            self.hung.append(process.pid)
            self.stands.set()
        else:
            self._seconds = PATIENCE_SECONDS
        return process


def test_a_process_that_hangs_is_killed_after_its_time_and_another_does_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(tmp_path)
    life.enqueue(30)
    wanted = [row.lsn for row in life.journal()]
    hanging = Hanging(0.05)
    life.export_all(exporter_of(life, hanging))
    assert hanging.pid not in hanging.hung
    assert life.lake_lsns() == wanted
    assert verify(life.lake) == []
    hanging.close()


async def test_a_node_that_stops_does_not_wait_for_a_process_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = Hanging(PATIENCE_SECONDS)
    monkeypatch.setattr(ExportScheduler, "_converter", lambda _: hanging)
    config = Config(node=NodeSettings(data_dir=tmp_path), journal=JournalSettings(stop_timeout=50_000))
    name = ("default", "orders")
    store = open_store("rocks", tmp_path / "store")
    node = Node(config, store)
    await node.start()
    await node.messages.enqueue(name, [Draft(b"%d" % number) for number in range(20)])
    exporting = asyncio.create_task(node.cell.export())
    assert await asyncio.to_thread(hanging.stands.wait, PATIENCE_SECONDS)
    behind = node.cell.export_scheduler.behind
    assert behind >= 20
    await node.stop()  # were it to wait, it would wait for ever
    with pytest.raises(LakeUnavailable, match="the node stops"):
        await exporting
    assert not psutil.pid_exists(hanging.hung[0])
    store.close()
    monkeypatch.undo()
    store = open_store("rocks", tmp_path / "store")
    node = Node(config, store)
    await node.start()
    assert node.cell.export_scheduler.behind == behind, "nothing has left the store"
    await node.cell.export()
    assert node.cell.export_scheduler.behind == 0
    await node.stop()
    store.close()
    assert verify(tmp_path / "lake") == []


async def test_a_node_that_stops_does_not_wait_for_a_lake_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stands, comes_back = threading.Event(), threading.Event()

    def hang(path: Path, batches: list[pa.RecordBatch]) -> None:
        stands.set()
        comes_back.wait()
        write_segment(path, batches)

    monkeypatch.setattr(export_worker, "write_segment", hang)
    monkeypatch.setattr(export_scheduler, "LEAVE_SECONDS", 0.05)
    settings = JournalSettings(stop_timeout=50_000, conversion="thread")
    config = Config(node=NodeSettings(data_dir=tmp_path), journal=settings)
    store = open_store("rocks", tmp_path / "store")
    node = Node(config, store)
    await node.start()
    await node.messages.enqueue(("default", "orders"), [Draft(b"%d" % number) for number in range(20)])
    exporting = asyncio.create_task(node.cell.export())
    assert await asyncio.to_thread(stands.wait, PATIENCE_SECONDS)
    behind = node.cell.export_scheduler.behind
    await node.stop()  # were it to wait, it would wait for ever
    store.close()
    monkeypatch.undo()

    store = open_store("rocks", tmp_path / "store")
    again = Node(config, store)
    await again.start()
    comes_back.set()
    with pytest.raises(LakeUnavailable, match="the node stops"):
        await exporting
    assert again.cell.export_scheduler.behind == behind, "nothing has left the store"
    await again.cell.export()
    assert again.cell.export_scheduler.behind == 0
    await again.stop()
    store.close()
    assert verify(tmp_path / "lake") == []


PARENT = """
import sys
from pathlib import Path
from holdfast.broker.export.conversion import InProcess
process = InProcess(60)
process.convert(Path("unused"), 0, [])
print(process.pid, flush=True)
sys.stdin.read()
"""


def test_the_process_ends_when_the_node_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        parent.wait()
    child.wait(timeout=PATIENCE_SECONDS)  # raises if it lives on
    assert not child.is_running()


@pytest.mark.parametrize("whole", [False, True], ids=["in the middle of a segment", "before it is answered"])
def test_the_process_ends_quietly_when_the_node_is_killed(whole: bool) -> None:
    sent = io.BytesIO()
    send(sent, ("unused", 0))
    if whole:
        send(sent, None)
    command = [sys.executable, "-m", "holdfast.broker.export.worker"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        child.stdin.write(sent.getvalue())
        child.stdin.close()
        assert child.stderr.read() == b""
        assert child.wait(PATIENCE_SECONDS) == 0


async def test_beside_writers_the_exporter_works_part_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    life = Life(tmp_path)
    open_engine: list[Engine | None] = [life.engine]
    kept = ExportScheduler(Config(), life.store, lambda: open_engine[0], _nothing, lambda: life.now)
    life.enqueue()
    kept._throttle(0.01)  # somebody has written
    kept._throttle(0.01)  # nobody has
    life.enqueue()
    kept._throttle(60.0)
    assert slept == [0.01 * export_scheduler.THROTTLE_FACTOR, export_scheduler.THROTTLE_MAX_SECONDS]
    life.enqueue()
    life.engine.record.next_lsn += Config().journal.max_behind  # too much waits for that
    kept._throttle(0.01)
    open_engine[0] = None  # the store has failed
    kept._throttle(0.01)
    assert len(slept) == 2


async def _nothing() -> None:
    """What an export waits for."""
