"""Stores: atomic, durable, ordered maps of records. The contract is in store/contract.py; each store is one module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from holdfast.errors import InvalidConfig
from holdfast.store.contract import Store
from holdfast.store.faulty import Fault, FaultyStore
from holdfast.store.memory import MemoryDisk, MemoryStore
from holdfast.store.rocks import RocksStore
from holdfast.store.rocks_tuning import CACHE_BYTES, WRITE_BUFFER_BYTES

__all__ = ["KINDS", "Fault", "FaultyStore", "MemoryDisk", "MemoryStore", "RocksStore", "Store", "open_store"]


def _memory(_path: Path, _cache_bytes: int, _write_buffer_bytes: int) -> Store:
    return MemoryStore(MemoryDisk(crashable=False))


def _rocks(path: Path, cache_bytes: int, write_buffer_bytes: int) -> Store:
    return RocksStore(path, cache_bytes=cache_bytes, write_buffer_bytes=write_buffer_bytes)


_OPENERS: Final[Mapping[str, Callable[[Path, int, int], Store]]] = {"memory": _memory, "rocks": _rocks}
KINDS: Final = tuple(_OPENERS)


def open_store(
    kind: str,
    path: str | Path,
    *,
    cache_bytes: int = CACHE_BYTES,
    write_buffer_bytes: int = WRITE_BUFFER_BYTES,
) -> Store:
    """Open the store of that kind in the directory `path`. A kind ignores what it has no use for."""
    if kind not in _OPENERS:
        raise InvalidConfig(field="store", value=kind, problem=f"choose one of {', '.join(KINDS)}")
    return _OPENERS[kind](Path(path), cache_bytes, write_buffer_bytes)
