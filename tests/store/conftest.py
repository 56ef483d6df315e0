"""Every store that the conformance suite runs over. A new store joins by one line in STORES."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.store import FaultyStore, MemoryDisk, MemoryStore, RocksStore, Store

# Opens a store on the same data each time it is called; the one before must be closed.
Opener = Callable[[], Store]


def _memory(_path: Path) -> Opener:
    disk = MemoryDisk()
    return lambda: MemoryStore(disk)


def _faultless(_path: Path) -> Opener:
    disk = MemoryDisk()
    return lambda: FaultyStore(MemoryStore(disk))


def _rocks(path: Path) -> Opener:
    return lambda: RocksStore(path / "data", write_buffer_bytes=1 << 20)


STORES: dict[str, Callable[[Path], Opener]] = {
    "memory": _memory,
    "faultless": _faultless,
    "rocks": _rocks,
}


@pytest.fixture(params=STORES)
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    return STORES[request.param](tmp_path)


@pytest.fixture
def store(opener: Opener) -> Iterator[Store]:
    store = opener()
    yield store
    store.close()
