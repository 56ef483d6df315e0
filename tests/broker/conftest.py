"""A running node over every store, for tests through its public API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from holdfast.broker.node import Node
from holdfast.config import Config
from holdfast.config.settings import JournalSettings, NodeSettings
from holdfast.store import open_store
from holdfast.store.contract import Store

STORES = ["memory", "rocks"]


def config_for(path: Path) -> Config:
    """The defaults, with everything below `path` and no segment written unless a test asks for it."""
    return Config(
        node=NodeSettings(data_dir=path),
        journal=JournalSettings(segment_age=3_600_000_000),
    )


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(request.param, tmp_path / "store")


@pytest.fixture
async def node(store: Store, tmp_path: Path) -> AsyncIterator[Node]:
    running = Node(config_for(tmp_path), store)
    await running.start()
    yield running
    await running.stop()
    store.close()


Restart = Callable[[], Awaitable[Node]]


@pytest.fixture
async def restart(tmp_path: Path) -> AsyncIterator[Restart]:
    """Starts a node on one and the same directory; each call stops the one before."""
    running: list[tuple[Node, Store]] = []

    async def stop() -> None:
        for node, store in running:
            await node.stop()
            store.close()
        running.clear()

    async def again() -> Node:
        await stop()
        store = open_store("rocks", tmp_path / "store")
        node = Node(config_for(tmp_path), store)
        await node.start()
        running.append((node, store))
        return node

    yield again
    await stop()
