"""How much a queue gives out at most, over all its consumers, and that those who wait are served when it may."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.client import Client, draft
from holdfast.errors import InvalidConfig
from holdfast.testing import Broker
from tests.behaviour.conftest import take, take_one, texts

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_concurrency_is_that_of_all_consumers_together(client: Client, queue: str) -> None:
    await client.create_queue(queue, {"throttle": {"concurrency": 2}})
    await client.send_many(queue, ["a", "b", "c"])
    first, second = await take(client, queue, limit=10)
    assert await take(client, queue) == []
    waiting = asyncio.create_task(take_one(client, queue))
    await first.ack()
    third = await waiting
    assert third.text() == "c"
    await second.ack()
    await third.ack()


async def test_a_rate_holds_back_and_who_waits_is_served_when_there_is_a_token(
    client: Client, broker: Broker, queue: str
) -> None:
    await client.create_queue(queue, {"throttle": {"rate": 0.1, "burst": 2}})
    await client.send_many(queue, ["a", "b", "c", "d"])
    assert await texts(client, queue) == ["a", "b"]
    broker.advance("9s")
    assert await take(client, queue) == []
    waiting = asyncio.create_task(take_one(client, queue))
    broker.advance("2s")
    await (await waiting).ack()
    assert await take(client, queue) == []


async def test_a_key_has_its_own_concurrency_and_rate(client: Client, broker: Broker, queue: str) -> None:
    await client.create_queue(queue, {"throttle": {"key_concurrency": 2, "key_rate": 0.1, "key_burst": 3}})
    await client.send_many(queue, [draft(text, key="a") for text in ("a1", "a2", "a3", "a4")])
    await client.send(queue, "b1", key="b")
    held = await take(client, queue, limit=10)
    assert [message.text() for message in held] == ["a1", "a2", "b1"]
    await asyncio.gather(*(message.ack() for message in held))
    assert await texts(client, queue) == ["a3"]
    broker.advance("11s")
    assert (await take_one(client, queue)).text() == "a4"


async def test_keys_take_turns_where_a_queue_is_fair(client: Client, queue: str) -> None:
    await client.create_queue(queue, {"partitions": 1, "throttle": {"fair": True}})
    for key in ("large", "small"):
        await client.send_many(queue, [draft(f"{key}{number}", key=key) for number in range(3)])
    assert await texts(client, queue, limit=1) == ["large0", "small0", "large1", "small1", "large2", "small2"]


async def test_a_queue_pauses_itself_when_its_messages_die(client: Client, queue: str) -> None:
    await client.create_queue(queue, {"breaker": {"dead_letters": 2, "window": "1h"}})
    await client.send_many(queue, ["a", "b", "c"])
    for _ in range(2):
        await (await take_one(client, queue)).reject("no such table")
    assert (await client.queue(queue)).config.paused
    assert await take(client, queue) == []
    await client.resume_queue(queue)
    assert await texts(client, queue) == ["c"]


async def test_limits_that_make_no_sense_are_refused(client: Client, queue: str) -> None:
    with pytest.raises(InvalidConfig, match="needs ordering partition"):
        await client.create_queue(queue, {"ordering": "none", "throttle": {"fair": True}})
    with pytest.raises(InvalidConfig, match="allowed is 1 to 10000"):
        await client.create_queue(queue, {"throttle": {"key_concurrency": 0}})
    await client.create_queue(queue)
    with pytest.raises(InvalidConfig, match="allowed is 0 to"):
        await client.update_queue(queue, {"throttle": {"rate": -1}})
