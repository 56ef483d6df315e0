"""The schema of a cell in its database: making it, and bringing an older one forward.

The comment of the schema has its version. Each file store/sql/schema_NNNN.sql is the step to that version, all steps in
one transaction under an advisory lock: two servers that start at a time make it once.
"""

from __future__ import annotations

from typing import Final

from holdfast.errors import DatabaseUnsuitable, FormatTooOld, FormatUnknown
from holdfast.store.formats import FORMAT
from holdfast.store.postgres.failures import NO_RIGHT, Rejected
from holdfast.store.postgres.session import DatabaseSession
from holdfast.store.postgres.statements import script, scripts

SCHEMA_SECONDS: Final = 60.0  # for a script; a step may have to rewrite a table
LOCK: Final = 0x686F_6C64  # of those that change a schema: "hold"

_PREFIX = "schema_"
_COMMENT = "holdfast schema "


def schema_name(cell: int) -> str:
    """The schema of a cell, whose number has at most four digits."""
    return f"holdfast_{cell:04d}"


def steps() -> dict[int, str]:
    """The scripts by the version that they lead to."""
    return {int(name.removeprefix(_PREFIX)): script(name) for name in scripts(_PREFIX)}


def found_version(session: DatabaseSession, schema: str) -> int:
    """The version of a schema; 0 if there is none."""
    look = f"SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = '{schema}'"  # noqa: S608 - its name is ours
    rows = session.script(look, SCHEMA_SECONDS)
    told = (rows[0][0] or b"").decode() if rows else ""
    if rows and not told.startswith(_COMMENT):
        raise DatabaseUnsuitable(
            database=f"The schema {schema}",
            problem="it was not made by Holdfast",
            advice="Rename it, or give Holdfast a database of its own",
        )
    return int(told.removeprefix(_COMMENT)) if rows else 0


def prepare(session: DatabaseSession, cell: int, known: dict[int, str] | None = None) -> None:
    """Make the schema, or bring it to the newest version that this code knows."""
    known = steps() if known is None else known
    schema = schema_name(cell)
    if look(session, cell, known) < max(known):
        _bring_forward(session, schema, cell, known)
        _check_format(session, schema)


def look(session: DatabaseSession, cell: int, known: dict[int, str] | None = None) -> int:
    """The version of the schema, 0 if there is none. Refuses one that this code cannot use."""
    newest = max(steps() if known is None else known)
    schema = schema_name(cell)
    found = found_version(session, schema)
    if found > newest:
        raise FormatUnknown(path=f"The schema {schema}", found=found, known=newest)
    if found:
        _check_format(session, schema)
    elif session.script("SELECT has_database_privilege(current_database(), 'CREATE')", SCHEMA_SECONDS) != [(b"t",)]:
        raise _no_right(schema, "permission denied for database")
    return found


def _bring_forward(session: DatabaseSession, schema: str, cell: int, known: dict[int, str]) -> None:
    """Under the lock look again, since another server may have done it meanwhile."""
    try:
        session.script(f"BEGIN; SELECT pg_advisory_xact_lock({LOCK})", SCHEMA_SECONDS)
        found = found_version(session, schema)
        parts = [f"SET LOCAL search_path = {schema}, pg_catalog"]
        if not found:
            parts.insert(0, f"CREATE SCHEMA {schema}")
        parts += [known[number] for number in sorted(known) if number > found]
        if not found:
            parts.append(f"INSERT INTO cell (number, format) VALUES ({cell}, {FORMAT})")  # noqa: S608 - numbers
        parts.append(f"COMMENT ON SCHEMA {schema} IS '{_COMMENT}{max(known)}'")
        if found < max(known):
            session.script(";\n".join(parts), SCHEMA_SECONDS)
        session.script("COMMIT", SCHEMA_SECONDS)
    except Rejected as error:
        if error.state != NO_RIGHT:
            raise
        refusal = _no_right(schema, error.problem)
    else:
        return
    raise refusal


def _no_right(schema: str, problem: str) -> DatabaseUnsuitable:
    return DatabaseUnsuitable(
        database=f"The schema {schema}",
        problem=f"its tables cannot be made or changed: {problem}",
        advice="Run once as the owner of the database: GRANT CREATE ON DATABASE … TO the user in store.url; if another "
        "user owns the schema, name that user in store.url",
    )


def _check_format(session: DatabaseSession, schema: str) -> None:
    """The records' own format: it counts up with core/records.py, whatever the schema."""
    [(found,)] = session.script(f"SELECT format FROM {schema}.cell", SCHEMA_SECONDS)  # noqa: S608 - its name is ours
    number = int(found or b"0")
    if number > FORMAT:
        raise FormatUnknown(path=f"The schema {schema}", found=number, known=FORMAT)
    if number < FORMAT:
        raise FormatTooOld(path=f"The schema {schema}", found=number, oldest=FORMAT, known=FORMAT)
