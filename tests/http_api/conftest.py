"""A real server on a free port, over every store, and a client for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from holdfast.auth.gate import Gate
from holdfast.broker.node import Node
from holdfast.config import Config
from holdfast.config.settings import HttpSettings, JournalSettings, NodeSettings
from holdfast.http_api import HttpFront
from holdfast.store import open_store
from holdfast.store.contract import Store

STORES = ["memory", "rocks"]


def config_for(path: Path, **http: object) -> Config:
    """The defaults on any free port, with everything below `path` and no segment written unless a test asks for it."""
    return Config(
        node=NodeSettings(data_dir=path),
        journal=JournalSettings(segment_age=3_600_000_000),
        http=replace(HttpSettings(listen="127.0.0.1:0"), **http),
    )


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that has no event."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


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


@pytest.fixture
async def front(node: Node) -> AsyncIterator[HttpFront]:
    serving = HttpFront(node.config, node, Gate(node.config, node.clock))
    await serving.start()
    yield serving
    await serving.stop()


@pytest.fixture
async def http(front: HttpFront) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=front.url, timeout=30) as client:
        yield client
