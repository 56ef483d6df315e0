"""A running node over every store, for tests through its public API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
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


@asynccontextmanager
async def running(config: Config, store: Store) -> AsyncIterator[Node]:
    """A node that runs for the length of the block, and its store with it."""
    node = Node(config, store)
    await node.start()
    yield node
    await node.stop()
    store.close()


@pytest.fixture
async def node(store: Store, tmp_path: Path) -> AsyncIterator[Node]:
    async with running(config_for(tmp_path), store) as node:
        yield node


Restart = Callable[[], Awaitable[Node]]


@pytest.fixture
async def restart(tmp_path: Path) -> AsyncIterator[Restart]:
    """Starts a node on one and the same directory; each call stops the one before."""
    started: list[tuple[Node, Store]] = []

    async def stop() -> None:
        for node, store in started:
            await node.stop()
            store.close()
        started.clear()

    async def again() -> Node:
        await stop()
        store = open_store("rocks", tmp_path / "store")
        node = Node(config_for(tmp_path), store)
        await node.start()
        started.append((node, store))
        return node

    yield again
    await stop()
