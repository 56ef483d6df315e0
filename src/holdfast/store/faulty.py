"""A store that fails as planned: for simulations and tests of what the broker does then.

A plan is called once for each call of the store and returns a `Fault` or None. `scattered` makes one from a seeded
generator, `queued` one from a list; any callable will do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from holdfast.core.effects import Op, Read
from holdfast.core.records import Table
from holdfast.core.runs import RecordRun
from holdfast.errors import StoreFull, StoreUnavailable
from holdfast.store.contract import Behind, Found, ReadDone, Reader, Rows, Store, Synced, sync_in_place


@dataclass(frozen=True, slots=True)
class Fault:
    """Fail with `error`, before the call has done anything or `after` it has done all: the caller cannot know which."""

    error: StoreUnavailable
    after: bool = False


Plan = Callable[[], "Fault | None"]


def never() -> Fault | None:
    """The plan without a fault."""
    return None


def queued(faults: Iterable[Fault | None]) -> Plan:
    """One fault or None for each call, in this order; None after the last."""
    rest = iter(faults)
    return lambda: next(rest, None)


def scattered(random: Random, rate: float) -> Plan:
    """A fault at about `rate` of the calls: full disk or I/O error, before or after, as the generator has it."""

    def plan() -> Fault | None:
        if random.random() >= rate:
            return None
        error = random.choice((StoreFull(path="(simulated)"), StoreUnavailable(problem="simulated I/O error")))
        return Fault(error, after=random.random() < 0.5)

    return plan


class FaultyStore:
    """Passes everything to `inner`, except what a plan makes fail. After a failure it takes no write until `reopen`."""

    def __init__(self, inner: Store, *, write: Plan = never, sync: Plan = never, reopen: Plan = never) -> None:
        self.inner = inner
        self._write = write
        self._sync = sync
        self._reopen = reopen
        self._failure: StoreUnavailable | None = None

    @property
    def name(self) -> str:
        """The name of the store inside."""
        return self.inner.name

    @property
    def remote(self) -> bool:
        """As the store inside."""
        return self.inner.remote

    @property
    def in_flight_max(self) -> int:
        """Syncs are done in place here."""
        return 1

    def _run(self, plan: Plan, call: Callable[[], None]) -> None:
        if self._failure is not None:
            raise type(self._failure)(**self._failure.details)
        fault = plan()
        if fault is None:
            call()
            return
        if fault.after:
            call()
        self._failure = fault.error
        raise type(fault.error)(**fault.error.details)

    def acquire(self) -> int:
        """Take over, unless the store has failed."""
        self._run(never, _nothing)
        return self.inner.acquire()

    def write(self, epoch: int, ops: Sequence[Op]) -> None:
        """Write, or fail as planned."""
        self._run(self._write, lambda: self.inner.write(epoch, ops))

    def sync(self) -> None:
        """Sync, or fail as planned."""
        self._run(self._sync, self.inner.sync)

    def reopen(self) -> None:
        """Work again, unless this fails as planned."""
        fault = self._reopen()
        if fault is not None:
            self._failure = fault.error
            raise type(fault.error)(**fault.error.details)
        self.inner.reopen()
        self._failure = None

    def sync_soon(self, done: Synced) -> None:
        """Sync in place, or fail as planned."""
        sync_in_place(self, done)

    def behind(self) -> Behind:
        """As the store inside."""
        return self.inner.behind()

    def reader(self) -> AbstractContextManager[Reader]:
        """As the store inside."""
        return self.inner.reader()

    def view(self) -> AbstractContextManager[Reader]:
        """As the store inside."""
        return self.inner.view()

    def read(self, reads: Sequence[Read]) -> list[Found]:
        """As the store inside."""
        return self.inner.read(reads)

    def read_soon(self, reads: Sequence[Read], done: ReadDone) -> None:
        """As the store inside."""
        self.inner.read_soon(reads, done)

    def get(self, table: Table, key: bytes) -> bytes | None:
        """As the store inside."""
        return self.inner.get(table, key)

    def get_many(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        """As the store inside."""
        return self.inner.get_many(table, keys)

    def scan(self, table: Table, start: bytes, end: bytes, limit: int, reverse: bool = False) -> Rows:
        """As the store inside."""
        return self.inner.scan(table, start, end, limit, reverse)

    def scan_runs(self, table: Table, key: bytes, count: int) -> list[RecordRun]:
        """Reads do not fail."""
        return self.inner.scan_runs(table, key, count)

    def reclaim(self, wait: bool = False) -> None:
        """As the store inside."""
        self.inner.reclaim(wait)

    def copy_to(self, path: Path) -> None:
        """As the store inside."""
        self.inner.copy_to(path)

    def memory_bytes(self) -> dict[str, int]:
        return self.inner.memory_bytes()

    def disk_bytes(self) -> int:
        """As the store inside."""
        return self.inner.disk_bytes()

    def room(self) -> int | None:
        """As the store inside."""
        return self.inner.room()

    def close(self) -> None:
        """As the store inside."""
        self.inner.close()


def _nothing() -> None:
    return None
