"""The table of an outbox, in PostgreSQL or SQLite, by any driver that knows DB-API 2."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from holdfast.client.drafts import as_draft
from holdfast.client.times import seconds
from holdfast.errors import InvalidArgument
from holdfast.outbox.relay import Waiting

NAME: Final = "holdfast_outbox"
PROBLEM_LENGTH: Final = 1_000

_NAMES = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")


class Cursor(Protocol):
    """What is used of a cursor."""

    def execute(self, sql: str, parameters: Sequence[object] = ..., /) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def close(self) -> None: ...


class Connection(Protocol):
    """What is used of a connection: of sqlite3, psycopg, Django, or SQLAlchemy's
    `session.connection().connection`."""

    def cursor(self) -> Cursor: ...


class _Dialect(NamedTuple):
    placeholder: str
    create: str


_INDEX = "CREATE INDEX IF NOT EXISTS {name}_waiting ON {name} (id) WHERE problem IS NULL"
_POSTGRES = _Dialect(
    "%s",
    """CREATE TABLE IF NOT EXISTS {name} (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue text NOT NULL, message text NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(), problem text)""",
)
_SQLITE = _Dialect(
    "?",
    """CREATE TABLE IF NOT EXISTS {name} (
        id INTEGER PRIMARY KEY AUTOINCREMENT, queue TEXT NOT NULL, message TEXT NOT NULL,
        created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, problem TEXT)""",
)


class Outbox:
    """The table `name`. It never commits or rolls back: that is the caller's transaction to do."""

    def __init__(self, name: str = NAME) -> None:
        if not _NAMES.fullmatch(name):
            raise InvalidArgument(field="name", problem=f"is a plain SQL name of at most 48 characters, not {name!r}")
        self.name = name

    def create(self, connection: Connection) -> None:
        """Make the table, unless it exists."""
        self._execute(connection, _dialect(connection).create)
        self._execute(connection, _INDEX)

    def add(self, connection: Connection, queue: str, *messages: object) -> None:
        """Add messages to the transaction that the connection is in: payloads, or drafts as of `draft(…)` or
        `worker.draft(…)`. A delay counts from now."""
        for item in [outbox_item(queue, message) for message in messages]:
            self._execute(connection, "INSERT INTO {name} (queue, message) VALUES (?, ?)", item)

    def waiting(self, connection: Connection, limit: int, except_queues: Collection[str] = ()) -> list[Waiting]:
        """The oldest messages, in the order in which they were added; none of the given queues."""
        found = self._execute(
            connection,
            "SELECT id, queue, message FROM {name} WHERE problem IS NULL AND queue NOT IN ({several}) "
            "ORDER BY id LIMIT ?",
            (*except_queues, "", limit),
            several=len(except_queues) + 1,
        )
        return [Waiting(*row) for row in found]

    def remove(self, connection: Connection, ids: Collection[int]) -> None:
        """Forget messages that the server has."""
        self._execute(connection, "DELETE FROM {name} WHERE id IN ({several})", tuple(ids), several=len(ids))

    def refuse(self, connection: Connection, row: int, problem: str) -> None:
        """Keep a message that the server will never take, with the reason. `UPDATE … SET problem = NULL` sends it
        again."""
        self._execute(connection, "UPDATE {name} SET problem = ? WHERE id = ?", (problem[:PROBLEM_LENGTH], row))

    def _execute(
        self, connection: Connection, statement: str, parameters: Sequence[object] = (), several: int = 0
    ) -> list[Any]:
        text = statement.format(name=self.name, several=", ".join("?" * several))
        text = text.replace("?", _dialect(connection).placeholder)
        cursor = connection.cursor()
        try:
            cursor.execute(text, parameters)
            return cursor.fetchall() if statement.startswith("SELECT") else []
        finally:
            cursor.close()


def outbox_item(queue: str, message: object) -> tuple[str, str]:
    """The columns `queue` and `message` of a message: for whoever inserts the row by other means (asynchronous drivers,
    an ORM)."""
    if not queue:
        raise InvalidArgument(field="queue", problem="is empty: name the queue that the message goes to")
    draft = as_draft(message)
    if draft.delay is not None:
        due = datetime.now(UTC) + timedelta(seconds=seconds(draft.delay, "delay"))
        draft = replace(draft, delay=None, deliver_at=due.isoformat())
    return queue, msgspec.json.encode(draft).decode()


def _dialect(connection: Connection) -> _Dialect:
    """By the driver: SQLAlchemy's and Django's wrappers lead to it."""
    driver = getattr(connection, "driver_connection", None) or connection
    module = type(driver).__module__
    if module.startswith("sqlite3"):
        return _SQLITE
    if module.startswith(("psycopg", "psycopg2")):
        return _POSTGRES
    raise InvalidArgument(
        field="connection",
        problem=f"is a {module}.{type(driver).__name__}: give a connection of sqlite3 or psycopg (with SQLAlchemy: "
        "session.connection().connection)",
    )
