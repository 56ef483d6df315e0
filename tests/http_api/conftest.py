"""A real server on a free port, over every store, and a client for it.

Starting and stopping a server takes longer than most tests, so one serves them all; after each its schedules and queues
are deleted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from inspect import iscoroutinefunction
from pathlib import Path
from typing import NoReturn

import httpx
import pytest
import pytest_asyncio
from msgspec.structs import replace

from holdfast.auth.gate import Gate
from holdfast.broker.node import Node
from holdfast.config import Config
from holdfast.config.settings import HttpSettings, JournalSettings, NodeSettings
from holdfast.errors import QueueInUse
from holdfast.http_api import HttpFront
from holdfast.store import open_store
from holdfast.units import MINUTE
from tests.waiting import PATIENCE_SECONDS

STORES = ["memory", "rocks"]
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One loop for all tests here, because they share a server."""
    for item in items:
        if HERE in item.path.parents and isinstance(item, pytest.Function) and iscoroutinefunction(item.function):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


def config_for(path: Path, **http: object) -> Config:
    """The defaults on any free port, with everything below `path` and no segment written unless a test asks for it."""
    return Config(
        node=NodeSettings(data_dir=path, max_loop_lag=10 * MINUTE),  # late on a busy machine, and not unready
        journal=JournalSettings(segment_age=3_600_000_000),
        http=replace(HttpSettings(listen="127.0.0.1:0"), **http),
    )


def _nobody(on_lost: object, peer: str) -> NoReturn:
    raise AssertionError(f"no test upgrades a connection: {on_lost} {peer}")


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=STORES)
async def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Node, HttpFront]]:
    path = tmp_path_factory.mktemp(request.param)
    store = open_store(request.param, path / "store")
    node = Node(config_for(path), store)
    await node.start()
    # With a path of another front's, as a server has it: requests that do not upgrade are ours to refuse.
    front = HttpFront(node.config, node, Gate(node.config, node.clock), {"/elsewhere": _nobody})
    await front.start()
    yield node, front
    await front.stop()
    await node.stop()
    store.close()


@pytest_asyncio.fixture(loop_scope="session")
async def front(shared: tuple[Node, HttpFront]) -> AsyncIterator[HttpFront]:
    node, front = shared
    yield front
    for transaction in list(node.cell.engine.transactions.live):
        await node.transactions.abort(transaction)
    for scheduled in node.schedules.in_namespace("default"):  # before the queues: a tick creates its queue again
        schedule = scheduled.schedule
        await node.schedules.delete((schedule.namespace, schedule.name))
    assert node.schedules.count() == 0
    while names := list(node.cell.engine.queues):
        for name in names:
            try:
                await node.queues.delete(name)
            except QueueInUse:
                continue  # after those that use it


@pytest_asyncio.fixture(loop_scope="session")
async def node(front: HttpFront) -> Node:
    return front.api.node


@pytest_asyncio.fixture(loop_scope="session")
async def http(front: HttpFront) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=front.url, timeout=PATIENCE_SECONDS) as client:
        yield client
