"""One connection to PostgreSQL, driven by hand through libpq.

    run(calls)    sends all calls in one go and waits for their results: one round trip, one transaction
    send(calls)   the same without waiting; `advance` takes what has come

In pipeline mode what is sent up to a synchronisation point is one implicit transaction: it needs neither BEGIN nor
COMMIT, and when `run` returns it is committed. All statements are prepared before.

psycopg's own connection would take twice the CPU for a commit of 100 messages. A session belongs to one thread at a
time.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from psycopg import OperationalError, conninfo, pq
from psycopg.pq.abc import PGresult

from holdfast.store.postgres.failures import Rejected, rejected
from holdfast.store.postgres.statements import Statement
from holdfast.store.remote.table import Disconnected

Row = tuple[bytes | None, ...]

_OK = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
_BINARY = pq.Format.BINARY


class BoundStatement(NamedTuple):
    """A statement with its parameters, in PostgreSQL's binary format."""

    statement: Statement
    parameters: tuple[bytes, ...]


class DatabaseSession:
    """A connection to the database at `url`; `parameters` of libpq override those in it. Opening it takes no longer
    than so many seconds."""

    def __init__(self, url: str, parameters: Mapping[str, str], seconds: float) -> None:
        self._pipelines: deque[Pipeline] = deque()
        self._unsent = False
        with _lost_if_it_fails():
            text = conninfo.make_conninfo(url, **parameters)
            self._connection = pq.PGconn.connect_start(text.encode())
            self._connect(time.monotonic() + seconds)
            self._connection.nonblocking = 1

    def _connect(self, until: float) -> None:
        connection = self._connection
        while (status := connection.connect_poll()) != pq.PollingStatus.OK:
            if status == pq.PollingStatus.FAILED:
                raise Disconnected(_one_line(connection.get_error_message()))
            writing = status == pq.PollingStatus.WRITING
            self.wait(until, select.POLLOUT if writing else select.POLLIN)

    @property
    def server_pid(self) -> int:
        """The server's process for this connection, as the client was told."""
        return self._connection.backend_pid

    def setting(self, name: str) -> str:
        """One of the settings that a server tells every client."""
        return (self._connection.parameter_status(name.encode()) or b"").decode(errors="replace")

    @property
    def socket(self) -> int:
        """The descriptor of its socket."""
        return self._connection.socket

    def close(self) -> None:
        """End the connection. A second time does nothing."""
        self._connection.finish()

    # --- scripts ----------------------------------------------------------------------------------------------------

    def script(self, text: str, seconds: float) -> list[Row]:
        """Run SQL of one or many statements without parameters, as one transaction: the rows of the last one, as text.
        Only before `prepare`."""
        until = time.monotonic() + seconds
        rows: list[Row] = []
        refusal: Rejected | None = None
        with _lost_if_it_fails():
            self._connection.send_query(text.encode())
            while (result := self._await_result(until)) is not None:
                if result.status in _OK:
                    rows = _rows(result)
                elif result.status != pq.ExecStatus.EMPTY_QUERY:
                    refusal = rejected(result)
        if refusal is not None:
            raise refusal
        return rows

    def _await_result(self, until: float) -> PGresult | None:
        while self._connection.is_busy():
            self._unsent = bool(self._connection.flush())
            self._connection.consume_input()
            if self._connection.is_busy():
                self.wait(until, self.wants)
        return self._result()

    # --- pipelines --------------------------------------------------------------------------------------------------

    def run(self, calls: Sequence[BoundStatement], seconds: float) -> list[list[Row]]:
        """The rows of each call. Raises Rejected if the server rejects one: then nothing of them was done."""
        until = time.monotonic() + seconds
        return self._finish(self.send(calls), until)

    def send(self, calls: Sequence[BoundStatement]) -> Pipeline:
        """Begin `run`, without waiting. Several may be under way."""
        connection = self._connection
        with _lost_if_it_fails():
            for statement, parameters in calls:
                connection.send_query_prepared(statement.name, parameters, [_BINARY] * len(parameters), _BINARY)
        return self._sent(len(calls))

    def prepare(self, statements: Sequence[Statement], seconds: float) -> None:
        """Have the server parse statements, in one round trip. From now on there are pipelines, and no scripts."""
        until = time.monotonic() + seconds
        with _lost_if_it_fails():
            self._connection.enter_pipeline_mode()
            for name, text, types in statements:
                self._connection.send_prepare(name, text, types)
        self._finish(self._sent(len(statements)), until)

    def _sent(self, count: int) -> Pipeline:
        with _lost_if_it_fails():
            self._connection.pipeline_sync()
        pipeline = Pipeline(count)
        self._pipelines.append(pipeline)
        return pipeline

    def _finish(self, pipeline: Pipeline, until: float) -> list[list[Row]]:
        self.advance()
        while not pipeline.ended:
            self.wait(until, self.wants)
            self.advance()
        if pipeline.rejected is not None:
            raise pipeline.rejected
        return pipeline.rows

    @property
    def wants(self) -> int:
        """What to wait for after `advance`: events of `poll`."""
        return select.POLLIN | (select.POLLOUT if self._unsent else 0)

    def advance(self) -> list[Pipeline]:
        """Send what is left, and take what the server has answered, without waiting: the pipelines that have ended, in
        order. To be called before each wait: libpq reads when it cannot send, and what it has read wakes nobody."""
        connection, ended = self._connection, []
        with _lost_if_it_fails():
            self._unsent = bool(connection.flush())
            connection.consume_input()
            while self._pipelines and not connection.is_busy():
                if self._pipelines[0].take(self._result()):
                    ended.append(self._pipelines.popleft())
        return ended

    def _result(self) -> PGresult | None:
        """The next result; None after the last of a statement."""
        result = self._connection.get_result()
        if self._connection.status != pq.ConnStatus.OK:
            told = self._connection.get_error_message() if result is None else result.get_error_message()
            raise Disconnected(_one_line(told))
        return result

    def wait(self, until: float, events: int) -> None:
        """Wait for the socket, which may be another one each time while the connection is made."""
        left = until - time.monotonic()
        poll = select.poll()
        poll.register(self._connection.socket, events)
        if left <= 0 or not poll.poll(left * 1000):
            raise Disconnected("no answer in time")


class Pipeline:
    """Calls that were sent together, and what has come of them."""

    __slots__ = ("_left", "ended", "rejected", "rows")

    def __init__(self, count: int) -> None:
        self._left = count  # calls that are not answered
        self.ended = False
        self.rejected: Rejected | None = None
        self.rows: list[list[Row]] = []

    def take(self, result: PGresult | None) -> bool:
        """Take the next result. True: it was the last, the transaction is committed or rolled back."""
        if not self._left:
            self.ended = result is not None and result.status == pq.ExecStatus.PIPELINE_SYNC
        elif result is None:
            self._left -= 1
        elif result.status in _OK:
            self.rows.append(_rows(result))
        elif result.status != pq.ExecStatus.PIPELINE_ABORTED:
            self.rejected = rejected(result)
        return self.ended


def _rows(result: PGresult) -> list[Row]:
    get, columns = result.get_value, range(result.nfields)
    return [tuple([get(row, column) for column in columns]) for row in range(result.ntuples)]


def _one_line(text: str) -> str:
    return " ".join(text.split())


@contextmanager
def _lost_if_it_fails() -> Iterator[None]:
    """libpq's own errors mean that the connection is of no use."""
    try:
        yield
    except OperationalError as error:
        lost = Disconnected(_one_line(str(error)))
    else:
        return
    raise lost
