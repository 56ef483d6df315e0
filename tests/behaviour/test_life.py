"""The life of a message: stored, leased, settled, retried, expired."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.client import Client
from holdfast.errors import LeaseLost, MessageNotFound, MessageNotWaiting, QueueNotFound
from holdfast.testing import Broker
from holdfast.wire import Settlement
from tests.behaviour.conftest import take, take_one, texts

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_message_is_kept_until_it_is_acked(client: Client, queue: str) -> None:
    sent = await client.send(queue, "x")
    message = await take_one(client, queue)
    assert (message.id, message.attempt) == (sent.id, 1)
    assert await take(client, queue) == []
    assert (await client.queue(queue)).depth == 1
    await message.ack()
    assert (await client.queue(queue)).depth == 0
    with pytest.raises(MessageNotFound):
        await client.message(queue, sent.id)


async def test_what_was_sent_comes_back_as_it_was(client: Client, queue: str) -> None:
    await client.send(
        queue,
        bytes(range(256)),
        key="k",
        priority=7,
        properties={"a": "1", "b": ["2", "3"]},
        correlation_id="c",
        reply_to="r",
        content_type="image/png",
        message_id="m",
    )
    message = await take_one(client, queue)
    assert message.body == bytes(range(256))
    assert (message.key, message.priority, message.message_id) == ("k", 7, "m")
    assert message.properties == {"a": "1", "b": ["2", "3"]}
    assert (message.correlation_id, message.reply_to, message.content_type) == ("c", "r", "image/png")


async def test_a_failure_counts_and_waits_longer_each_time(client: Client, broker: Broker, queue: str) -> None:
    await client.create_queue(queue, {"retry": {"initial_backoff": "5s", "multiplier": 2.0, "max_backoff": "12s"}})
    await client.send(queue, "x")
    for attempt, backoff in ((1, 5), (2, 10), (3, 12), (4, 12)):
        message = await take_one(client, queue)
        assert message.attempt == attempt
        await message.nack(error=f"failure {attempt}")
        broker.advance(f"{backoff * 1000 - 500}ms")
        assert await take(client, queue) == []
        status = (await client.message(queue, message.id)).deliveries[0]
        assert (status.state, status.error) == ("scheduled", f"failure {attempt}")
        broker.advance("500ms")


async def test_a_nack_may_name_its_own_delay(client: Client, broker: Broker, queue: str) -> None:
    await client.send(queue, "x")
    await (await take_one(client, queue)).nack(delay="1h")
    broker.advance("59m")
    assert await take(client, queue) == []
    broker.advance("61s")
    await (await take_one(client, queue)).nack(delay=0)
    assert (await take_one(client, queue)).attempt == 3


async def test_a_release_does_not_count(client: Client, queue: str) -> None:
    await client.send(queue, "x")
    for _ in range(3):
        message = await take_one(client, queue)
        assert message.attempt == 1
        await message.release()


async def test_a_lease_that_runs_out_is_a_failure(client: Client, broker: Broker, queue: str) -> None:
    await client.create_queue(queue, {"delivery_timeout": "10s", "retry.initial_backoff": "5s"})
    await client.send(queue, "x")
    message = await take_one(client, queue)
    broker.advance("11s")
    assert await take(client, queue) == []  # backing off
    with pytest.raises(LeaseLost):
        await message.ack()
    broker.advance("5s")
    again = await take_one(client, queue)
    assert again.attempt == 2
    await again.ack()


async def test_an_extended_lease_lasts_longer(client: Client, broker: Broker, queue: str) -> None:
    await client.send(queue, "x")
    (message,) = await client.receive(queue, timeout="10s")
    for _ in range(3):
        broker.advance("8s")
        await message.extend("10s")
    await message.ack()
    assert (await client.queue(queue)).depth == 0


async def test_an_old_token_is_refused_and_changes_nothing(client: Client, queue: str) -> None:
    await client.send(queue, "x")
    first = await take_one(client, queue)
    await first.release()
    second = await take_one(client, queue)
    for action in ("ack", "nack", "reject", "release", "extend"):
        settlement = Settlement(id=first.id, lease_token=first.lease_token, action=action)
        if action == "release":  # how it was settled: answered as the first time
            assert (await client.settle(queue, [settlement])).errors == []
        else:
            refused = await client.settle(queue, [settlement])
            assert [error.code for error in refused.errors] == ["lease_lost"]
    await second.extend()
    await second.ack()


async def test_settling_twice_is_answered_as_the_first_time(client: Client, queue: str) -> None:
    await client.send(queue, "x")
    message = await take_one(client, queue)
    settlement = Settlement(id=message.id, lease_token=message.lease_token)
    for _ in range(2):
        assert (await client.settle(queue, [settlement])).settled == 1


async def test_a_delayed_message_comes_when_it_is_due(client: Client, broker: Broker, queue: str) -> None:
    await client.send(queue, "later", delay="10m")
    await client.send(queue, "now")
    assert await texts(client, queue) == ["now"]
    broker.advance("599s")
    assert await take(client, queue) == []
    broker.advance("1s")
    assert (await take_one(client, queue)).text() == "later"


async def test_an_instant_to_deliver_at_may_be_past_or_future(client: Client, broker: Broker, queue: str) -> None:
    now = datetime.fromtimestamp(broker.node.clock() / 1e6, UTC)
    await client.send(queue, "past", deliver_at=now - timedelta(days=1))
    await client.send(queue, "future", deliver_at=now + timedelta(hours=2))
    assert await texts(client, queue) == ["past"]
    broker.advance("2h")
    assert (await take_one(client, queue)).text() == "future"


async def test_a_message_expires_while_it_waits_but_not_while_it_is_leased(
    client: Client, broker: Broker, queue: str
) -> None:
    await client.create_queue(queue, {"message_ttl": "1h", "delivery_timeout": "5h"})
    await client.send_many(queue, ["leased", "waiting"])
    await client.send(queue, "for ever", ttl=0)
    leased = await take_one(client, queue)
    broker.advance("61m")
    assert await texts(client, queue) == ["for ever"]
    await leased.ack()
    (dead_letter,) = [dead_letter async for dead_letter in client.dead_letters(queue)]
    assert dead_letter.body() == b"waiting"
    assert dead_letter.origin is not None
    assert dead_letter.origin.reason == "expired"


async def test_a_message_id_is_remembered_for_the_window(client: Client, broker: Broker, queue: str) -> None:
    await client.create_queue(queue, {"dedup_window": "5m"})
    await client.send(queue, "x", message_id="m")
    assert await texts(client, queue) == ["x"]
    broker.advance("4m")
    await client.send(queue, "x", message_id="m")
    assert await texts(client, queue) == []
    broker.advance("61s")
    await client.send(queue, "x", message_id="m")
    assert await texts(client, queue) == ["x"]


@pytest.mark.api_only("a PUBACK has no room for an id, nor for a word of duplicates")
async def test_a_duplicate_is_answered_with_the_id_of_the_first(client: Client, queue: str) -> None:
    first = await client.send(queue, "x", message_id="m")
    again = await client.send(queue, "x", message_id="m")
    assert (again.id, again.duplicate) == (first.id, True)


async def test_who_waits_is_woken_by_a_message(client: Client, queue: str) -> None:
    waiting = asyncio.create_task(client.receive(queue, wait="30s"))
    other = asyncio.create_task(client.receive(queue, wait="30s"))
    await client.send_many(queue, ["a", "b"])
    seen = [message.text() for messages in await asyncio.gather(waiting, other) for message in messages]
    assert sorted(seen) == ["a", "b"]


async def test_a_paused_queue_takes_but_does_not_give(client: Client, queue: str) -> None:
    await client.create_queue(queue, {"paused": True})
    await client.send(queue, "x")
    waiting = asyncio.create_task(client.receive(queue, wait="30s"))
    assert await take(client, queue) == []
    await client.resume_queue(queue)
    assert [message.text() for message in await waiting] == ["x"]


async def test_a_purge_removes_what_waits_and_not_what_is_leased(client: Client, queue: str) -> None:
    await client.send_many(queue, ["leased", "a", "b"])
    leased = await take_one(client, queue)
    assert await client.purge_queue(queue) == 2
    assert (await client.queue(queue)).depth == 1
    await leased.ack()


async def test_a_deleted_queue_is_gone_with_what_it_held(client: Client, queue: str) -> None:
    await client.send_many(queue, ["a", "b"])
    assert await client.delete_queue(queue) == 2
    with pytest.raises(QueueNotFound):
        await client.queue(queue)
    await client.send(queue, "new")
    assert await texts(client, queue) == ["new"]


async def test_a_waiting_message_can_be_changed_and_removed_but_not_a_leased_one(client: Client, queue: str) -> None:
    one, two = (await client.send_many(queue, ["one", "two"])).ids
    assert one is not None
    assert two is not None
    await client.edit(queue, two, priority=0)
    leased = await take_one(client, queue)
    assert leased.text() == "two"
    with pytest.raises(MessageNotWaiting):
        await client.delete(queue, two)
    await client.delete(queue, one)
    await leased.release()
    assert await texts(client, queue) == ["two"]
