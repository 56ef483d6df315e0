"""Consuming over a stream: messages come as they become ready, and the stream may break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast.client import Client, Consumer, Message
from holdfast.errors import ShuttingDown, WrongGroupKind
from holdfast.testing import Broker
from tests.waiting import PATIENCE_SECONDS


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(http=True) as running:
        yield running


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Client]:
    async with broker.client() as opened:
        yield opened


async def following(consumer: Consumer) -> Message:
    async with asyncio.timeout(PATIENCE_SECONDS):
        message = await consumer.next()
    assert message is not None
    return message


def cut_off(broker: Broker) -> None:
    """Break all connections, in the middle of whatever they do."""
    assert broker._front is not None
    for connection in list(broker._front.connections.open):
        connection.abort()


async def leased(client: Client, queue: str = "jobs") -> int:
    return sum(group.leased for group in (await client.stats(queue)).groups)


async def test_messages_come_as_they_are_sent_and_no_more_than_there_is_room_for(client: Client) -> None:
    async with client.consume("jobs", prefetch=2, stream=True) as consumer:
        waiting = asyncio.create_task(following(consumer))
        await client.send_many("jobs", ["a", "b", "c"])
        first = await waiting
        second = await following(consumer)
        assert (first.text(), second.text(), first.queue, first.group) == ("a", "b", "jobs", "default")
        assert await leased(client) == consumer.unsettled == 2
        await first.ack()
        third = await following(consumer)
        assert third.text() == "c"
        await second.nack(delay="1h")
        await third.ack()
    assert await leased(client) == 0


async def test_leaving_gives_back_what_is_not_settled(client: Client) -> None:
    await client.send_many("jobs", ["a", "b", "c"])
    async with client.consume("jobs", prefetch=3, stream=True) as consumer:
        assert (await following(consumer)).text() == "a"
    back = await client.receive("jobs", limit=10, wait="60s")
    assert [(message.text(), message.attempt) for message in back] == [("a", 1), ("b", 1), ("c", 1)]


async def test_what_was_begun_can_be_settled_after_the_consumer_was_stopped(client: Client) -> None:
    await client.send_many("jobs", ["a", "b"])
    consumer = client.consume("jobs", prefetch=2, stream=True)
    message = await following(consumer)
    await consumer.stop()
    await message.ack()
    (rest,) = await client.receive("jobs", limit=10, wait="60s")
    assert rest.text() == "b"
    await consumer.close()


async def test_a_stream_that_breaks_is_opened_again_and_nothing_in_hand_is_lost(
    client: Client, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.client.consumer.RETRY_SECONDS", 0.01)
    await client.send("jobs", "a")
    async with client.consume("jobs", prefetch=2, stream=True) as consumer:
        first = await following(consumer)
        cut_off(broker)
        await client.send("jobs", "b")
        second = await following(consumer)
        assert second.text() == "b"
        await first.ack()
        await second.ack()
    assert (await client.queue("jobs")).depth == 0


async def test_a_stream_that_the_server_ends_is_opened_again(
    client: Client, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.client.consumer.RETRY_SECONDS", 0.01)
    await client.send("jobs", "a")
    async with client.consume("jobs", stream=True) as consumer:
        await (await following(consumer)).ack()
        assert broker._front is not None
        for stream in broker._front.api.streams.values():
            stream.end(ShuttingDown())
        await client.send("jobs", "b")
        assert (await following(consumer)).text() == "b"


async def test_what_no_waiting_can_mend_is_raised(client: Client) -> None:
    await client.create_group("jobs", "log", kind="cursor")
    with pytest.raises(WrongGroupKind):
        await following(client.consume("jobs", group="log", stream=True))
