"""The records of a cell as a `RemoteTable`: see store/remote/table.py.

writer     one connection for batches, with a thread of its own
reads      one connection for the thread that writes, another for reads ahead of need, one for each `reader`
control    a connection for the time of `acquire` or `position`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import structlog

from holdfast import threads
from holdfast.core.effects import Read
from holdfast.errors import StoreError
from holdfast.store.contract import Found
from holdfast.store.postgres.arrays import bigint, read_bigint, read_position
from holdfast.store.postgres.database import CONTROL, STATEMENT_SECONDS, WRITER, Database
from holdfast.store.postgres.failures import Rejected
from holdfast.store.postgres.layout import call, change_calls
from holdfast.store.postgres.reads import Reads, View
from holdfast.store.postgres.session import BoundStatement, Row
from holdfast.store.postgres.writer import COMMIT_SECONDS, Writer
from holdfast.store.remote.table import BatchPosition, Change, Committed, Disconnected, TableReadDone

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

READ_AHEAD_SECONDS = 5.0


class PostgresTable:
    """The records of a cell in a database. Its schema is made or brought forward first."""

    name = "postgres"
    in_flight_max = 2  # the next batch is sent while the server syncs the last one; more gain nothing

    def __init__(self, database: Database) -> None:
        self._database = database
        for warning in database.prepare():
            log.warning("the database is not as safe as it could be", database=database.name, warning=warning)
        self._writer = Writer(self._database)
        self._reads = Reads(self._database)
        self._ahead = Reads(self._database)
        self._ahead_worker = threads.WorkerThread("holdfast-postgres-ahead")

    # --- ownership --------------------------------------------------------------------------------------------------

    def acquire(self) -> BatchPosition:
        """Store a new epoch. An owner that hangs inside a transaction holds the cell's row: its session is ended."""
        return self._control(self._database.writers, call("acquire"))

    def position(self) -> BatchPosition:
        """What is stored, once nothing of this process is under way any more."""
        return self._control(self._database.application_name(WRITER), call("position"))

    def _control(self, writers: str, question: BoundStatement) -> BatchPosition:
        """End the sessions of these writers, and ask. Our own connection is closed before: the server may not have
        noticed that yet."""
        self._writer.disconnect(COMMIT_SECONDS)
        [[(left,)], [row]] = self._ask([call("terminate", writers.encode()), question])
        if read_bigint(left or b""):
            raise Disconnected("a session of the last owner does not end")
        return read_position(row)

    def _ask(self, calls: list[BoundStatement]) -> list[list[Row]]:
        with closing(self._database.open(CONTROL)) as session:
            try:
                return session.run(calls, STATEMENT_SECONDS)
            except Rejected as error:
                failure = self._database.failure(error)
        raise failure

    # --- batches ----------------------------------------------------------------------------------------------------

    def commit(self, epoch: int, before: int, after: int, change: Change, done: Committed) -> None:
        """Store a batch, and call `done` when that is durable or was not done."""
        fence = call("fence", bigint(epoch), bigint(before), bigint(after))
        self._writer.commit([fence, *change_calls(change)], done)

    # --- reads ------------------------------------------------------------------------------------------------------

    def read(self, reads: Sequence[Read], timeout_seconds: float) -> list[Found]:
        """What each of these asks for."""
        return self._reads.read(reads, timeout_seconds)

    def read_soon(self, reads: Sequence[Read], done: TableReadDone) -> None:
        """`read` on another thread."""
        self._ahead_worker.start(lambda: done(self._read_ahead(reads)))

    def _read_ahead(self, reads: Sequence[Read]) -> list[Found] | Disconnected | StoreError:
        try:
            return self._ahead.read(reads, READ_AHEAD_SECONDS)
        except (Disconnected, StoreError) as error:
            return error

    @contextmanager
    def reader(self) -> Iterator[Reads]:
        """Reads for another thread."""
        with closing(Reads(self._database)) as reads:
            yield reads

    @contextmanager
    def view(self) -> Iterator[View]:
        """Reads of this moment."""
        with closing(View(self._database)) as view:
            yield view

    def close(self) -> None:
        """Release all connections."""
        self._writer.close()
        self._ahead_worker.end()
        self._reads.close()
        self._ahead.close()
