"""What a store is: an atomic, durable, ordered map of records. It knows tables, keys and values, and no queue rules.

A record is bytes under a bytes key in a table. Keys sort as unsigned bytes. The broker is the only writer.

Two calls make a change durable, so that one sync can serve everything written while the last one ran:

    write(epoch, ops)   atomic and ordered; reads see it when the call returns; a crash may still lose it
    sync()              when it returns, everything whose write() had returned before sync() began is durable

A crash loses at most a tail of the unsynced writes, each whole: never part of one, never one from the middle.

Fencing. `acquire()` takes the store over and returns a new epoch, larger than any before, durable when it returns.
A write under any other epoch than the newest is refused with `Fenced` and changes nothing.

Errors. A store raises only errors of `holdfast.errors`. After `StoreUnavailable` (disk full, I/O error) the outcome of
that write is unknown, further writes and syncs are refused with the same error, and `reopen()` must succeed before the
store is written again; it brings back what had been stored. Reads go on meanwhile as far as the store can serve them.
`StoreCorrupt` says that stored records cannot be read. After `close()` every other call
raises `StoreError`.

A new store: implement `Store`, add one line to STORES in tests/store/conftest.py, and the conformance suite runs over
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from holdfast.core.effects import Op
from holdfast.core.records import Table
from holdfast.core.runs import RecordRun


class Store(Protocol):
    """An open store. All calls come from one thread, but for `sync` and `copy_to`, which may run on others."""

    @property
    def name(self) -> str:
        """Which kind this is, for logs and `doctor`: `memory`, `rocks`."""

    def acquire(self) -> int:
        """Take over: fence every earlier holder and return the new epoch."""

    def write(self, epoch: int, ops: Sequence[Op]) -> None:
        """Apply `ops` in order, all or none. A range whose end is not after its start deletes nothing. The keys of a
        RecordRun are new: nothing was stored under them before. What is cheaper as a run or as a range, and from how
        many records on, is for the store to decide."""

    def sync(self) -> None:
        """Make everything written so far durable. May be called on a worker thread; releases the GIL while it waits."""

    def get(self, table: Table, key: bytes) -> bytes | None:
        """The value under `key`, or None. An empty value is not None."""

    def get_many(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of `keys`, in their order."""

    def scan(
        self, table: Table, start: bytes, end: bytes, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """At most `limit` records with start <= key < end, ascending, or descending when `reverse`."""

    def scan_runs(self, table: Table, key: bytes, count: int) -> list[RecordRun]:
        """The records of `count` consecutive keys from `key` on, in order, those that are there: as `scan` finds them,
        but what the store keeps as a run stays one. Only for tables that have runs."""

    def reclaim(self, wait: bool = False) -> None:
        """Give space of deleted records back to the file system, in the background unless `wait`. To be called when
        much has been deleted; it does nothing where there is nothing to reclaim."""

    def disk_bytes(self) -> int:
        """What the store occupies on disk now."""

    def room(self) -> int | None:
        """Bytes that can still be written before the disk is full; None where no such bound is known."""

    def copy_to(self, path: Path) -> None:
        """Write a copy of everything written so far into the new directory `path`, on the same file system, where a
        store of this kind can be opened. May be called on a worker thread; the store works on meanwhile. A store that
        has no files raises CopyUnsupported."""

    def reopen(self) -> None:
        """Drop everything in memory and read what is stored, after a failure. The epoch must be acquired again."""

    def close(self) -> None:
        """Sync and release everything. A second close does nothing."""
