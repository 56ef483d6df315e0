"""Where a cell's records are: a database, and the schema of the cell in it. Opens sessions.

Every session says in its application name which cell it is of, what for, and of which process: `acquire` ends the
writer of an owner that hangs by that name.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Final, NamedTuple

from psycopg import ProgrammingError, conninfo

from holdfast.errors import DatabaseUnreachable, DatabaseUnsuitable, StoreError
from holdfast.store.postgres import checks, schema
from holdfast.store.postgres.arrays import read_bigint
from holdfast.store.postgres.failures import Rejected, translate
from holdfast.store.postgres.session import BoundStatement, DatabaseSession
from holdfast.store.postgres.statements import STATEMENTS, Statement, of_kinds
from holdfast.store.remote.table import Disconnected

CONNECT_SECONDS: Final = 5.0
STATEMENT_SECONDS: Final = 30.0  # no statement of ours takes as long, unless the server's disk hangs
LOCK_SECONDS: Final = 5.0
_IN_TRANSACTION_SECONDS = 2.0  # ours are sent as a whole: one that waits for us belongs to a process that hangs

WRITER: Final = "writer"
READER: Final = "reader"
VIEW: Final = "view"
CONTROL: Final = "control"

# The server ends a connection whose client is gone, and the client one whose server is, instead of waiting for minutes.
_CONNECTION: Final[Mapping[str, str]] = {
    "client_encoding": "UTF8",
    "keepalives": "1",
    "keepalives_idle": "5",
    "keepalives_interval": "1",
    "keepalives_count": "3",
    "tcp_user_timeout": "3000",
    "target_session_attrs": "read-write",  # a standby may lack what the primary has confirmed
}

# A statement is planned once, when its table may still be empty; every one of ours is a search in an index.
_SETTINGS: Final[Mapping[str, str]] = {
    "statement_timeout": f"{STATEMENT_SECONDS:.0f}s",
    "lock_timeout": f"{LOCK_SECONDS:.0f}s",
    "idle_in_transaction_session_timeout": f"{_IN_TRANSACTION_SECONDS:.0f}s",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "row_security": "off",
}

# All reads of one call see one moment.
_READS: Final[Mapping[str, str]] = {
    "default_transaction_isolation": "repeatable read",
    "default_transaction_read_only": "on",
}


class _Role(NamedTuple):
    settings: Mapping[str, str]
    script: str  # when it begins
    statements: Sequence[Statement]


_READ_STATEMENTS = of_kinds("get", "scan", "position")
_ROLES: Final[Mapping[str, _Role]] = {
    WRITER: _Role({}, "", of_kinds("fence", "put", "delete")),
    CONTROL: _Role({}, "", of_kinds("terminate", "connected", "acquire", "position")),
    READER: _Role(_READS, "", _READ_STATEMENTS),
    VIEW: _Role({**_READS, "idle_in_transaction_session_timeout": "0"}, "BEGIN", _READ_STATEMENTS),
}

# A stronger setting than `on` is left as the operator has chosen it.
_DURABLE: Final = """
    SELECT set_config('synchronous_commit', 'on', false)
    WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply');
"""


class Database:
    """See the module. `url` is libpq's, with whatever it has: hosts, user, password, TLS."""

    def __init__(self, url: str, cell: int = 0) -> None:
        self.cell = cell
        self.schema = schema.schema_name(cell)
        self._url = url
        self._process = secrets.token_hex(4)
        try:
            parts = conninfo.conninfo_to_dict(url)
        except ProgrammingError as error:
            problem = str(error).strip().splitlines()[0]
        else:
            where = parts.get("host") or parts.get("hostaddr") or "this machine"
            self.name = f"The database {parts.get('dbname') or parts.get('user') or '(default)'} on {where}"
            return
        raise DatabaseUnsuitable(
            database="What store.url names",
            problem=f"it is no address of a database ({problem})",
            advice="Write it like postgresql://user:password@host/database",
        )

    def application_name(self, role: str) -> str:
        """The name of a session."""
        return f"holdfast:{self.cell}:{self._process}:{role}"

    @property
    def writers(self) -> str:
        """A pattern of LIKE for the names of all writers of this cell."""
        return f"holdfast:{self.cell}:%:{WRITER}"

    def prepare(self) -> list[str]:
        """Check the database, and make or bring forward the schema. Returns warnings."""
        return self._set_up(schema.prepare)

    def look(self) -> list[str]:
        """Check the database and the version of the schema; change nothing. Returns warnings."""
        return self._set_up(schema.look)

    def _set_up(self, work: Callable[[DatabaseSession, int], object]) -> list[str]:
        try:
            with closing(self._connect("setup", CONNECT_SECONDS)) as session:
                warnings = checks.check(session, self.name)
                work(session, self.cell)
        except Disconnected as error:
            failure = self._unreachable(error.problem)
        except Rejected as error:
            failure = translate(error, self.name)
        else:
            return warnings
        raise failure

    def _unreachable(self, problem: str) -> StoreError:
        if "session is read-only" in problem:
            return DatabaseUnsuitable(
                database=self.name,
                problem="it is a standby, or set to be read only",
                advice="Let store.url name the primary; of several hosts, the one that can be written is taken",
            )
        return DatabaseUnreachable(database=self.name, problem=problem)

    def has_writer(self) -> bool:
        """Whether a server is connected to write this cell."""
        try:
            with closing(self.open(CONTROL)) as session:
                [[(count,)]] = session.run(
                    [BoundStatement(STATEMENTS["connected"], (self.writers.encode(),))], STATEMENT_SECONDS
                )
        except Disconnected as error:
            failure = self._unreachable(error.problem)
        except Rejected as error:
            failure = translate(error, self.name)
        else:
            return read_bigint(count or b"") > 0
        raise failure

    def open(self, role: str, seconds: float = CONNECT_SECONDS) -> DatabaseSession:
        """A session for the records. Raises Disconnected if there is none in that time."""
        until = time.monotonic() + seconds
        session = self._connect(role, seconds)
        settings, script, statements = _ROLES[role]
        settings = {**_SETTINGS, **settings, "search_path": self.schema}
        calls = [f"set_config('{name}', '{value}', false)" for name, value in settings.items()]
        try:
            session.script(f"SELECT {', '.join(calls)}; {_DURABLE}", until - time.monotonic())
            if script:
                session.script(script, until - time.monotonic())
            session.prepare(statements, until - time.monotonic())
        except Disconnected:
            session.close()
            raise
        except Rejected as error:
            session.close()
            failure = self.failure(error)
        else:
            return session
        raise failure

    def failure(self, error: Rejected) -> Disconnected | StoreError:
        """What it means for a table that the server rejected something."""
        return Disconnected(error.problem) if error.passing else translate(error, self.name)

    def _connect(self, role: str, seconds: float) -> DatabaseSession:
        return DatabaseSession(self._url, {**_CONNECTION, "application_name": self.application_name(role)}, seconds)
