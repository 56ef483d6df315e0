"""A broker for each test, on the loop that the server uses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from tests.mqtt.net.broker import Broker, config_for, memory_broker

Start = Callable[..., Awaitable[Broker]]
Run = Callable[[Broker], Awaitable[Broker]]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def run() -> AsyncIterator[Run]:
    """Starts a broker, and stops it in the end."""
    running: list[Broker] = []

    async def begin(broker: Broker) -> Broker:
        await broker.start()
        running.append(broker)
        return broker

    yield begin
    for broker in running:
        await broker.stop()


@pytest.fixture
def start(run: Run, tmp_path: Path) -> Start:
    """Starts a broker with the given settings of `mqtt`."""

    async def begin(**mqtt: object) -> Broker:
        return await run(memory_broker(config_for(tmp_path, **mqtt)))

    return begin


@pytest.fixture
async def broker(start: Start) -> Broker:
    return await start()
