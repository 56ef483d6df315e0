"""What is refused, and that a refusal changes nothing."""

from __future__ import annotations

import pytest

from holdfast.client import Client, draft
from holdfast.errors import (
    HoldfastError,
    InvalidArgument,
    InvalidConfig,
    InvalidName,
    MessageTooLarge,
    QueueExists,
    QueueFull,
    QueueNotFound,
)
from tests.behaviour.conftest import take, texts

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_payload_that_is_too_large(client: Client, queue: str) -> None:
    await client.create_queue(queue, {"max_message_size": "1KiB"})
    await client.send(queue, bytes(1024))
    with pytest.raises(MessageTooLarge, match="takes at most 1024"):
        await client.send(queue, bytes(1025))
    assert (await client.queue(queue)).depth == 1


async def test_a_queue_that_is_full_takes_again_when_there_is_room(client: Client, queue: str) -> None:
    await client.create_queue(queue, {"max_depth": 2})
    result = await client.send_many(queue, ["a", "b", "c"], check=False)
    assert (result.stored, [type(error) for error in result.errors.values()]) == (2, [QueueFull])
    (message, other) = await take(client, queue, limit=2)
    with pytest.raises(QueueFull, match="holds 2 messages"):
        await client.send(queue, "d")
    await message.ack()
    await client.send(queue, "e")
    await other.release()
    assert await texts(client, queue) == [other.text(), "e"]


async def test_dead_letters_are_never_refused_for_depth(client: Client, queue: str) -> None:
    graves = f"graves/{queue}"
    await client.create_queue(graves, {"max_depth": 1, "dlq.enabled": False})
    await client.create_queue(queue, {"dlq.queue": graves})
    await client.send_many(queue, ["a", "b"])
    for message in await take(client, queue, limit=2):
        await message.reject()
    assert await texts(client, graves) == ["a", "b"]


BATCH = [draft("a"), draft(bytes(2000)), draft("c", priority=999), draft("d")]


async def test_a_bad_message_does_not_stop_the_others(client: Client, queue: str) -> None:
    await client.create_queue(queue, {"max_message_size": "1KiB"})
    partly = await client.send_many(queue, BATCH, check=False)
    assert (partly.stored, sorted(partly.errors)) == (2, [1, 2])
    assert await texts(client, queue) == ["a", "d"]


@pytest.mark.api_only("MQTT has no batches: each PUBLISH stands for itself")
async def test_all_or_nothing_may_be_asked_for(client: Client, queue: str) -> None:
    await client.create_queue(queue, {"max_message_size": "1KiB"})
    whole = await client.send_many(queue, BATCH, atomic=True, check=False)
    assert whole.ids == [None] * 4
    assert (await client.queue(queue)).depth == 0


@pytest.mark.parametrize("name", ["$sys", "a/$b", "a//b", "/", "ü" * 128])
async def test_names_that_are_not_allowed(client: Client, name: str) -> None:
    with pytest.raises(InvalidName):
        await client.create_queue(name)
    with pytest.raises(InvalidName):
        await client.send(name, "x")


@pytest.mark.parametrize("name", ["a+b", "a#", "a\0b"])
async def test_names_that_no_queue_can_be_made_with(client: Client, name: str) -> None:
    with pytest.raises(InvalidName):
        await client.create_queue(name)


@pytest.mark.api_only("no PUBLISH can be made with such a topic: the connection would end, as tests/mqtt/net shows")
@pytest.mark.parametrize("name", ["a+b", "a#", "a\0b"])
async def test_names_that_nothing_can_be_sent_to(client: Client, name: str) -> None:
    with pytest.raises(InvalidName):
        await client.send(name, "x")


@pytest.mark.parametrize(
    ("config", "error", "said"),
    [
        ({"partitions": 0}, InvalidConfig, "1 to 1024"),
        ({"partitions": 5000}, InvalidConfig, "1 to 1024"),
        ({"max_depht": 5}, InvalidConfig, "did you mean max_depth"),
        ({"retry.jitter": 2}, InvalidConfig, "retry.jitter"),
        ({"message_ttl": "soon"}, InvalidConfig, "message_ttl"),
        ({"ordering": "strict", "partitions": 2}, InvalidConfig, "partition"),
    ],
)
async def test_settings_that_are_not_allowed_are_named_with_what_is(
    client: Client, queue: str, config: dict[str, object], error: type[HoldfastError], said: str
) -> None:
    with pytest.raises(error, match=said):
        await client.create_queue(queue, config)
    with pytest.raises(QueueNotFound):
        await client.queue(queue)


async def test_partitions_grow_and_do_not_shrink(client: Client, queue: str) -> None:
    await client.create_queue(queue, {"partitions": 2})
    await client.send_many(queue, [draft(str(n), key=str(n)) for n in range(10)])
    assert (await client.update_queue(queue, {"partitions": 4})).config.partitions == 4
    with pytest.raises(InvalidConfig, match="partitions"):
        await client.update_queue(queue, {"partitions": 3})
    assert sorted(await texts(client, queue)) == [str(n) for n in range(10)]


async def test_a_queue_cannot_be_made_twice(client: Client, queue: str) -> None:
    await client.create_queue(queue, {"max_depth": 5})
    with pytest.raises(QueueExists):
        await client.create_queue(queue)
    assert (await client.queue(queue)).config.max_depth == 5


@pytest.mark.api_only("a subscriber says how many it takes at a time (prefetch), and asks for nothing")
async def test_how_much_one_call_may_ask_for(client: Client, queue: str) -> None:
    for limit in (0, 1001):
        with pytest.raises(InvalidArgument, match="limit is 1 to 1000"):
            await client.receive(queue, limit=limit)
    with pytest.raises(InvalidArgument, match="wait is at most 900 s"):
        await client.receive(queue, wait="1h")
    with pytest.raises(InvalidArgument, match="timeout is more than 0 and at most"):
        await client.receive(queue, timeout="13h")
    with pytest.raises(HoldfastError) as caught:
        await client.send_many(queue, ["x"] * 10_001, chunk=20_000)
    assert caught.value.code == "limit_exceeded"


@pytest.mark.parametrize("priority", [-1, 256])
async def test_priorities_have_a_range(client: Client, queue: str, priority: int) -> None:
    with pytest.raises(InvalidArgument, match="priority"):
        await client.send(queue, "x", priority=priority)
