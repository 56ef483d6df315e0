"""Two servers with the console, an open one and one with users, and one browser, for all tests here.

Where there is no Chromium the tests that need one are skipped, and say so; the others speak HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from inspect import iscoroutinefunction
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec.structs import replace
from playwright.async_api import Browser

from tests.console.rig import CHROMIUM, Served, Window, chromium, config_with, serving, window
from tests.console.seed import seed
from tests.npm import npm_package

HERE = Path(__file__).parent
AXE = "axe-core@4.14.0"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One loop for all tests here, because they share servers and a browser; and one process, for the same reason."""
    for item in items:
        if HERE in item.path.parents and isinstance(item, pytest.Function) and iscoroutinefunction(item.function):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """An open server with the queues of `seed`, which tests look at."""
    async with serving(config_with(tmp_path_factory.mktemp("shop"))) as served:
        await seed(served)
        yield served


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """A server that asks who one is."""
    async with serving(config_with(tmp_path_factory.mktemp("guarded"), users=True)) as served:
        yield served


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def mixed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """A server with MQTT too."""
    config = config_with(tmp_path_factory.mktemp("mixed"))
    config = replace(config, mqtt=replace(config.mqtt, listen="127.0.0.1:0"))
    async with serving(config, mqtt=True) as served:
        await served.node.queues.create(("default", "work"))
        yield served


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("CHROMIUM IS NOT INSTALLED: the console is not tested in a browser (apt-get install chromium)")
    async with chromium() as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def view(browser: Browser, shop: Served) -> AsyncIterator[Window]:
    """A window on the open server."""
    async with window(browser, shop.url) as opened:
        yield opened


@pytest.fixture(scope="session")
def axe(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script that finds what a page lacks for people who see or hear badly, or use no mouse."""
    return (npm_package(request, tmp_path_factory, AXE) / "axe-core" / "axe.min.js").read_text()
