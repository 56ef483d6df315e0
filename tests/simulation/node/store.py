"""A store with slow, overlapping and failing syncs, over a disk that knows what each of them has made durable.

The disk keeps two images: what was written (what reads see) and what is durable (what a crash leaves). A write changes
the first; a sync that ends brings the second up to where the first was when that sync *began*, and no further.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from holdfast.core.effects import Op, Read
from holdfast.core.records import Table
from holdfast.core.runs import RecordRun
from holdfast.errors import CopyUnsupported, StoreFull, StoreUnavailable
from holdfast.store.contract import (
    NOTHING_BEHIND,
    Behind,
    Found,
    ReadDone,
    Reader,
    Synced,
    read_each,
    read_in_place,
    sync_in_place,
)
from holdfast.store.memory import MemoryDisk, MemoryStore
from tests.simulation.node.loop import PowerCut
from tests.simulation.node.work import WorkMeter

INTERNAL = "internal"

Changed = Callable[[Sequence[Op]], None]


class SimulatedDisk:
    """What outlives the process. `on_written` and `on_durable` are called with each batch that reaches that
    image, `on_lost` when what was written is lost as far as it was not durable, `on_failed` when a call fails."""

    def __init__(self) -> None:
        self.written = MemoryDisk()
        self.durable = MemoryDisk(crashable=False)
        self.on_written: Changed = _ignore
        self.on_durable: Changed = _ignore
        self.on_lost: Callable[[], None] = lambda: None
        self.on_failed: Callable[[], None] = lambda: None
        self.writes = 0
        self.epoch = 0
        self._unsynced: list[Sequence[Op]] = []

    @property
    def durable_writes(self) -> int:
        return self.writes - len(self._unsynced)

    def write(self, ops: Sequence[Op]) -> None:
        kept = list(ops)
        self.written.apply(kept)
        self._unsynced.append(kept)
        self.writes += 1
        self.on_written(kept)

    def make_durable(self, upto: int) -> None:
        """A sync that began after `upto` writes has ended."""
        count = max(upto - self.durable_writes, 0)
        for ops in self._unsynced[:count]:
            self.durable.apply(ops)
            self.on_durable(ops)
        del self._unsynced[:count]
        del self.written._unsynced[:count]

    def crash(self, keep: int) -> None:
        """Lose all unsynced writes but the first `keep`, which happened to reach the disk."""
        self.make_durable(self.durable_writes + keep)
        self.writes -= len(self._unsynced)
        self._unsynced.clear()
        self.written.crash()
        self.on_lost()

    @property
    def unsynced(self) -> int:
        return len(self._unsynced)


def _ignore(_ops: Sequence[Op]) -> None:
    """Nobody watches."""


@dataclass(slots=True)
class Faults:
    """What goes wrong, and how often. `injected` counts store failures that the node has to survive."""

    random: Random
    write_rate: float = 0.0
    sync_rate: float = 0.0
    reopen_rate: float = 0.0
    read_rate: float = 0.0  # in the middle of an operation
    step_rate: float = 0.0  # an operation that consists of several steps ends after some of them
    cut_rate: float = 0.0  # of the power, in the middle of a turn: right before or after a write
    full_rate: float = 0.0  # of looks at the room that is left
    armed: bool = False
    opening: bool = False  # the store is being opened again, which a failed read would end for good
    injected: list[str] = field(default_factory=list)
    on_internal: Callable[[], None] = lambda: None

    def choose(self, rate: float, what: str) -> StoreUnavailable | None:
        if not self.armed or self.random.random() >= rate:
            return None
        self.injected.append(what)
        if self.random.random() < 0.5:
            return StoreFull(path="(simulated)")
        return StoreUnavailable(problem=f"simulated I/O error in {what}")

    def read(self) -> None:
        """A read fails: for a reason that the store knows, or for one that nobody expects."""
        if not self.armed or self.opening or self.random.random() >= self.read_rate:
            return
        self.injected.append(INTERNAL)
        if self.random.random() < 0.5:
            raise StoreUnavailable(problem="simulated I/O error in a read")
        self.on_internal()
        raise RuntimeError("simulated")

    def step(self) -> None:
        """A step of a shard raises what nobody expects."""
        if self.armed and self.random.random() < self.step_rate:
            self.injected.append(INTERNAL)
            self.on_internal()
            raise RuntimeError("simulated")

    def cut(self) -> None:
        if self.armed and self.random.random() < self.cut_rate:
            raise PowerCut


class SimulatedStore:
    """One process's hold on the disk. After a failure nothing is written until `reopen`."""

    name = "memory"
    remote = False
    in_flight_max = 1

    def __init__(self, disk: SimulatedDisk, faults: Faults, meter: WorkMeter) -> None:
        self.disk = disk
        self._meter = meter
        self._faults = faults
        self._image = MemoryStore(disk.written)
        self._failure: StoreUnavailable | None = None
        self._sync_began_at: int | None = None

    def thread_begins(self, name: str) -> None:
        """The sync thread begins: what is written from here on is not part of its sync."""
        if name == "holdfast-sync":
            self._sync_began_at = self.disk.writes

    def acquire(self) -> int:
        self._check()
        self.disk.make_durable(self.disk.writes)
        return self._image.acquire()

    def write(self, epoch: int, ops: Sequence[Op]) -> None:
        self._check()
        self._faults.opening = False
        self._meter.add_ops(ops)
        self._faults.cut()
        fault = self._faults.choose(self._faults.write_rate, "write")
        if fault is None or self._faults.random.random() < 0.5:
            self._image.write(epoch, ())  # only the epoch is checked
            del self.disk.written._unsynced[-1:]
            self.disk.write(ops)
        if fault is not None:
            self._fail(fault)
        self._faults.cut()

    def sync(self) -> None:
        self._check()
        upto, self._sync_began_at = self._sync_began_at, None
        fault = self._faults.choose(self._faults.sync_rate, "sync")
        if fault is None or self._faults.random.random() < 0.5:
            self.disk.make_durable(self.disk.writes if upto is None else upto)
        if fault is not None:
            self._fail(fault)

    def sync_soon(self, done: Synced) -> None:
        sync_in_place(self, done)

    def behind(self) -> Behind:
        return NOTHING_BEHIND

    def reader(self) -> AbstractContextManager[Reader]:
        return nullcontext(self)

    def view(self) -> AbstractContextManager[Reader]:
        return self._image.view()

    def read(self, reads: Sequence[Read]) -> list[Found]:
        return read_each(self, reads)

    def read_soon(self, reads: Sequence[Read], done: ReadDone) -> None:
        read_in_place(self, reads, done)

    def _fail(self, error: StoreUnavailable) -> None:
        self._failure = error
        self.disk.on_failed()
        raise type(error)(**error.details)

    def _check(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(**self._failure.details)

    def get(self, table: Table, key: bytes) -> bytes | None:
        self._faults.read()
        self._count_read(1)
        return self._image.get(table, key)

    def get_many(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        self._faults.read()
        self._count_read(len(keys))
        return self._image.get_many(table, keys)

    def scan(
        self, table: Table, start: bytes, end: bytes, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        self._faults.read()
        rows = self._image.scan(table, start, end, limit, reverse)
        self._count_read(1 + len(rows))
        return rows

    def scan_runs(self, table: Table, key: bytes, count: int) -> list[RecordRun]:
        self._faults.read()
        runs = self._image.scan_runs(table, key, count)
        self._count_read(sum([len(run) for run in runs]))
        return runs

    def _count_read(self, records: int) -> None:
        if not self._faults.opening:
            self._meter.add(records)

    def reclaim(self, wait: bool = False) -> None:
        self._image.reclaim(wait)

    def memory_bytes(self) -> dict[str, int]:
        return self._image.memory_bytes()

    def disk_bytes(self) -> int:
        return self._image.disk_bytes()

    def room(self) -> int | None:
        return 1 if self._faults.armed and self._faults.random.random() < self._faults.full_rate else None

    def copy_to(self, path: Path) -> None:
        raise CopyUnsupported(store=self.name)

    def reopen(self) -> None:
        """Read what is stored; what was not synced may be lost, and what is read is durable."""
        fault = self._faults.choose(self._faults.reopen_rate, "reopen")
        if fault is not None:
            self._fail(fault)
        self._failure = None
        self._faults.opening = True
        self.disk.crash(self._faults.random.randint(0, self.disk.unsynced))
        if self._sync_began_at is not None:  # a sync of before is under way, and covers nothing of what comes
            self._sync_began_at = self.disk.writes

    def close(self) -> None:
        self.disk.make_durable(self.disk.writes)
