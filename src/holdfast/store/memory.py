"""The memory store: the reference for the contract, and the double that tests and simulations run on.

`MemoryDisk` stands for the disk; it outlives the stores opened on it. It distinguishes synced writes from others, so
that `crash` can lose what a power failure could. Several stores may be open on one disk: the last to acquire it may
write.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path

from holdfast.core.effects import DeleteRun, Op, Read
from holdfast.core.records import Table
from holdfast.core.runs import RecordRun, key_after
from holdfast.errors import CopyUnsupported, Fenced, StoreError
from holdfast.store.contract import (
    NOTHING_BEHIND,
    Behind,
    Found,
    ReadDone,
    Reader,
    Rows,
    Synced,
    read_each,
    read_in_place,
    sync_in_place,
)
from holdfast.store.sorted_keys import SortedKeys

AFTER_ALL = b"\xff" * 256  # no key is so long

# What undoes one operation: the table, the key, and the value that was under it (None: nothing was).
_Undo = tuple[Table, bytes, bytes | None]


class _Records:
    """One table: values by key, and the keys in order."""

    __slots__ = ("keys", "values")

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.keys = SortedKeys()

    def put(self, key: bytes, value: bytes) -> None:
        if key not in self.values:
            self.keys.add(key)
        self.values[key] = value

    def delete(self, key: bytes) -> None:
        if self.values.pop(key, None) is not None:
            self.keys.remove(key)


class MemoryDisk:
    """Records of all tables, the epoch, and how to undo each write since the last sync.

    A disk that is not `crashable` keeps no undo, which is faster and does not grow while nobody syncs.
    """

    def __init__(self, *, crashable: bool = True) -> None:
        self._tables = [_Records() for _ in range(max(Table) + 1)]
        self._crashable = crashable
        self._unsynced: list[list[_Undo]] = []
        self.epoch = 0
        self.holder: MemoryStore | None = None
        self.lock = threading.RLock()  # a scan on another thread sees a write whole or not at all

    @property
    def unsynced(self) -> int:
        """How many writes a crash could lose."""
        return len(self._unsynced)

    def copy(self) -> MemoryDisk:
        """Another disk with the same records."""
        other = MemoryDisk(crashable=False)
        with self.lock:
            for records, copied in zip(self._tables, other._tables, strict=True):
                for key in records.keys.ascending(b"", AFTER_ALL):
                    copied.put(key, records.values[key])
        return other

    def table(self, table: Table) -> _Records:
        """The records of `table`."""
        return self._tables[table]

    def apply(self, ops: Sequence[Op]) -> None:
        """Do `ops`, and remember how to undo them."""
        undo: list[_Undo] = []
        with self.lock:
            try:
                self._apply(ops, undo)
            except BaseException:
                self._undo(undo)  # an invalid operation: all or nothing holds even then
                raise
            if self._crashable:
                self._unsynced.append(undo)

    def _apply(self, ops: Sequence[Op], undo: list[_Undo]) -> None:
        for table, key, value in ops:
            records = self._tables[table]
            if value is None:
                undo.append((table, key, records.values.get(key)))
                records.delete(key)
            elif isinstance(value, bytes):
                undo.append((table, key, records.values.get(key)))
                records.put(key, value)
            elif isinstance(value, RecordRun):
                for one, content in value.rows(key):
                    assert one not in records.values, "the keys of a run are new"
                    undo.append((table, one, None))
                    records.put(one, content)
            else:
                end = value.until(key).end if isinstance(value, DeleteRun) else value.end
                deleted = list(records.keys.ascending(key, end))
                if isinstance(value, DeleteRun):
                    assert set(deleted) <= set(value.keys(key)), "no other record is between those of a run"
                for each in deleted:
                    undo.append((table, each, records.values[each]))
                    records.delete(each)

    def _undo(self, undo: list[_Undo]) -> None:
        for table, key, value in reversed(undo):
            if value is None:
                self._tables[table].delete(key)
            else:
                self._tables[table].put(key, value)

    def sync(self) -> None:
        """Everything written before this call is durable."""
        # By count: a write on another thread may be added while this one runs, and is not part of it.
        del self._unsynced[: len(self._unsynced)]

    def crash(self, keep: int = 0) -> None:
        """Lose power: what was synced stays, of the other writes only the first `keep`, and nobody holds the disk."""
        assert self._crashable, "this disk was made with crashable=False"
        with self.lock:
            for undo in reversed(self._unsynced[keep:]):
                self._undo(undo)
            self._unsynced.clear()
            self.holder = None


class MemoryStore:
    """A store on a `MemoryDisk`; on one of its own when none is given."""

    name = "memory"
    remote = False
    in_flight_max = 1

    def __init__(self, disk: MemoryDisk | None = None) -> None:
        self.disk = disk if disk is not None else MemoryDisk()
        self._closed = False

    def acquire(self) -> int:
        """Take the disk over from its holder."""
        disk = self._opened()
        disk.epoch += 1
        disk.holder = self
        return disk.epoch

    def write(self, epoch: int, ops: Sequence[Op]) -> None:
        """Apply `ops` in order, all or none."""
        disk = self._opened()
        if disk.holder is not self or epoch != disk.epoch:
            raise Fenced(epoch=epoch, current=disk.epoch)
        disk.apply(ops)

    def sync(self) -> None:
        """Make everything written so far durable: `crash` keeps it."""
        self._opened().sync()

    def sync_soon(self, done: Synced) -> None:
        """Syncs in place."""
        sync_in_place(self, done)

    def behind(self) -> Behind:
        """A local store is never behind."""
        self._opened()
        return NOTHING_BEHIND

    def reader(self) -> AbstractContextManager[Reader]:
        """A store of its own on the same disk, whose lock every scan holds."""
        return nullcontext(MemoryStore(self._opened()))

    def view(self) -> AbstractContextManager[Reader]:
        """A copy of the disk."""
        return nullcontext(MemoryStore(self._opened().copy()))

    def read(self, reads: Sequence[Read]) -> list[Found]:
        """What each of these asks for, one after the other."""
        return read_each(self, reads)

    def read_soon(self, reads: Sequence[Read], done: ReadDone) -> None:
        """Reads in place."""
        read_in_place(self, reads, done)

    def crash(self, keep: int = 0) -> None:
        """Lose power: see MemoryDisk.crash. This store must be reopened or replaced by a new one."""
        self._opened().crash(keep)

    def get(self, table: Table, key: bytes) -> bytes | None:
        """The value under `key`, or None."""
        return self._opened().table(table).values.get(key)

    def get_many(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of `keys`, in their order."""
        values = self._opened().table(table).values
        return [values.get(key) for key in keys]

    def scan(self, table: Table, start: bytes, end: bytes, limit: int, reverse: bool = False) -> Rows:
        """At most `limit` records with start <= key < end, in order."""
        disk = self._opened()
        records = disk.table(table)
        with disk.lock:
            keys = records.keys.descending(start, end) if reverse else records.keys.ascending(start, end)
            return [(key, records.values[key]) for key in islice(keys, max(limit, 0))]

    def scan_runs(self, table: Table, key: bytes, count: int) -> list[RecordRun]:
        """Records of consecutive keys; all are stored singly."""
        rows = self.scan(table, key, key_after(key, count), count)
        return [RecordRun.of([value for _, value in rows])] if rows else []

    def reclaim(self, wait: bool = False) -> None:  # noqa: ARG002 - memory is freed immediately
        """Nothing to do: a deleted record takes no space."""
        self._opened()

    def memory_bytes(self) -> dict[str, int]:
        """No caches: all of it is in memory."""
        return {}

    def disk_bytes(self) -> int:
        """Nothing is on disk."""
        self._opened()
        return 0

    def room(self) -> int | None:
        """No bound is known."""
        self._opened()
        return None

    def copy_to(self, path: Path) -> None:  # noqa: ARG002
        """It has no files to copy."""
        raise CopyUnsupported(store=self.name)

    def reopen(self) -> None:
        """Release the disk. What was written stays: only `crash` loses it."""
        disk = self._opened()
        if disk.holder is self:
            disk.holder = None

    def close(self) -> None:
        """Sync and release the disk."""
        if self._closed:
            return
        if self.disk.holder is self:
            self.disk.sync()
            self.disk.holder = None
        self._closed = True

    def _opened(self) -> MemoryDisk:
        if self._closed:
            raise StoreError(problem="it was closed")
        return self.disk
