"""The SQL in store/sql: statements by name, and the scripts that make and change a schema.

A statement is written once for all tables that have keys and values; `{table}` in its name and its text stands for one
of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Final, NamedTuple

TABLES: Final = ("heads", "records", "packs", "journal")

_TYPES: Final = {"bigint": 20, "bytea": 17, "bytea[]": 1001, "text": 25}
_HEAD = re.compile(r"^-- name: (\S+) \(([^)]*)\)\n", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)
_FILES = files("holdfast.store") / "sql"


class Statement(NamedTuple):
    """A statement, and the types of its parameters by their numbers in PostgreSQL's catalogue."""

    name: bytes
    text: bytes
    types: tuple[int, ...]


def script(name: str) -> str:
    """The text of a file of store/sql."""
    return (_FILES / f"{name}.sql").read_text("utf-8")


def scripts(prefix: str) -> list[str]:
    """The names of the files that begin with this, in order."""
    names = [entry.name.removesuffix(".sql") for entry in _FILES.iterdir() if entry.name.endswith(".sql")]
    return sorted(name for name in names if name.startswith(prefix))


def _statements(text: str) -> Mapping[str, Statement]:
    found: dict[str, Statement] = {}
    _, *parts = _HEAD.split(text)
    for name, types, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        numbers = tuple(_TYPES[one.strip()] for one in types.split(",") if one.strip())
        for table in TABLES if "{table}" in name else ("",):
            own = name.replace("{table}", table)
            found[own] = Statement(
                own.encode(), _COMMENT.sub("", body).replace("{table}", table).strip().encode(), numbers
            )
    return found


STATEMENTS: Final = _statements(script("statements"))


def of_kinds(*kinds: str) -> list[Statement]:
    """The statements whose names begin so."""
    return [statement for name, statement in STATEMENTS.items() if name.startswith(kinds)]
