"""Sending, receiving and settling through the client, in process and over HTTP."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import math
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pydantic
import pytest

from holdfast.client import Client, Message, Retries, draft, lease_extender
from holdfast.errors import (
    BatchIncomplete,
    InvalidArgument,
    LeaseLost,
    MessageTooLarge,
    QueueExists,
    QueueFull,
    QueueNotFound,
    RequestFailed,
)
from holdfast.testing import Broker
from tests.waiting import until

WAIT = "60s"


@pytest.fixture(params=[False, True], ids=["in-process", "http"])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    async with Broker(http=request.param) as running:
        yield running


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Client]:
    async with broker.client() as opened:
        yield opened


async def one(client: Client, queue: str = "jobs") -> Message:
    (message,) = await client.receive(queue, wait=WAIT)
    return message


# --- sending --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Point:
    x: int


class Shape(msgspec.Struct):
    sides: int


class Model(pydantic.BaseModel):
    when: datetime


@pytest.mark.parametrize(
    ("payload", "body", "content_type"),
    [
        (b"\x00\xff", b"\x00\xff", None),
        (b'{\n  "a": 1\n}', b'{\n  "a": 1\n}', None),
        ("grüße", "grüße".encode(), "text/plain; charset=utf-8"),
        ({"a": [1, None]}, b'{"a":[1,null]}', "application/json"),
        (Point(3), b'{"x":3}', "application/json"),
        (Shape(4), b'{"sides":4}', "application/json"),
        (Model(when=datetime(2026, 1, 1, tzinfo=UTC)), b'{"when":"2026-01-01T00:00:00Z"}', "application/json"),
        (None, b"null", "application/json"),
        (b"", b"", None),
    ],
)
async def test_a_payload_arrives_byte_for_byte(
    client: Client, payload: object, body: bytes, content_type: str | None
) -> None:
    sent = await client.send("jobs", payload)
    message = await one(client)
    assert (message.id, message.body, message.content_type) == (sent.id, body, content_type)


async def test_everything_said_about_a_message_arrives(client: Client) -> None:
    due = datetime.now(UTC) - timedelta(seconds=1)
    await client.send(
        "jobs",
        "x",
        key="k",
        priority=3,
        deliver_at=due,
        ttl=timedelta(hours=1),
        message_id="mine",
        properties={"a": "1", "b": ["2", "3"]},
        correlation_id="c",
        reply_to="answers",
    )
    message = await one(client)
    assert (message.key, message.priority, message.message_id) == ("k", 3, "mine")
    assert message.properties == {"a": "1", "b": ["2", "3"]}
    assert (message.correlation_id, message.reply_to) == ("c", "answers")
    assert (message.queue, message.group, message.attempt) == ("jobs", "default", 1)
    assert abs(message.enqueued_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert message.lease_deadline > message.enqueued_at


async def test_a_payload_that_json_cannot_say_is_refused_before_it_is_sent(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="object is neither bytes, str"):
        await client.send("jobs", object())
    with pytest.raises(InvalidArgument, match="needs a time zone"):
        await client.send("jobs", "x", deliver_at=datetime.now())  # noqa: DTZ005
    with pytest.raises(QueueNotFound):
        await client.queue("jobs")


async def test_a_message_id_sent_twice_is_stored_once(client: Client) -> None:
    first = await client.send("jobs", "x", message_id="m")
    second = await client.send("jobs", "x", message_id="m")
    assert (second.id, first.duplicate, second.duplicate) == (first.id, False, True)
    assert (await client.queue("jobs")).depth == 1


async def test_many_go_in_chunks_in_their_order_and_progress_is_told(client: Client) -> None:
    reported: list[int] = []
    done = await client.send_many("jobs", (str(n) for n in range(25)), chunk=10, progress=reported.append)
    assert reported == [10, 20, 25]
    assert done.stored == 25
    messages = await client.receive("jobs", limit=100)
    assert [message.text() for message in messages] == [str(n) for n in range(25)]


async def test_a_large_batch_is_cut_by_size(client: Client) -> None:
    reported: list[int] = []
    await client.send_many("jobs", [bytes(1_000_000)] * 5, progress=reported.append)
    assert reported == [3, 5]


async def test_a_refused_message_does_not_stop_the_others_and_is_told_of(client: Client) -> None:
    await client.create_queue("jobs", {"max_message_size": 1024})
    messages = [b"a", bytes(2000), draft(b"c", key="k")]
    with pytest.raises(BatchIncomplete, match="1 of 3 messages were not stored") as caught:
        await client.send_many("jobs", messages)
    result = caught.value.details["result"]
    again = await client.send_many("jobs", messages, check=False)
    assert (again.stored, again.duplicates) == (2, [2])  # a draft has one id however often it is sent
    assert (await client.queue("jobs")).depth == 3
    assert [stored is None for stored in result.ids] == [False, True, False]  # type: ignore[attr-defined]
    with pytest.raises(MessageTooLarge):
        await client.send("jobs", bytes(2000))


async def test_messages_sent_at_the_same_time_share_requests_and_each_is_answered(client: Client) -> None:
    await client.create_queue("jobs", {"max_message_size": 1024})
    asked = 0
    real = client.call

    async def counted(call: Any) -> Any:
        nonlocal asked
        asked += 1
        return await real(call)

    client.call = counted  # type: ignore[method-assign]
    bodies = [bytes(2000) if number == 7 else str(number).encode() for number in range(300)]
    results = await asyncio.gather(*(client.send("jobs", body) for body in bodies), return_exceptions=True)
    assert [index for index, result in enumerate(results) if isinstance(result, Exception)] == [7]
    assert isinstance(results[7], MessageTooLarge)
    assert asked <= 2
    assert (await client.queue("jobs")).depth == 299


# --- settling -------------------------------------------------------------------------------------------------------


async def test_ack_nack_release_and_reject(client: Client) -> None:
    await client.create_queue("jobs", {"retry.max_retries": 5})
    await client.send("jobs", "x")

    message = await one(client)
    await message.release()
    message = await one(client)
    assert message.attempt == 1

    await message.nack(delay=0, error="boom")
    message = await one(client)
    assert message.attempt == 2

    before = message.lease_deadline
    assert await message.extend("5m") == message.lease_deadline > before

    await message.reject("hopeless")
    dead_letter = await one(client, "dlq/jobs")
    assert dead_letter.origin is not None
    assert (dead_letter.origin.reason, dead_letter.origin.error, dead_letter.origin.source_id) == (
        "rejected",
        "hopeless",
        message.id,
    )
    await dead_letter.ack()
    await dead_letter.ack()  # as the first time
    assert dead_letter.settled == "ack"
    with pytest.raises(InvalidArgument, match="was settled by ack before"):
        await dead_letter.nack()
    assert (await client.queue("dlq/jobs")).depth == 0


async def test_settling_a_lost_lease_is_lease_lost(client: Client, broker: Broker) -> None:
    await client.create_queue("jobs", {"retry.initial_backoff": "0s"})
    await client.send("jobs", "x")
    message = await one(client)
    broker.advance("1m")
    again = await one(client)
    assert again.attempt == 2
    with pytest.raises(LeaseLost):
        await message.ack()
    assert message.lost
    await again.ack()


async def test_settlements_at_the_same_time_share_requests_and_each_is_answered(client: Client) -> None:
    await client.send_many("jobs", range(200))
    messages = await client.receive("jobs", limit=200)
    wrong = messages[7]
    wrong.delivery.lease_token = messages[8].lease_token
    results = await asyncio.gather(*(message.ack() for message in messages), return_exceptions=True)
    assert [index for index, result in enumerate(results) if result is not None] == [7]
    assert isinstance(results[7], LeaseLost)
    assert (await client.queue("jobs")).depth == 1


async def test_leaving_the_with_of_a_message_releases_it(client: Client) -> None:
    await client.send("jobs", "x")
    async with await one(client) as message:
        assert message.attempt == 1

    async def fail() -> None:
        async with await one(client) as failing:
            assert failing.attempt == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with await one(client) as message:
        assert message.attempt == 1
        await message.ack()
    assert (await client.queue("jobs")).depth == 0


async def test_closing_the_client_releases_what_it_received(broker: Broker, client: Client) -> None:
    await client.send_many("jobs", range(5))
    async with broker.client() as other:
        received = await other.receive("jobs", limit=5)
        await received[0].ack()
        consumer = other.consume("jobs", prefetch=3)
        assert not await client.receive("jobs")
    messages = await client.receive("jobs", limit=5)
    assert [message.attempt for message in messages] == [1] * 4
    del consumer


# --- consuming ------------------------------------------------------------------------------------------------------


async def test_a_loop_is_given_messages_as_they_come(client: Client) -> None:
    async def produce() -> None:
        for number in range(10):
            await client.send("jobs", number)

    producing = asyncio.create_task(produce())
    seen: list[int] = []
    async for message in client.consume("jobs", group="g", prefetch=3):
        seen.append(message.json(int))
        await message.ack()
        if len(seen) == 10:
            break
    await producing
    assert seen == list(range(10))


async def test_leaving_the_loop_releases_what_is_in_hand(client: Client) -> None:
    await client.send_many("jobs", range(5))
    async for message in client.consume("jobs", prefetch=5):
        await message.ack()
        break
    gc.collect()
    seen: list[int] = []
    while len(seen) < 4:
        seen += [message.attempt for message in await client.receive("jobs", limit=5, wait=WAIT)]
    assert seen == [1] * 4


async def test_no_more_than_prefetch_are_in_hand(client: Client, broker: Broker) -> None:
    await client.send_many("jobs", range(10))
    async with client.consume("jobs", prefetch=3) as consumer:
        held = [await consumer.next() for _ in range(3)]
        assert consumer.unsettled == 3
        waiting = asyncio.create_task(consumer.next())
        left = await client.receive("jobs", limit=10)
        assert len(left) == 7
        assert not waiting.done()
        assert held[0] is not None
        await left[0].release()
        await held[0].ack()
        given = await waiting
        assert given is not None
        assert given.id == left[0].id


async def outlast_its_lease(message: Message, client: Client, broker: Broker) -> None:
    """Let the broker's clock run until the lease of 60 s would have been lost, had nobody extended it."""
    first = message.lease_deadline
    while message.lease_deadline < first + timedelta(seconds=60):
        extended = message.lease_deadline + timedelta(seconds=20)
        broker.advance("20s")
        await until(lambda: message.lease_deadline >= extended)  # noqa: B023 - it is waited for here
        assert not await client.receive("jobs")


async def test_a_lease_is_extended_while_a_handler_runs(
    client: Client, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_extender, "EXTENSIONS_PER_LEASE", 6000)
    await client.create_queue("jobs", {"delivery_timeout": "60s", "retry.initial_backoff": "0s"})
    await client.send("jobs", "slow")
    async with await one(client) as message:
        await outlast_its_lease(message, client, broker)
        await message.ack()
    assert (await client.queue("jobs")).depth == 0


async def test_a_consumer_extends_what_it_holds_also_before_it_is_handed_out(
    client: Client, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_extender, "EXTENSIONS_PER_LEASE", 6000)
    await client.send_many("jobs", range(2))
    async with client.consume("jobs", prefetch=2, lease="60s") as consumer:
        first = await consumer.next()
        assert first is not None
        await outlast_its_lease(first, client, broker)
        second = await consumer.next()
        assert second is not None
        await first.ack()
        await second.ack()
    assert (await client.queue("jobs")).depth == 0


async def test_a_handler_that_hangs_loses_its_message_in_the_end(
    client: Client, broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lease_extender, "EXTENSIONS_PER_LEASE", 6000)
    await client.create_queue("jobs", {"retry.initial_backoff": "0s"})
    await client.send("jobs", "x")
    async with client.consume("jobs", lease="60s", hold="50ms") as consumer:
        held = await consumer.next()
        assert held is not None
        await until(lambda: "was held for too long" in caplog.text)
        broker.advance("60s")
        again = await one(client)
        assert (again.id, again.attempt) == (held.id, 2)
        await again.ack()
        with pytest.raises(LeaseLost):
            await held.ack()


async def test_what_no_waiting_can_mend_ends_the_loop(client: Client) -> None:
    await client.create_queue("jobs")
    with pytest.raises(InvalidArgument, match="prefetch is 1 to 1000"):
        client.consume("jobs", prefetch=0)
    with pytest.raises(InvalidArgument, match="name"):
        async for _ in client.consume("jobs", group="$no"):
            pass


# --- queues ---------------------------------------------------------------------------------------------------------


async def test_queues_are_administered(client: Client) -> None:
    made = await client.create_queue("a/b", {"retry": {"max_retries": 1}, "message_ttl": "1h"})
    assert (made.config.retry.max_retries, made.config.message_ttl) == (1, "1h")
    with pytest.raises(QueueExists):
        await client.create_queue("a/b")
    assert (await client.create_queue("a/b", exist_ok=True)) == made
    assert [queue.name for queue in await client.queues("a/")] == ["a/b"]
    assert (await client.pause_queue("a/b")).config.paused
    await client.send("a/b", "x")
    assert not await client.receive("a/b")
    assert not (await client.resume_queue("a/b")).config.paused
    assert await client.receive("a/b")
    assert (await client.update_queue("a/b", {"max_depth": 1})).config.max_depth == 1
    assert await client.delete_queue("a/b") == 1
    with pytest.raises(QueueNotFound, match="does not exist in namespace 'default'"):
        await client.delete_queue("a/b")
    assert await client.delete_queue("a/b", missing_ok=True) == 0


async def test_messages_are_browsed_edited_and_deleted(client: Client) -> None:
    await client.send_many("jobs", range(250))
    seen = [int(view.body()) async for view in client.browse("jobs")]
    assert seen == list(range(250))
    assert len([view async for view in client.browse("jobs", limit=120)]) == 120
    last = [view async for view in client.browse("jobs")][-1]
    await client.edit("jobs", last.id, priority=1)
    assert (await client.message("jobs", last.id)).priority == 1
    assert (await one(client)).id == last.id
    await client.delete("jobs", seen_id := (await anext(client.browse("jobs", state="ready"))).id)
    assert seen_id not in [view.id async for view in client.browse("jobs")]


async def test_names_that_mean_something_in_paths_are_just_names(client: Client) -> None:
    for name in ("..", ".", "a/../b", "ä ö?#%2F".replace("#", "")):
        await client.send(name, name)
        assert (await one(client, name)).text() == name


async def test_a_full_queue_is_tried_again_until_there_is_room(client: Client, broker: Broker) -> None:
    await client.create_queue("jobs", {"max_depth": 1})
    await client.send("jobs", "a")
    async with broker.client(retries=Retries(full_seconds=60)) as patient:
        sending = asyncio.create_task(patient.send_many("jobs", ["b"]))
        message = await one(client)
        await message.ack()
        await sending
    with pytest.raises(QueueFull):
        await client.send("jobs", "c")


@pytest.mark.parametrize(
    "payload", [math.nan, {"a": [1, None, math.inf]}, (None, -math.inf), "\ud800", object(), {"a": {1, math.nan}}]
)
async def test_a_payload_that_would_arrive_as_something_else_is_refused(client: Client, payload: object) -> None:
    with pytest.raises(InvalidArgument, match="payload"):
        await client.send("jobs", payload)
    assert await client.receive("jobs") == []


@pytest.mark.parametrize("payload", [None, {"a": None, "b": 1.5}, [2**80], "\U0001f600", 1e308])
async def test_other_payloads_arrive_as_they_were(client: Client, payload: object) -> None:
    await client.send("jobs", payload)
    [message] = await client.receive("jobs")
    assert (message.text() if isinstance(payload, str) else message.json()) == payload


async def test_a_request_that_is_rejected_does_not_leave_its_caller_waiting(client: Client) -> None:
    await client.create_group("questions", "default")
    asking = asyncio.create_task(client.request("questions", "?", timeout="10m"))
    (question,) = await client.receive("questions", wait="1m")
    await question.reject("no such question")
    with pytest.raises(RequestFailed, match=r"is dead \(rejected, attempt 1\): no such question"):
        await asking
