"""How far the tables of a lake are built: the pipeline tells the broker, which removes only segments that they have.

LAKE/tables/_built.json     by node, the last lsn that is in all tables
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.files import sync_path


def write_built(tables: Path, cursor: Mapping[int, int]) -> None:
    """All tables have the journal up to here; durable when this returns."""
    path, content = tables / "_built.json", msgspec.json.encode(dict(cursor))
    if path.exists() and path.read_bytes() == content:
        return
    fresh = path.with_suffix(".tmp")
    fresh.write_bytes(content)
    sync_path(fresh)
    fresh.replace(path)
    sync_path(tables)


def built_to(lake: Path, node: int) -> int | None:
    """The last lsn of a node that the tables have; None: there are no tables."""
    tables = lake / "tables"
    if not any(tables.glob("*/_delta_log")):
        return None
    try:
        return msgspec.json.decode((tables / "_built.json").read_bytes(), type=dict[int, int]).get(node, 0)
    except (FileNotFoundError, msgspec.DecodeError):
        return 0  # of before they said so, or just being built anew
