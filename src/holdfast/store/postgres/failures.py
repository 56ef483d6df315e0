"""What can go wrong between a session and its server, and which error of Holdfast that is."""

from __future__ import annotations

from typing import Final

from psycopg import pq
from psycopg.pq.abc import PGresult

from holdfast.errors import DatabaseUnsuitable, StoreCorrupt, StoreError, StoreFull, StoreUnavailable
from holdfast.store.remote.table import Disconnected

FENCED: Final = "HF001"  # of the function `fence` in store/sql

_DISK_FULL = "53100"
_CORRUPTED = ("XX001", "XX002")
NO_RIGHT: Final = "42501"
_NO_SCHEMA = ("3F000", "42P01", "42883")

# The server ends the session, or it has become a standby: another one may take its place. What was being committed is
# found out from its number.
_PASSING = ("57P01", "57P02", "57P03", "57P05", "25006", "40001", "40P01", "53300", "55P03", "57014")


class Rejected(Exception):
    """The server rejected a statement: nothing of its transaction was done."""

    def __init__(self, state: str, problem: str, detail: str) -> None:
        super().__init__(f"{problem} ({state})")
        self.state = state
        self.problem = problem
        self.detail = detail

    @property
    def passing(self) -> bool:
        """Whether the same may succeed over another connection."""
        return self.state in _PASSING or self.state.startswith("08")


def rejected(result: PGresult) -> Rejected:
    """What the server says in a result."""

    def field(name: pq.DiagnosticField) -> str:
        return (result.error_field(name) or b"").decode(errors="replace")

    fields = pq.DiagnosticField
    return Rejected(field(fields.SQLSTATE), field(fields.MESSAGE_PRIMARY), field(fields.MESSAGE_DETAIL))


def translate(error: Rejected | Disconnected, database: str) -> StoreError:
    """The error of Holdfast for what a statement ended with."""
    if isinstance(error, Disconnected):
        return StoreUnavailable(problem=f"{database}: {error.problem}")
    if error.state == _DISK_FULL:
        return StoreFull(path=database)
    if error.state in _CORRUPTED:
        return StoreCorrupt(path=database, problem=error.problem)
    if error.state == NO_RIGHT:
        return DatabaseUnsuitable(
            database=database,
            problem=f"its user lacks a right ({error.problem})",
            advice="Make the user that store.url names the owner of Holdfast's schemas",
        )
    if error.state in _NO_SCHEMA:
        return DatabaseUnsuitable(
            database=database,
            problem=f"Holdfast's tables are not there any more ({error.problem})",
            advice="Restore them from a backup; a restart of the server would make new, empty ones",
        )
    return StoreUnavailable(problem=f"{database}: {error.problem} (SQLSTATE {error.state})")
