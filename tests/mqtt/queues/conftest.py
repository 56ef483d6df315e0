"""A running server over every store, and clients for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from holdfast.store import open_store
from holdfast.store.contract import Store
from tests.mqtt.queues.rig import Server, config_for
from tests.waiting import PATIENCE_SECONDS

STORES = ["memory", "rocks"]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(request.param, tmp_path / "store")


@pytest.fixture
async def server(store: Store, tmp_path: Path) -> AsyncIterator[Server]:
    running = Server(config_for(tmp_path), store)
    await running.start()
    yield running
    await running.stop()
    store.close()


@pytest.fixture
async def quick(tmp_path: Path) -> AsyncIterator[Server]:
    """In memory only, for what has nothing to do with the store."""
    store = open_store("memory", tmp_path / "store")
    running = Server(config_for(tmp_path), store)
    await running.start()
    yield running
    await running.stop()
    store.close()


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    await server.http.start()
    async with httpx.AsyncClient(base_url=server.http.url, timeout=PATIENCE_SECONDS) as client:
        yield client
    await server.http.stop()
