"""In which order messages go out."""

from __future__ import annotations

import pytest

from holdfast.client import Client, draft
from holdfast.testing import Broker
from tests.behaviour.conftest import take, take_one, texts

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(("ordering", "partitions"), [("none", 10), ("partition", 1), ("partition", 10), ("strict", 1)])
async def test_first_in_first_out_over_all_partitions(
    client: Client, queue: str, ordering: str, partitions: int
) -> None:
    await client.create_queue(queue, {"ordering": ordering, "partitions": partitions})
    for start in range(0, 12, 3):
        await client.send_many(queue, [str(n) for n in range(start, start + 3)])
    assert await texts(client, queue, limit=1 if ordering == "strict" else 5) == [str(n) for n in range(12)]


async def test_lower_priorities_first_then_the_oldest(client: Client, queue: str) -> None:
    for text, priority in (("c", 200), ("b1", 128), ("a1", 0), ("b2", 128), ("a2", 0), ("d", 255)):
        await client.send(queue, text, priority=priority)
    assert await texts(client, queue, limit=1) == ["a1", "a2", "b1", "b2", "c", "d"]


async def test_messages_of_a_key_go_one_after_another_and_hold_up_nobody_else(client: Client, queue: str) -> None:
    await client.send_many(
        queue, [draft("a1", key="a"), draft("a2", key="a"), draft("b1", key="b"), draft("free"), draft("a3", key="a")]
    )
    first = await take(client, queue, limit=10)
    assert [message.text() for message in first] == ["a1", "b1", "free"]
    assert await take(client, queue) == []
    await first[0].ack()
    second = await take_one(client, queue)
    assert second.text() == "a2"
    await second.ack()
    assert await texts(client, queue) == ["a3"]


async def test_a_key_waits_for_its_message_that_is_backing_off(client: Client, broker: Broker, queue: str) -> None:
    await client.send_many(queue, [draft("a1", key="a"), draft("a2", key="a"), draft("b1", key="b")])
    await (await take_one(client, queue)).nack(delay="1m")
    assert await texts(client, queue) == ["b1"]
    broker.advance("1m")
    again = await take_one(client, queue)
    assert (again.text(), again.attempt) == ("a1", 2)
    await again.ack()
    assert await texts(client, queue) == ["a2"]


async def test_a_delay_of_the_producer_holds_up_nobody_of_its_key(client: Client, broker: Broker, queue: str) -> None:
    await client.send(queue, "delayed", key="a", delay="1m")
    await client.send(queue, "a", key="a")
    assert await texts(client, queue) == ["a"]
    broker.advance("1m")
    assert (await take_one(client, queue)).text() == "delayed"


async def test_without_ordering_a_key_means_nothing(client: Client, queue: str) -> None:
    await client.create_queue(queue, {"ordering": "none"})
    await client.send_many(queue, [draft("a1", key="a"), draft("a2", key="a")])
    assert [message.text() for message in await take(client, queue, limit=5)] == ["a1", "a2"]


async def test_strict_gives_one_at_a_time(client: Client, broker: Broker, queue: str) -> None:
    await client.create_queue(queue, {"ordering": "strict", "partitions": 1})
    await client.send_many(queue, ["a", "b"])
    (only,) = await take(client, queue, limit=10)
    assert await take(client, queue) == []
    await only.nack(delay="1m")
    assert await take(client, queue) == []  # it keeps its place
    broker.advance("1m")
    again = await take_one(client, queue)
    assert again.text() == "a"
    await again.ack()
    assert await texts(client, queue, limit=1) == ["b"]


async def test_a_retried_message_goes_behind_those_that_were_ready(client: Client, queue: str) -> None:
    await client.send_many(queue, ["a", "b"])
    await (await take_one(client, queue)).nack(delay=0)
    assert await texts(client, queue, limit=1) == ["b", "a"]


async def test_a_released_message_keeps_its_place(client: Client, queue: str) -> None:
    await client.send_many(queue, ["a", "b"])
    await (await take_one(client, queue)).release()
    assert await texts(client, queue, limit=1) == ["a", "b"]
