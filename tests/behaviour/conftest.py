"""The ways to a broker, and the stores under it. Each test has queues of its own, so a module shares one broker.

Time passes by `broker.advance`, never by waiting. Over MQTT messages are sent, consumed and settled, and queues made
and changed (see `over_mqtt`), and over gRPC too (`over_grpc`); tests marked `api_only` say something for which MQTT has
no words, and the mark says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from itertools import count

import pytest
import pytest_asyncio

from holdfast.client import Client, Message, Retries
from holdfast.testing import Broker
from tests.behaviour.over_grpc import grpc_client
from tests.behaviour.over_mqtt import mqtt_client

WAYS = ["in-process", "http", "mqtt", "grpc"]
STORES = ["memory", "rocks"]

_numbers = count(1)


@pytest_asyncio.fixture(
    loop_scope="module",
    scope="module",
    params=[(way, store) for way in WAYS for store in STORES if (way, store) != ("grpc", "rocks")],
    ids="-".join,
)
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    way, store = request.param
    async with Broker(http=way == "http", store=store) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(broker: Broker, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    way, _ = request.node.callspec.params["broker"]
    opening: AbstractAsyncContextManager[Client]
    match way:
        case "mqtt":
            opening = mqtt_client(broker)
        case "grpc":
            opening = grpc_client(broker)
        case _:
            opening = broker.client(retries=Retries(attempts=1))
    async with opening as opened:
        yield opened


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what does not apply."""
    items[:] = [item for item in items if not (_way(item) == "mqtt" and item.get_closest_marker("api_only"))]


def _way(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    found = callspec.params.get("broker") if callspec is not None else None
    return found[0] if isinstance(found, tuple) else None


@pytest.fixture
def queue() -> str:
    """A name that no other test uses."""
    return f"jobs/{next(_numbers)}"


async def take(client: Client, queue: str, limit: int = 1, group: str = "default") -> list[Message]:
    """What is ready now."""
    return await client.receive(queue, group=group, limit=limit)


async def take_one(client: Client, queue: str, group: str = "default") -> Message:
    """The one message that is ready, at once or as soon as the broker has noticed that its time has come."""
    (message,) = await client.receive(queue, group=group, wait="20s")
    return message


async def texts(client: Client, queue: str, limit: int = 100, group: str = "default") -> list[str]:
    """Everything that is ready now, acked as it comes."""
    seen: list[str] = []
    while messages := await take(client, queue, limit, group):
        seen += [message.text() for message in messages]
        await asyncio.gather(*(message.ack() for message in messages))
    return seen


async def yield_to_loop() -> None:
    """Let the broker go on, if it runs on this loop."""
    await asyncio.sleep(0)
