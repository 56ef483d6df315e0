"""Stores as the command line names them: `rocks:DIRECTORY`, `postgresql://user@host/database`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import InvalidArgument

if TYPE_CHECKING:
    from holdfast.store.contract import Store

_POSTGRES = ("postgres://", "postgresql://")


def open_named(name: str, node: int, field: str, *, make: bool) -> Store:
    """Open a store; one that is made if it does not exist, or one that must exist."""
    from holdfast.errors import StoreInUse  # noqa: PLC0415
    from holdfast.store import Remote, open_store, postgres_database  # noqa: PLC0415 - with its libraries

    kind, _, rest = name.partition(":")
    if kind == "rocks" and rest:
        path = Path(rest) / "store"
        if not make and not (path / "FORMAT").is_file():
            raise InvalidArgument(field=field, problem=f"names {rest}, which has no store")
        return open_store("rocks", path)
    if name.startswith(_POSTGRES):
        database = postgres_database(name, node)
        database.prepare()
        if database.has_writer():
            raise StoreInUse(store=database.name)
        return open_store("postgres", Path(), remote=Remote(name, node))
    raise InvalidArgument(
        field=field, problem=f"is {name!r}: write rocks:DATA_DIR or postgresql://user:password@host/database"
    )
