"""A remote table in memory that fails as planned: for the conformance suite, and for simulations.

`SimulatedServer` is what stays when a client goes; several `SimulatedTable`s may be connected to it, and the last to
acquire it may commit. A plan is called once for each request and returns a `Fault` or None. `later` runs what happens
some time after a call: on a thread of its own, or when the simulation's loop comes to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum

from holdfast import threads
from holdfast.core.effects import DeleteUntil, Op, Read
from holdfast.store.contract import Found
from holdfast.store.memory import MemoryDisk, MemoryStore
from holdfast.store.remote.table import BatchPosition, BatchRefused, Change, Committed, Disconnected, TableReadDone

Later = Callable[[Callable[[], None]], None]


class Fault(Enum):
    """What happens to a request."""

    LOST = "the request is lost"
    UNANSWERED = "it is done, and its answer is lost"


Plan = Callable[[], "Fault | None"]


class SimulatedServer:
    """Records and position. `away`: it answers nobody."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.position = BatchPosition(0, 0)
        self.away = False
        self.commits = 0
        self._numbers: list[int] = []  # of the batches that are stored

    def acquire(self) -> BatchPosition:
        """A new epoch."""
        self.position = self.position._replace(epoch=self.position.epoch + 1)
        return self.position

    def commit(self, epoch: int, before: int, after: int, change: Change) -> None:
        """Store a batch, or raise Refused."""
        if self.position != (epoch, before):
            raise BatchRefused(self.position)
        ops: list[Op] = [(table, key, DeleteUntil(end)) for table, key, end in change.ranges]
        ops += [(table, key, None) for table, key in change.deletes]
        ops += change.puts
        self.disk.apply(ops)
        self._numbers.append(after)
        self.position = BatchPosition(epoch, after)
        self.commits += 1

    def go_back(self, batches: int) -> None:
        """Lose the last batches, as a replica that lacks them does when it takes over."""
        kept = len(self._numbers) - batches
        self.disk.crash(keep=kept)
        self._numbers = self._numbers[:kept]
        self.position = self.position._replace(batch=self._numbers[-1] if self._numbers else 0)


class SimulatedTable:
    """One client's connection to a server."""

    name = "simulated"
    in_flight_max = 2

    def __init__(
        self,
        server: SimulatedServer,
        *,
        later: Later | None = None,
        plan: Plan = lambda: None,
        before_read: Callable[[], None] = lambda: None,
    ) -> None:
        self.server = server
        self.reads = 0  # round trips
        self._plan = plan
        self._before_read = before_read
        self._connection = 0
        self._failed = False  # a commit on this connection was lost, so that those behind it are too
        self._worker = threads.WorkerThread("holdfast-simulated") if later is None else None
        self._later: Later = self._worker.start if self._worker is not None else later or _never

    def _reached(self) -> None:
        if self.server.away:
            raise Disconnected("the server does not answer")

    def acquire(self) -> BatchPosition:
        """Take the server over."""
        self._end_connection()
        self._reached()
        return self.server.acquire()

    def position(self) -> BatchPosition:
        """What is stored; what this client has under way ends without it."""
        self._end_connection()
        self._reached()
        return self.server.position

    def _end_connection(self) -> None:
        self._connection += 1
        self._failed = False

    def commit(self, epoch: int, before: int, after: int, change: Change, done: Committed) -> None:
        """Store a batch some time later."""
        connection = self._connection

        def run() -> None:
            result: Disconnected | BatchRefused | None = None
            fault = self._plan()
            if connection != self._connection or self._failed or self.server.away or fault is Fault.LOST:
                result = Disconnected("the connection was lost")
            else:
                try:
                    self.server.commit(epoch, before, after, change)
                except BatchRefused as error:
                    result = error
                if fault is Fault.UNANSWERED:
                    result = Disconnected("the answer was lost")
            if result is not None and connection == self._connection:
                self._failed = True
            done(result)

        self._later(run)

    def read(self, reads: Sequence[Read], timeout_seconds: float) -> list[Found]:  # noqa: ARG002 - it is as fast as it is
        """What is stored now."""
        self.reads += 1
        self._before_read()
        self._reached()
        with self.server.disk.lock:
            return MemoryStore(self.server.disk).read(reads)

    def read_soon(self, reads: Sequence[Read], done: TableReadDone) -> None:
        """What is stored some time later."""

        def run() -> None:
            try:
                if self._plan() is not None:
                    raise Disconnected("the connection was lost")
                results: list[Found] | Disconnected = self.read(reads, 0.0)
            except Disconnected as error:
                results = error
            done(results)

        self._later(run)

    @contextmanager
    def reader(self) -> Iterator[SimulatedTable]:
        """A connection of its own."""
        other = SimulatedTable(self.server, later=_never, before_read=self._before_read)
        yield other

    @contextmanager
    def view(self) -> Iterator[SimulatedView]:
        """A copy of the server's records."""
        self._reached()
        with self.server.disk.lock:
            view = SimulatedView(MemoryStore(self.server.disk.copy()), self.server.position)
        yield view

    def close(self) -> None:
        """Disconnect."""
        self._connection += 1
        if self._worker is not None:
            self._worker.end()


class SimulatedView:
    """What a server had at one moment."""

    def __init__(self, store: MemoryStore, position: BatchPosition) -> None:
        self._store = store
        self.position = position

    def read(self, reads: Sequence[Read], timeout_seconds: float) -> list[Found]:  # noqa: ARG002 - nothing can be late
        """What was stored then."""
        return self._store.read(reads)


def _never(_work: Callable[[], None]) -> None:
    raise AssertionError("a reader commits nothing")
