"""A store that counts: how much a turn does is told by the records that it reads and writes, not by a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from holdfast.core.effects import DeleteRun, Op
from holdfast.core.records import Table
from holdfast.core.runs import RecordRun
from holdfast.store import MemoryDisk, MemoryStore
from tests.engine.rig import Rig

T = TypeVar("T")

TURN_RECORDS_MAX = 5_000
"""Records that one turn may read and write for one caller or one queue: about 20 ms at 4 µs each."""

TURN_BYTES_MAX = 32 << 20
"""And the bytes of their values: reading and copying these takes about 20 ms too."""


class CountingStore(MemoryStore):
    """Counts reads, records that are read or written, and the bytes of their values."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__(disk)
        self.calls = 0
        self.records = 0
        self.size_bytes = 0

    def get(self, table: Table, key: bytes) -> bytes | None:
        found = super().get(table, key)
        self.calls += 1
        self.records += 1
        self.size_bytes += len(found or b"")
        return found

    def get_many(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        found = super().get_many(table, keys)
        self.calls += 1
        self.records += len(keys)
        self.size_bytes += sum(len(value or b"") for value in found)
        return found

    def scan(
        self, table: Table, start: bytes, end: bytes, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        found = super().scan(table, start, end, limit, reverse)
        self.calls += 1
        self.records += 1 + len(found)
        self.size_bytes += sum(len(value) for _, value in found)
        return found

    def write(self, epoch: int, ops: Sequence[Op]) -> None:
        super().write(epoch, ops)
        self.records += sum(len(value) if isinstance(value, (RecordRun, DeleteRun)) else 1 for _, _, value in ops)
        self.size_bytes += sum(len(value) for _, _, value in ops if isinstance(value, bytes))


class CountingRig(Rig):
    """A cell whose turns are counted: `turn` runs one and returns how many records it read and wrote."""

    def __init__(self) -> None:
        self._disk = MemoryDisk()
        super().__init__(lambda: CountingStore(self._disk))

    @property
    def store(self) -> CountingStore:
        store = self.engine.store
        assert isinstance(store, CountingStore)
        return store

    def turn(self, work: Callable[[], object]) -> int:
        """Do `work`, write what it changed, and check that both are within the bounds of a turn."""
        self.store.records = self.store.size_bytes = 0
        work()
        self.engine.write()
        assert self.store.records <= TURN_RECORDS_MAX
        assert self.store.size_bytes <= TURN_BYTES_MAX
        return self.store.records

    def records_of_shards(self) -> set[int]:
        """The shards of which something is stored beside messages, which the journal's export deletes."""
        tables = (Table.SHARDS, Table.GROUPS, Table.READY, Table.LEASES, Table.DELIVERIES, Table.SETTLED)
        rows = [row for table in tables for row in self.store.scan(table, b"", b"\xff" * 8, 1 << 30)]
        return {int.from_bytes(key[:4], "big") for key, _ in rows}

    def steps(self, work: Iterator[T | None]) -> tuple[T, int]:
        """The result of a read of many steps, each in a turn of its own, and how many there were."""
        found: list[T | None] = []
        while not found or found[-1] is None:
            self.turn(lambda: found.append(next(work)))
        assert found[-1] is not None
        return found[-1], len(found)

    def turns_due(self) -> int:
        """Do all that is due by now, a turn at a time. Returns how many turns that took."""
        turns = 0
        while self.engine.wake_at() <= self.now:
            self.turn(lambda: self.engine.tick(self.now))
            turns += 1
        return turns
