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
    from holdfast.store import Remote, open_store  # noqa: PLC0415 - with its libraries

    kind, _, rest = name.partition(":")
    if kind == "rocks" and rest:
        path = Path(rest) / "store"
        if not make and not (path / "FORMAT").is_file():
            raise InvalidArgument(field=field, problem=f"names {rest}, which has no store")
        return open_store("rocks", path)
    if name.startswith(_POSTGRES):
        refuse_in_use(name, node)
        return open_store("postgres", Path(), remote=Remote(name, node).patient())
    raise InvalidArgument(
        field=field, problem=f"is {name!r}: write rocks:DATA_DIR or postgresql://user:password@host/database"
    )


def refuse_in_use(url: str, node: int) -> None:
    """StoreInUse: a server works with the store in this database."""
    from holdfast.errors import StoreInUse  # noqa: PLC0415
    from holdfast.store import postgres_database  # noqa: PLC0415 - with its libraries

    database = postgres_database(url, node)
    database.prepare()
    if database.has_writer():
        raise StoreInUse(store=database.name)


def refuse_same(source: str, target: str) -> None:
    """InvalidArgument: both names are of one directory. Of databases only they know (broker/store_copy.py)."""
    directories = [Path(name.removeprefix("rocks:")) for name in (source, target) if name.startswith("rocks:")]
    if len(directories) > 1 and len({(path / "store").resolve() for path in directories}) == 1:
        raise InvalidArgument(field="--to", problem="names the store of --from: choose another one")
