"""A server that sends its spans to a collector, for all tests here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from inspect import iscoroutinefunction
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec.structs import replace

from holdfast.config.tracing_settings import TracingSettings
from tests.console.rig import Served, config_with, serving
from tests.tracing.receiver import Collector, collecting

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One loop for all tests here, because they share a server."""
    for item in items:
        if HERE in item.path.parents and isinstance(item, pytest.Function) and iscoroutinefunction(item.function):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def traced(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> AsyncIterator[Served]:
    config = config_with(tmp_path_factory.mktemp("traced"))
    config = replace(
        config,
        mqtt=replace(config.mqtt, listen="127.0.0.1:0"),
        tracing=TracingSettings(enabled=True, endpoint=collector.endpoint),
    )
    async with serving(config, mqtt=True) as served:
        yield served
