"""Stores: atomic, durable, ordered maps of records. The contract is in store/contract.py; each store is one module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.errors import InvalidConfig
from holdfast.store.contract import Store
from holdfast.store.faulty import Fault, FaultyStore
from holdfast.store.memory import MemoryDisk, MemoryStore
from holdfast.store.remote.store import PATIENCE_SECONDS, READ_TIMEOUT_SECONDS, RemoteStore
from holdfast.store.reserve import WRITE_BUFFERS_MIN
from holdfast.store.rocks import RocksStore
from holdfast.store.rocks_tuning import CACHE_BYTES, WRITE_BUFFER_BYTES

if TYPE_CHECKING:
    from holdfast.store.postgres.database import Database

__all__ = [
    "KINDS",
    "Fault",
    "FaultyStore",
    "MemoryDisk",
    "MemoryStore",
    "Remote",
    "RocksStore",
    "Store",
    "open_store",
    "postgres_database",
]


PATIENT_SECONDS: Final = 120.0


class Remote(NamedTuple):
    """Where a remote store is, and how long it may take."""

    url: str = ""
    cell: int = 0
    read_timeout_seconds: float = READ_TIMEOUT_SECONDS
    patience_seconds: float = PATIENCE_SECONDS

    def patient(self) -> Remote:
        """For a command that has nobody waiting for it: a database that is slow is waited for."""
        return self._replace(read_timeout_seconds=PATIENT_SECONDS, patience_seconds=PATIENT_SECONDS)


class _Options(NamedTuple):
    path: Path
    cache_bytes: int
    write_buffer_bytes: int
    reserve_bytes: int | None
    remote: Remote


def _memory(_options: _Options) -> Store:
    return MemoryStore(MemoryDisk(crashable=False))


def _rocks(options: _Options) -> Store:
    least = WRITE_BUFFERS_MIN * options.write_buffer_bytes
    if options.reserve_bytes and options.reserve_bytes < least:
        raise InvalidConfig(
            field="store.reserve_bytes",
            value=options.reserve_bytes,
            problem=f"on a full disk the store could not be opened again; it is at least {least}, "
            f"{WRITE_BUFFERS_MIN} × store.write_buffer_bytes, or 0 for none",
        )
    return RocksStore(
        options.path,
        cache_bytes=options.cache_bytes,
        write_buffer_bytes=options.write_buffer_bytes,
        reserve_bytes=options.reserve_bytes,
    )


def postgres_database(url: str, cell: int) -> Database:
    """Where the records of a cell are in the store `postgres`."""
    if not url:
        raise InvalidConfig(
            field="store.url",
            value="",
            problem="it names the database of the store postgres: postgresql://user:password@host/database",
        )
    try:
        from holdfast.store.postgres.database import Database  # noqa: PLC0415 - only those who use it have psycopg
    except ImportError as error:
        raise InvalidConfig(
            field="store.kind",
            value="postgres",
            problem=f'a library is missing ({error.name}): pip install "holdfast[server,postgres]"',
        ) from None
    return Database(url, cell)


def _postgres(options: _Options) -> Store:
    remote = options.remote
    database = postgres_database(remote.url, remote.cell)
    from holdfast.store.postgres.table import PostgresTable  # noqa: PLC0415 - as above

    return RemoteStore(
        PostgresTable(database),
        read_timeout_seconds=remote.read_timeout_seconds,
        patience_seconds=remote.patience_seconds,
    )


_OPENERS: Final[Mapping[str, Callable[[_Options], Store]]] = {
    "memory": _memory,
    "rocks": _rocks,
    "postgres": _postgres,
}
KINDS: Final = tuple(_OPENERS)


def open_store(
    kind: str,
    path: str | Path,
    *,
    cache_bytes: int = CACHE_BYTES,
    write_buffer_bytes: int = WRITE_BUFFER_BYTES,
    reserve_bytes: int | None = None,
    remote: Remote = Remote(),
) -> Store:
    """Open the store of that kind: one with files in the directory `path`, a remote one where `remote` says. A kind
    ignores what it has no use for."""
    if kind not in _OPENERS:
        raise InvalidConfig(field="store", value=kind, problem=f"choose one of {', '.join(KINDS)}")
    return _OPENERS[kind](_Options(Path(path), cache_bytes, write_buffer_bytes, reserve_bytes, remote))
