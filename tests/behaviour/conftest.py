"""The ways to a broker, and the stores under it. Each test has queues of its own, so a module shares one broker.

Time passes by `broker.advance`, never by waiting. A further way (MQTT, say) joins by another entry in WAYS whose client
can `send`, `receive` and settle as `holdfast.client.Client` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count

import pytest
import pytest_asyncio

from holdfast.client import Client, Message, Retries
from holdfast.testing import Broker

WAYS = {"in-process": False, "http": True}
STORES = ["memory", "rocks"]

_numbers = count(1)


@pytest_asyncio.fixture(
    loop_scope="module",
    scope="module",
    params=[(way, store) for way in WAYS for store in STORES],
    ids="-".join,
)
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    way, store = request.param
    async with Broker(http=WAYS[way], store=store) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(broker: Broker) -> AsyncIterator[Client]:
    async with broker.client(retries=Retries(attempts=1)) as opened:
        yield opened


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


async def another_turn() -> None:
    """Let the broker go on, if it runs on this loop."""
    await asyncio.sleep(0)
