"""An outbox with a connection of its own, for the relay."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.errors import InvalidArgument
from holdfast.outbox.relay import Waiting
from holdfast.outbox.table import Outbox

Connect = Callable[[], Any]
"""Opens a connection that commits each statement."""


class ConnectedTable:
    """The outbox of one database. A connection that failed is closed, and the next turn opens another."""

    def __init__(self, outbox: Outbox, connect: Connect, *, locks: bool) -> None:
        self._outbox = outbox
        self._connect = connect
        self._locks = locks
        """Whether the database has advisory locks. Without, two relays send the same messages, of which the server
        stores one; only their order is not kept."""
        self._open: Any = None

    @contextmanager
    def leading(self) -> Iterator[bool]:
        connection = self._open or self._connect()
        self._open = connection
        try:
            leads = self._lock("SELECT pg_try_advisory_lock(hashtext(%s))")
            yield leads
            if leads:
                self._lock("SELECT pg_advisory_unlock(hashtext(%s))")
        except BaseException:
            self.close()  # which unlocks too
            raise

    def waiting(self, limit: int, except_queues: Collection[str]) -> list[Waiting]:
        return self._outbox.waiting(self._open, limit, except_queues)

    def remove(self, ids: Collection[int]) -> None:
        self._outbox.remove(self._open, ids)

    def refuse(self, row: int, problem: str) -> None:
        self._outbox.refuse(self._open, row, problem)

    def create(self) -> None:
        """Make the table, unless it exists."""
        with self.leading():
            self._outbox.create(self._open)

    def close(self) -> None:
        connection, self._open = self._open, None
        if connection is not None:
            connection.close()

    def _lock(self, statement: str) -> bool:
        if not self._locks:
            return True
        cursor = self._open.cursor()
        try:
            cursor.execute(statement, (f"holdfast outbox {self._outbox.name}",))
            return bool(cursor.fetchone()[0])
        finally:
            cursor.close()


def connected_table(url: str, outbox: Outbox) -> ConnectedTable:
    """The outbox in the database at `postgresql://…` or `sqlite:PATH`."""
    scheme, _, rest = url.partition(":")
    if scheme in ("postgres", "postgresql"):
        try:
            import psycopg  # noqa: PLC0415
        except ModuleNotFoundError:
            raise InvalidArgument(field="DATABASE", problem='needs: pip install "holdfast[postgres]"') from None
        return ConnectedTable(outbox, lambda: psycopg.connect(url, autocommit=True), locks=True)
    if scheme == "sqlite" and rest:
        import sqlite3  # noqa: PLC0415

        path = rest.removeprefix("///") if not rest.startswith("////") else rest[3:]
        return ConnectedTable(
            outbox,
            lambda: sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30),
            locks=False,
        )
    raise InvalidArgument(field="DATABASE", problem=f"is postgresql://… or sqlite:PATH, not {scheme or url!r}:…")
