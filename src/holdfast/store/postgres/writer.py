"""The connection that stores batches, and its thread: sends each as it comes, and calls back in their order.

Batches do not wait for each other: the next is sent while the server syncs the one before. The thread does all that has
to do with the connection, so that `commit` never waits. What is under way when the connection breaks, or when it is to
be ended, is reported as `Disconnected`: whether it was stored is found out by its number.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Sequence
from threading import Event, Lock, Thread
from typing import Final, NamedTuple

from holdfast.errors import StoreError
from holdfast.store.postgres.database import WRITER, Database
from holdfast.store.postgres.failures import FENCED, Rejected
from holdfast.store.postgres.session import BoundStatement, DatabaseSession, Pipeline
from holdfast.store.remote.table import BatchPosition, BatchRefused, Committed, Disconnected

COMMIT_SECONDS: Final = 10.0
"""Without an answer for so long, the connection is taken for broken."""


class _Batch(NamedTuple):
    calls: Sequence[BoundStatement]
    done: Committed


class _UnderWay(NamedTuple):
    pipeline: Pipeline
    until: float
    done: Committed


class Writer:
    """See the module."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = Lock()  # of what the thread is ordered to do
        self._orders: deque[_Batch | Event | None] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._session: DatabaseSession | None = None
        self._under_way: deque[_UnderWay] = deque()
        self._thread = Thread(target=self._serve, name="holdfast-postgres-writer", daemon=True)
        self._thread.start()

    def commit(self, calls: Sequence[BoundStatement], done: Committed) -> None:
        """Store a batch, in one transaction."""
        self._order(_Batch(calls, done))
        time.sleep(0)  # else the thread waits for the GIL until the caller's has nothing to do

    def disconnect(self, timeout_seconds: float) -> None:
        """End the connection, if there is one; what is under way ends with Disconnected. The next batch connects
        again."""
        ended = Event()
        self._order(ended)
        if not ended.wait(timeout_seconds):
            raise Disconnected("a batch that is under way does not end")

    def close(self) -> None:
        """End the connection and the thread."""
        self._order(None)
        self._thread.join()
        os.close(self._wake)

    def _order(self, order: _Batch | Event | None) -> None:
        with self._lock:
            self._orders.append(order)
        os.eventfd_write(self._wake, 1)

    # --- the thread -------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while self._obey():
            try:
                self._take_answers()
                self._wait()
            except Disconnected as error:
                self._drop(error)

    def _obey(self) -> bool:
        """Do what was ordered. False: it was to end."""
        with self._lock:
            orders, self._orders = self._orders, deque()
        for order in orders:
            if isinstance(order, _Batch):
                self._send(order)
            else:
                self._drop(Disconnected("the connection was ended"))
                if order is None:
                    return False
                order.set()
        return True

    def _send(self, batch: _Batch) -> None:
        until = time.monotonic() + COMMIT_SECONDS
        try:
            if self._session is None:
                self._session = self._database.open(WRITER)
            pipeline = self._session.send(batch.calls)
        except Disconnected as error:
            self._drop(error)
            batch.done(error)
        except StoreError as error:
            batch.done(error)
        else:
            self._under_way.append(_UnderWay(pipeline, until, batch.done))

    def _wait(self) -> None:
        """For orders, or for the server. A connection on which nothing is under way is watched too: one that the server
        has ended is not used for the next batch."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        milliseconds: float | None = None
        if self._session is not None:
            poll.register(self._session.socket, self._session.wants)
        if self._under_way:
            left = self._under_way[0].until - time.monotonic()
            if left <= 0:
                raise Disconnected("no answer in time")
            milliseconds = left * 1000
        ready = poll.poll(milliseconds)
        if any(descriptor == self._wake for descriptor, _ in ready):
            os.eventfd_read(self._wake)

    def _take_answers(self) -> None:
        for pipeline in self._session.advance() if self._session is not None else ():
            assert pipeline is self._under_way[0].pipeline
            done = self._under_way.popleft().done
            done(None if pipeline.rejected is None else self._outcome(pipeline.rejected))

    def _outcome(self, error: Rejected) -> Disconnected | BatchRefused | StoreError:
        if error.state == FENCED:
            epoch, batch = map(int, error.detail.split())
            return BatchRefused(BatchPosition(epoch, batch))
        return self._database.failure(error)

    def _drop(self, error: Disconnected) -> None:
        """End the connection, and report what was under way."""
        session, self._session = self._session, None
        if session is not None:
            session.close()
        while self._under_way:
            self._under_way.popleft().done(error)
