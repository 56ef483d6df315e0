"""What a remote store must offer: an ordered map of records that takes fenced batches.
`RemoteStore` makes a store of it.

A remote table knows no runs and no unconfirmed writes: packs come to it as records of the tables RUNS, MESSAGE_RUNS and
READY_RUNS (store/runs.py), and writes as one `Change` for everything that waited.

Fencing. Beside the records it stores one `BatchPosition`: the newest epoch, and the number of the last batch. Both are
checked and moved in the transaction that stores a batch:

    refuse unless stored.epoch == epoch and stored.batch == before
    store the change
    stored.batch = after

So a writer that was replaced stores nothing more, however late it wakes up; batches under way are stored in order and
without gaps, or not at all; one whose answer was lost is sent again without harm; and a server that has lost what it
had confirmed (an asynchronous replica that took over) is noticed, because its number went back.

Errors. `Disconnected` is for everything after which the same call may succeed: a lost connection, no answer in time, a
server that restarts or fails over. `BatchRefused` says what the position was instead. Any other problem is a
`StoreError`, which ends the work with this table until it is opened again: StoreFull, StoreReadOnly, StoreCorrupt, …

Calls. `commit` and `read_soon` do not wait, and are called one at a time. All others wait for the server. `read` is
called by the thread that writes, `acquire` and `position` perhaps on another thread at the same time. What is connected
when, and how often, is the table's affair: each call connects again if it must, and reports `Disconnected` if it cannot
in time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from holdfast.core.effects import Read
from holdfast.core.records import Table
from holdfast.errors import StoreError
from holdfast.store.contract import Found


class BatchPosition(NamedTuple):
    """The newest epoch, and the number of the last batch that is stored. Both are 0 in a new table."""

    epoch: int
    batch: int


class Disconnected(Exception):
    """No answer: the outcome of what was asked is unknown. `problem` says why, for people."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class BatchRefused(Exception):
    """A batch was not stored, because the position was another than it said."""

    def __init__(self, position: BatchPosition) -> None:
        super().__init__(position)
        self.position = position


class Change(NamedTuple):
    """What a batch changes: first all ranges are deleted, then single keys, then records are put. No key is in two of
    these, but that deleted and put records may be in ranges. No key is twice in one of them."""

    ranges: list[tuple[Table, bytes, bytes]]  # from a key up to, not including, another
    deletes: list[tuple[Table, bytes]]
    puts: list[tuple[Table, bytes, bytes]]

    @property
    def size_bytes(self) -> int:
        """The size of what is put, about."""
        return sum([len(key) + len(value) for _, key, value in self.puts])


Committed = Callable[["Disconnected | BatchRefused | StoreError | None"], None]
"""Called with None when a batch is durable."""

TableReadDone = Callable[["list[Found] | Disconnected | StoreError"], None]


class TableReader(Protocol):
    """Reads of one thread."""

    def read(self, reads: Sequence[Read], timeout_seconds: float) -> list[Found]:
        """What each of these asks for, in their order, in one round trip, and all of one moment: never half of a batch.
        It sees every batch that was confirmed before the call. Raises Disconnected after so many seconds."""


class TableView(TableReader, Protocol):
    """Reads of one moment."""

    @property
    def position(self) -> BatchPosition:
        """What the table's position was at that moment."""


class RemoteTable(TableReader, Protocol):
    """See the module."""

    @property
    def name(self) -> str:
        """The name of the store, for logs and `doctor`."""

    @property
    def in_flight_max(self) -> int:
        """How many commits it takes at a time before the first is answered."""

    def acquire(self) -> BatchPosition:
        """Store a new epoch, larger than any before, durably, and return it with the number of the last batch. What an
        earlier owner has under way is ended before: none of its batches is stored afterwards."""

    def position(self) -> BatchPosition:
        """What is stored now. Nothing that was sent before this call is stored after it has returned, unless it is in
        this position: a connection on which a batch may be under way is ended first."""

    def commit(self, epoch: int, before: int, after: int, change: Change, done: Committed) -> None:
        """Store a batch as the module says, and call `done` when it is durable or was not stored; once for each call,
        in the order of the calls, on any thread, not before this returns. Several may be under way. After one that
        failed, those behind it fail too."""

    def read_soon(self, reads: Sequence[Read], done: TableReadDone) -> None:
        """`read` without waiting: calls `done` with what was found, on any thread, not before this returns."""

    def reader(self) -> AbstractContextManager[TableReader]:
        """Reads for another thread, over a connection of its own."""

    def view(self) -> AbstractContextManager[TableView]:
        """Reads of the moment at which it is opened, for as long as it is open."""

    def close(self) -> None:
        """Release everything. No commit is under way."""
