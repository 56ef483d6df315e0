"""The store over a `RemoteTable`: what is written is kept in memory until the table has confirmed it.

    write       numbers the operations and appends them; reads see them from then on
    sync_soon   takes everything that waits, makes one `Change` of it (packer.py) and commits it, from its first number
                to its last; while as many commits are under way as the table takes, what is written waits for the next
    confirmed   what was kept of those writes is dropped, and the syncs that waited for them end
    read        asks the table for what the kept writes do not decide (store/overlay.py), in one round trip

An engine's write is never split: it is in one commit. What was written ten times while a commit was under way is sent
once, and what came and went meanwhile is not sent.

A connection that breaks is no failure. The store asks the table for its position, on a thread: what is stored is
confirmed, the rest is sent again, and `write` goes on meanwhile. Only after `patience_seconds` without an answer the
store has failed, as the contract says. A position with another epoch is `Fenced`; one behind what was confirmed is
`StoreWentBack`: after these nothing is sent.

Threads: `_lock` guards everything below. Callbacks of the table come on any thread; those of callers are called without
the lock, one at a time and in order.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from holdfast import threads
from holdfast.core.effects import DeleteRun, DeleteUntil, Op, Read
from holdfast.core.records import Table
from holdfast.core.runs import RecordRun
from holdfast.errors import CopyUnsupported, Fenced, StoreAway, StoreError, StoreUnavailable, StoreWentBack
from holdfast.store.changes import Changes, Reading
from holdfast.store.contract import NOTHING_BEHIND, Behind, Found, ReadDone, Reader, Rows, Synced
from holdfast.store.overlay import Overlay
from holdfast.store.remote.packer import Packer, coalesce
from holdfast.store.remote.reads import drive, read_packed, read_runs
from holdfast.store.remote.table import BatchPosition, BatchRefused, Change, Disconnected, RemoteTable, TableReader

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

READ_TIMEOUT_SECONDS: Final = 0.25
PATIENCE_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 0.1  # between attempts to reach the table
READER_TIMEOUT_SECONDS: Final = 30.0  # of a read on another thread, which nobody waits for

Clock = Callable[[], float]


class _Write(NamedTuple):
    number: int
    ops: Sequence[Op]
    size_bytes: int
    at: float


class _Flight:
    """Writes that are committed together: those after number `before`, up to `after`."""

    __slots__ = ("after", "before", "change", "packed", "sent", "tables")

    def __init__(self, before: int, after: int, tables: dict[Table, Changes]) -> None:
        self.before = before
        self.after = after
        self.tables = tables
        self.packed = False
        self.change: Change | None = None
        self.sent = 0  # in which generation


class RemoteStore:
    """See the module."""

    remote = True

    def __init__(
        self,
        table: RemoteTable,
        *,
        read_timeout_seconds: float = READ_TIMEOUT_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
        clock: Clock = time.monotonic,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._table = table
        self._read_timeout = read_timeout_seconds
        self._patience = patience_seconds
        self._clock = clock
        self._closing = threading.Event()
        self._pause = pause or self._closing.wait
        self._lock = threading.RLock()
        self._closed = False
        self._ending = False  # a callback of a sync is being called
        self._failure: StoreError | None = None
        self._generation = 1  # raised when what was sent no longer counts
        self._epoch = 0  # the newest that was acquired
        self._held: int | None = None
        self._confirmed = 0
        self._looking = False  # whether an away table is being asked
        self._reach = -1  # the largest number that was ever confirmed, also before `reopen`
        self._forget()

    def _forget(self) -> None:
        """Nothing is kept: what is stored is all there is."""
        self._number = self._taken = self._confirmed
        self._writes: deque[_Write] = deque()
        self._pinned = 0  # views that are being opened, which need writes although they are confirmed
        self._flights: deque[_Flight] = deque()
        self._making: _Flight | None = None  # the one that is not sent yet
        self._recovering = False
        self._away = ""  # why a read was not answered, until one is
        self._syncs: deque[tuple[int, Synced]] = deque()
        self._answered_at = self._clock()
        self._packer = Packer()
        self._ops: list[Op] = []
        self._overlay = self._over(self._ask, self._ops)

    @property
    def name(self) -> str:
        """The table's."""
        return self._table.name

    @property
    def in_flight_max(self) -> int:
        """As many as the table takes."""
        return self._table.in_flight_max

    # --- taking over, and giving up -----------------------------------------------------------------------------------

    def acquire(self) -> int:
        """Take over: a new epoch in the table."""
        self._check()
        if self._held is not None and self._number > self._confirmed:
            self.sync()
        position = self._call(self._table.acquire)
        with self._lock:
            self._check_reach(position)
            self._generation += 1
            self._confirmed = position.batch
            self._forget()
            self._epoch = self._held = position.epoch
        return position.epoch

    def reopen(self) -> None:
        """Forget what is kept; if nothing failed, it is committed before."""
        self._not_closed()
        if self._failure is None and self._held is not None:
            self.sync()
        position = self._call(self._table.position)
        with self._lock:
            self._check_reach(position)
            self._generation += 1
            self._confirmed = position.batch
            self._forget()
            self._failure = self._held = None

    def close(self) -> None:
        """Commit what is kept, and release the table."""
        if self._closed:
            return
        try:
            if self._failure is None and self._held is not None:
                self.sync()
        finally:
            with self._lock:
                self._closed = True
                self._generation += 1
            self._closing.set()
            self._table.close()

    def _call(self, ask: Callable[[], BatchPosition]) -> BatchPosition:
        try:
            return ask()
        except Disconnected as error:
            raise StoreUnavailable(problem=error.problem) from None

    def _check_reach(self, position: BatchPosition) -> None:
        if position.batch < self._reach:
            raise StoreWentBack(store=self.name, confirmed=self._reach, found=position.batch)

    def _not_closed(self) -> None:
        if self._closed:
            raise StoreError(problem="it was closed")

    def _check(self) -> None:
        self._not_closed()
        if self._failure is not None:
            raise _again(self._failure)

    # --- writing ----------------------------------------------------------------------------------------------------

    def write(self, epoch: int, ops: Sequence[Op]) -> None:
        """Keep `ops`, all or none, until they are confirmed."""
        self._check()
        if epoch != self._held:
            raise Fenced(epoch=epoch, current=self._epoch)
        size_bytes = 0
        for _, key, value in ops:
            size_bytes += len(key)
            if isinstance(value, bytes):
                size_bytes += len(value)
            elif isinstance(value, RecordRun):
                size_bytes += value.size_bytes
            elif value is not None and not isinstance(value, (DeleteRun, DeleteUntil)):
                raise TypeError(f"no operation has a value of {type(value)}")
        with self._lock:
            self._number += 1
            self._writes.append(_Write(self._number, ops, size_bytes, self._clock()))
            self._ops += ops

    def sync(self) -> None:
        """Wait until everything written so far is confirmed."""
        self._check()
        ended = threading.Event()
        errors: list[StoreError] = []

        def end(error: StoreError | None) -> None:
            if error is not None:
                errors.append(error)
            ended.set()

        self.sync_soon(end)
        ended.wait()
        if errors:
            raise _again(errors[0])

    def sync_soon(self, done: Synced) -> None:
        """Commit everything written so far."""
        with self._lock:
            self._not_closed()
            self._syncs.append((self._number, done))
            self._start_flight()
        self._end_syncs()

    def behind(self) -> Behind:
        """What is kept, and how long nothing was confirmed."""
        with self._lock:
            self._not_closed()
            now = self._clock()
            waiting = [one for one in self._writes if one.number > self._confirmed]
            silent = now - self._answered_at
            if not waiting:
                return NOTHING_BEHIND._replace(silent_seconds=silent)
            return Behind(len(waiting), sum([one.size_bytes for one in waiting]), now - waiting[0].at, silent)

    def _end_syncs(self) -> None:
        """Call back those whose writes are confirmed, or none will be: in order, one thread at a time."""
        while True:
            with self._lock:
                if not self._syncs or self._ending:
                    return
                upto, done = self._syncs[0]
                failure = self._failure
                if failure is None and upto > self._confirmed:
                    return
                self._syncs.popleft()
                self._ending = True
            try:
                done(None if failure is None else _again(failure))
            finally:
                self._ending = False

    # --- commits ----------------------------------------------------------------------------------------------------

    def _start_flight(self) -> None:
        """Commit what waits, if the table takes one more."""
        if (
            self._failure is not None
            or self._making is not None
            or self._recovering
            or self._taken == self._number
            or len(self._flights) >= self.in_flight_max
        ):
            return
        tables = coalesce(one.ops for one in self._writes if one.number > self._taken)
        flight = self._making = _Flight(self._taken, self._number, tables)
        self._taken = self._number
        self._flights.append(flight)
        self._packer.begin(flight.after, self._confirmed)
        self._make(flight)

    def _make(self, flight: _Flight) -> None:
        """Make the change of a flight, as far as that goes without asking, and send it when it is made."""
        packer = self._packer
        if not flight.packed:
            reads = packer.lookups(flight.tables)
            if reads:
                self._ask_soon(reads, lambda results: packer.learn(reads, results))
                return
            packer.pack(flight.tables)
            flight.packed = True
        reads = packer.values_lacking()
        if reads:
            self._ask_soon(reads, lambda results: self._finish(flight, packer.finish(results)))
        else:
            self._finish(flight, packer.finish(()))

    def _finish(self, flight: _Flight, change: Change) -> None:
        flight.change = change
        flight.tables = {}
        self._making = None
        self._send(flight)

    def _ask_soon(self, reads: list[Read], take: Callable[[list[Found]], None]) -> None:
        generation = self._generation

        def answered(results: list[Found] | Disconnected | StoreError) -> None:
            with self._lock:
                if generation != self._generation:
                    return
                if isinstance(results, Disconnected):
                    self._recover(results)
                elif isinstance(results, StoreError):
                    self._fail(results)
                else:
                    self._answered_at = self._clock()
                    try:
                        take(results)
                        if self._making is not None:
                            self._make(self._making)
                        self._start_flight()
                    except StoreError as error:
                        self._fail(error)
            self._end_syncs()

        self._table.read_soon(reads, answered)

    def _send(self, flight: _Flight) -> None:
        assert self._held is not None
        assert flight.change is not None
        generation = flight.sent = self._generation
        self._table.commit(
            self._held,
            flight.before,
            flight.after,
            flight.change,
            lambda result: self._committed(flight, generation, result),
        )

    def _committed(
        self, flight: _Flight, generation: int, result: Disconnected | BatchRefused | StoreError | None
    ) -> None:
        with self._lock:
            if generation != self._generation:
                return
            if result is None:
                assert self._flights[0] is flight, "commits are answered in order"
                self._confirm(flight.after)
                self._start_flight()
            elif isinstance(result, BatchRefused):
                self._refused(result.position)
            elif isinstance(result, Disconnected):
                self._recover(result)
            else:
                self._fail(result)
        self._end_syncs()

    def _confirm(self, upto: int) -> None:
        """Everything up to a number is stored."""
        self._confirmed = upto
        self._reach = max(self._reach, upto)
        self._answered_at = self._clock()
        while self._flights and self._flights[0].after <= upto:
            self._flights.popleft()
        self._drop_confirmed()
        # A new list: a read that is under way goes on with the old one.
        self._ops = [op for one in self._writes if one.number > upto for op in one.ops]
        self._overlay = self._over(self._ask, self._ops)

    def _drop_confirmed(self) -> None:
        while self._writes and self._writes[0].number <= self._confirmed and not self._pinned:
            self._writes.popleft()

    def _refused(self, position: BatchPosition) -> None:
        """A batch was not stored. It was refused for good, or because the one before it was lost on its way."""
        if self._holds(position):
            self._recover(Disconnected("a batch before it was not stored"))

    def _holds(self, position: BatchPosition) -> bool:
        """Whether a position is one that this store can go on from; else it has failed."""
        if self._held is None or position.epoch > self._held:
            self._fail(Fenced(epoch=self._held, current=position.epoch))
        elif position.epoch < self._held or position.batch < self._confirmed:
            self._fail(StoreWentBack(store=self.name, confirmed=self._confirmed, found=position.batch))
        else:
            return True
        return False

    # --- a lost connection ------------------------------------------------------------------------------------------

    def _recover(self, error: Disconnected) -> None:
        """Find out what was stored, and send the rest again."""
        self._generation += 1
        if not self._recovering:
            self._recovering = True
            log.warning("the store does not answer", store=self.name, problem=error.problem)
            threads.start_thread("holdfast-remote", self._reconnect, self._generation)

    def _reconnect(self, generation: int) -> None:
        try:
            self._find_position(generation)
        except Exception as error:
            log.exception("the store could not be reached again")
            with self._lock:
                self._fail(StoreUnavailable(problem=f"internal error: {error!r}"))
            self._end_syncs()

    def _find_position(self, generation: int) -> None:
        until = self._clock() + self._patience
        while True:
            problem: StoreError
            try:
                position = self._table.position()
            except Disconnected as error:
                problem = StoreUnavailable(problem=error.problem)
                final = self._clock() >= until
            except StoreError as error:
                problem, final = error, True
            else:
                self._resume(position, generation)
                return
            with self._lock:
                if self._generation != generation or self._closed:
                    return
                if final:
                    self._fail(problem)
            if final:
                self._end_syncs()
                return
            self._pause(RETRY_SECONDS)

    def _resume(self, position: BatchPosition, generation: int) -> None:
        with self._lock:
            if self._generation != generation or self._closed:
                return
            self._recovering = False
            self._generation += 1
            if self._holds(position):
                self._confirm(position.batch)
                log.info("the store answers again", store=self.name, batch=position.batch)
                for flight in self._flights:
                    if flight.change is not None:
                        self._send(flight)
                if self._making is not None:
                    self._make(self._making)
                self._start_flight()
        self._end_syncs()

    def _fail(self, error: StoreError) -> None:
        """The outcome of what is under way is unknown. Nothing is sent until `reopen`."""
        if self._failure is None:
            self._failure = error
            self._generation += 1
            self._recovering = False

    # --- reading ----------------------------------------------------------------------------------------------------

    def _ask(self, reads: list[Read]) -> list[Found]:
        """Ask the table, and wait no longer than the read timeout. Once it has not answered nobody else waits for it:
        all reads fail at once, until one that nobody waits for was answered."""
        self._not_closed()
        if self._away:
            raise StoreAway(problem=self._away)
        try:
            return self._table.read(reads, self._read_timeout)
        except Disconnected as error:
            self._away = error.problem
            self._look_whether_away()
            raise StoreAway(problem=error.problem) from None

    def _look_whether_away(self) -> None:
        """Ask, without waiting, until the table answers."""
        if self._looking:
            return
        self._looking = True

        def answered(results: list[Found] | Disconnected | StoreError) -> None:
            self._looking = False
            if not isinstance(results, Disconnected):
                self._away = ""
            elif not self._closed:
                self._pause(RETRY_SECONDS)
                self._look_whether_away()

        self._table.read_soon([Read(Table.META, b"")], answered)

    def _over(self, ask: Callable[[list[Read]], list[Found]], ops: list[Op]) -> Overlay:
        return Overlay(_PackedReader(ask), ops)

    def read(self, reads: Sequence[Read]) -> list[Found]:
        """One round trip, unless what is kept decides all of it."""
        self._not_closed()
        return self._overlay.read(reads)

    def get(self, table: Table, key: bytes) -> bytes | None:
        """The value under `key`, or None."""
        self._not_closed()
        return self._overlay.get(table, key)

    def get_many(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of `keys`, in their order."""
        self._not_closed()
        return self._overlay.get_many(table, keys)

    def scan(self, table: Table, start: bytes, end: bytes, limit: int, reverse: bool = False) -> Rows:
        """At most `limit` records with start <= key < end, in order."""
        self._not_closed()
        return self._overlay.scan(table, start, end, limit, reverse)

    def scan_runs(self, table: Table, key: bytes, count: int) -> list[RecordRun]:
        """Records of consecutive keys."""
        self._not_closed()
        return self._overlay.scan_runs(table, key, count)

    def read_soon(self, reads: Sequence[Read], done: ReadDone) -> None:
        """Read without waiting. What is written meanwhile is not in it: the operations are copied."""
        self._not_closed()
        self._read_on(_over_packs(Overlay(_PackedReader(self._ask), list(self._ops)), reads), None, done)

    def _read_on(self, reading: Reading, found: list[Found] | None, done: ReadDone) -> None:
        try:
            asked = next(reading) if found is None else reading.send(found)
        except StopIteration as end:
            done(end.value)
            return

        def answered(results: list[Found] | Disconnected | StoreError) -> None:
            if isinstance(results, Disconnected):
                done(StoreUnavailable(problem=results.problem))
            elif isinstance(results, StoreError):
                done(results)
            else:
                self._read_on(reading, results, done)

        with self._lock:
            self._table.read_soon(asked, answered)

    def reader(self) -> AbstractContextManager[Reader]:
        """A reader over a connection of its own."""
        self._not_closed()
        return self._reader()

    @contextmanager
    def _reader(self) -> Iterator[Reader]:
        with self._table.reader() as table:
            yield _ThreadReader(self, table)

    @contextmanager
    def view(self) -> Iterator[Reader]:
        """What the table has at one moment, with the writes over it that it does not have then."""
        self._check()
        with self._lock:
            self._pinned += 1
        try:
            with self._table.view() as table:
                with self._lock:
                    ops = [op for one in self._writes if one.number > table.position.batch for op in one.ops]
                    self._pinned -= 1
                    self._drop_confirmed()
                yield self._over(lambda reads: _asked(table, reads, READER_TIMEOUT_SECONDS), ops)
        except Disconnected as error:
            raise StoreUnavailable(problem=error.problem) from None

    def kept(self) -> tuple[object, list[Op]]:
        """What reads of another thread must see over the table. The first is another one whenever that changes."""
        with self._lock:
            self._not_closed()
            return (self._overlay, len(self._ops)), self._ops

    # --- the rest ---------------------------------------------------------------------------------------------------

    def reclaim(self, wait: bool = False) -> None:  # noqa: ARG002 - the server of the table does that
        """Nothing to do."""
        self._not_closed()

    def memory_bytes(self) -> dict[str, int]:
        """It has no caches; `behind` says what is kept until it is confirmed."""
        return {}

    def disk_bytes(self) -> int:
        """Nothing is on this machine's disk."""
        self._not_closed()
        return 0

    def room(self) -> int | None:
        """No bound is known."""
        self._not_closed()
        return None

    def copy_to(self, path: Path) -> None:  # noqa: ARG002
        """It has no files here: use a view."""
        self._not_closed()
        raise CopyUnsupported(store=self.name)


class _PackedReader:
    """A table's records, those in packs among them."""

    def __init__(self, ask: Callable[[list[Read]], list[Found]]) -> None:
        self._ask = ask

    def read(self, reads: Sequence[Read]) -> list[Found]:
        return drive(read_packed(reads), self._ask)

    def get(self, table: Table, key: bytes) -> bytes | None:
        return self.get_many(table, [key])[0]

    def get_many(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        found = self.read([Read(table, key) for key in keys])
        return [one if isinstance(one, bytes) else None for one in found]

    def scan(self, table: Table, start: bytes, end: bytes, limit: int, reverse: bool = False) -> Rows:
        found = self.read([Read(table, start, end, 1 << 62 if reverse else limit)])[0]
        assert isinstance(found, list)
        return found[::-1][:limit] if reverse else found

    def scan_runs(self, table: Table, key: bytes, count: int) -> list[RecordRun]:
        return read_runs(table, key, count, self._ask)


class _ThreadReader:
    """Reads of another thread: each over the writes that are kept when it begins."""

    def __init__(self, store: RemoteStore, table: TableReader) -> None:
        self._store = store
        self._below = _PackedReader(lambda reads: _asked(table, reads, READER_TIMEOUT_SECONDS))
        self._kept: object = None
        self._overlay = Overlay(self._below, [])

    def _current(self) -> Overlay:
        kept, ops = self._store.kept()
        if kept != self._kept:
            self._kept = kept
            self._overlay = Overlay(self._below, list(ops))
        return self._overlay

    def read(self, reads: Sequence[Read]) -> list[Found]:
        return self._current().read(reads)

    def get(self, table: Table, key: bytes) -> bytes | None:
        return self._current().get(table, key)

    def get_many(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._current().get_many(table, keys)

    def scan(self, table: Table, start: bytes, end: bytes, limit: int, reverse: bool = False) -> Rows:
        return self._current().scan(table, start, end, limit, reverse)

    def scan_runs(self, table: Table, key: bytes, count: int) -> list[RecordRun]:
        return self._current().scan_runs(table, key, count)


def _asked(table: TableReader, reads: list[Read], timeout_seconds: float) -> list[Found]:
    try:
        return table.read(reads, timeout_seconds)
    except Disconnected as error:
        raise StoreUnavailable(problem=error.problem) from None


def _over_packs(overlay: Overlay, reads: Sequence[Read]) -> Reading:
    """A read of an overlay over packs, in rounds of the table's reads."""
    reading = overlay.reading(reads)
    try:
        asked = next(reading)
        while True:
            asked = reading.send((yield from read_packed(asked)))
    except StopIteration as end:
        found: list[Found] = end.value
        return found


def _again(failure: StoreError) -> StoreError:
    return type(failure)(**failure.details)
