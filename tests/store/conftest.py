"""Every store that the conformance suite runs over. A new store joins by one line in STORES."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.store import FaultyStore, MemoryDisk, MemoryStore, Remote, RocksStore, Store, open_store
from holdfast.store.remote.simulated import SimulatedServer, SimulatedTable
from holdfast.store.remote.store import RemoteStore
from tests import postgres
from tests.waiting import PATIENCE_SECONDS

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


def _simulated(_path: Path) -> Opener:
    server = SimulatedServer()
    return lambda: RemoteStore(SimulatedTable(server))


def _postgres(path: Path) -> Opener:
    remote = Remote(postgres.url(postgres.own_database()), postgres.new_cell(), PATIENCE_SECONDS, PATIENCE_SECONDS)
    return lambda: open_store("postgres", path, remote=remote)


STORES: dict[str, Callable[[Path], Opener]] = {
    "memory": _memory,
    "faultless": _faultless,
    "rocks": _rocks,
    "simulated": _simulated,
    "postgres": _postgres,
}


@pytest.fixture(params=STORES)
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    return STORES[request.param](tmp_path)


@pytest.fixture
def store(opener: Opener) -> Iterator[Store]:
    store = opener()
    yield store
    store.close()
