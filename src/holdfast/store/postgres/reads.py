"""Reads over a connection of their own, one at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Lock

from holdfast.core.effects import Read
from holdfast.store.contract import Found
from holdfast.store.postgres.arrays import read_position
from holdfast.store.postgres.database import READER, VIEW, Database
from holdfast.store.postgres.failures import Rejected
from holdfast.store.postgres.layout import answers, call, read_calls
from holdfast.store.postgres.session import DatabaseSession
from holdfast.store.remote.table import BatchPosition, Disconnected

RETRY_SECONDS = 0.05
VIEW_SECONDS = 30.0  # for one read of a view: pages of many megabytes, that nobody waits for


class Reads:
    """A `TableReader`. It connects when it must, and once more if an old connection turns out to be broken: a read may
    be repeated. A session is for one thread at a time: others wait."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = Lock()
        self._session: DatabaseSession | None = None

    def read(self, reads: Sequence[Read], timeout_seconds: float) -> list[Found]:
        """What each of these asks for, in one round trip, all of one moment."""
        if not reads:
            return []
        until = time.monotonic() + timeout_seconds
        with self._lock:
            if self._session is not None:
                try:
                    return self._read(self._session, reads, until)
                except Disconnected:
                    if time.monotonic() >= until:
                        raise
            self._session = self._connect(until)
            return self._read(self._session, reads, until)

    def _connect(self, until: float) -> DatabaseSession:
        """A new session, tried again and again: the server may be starting."""
        while True:
            try:
                return self._database.open(READER, until - time.monotonic())
            except Disconnected:
                if time.monotonic() + RETRY_SECONDS >= until:
                    raise
            time.sleep(RETRY_SECONDS)

    def _read(self, session: DatabaseSession, reads: Sequence[Read], until: float) -> list[Found]:
        try:
            return answers(reads, session.run(read_calls(reads), until - time.monotonic()))
        except Disconnected:
            self._drop()
            raise
        except Rejected as error:
            self._drop()
            failure = self._database.failure(error)
        raise failure

    def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def close(self) -> None:
        """Release the connection."""
        with self._lock:
            self._drop()


class View:
    """A `TableView`: a transaction that is open for as long as the view is."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._session = database.open(VIEW)
        try:
            [[row]] = self._session.run([call("position")], VIEW_SECONDS)
        except Disconnected:
            self._session.close()
            raise
        except Rejected as error:
            self._session.close()
            failure = database.failure(error)
        else:
            self.position: BatchPosition = read_position(row)
            return
        raise failure

    def read(self, reads: Sequence[Read], timeout_seconds: float) -> list[Found]:
        """What each of these asks for, as it was when the view was opened."""
        if not reads:
            return []
        try:
            return answers(reads, self._session.run(read_calls(reads), timeout_seconds))
        except Rejected as error:
            failure = self._database.failure(error)
        raise failure

    def close(self) -> None:
        """Release the connection, and what the server keeps for the view."""
        self._session.close()
