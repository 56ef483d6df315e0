"""What a store is: an atomic, durable, ordered map of records. It knows tables, keys and values, and no queue rules.

A record is bytes under a bytes key in a table. Keys sort as unsigned bytes. The broker is the only writer.

Two calls make a change durable, so that one sync can serve everything written while the last one ran:

    write(epoch, ops)   atomic and ordered; reads see it when the call returns; a crash may still lose it
    sync()              when it returns, everything whose write() had returned before sync() began is durable

A crash loses at most a tail of the unsynced writes, each whole: never part of one, never one from the middle. That
holds with several syncs under way too (`sync_soon`, `in_flight_max`).

Local and remote. A store in this process's files answers in microseconds and is synced on a thread. A `remote` one has
a network between: every read is a round trip, so that callers put what they need into one `read`. Its `write` takes no
longer than the operations take to keep in memory, and `sync_soon` sends them. All remote stores are one class,
`RemoteStore` of store/remote/, over a `RemoteTable` each: a new remote store is a new `RemoteTable`.

Threads. All calls come from one thread, the writer's, but for `sync`, `copy_to` and `reopen`, which may run on others,
one at a time, and `room`, which any may call. Another thread reads through a `reader()` of its own, or through a
`view()`.

Fencing. `acquire()` takes the store over and returns a new epoch, larger than any before, durable when it returns.
A write under any other epoch than the newest is refused with `Fenced` and changes nothing. A remote store can find that
out only when it commits: then the sync of the write, and everything after it, ends with `Fenced`.

Errors. A store raises only errors of `holdfast.errors`. After `StoreUnavailable` (disk full, I/O error, no answer for
too long) the outcome of that write is unknown, further writes and syncs are refused with the same error, and `reopen()`
must succeed before the store is written again; it brings back what had been stored. Without a failure before it,
`reopen()` loses nothing that was written. Reads go on meanwhile as far as the store can serve them.
`StoreAway` is one that only a read of a remote store raises: nothing was changed, and the store may be used further.
`StoreCorrupt` says that stored records cannot be read, `StoreWentBack` that a remote store has lost what it had
confirmed: it takes nothing more. After `close()` every other call raises `StoreError`.

A new store: implement `Store`, or `RemoteTable` if it is remote, add one line to STORES in tests/store/conftest.py, and
the conformance suite runs over it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from holdfast.core.effects import Op, Read
from holdfast.core.records import Table
from holdfast.core.runs import RecordRun
from holdfast.errors import StoreError

Rows = list[tuple[bytes, bytes]]

Found = bytes | Rows | None
"""What one `Read` asked for: a value or None, or the rows of a range."""

Synced = Callable[[StoreError | None], None]
"""Called with None when a sync has ended, or with the error because of which it did not."""

ReadDone = Callable[["list[Found] | StoreError"], None]
"""Called with what was read, or with the error because of which it was not."""


class Behind(NamedTuple):
    """What a remote store has not confirmed yet. All of it is 0 for a local one."""

    writes: int  # that are in no confirmed batch
    size_bytes: int  # of their keys and values, about
    seconds: float  # since the oldest of them
    silent_seconds: float  # since the store last confirmed anything: a writer that was frozen sees it here


NOTHING_BEHIND: Final = Behind(0, 0, 0.0, 0.0)


class Reader(Protocol):
    """Reads records, for one thread."""

    def read(self, reads: Sequence[Read]) -> list[Found]:
        """What each of these asks for, in their order, whatever their tables: one round trip to a remote store."""

    def get(self, table: Table, key: bytes) -> bytes | None:
        """The value under `key`, or None. An empty value is not None."""

    def get_many(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of `keys`, in their order."""

    def scan(self, table: Table, start: bytes, end: bytes, limit: int, reverse: bool = False) -> Rows:
        """At most `limit` records with start <= key < end, ascending, or descending when `reverse`."""

    def scan_runs(self, table: Table, key: bytes, count: int) -> list[RecordRun]:
        """The records of `count` consecutive keys from `key` on, in order, those that are there: as `scan` finds them,
        but what the store keeps as a run stays one. Only for tables that have runs."""


class Store(Reader, Protocol):
    """An open store. The module says which calls may come from other threads."""

    @property
    def name(self) -> str:
        """Which kind this is, for logs and `doctor`: `memory`, `rocks`."""

    @property
    def remote(self) -> bool:
        """Whether a network is between: reads cost a round trip, and a sync is never done in place."""

    @property
    def in_flight_max(self) -> int:
        """How many syncs may be under way at a time: 1 for a local store."""

    def acquire(self) -> int:
        """Take over: fence every earlier holder, end what it left hanging, and return the new epoch."""

    def write(self, epoch: int, ops: Sequence[Op]) -> None:
        """Apply `ops` in order, all or none. A range whose end is not after its start deletes nothing. The keys of a
        RecordRun are new: nothing was stored under them before. What is cheaper as a run or as a range, and from how
        many records on, is for the store to decide. Never waits for a network."""

    def sync(self) -> None:
        """Make everything written so far durable. May be called on a worker thread; releases the GIL while it waits."""

    def sync_soon(self, done: Synced) -> None:
        """Begin to make everything written so far durable, and call `done` once it is, or will not be. `done` is called
        once for each call, in the order of the calls, on any thread, perhaps before this returns. A remote store does
        not wait; several may be under way, and after one that failed all later ones fail. A local store syncs in place:
        give its `sync` to a thread instead."""

    def read_soon(self, reads: Sequence[Read], done: ReadDone) -> None:
        """`read`, ahead of need: `done` is called like that of `sync_soon`, and in no particular order. What is found
        has every write that returned before this call. A local store reads in place."""

    def reader(self) -> AbstractContextManager[Reader]:
        """A reader for another thread. Each call of it sees every write that returned before that call began. Open and
        close it on any thread; it must be closed before the store is."""

    def view(self) -> AbstractContextManager[Reader]:
        """Everything written so far, at one moment, for as long as it is open: for one thread. That may open it too,
        since it can take a while; each write meanwhile is in it wholly or not at all. It must be closed before the
        store is."""

    def behind(self) -> Behind:
        """What is written and not confirmed by a remote store; from memory."""

    def reclaim(self, wait: bool = False) -> None:
        """Give space of deleted records back to the file system, in the background unless `wait`. To be called when
        much has been deleted; it does nothing where there is nothing to reclaim."""

    def disk_bytes(self) -> int:
        """What the store occupies on disk now; 0 for a remote one. Never waits for a network."""

    def memory_bytes(self) -> dict[str, int]:
        """What its caches and buffers take of the process' memory now, by their names in broker/caches.py; empty where
        there are none, and while the store is not open."""

    def room(self) -> int | None:
        """Bytes that can still be written before the disk is full; None where no such bound is known. Never waits for
        a network."""

    def copy_to(self, path: Path) -> None:
        """Write a copy of everything written so far into the new directory `path`, on the same file system, where a
        store of this kind can be opened. May be called on a worker thread; the store works on meanwhile. A store that
        has no files raises CopyUnsupported."""

    def reopen(self) -> None:
        """Drop everything in memory and read what is stored, after a failure. The epoch must be acquired again. May be
        called on a worker thread."""

    def close(self) -> None:
        """Sync and release everything. A second close does nothing."""


def read_each(reader: Reader, reads: Sequence[Read]) -> list[Found]:
    """`read` of a store for which a read is a function call: one after the other."""
    if len(reads) > 1 and all(read.end is None and read.table is reads[0].table for read in reads):
        return list(reader.get_many(reads[0].table, [read.key for read in reads]))
    return [
        reader.get(read.table, read.key)
        if read.end is None
        else reader.scan(read.table, read.key, read.end, read.limit)
        for read in reads
    ]


def sync_in_place(store: Store, done: Synced) -> None:
    """`sync_soon` of a local store."""
    try:
        store.sync()
    except StoreError as error:
        done(error)
    else:
        done(None)


def read_in_place(store: Store, reads: Sequence[Read], done: ReadDone) -> None:
    """`read_soon` of a local store."""
    try:
        found: list[Found] | StoreError = store.read(reads)
    except StoreError as error:
        found = error
    done(found)
