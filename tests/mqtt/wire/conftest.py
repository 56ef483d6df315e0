"""A broker for each test, on the loop that the server uses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from tests.mqtt.wire.broker import Broker, config_for, memory_broker

Start = Callable[..., Awaitable[Broker]]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts a broker with the given settings of `mqtt`."""
    running: list[Broker] = []

    async def begin(**mqtt: object) -> Broker:
        broker = memory_broker(config_for(tmp_path, **mqtt))
        await broker.start()
        running.append(broker)
        return broker

    yield begin
    for broker in running:
        await broker.stop()


@pytest.fixture
async def broker(start: Start) -> Broker:
    return await start()
