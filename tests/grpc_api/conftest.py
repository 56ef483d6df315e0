"""One server for all tests here but those that need another configuration. Each test has queues of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from inspect import iscoroutinefunction
from itertools import count
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.grpc_api import GrpcFront
from tests.grpc_api.rig import Api, calling, config_for, serving

HERE = Path(__file__).parent
_numbers = count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One loop for all tests here, because they share a server."""
    for item in items:
        if HERE in item.path.parents and isinstance(item, pytest.Function) and iscoroutinefunction(item.function):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def front(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GrpcFront]:
    async with serving(config_for(tmp_path_factory.mktemp("grpc"))) as running:
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def api(front: GrpcFront) -> AsyncIterator[Api]:
    async with calling(front) as opened:
        yield opened


@pytest.fixture
def queue() -> str:
    """A name that no other test uses."""
    return f"jobs/{next(_numbers)}"
