"""Messages that die, where they go, and how they come back."""

from __future__ import annotations

import pytest

from holdfast import wire
from holdfast.client import Client
from holdfast.errors import DeadQueueInvalid, HoldfastError, MessageNotFound, MessageNotWaiting, QueueInUse
from holdfast.testing import Broker
from tests.behaviour.conftest import take, take_one, texts, yield_to_loop

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def dead_letters(client: Client, queue: str) -> list[wire.MessageView]:
    return [dead_letter async for dead_letter in client.dead_letters(queue)]


async def origin(client: Client, queue: str) -> wire.Origin:
    (dead_letter,) = await dead_letters(client, queue)
    assert dead_letter.origin is not None
    return dead_letter.origin


async def test_when_its_retries_are_spent(client: Client, queue: str) -> None:
    await client.create_queue(queue, {"retry": {"max_retries": 2, "initial_backoff": "0s"}})
    sent = await client.send(queue, "x")
    for attempt in (1, 2, 3):
        message = await take_one(client, queue)
        await message.nack(error=f"failure {attempt}")
    assert await take(client, queue) == []
    assert (await client.queue(queue)).depth == 0
    told = await origin(client, queue)
    assert (told.reason, told.error, told.attempts) == ("max_retries", "failure 3", 3)
    assert (told.source_id, told.source_queue, told.source_group) == (sent.id, queue, "default")


async def test_when_it_is_rejected_with_all_that_it_carried(client: Client, queue: str) -> None:
    await client.send(
        queue, b"\x00\xff", key="k", properties={"a": "1"}, correlation_id="c", content_type="x/y", priority=3
    )
    await (await take_one(client, queue)).reject("hopeless")
    dead_letter = await take_one(client, f"dlq/{queue}")
    assert (dead_letter.body, dead_letter.properties, dead_letter.correlation_id) == (b"\x00\xff", {"a": "1"}, "c")
    assert (dead_letter.content_type, dead_letter.key) == ("x/y", "k")
    assert dead_letter.origin is not None
    assert (dead_letter.origin.reason, dead_letter.origin.error) == ("rejected", "hopeless")


async def test_when_it_fails_after_its_total_time(client: Client, broker: Broker, queue: str) -> None:
    await client.create_queue(queue, {"retry": {"max_retries": 100, "total_timeout": "1h"}})
    await client.send(queue, "x")
    await (await take_one(client, queue)).nack(delay="2h")
    broker.advance("2h")
    await (await take_one(client, queue)).nack()
    assert (await origin(client, queue)).reason == "total_timeout"


async def test_a_message_dies_for_each_group_by_itself(client: Client, queue: str) -> None:
    await client.create_queue(queue)
    for group in ("a", "b"):
        await client.create_group(queue, group)
    sent = await client.send(queue, "x")
    for group in ("a", "b"):
        await (await take_one(client, queue, group)).reject(f"by {group}")
    origins = [dead_letter.origin for dead_letter in await dead_letters(client, queue)]
    assert [(each.source_group, each.source_id) for each in origins if each] == [("a", sent.id), ("b", sent.id)]


async def test_without_a_dead_queue_it_is_dropped(client: Client, queue: str) -> None:
    await client.create_queue(queue, {"dlq.enabled": False})
    await client.send(queue, "x")
    await (await take_one(client, queue)).reject()
    assert (await client.queue(queue)).depth == 0
    with pytest.raises(HoldfastError) as caught:
        await dead_letters(client, queue)
    assert caught.value.code == "no_dead_queue"
    stats = await client.stats(queue)
    assert stats.groups[0].dropped == {"rejected": 1}


async def test_a_dead_queue_named_by_hand(client: Client, queue: str) -> None:
    graves = f"graves/{queue}"
    with pytest.raises(DeadQueueInvalid, match="exist"):
        await client.create_queue(queue, {"dlq.queue": graves})
    await client.create_queue(graves, {"dlq.enabled": False})
    await client.create_queue(queue, {"dlq.queue": graves})
    with pytest.raises(DeadQueueInvalid):
        await client.update_queue(queue, {"dlq.queue": queue})
    with pytest.raises(QueueInUse, match="Give those another dead queue first"):
        await client.delete_queue(graves)
    await client.send(queue, "x")
    await (await take_one(client, queue)).reject()
    assert await texts(client, graves) == ["x"]


async def test_one_dead_letter_is_brought_back(client: Client, queue: str) -> None:
    sent = await client.send(queue, "x", key="k")
    await (await take_one(client, queue)).reject("no")
    (dead_letter,) = await dead_letters(client, queue)
    moved = await client.retry_dead(queue, dead_letter.id)
    assert moved.queue == queue
    back = await take_one(client, queue)
    assert (back.id, back.attempt, back.key) == (moved.id, 1, "k")
    assert back.origin is not None
    assert back.origin.source_id == sent.id
    assert await dead_letters(client, queue) == []
    with pytest.raises(MessageNotFound):
        await client.retry_dead(queue, dead_letter.id)


async def test_dead_letters_are_brought_back_by_filter(client: Client, queue: str) -> None:
    await client.send_many(queue, ["a1", "a2", "b1"])
    for message in await take(client, queue, limit=3):
        await message.reject(f"about {message.text()[0]}")
    only_a = wire.DeadFilter(error="ABOUT A")
    counted = await client.redrive(queue, only_a, dry_run=True)
    assert (counted.state, counted.matched, counted.moved) == ("done", 2, 0)
    assert len(await dead_letters(client, queue)) == 3
    job = await client.redrive(queue, only_a)
    seen = [(await take_one(client, queue)).text() for _ in range(2)]
    assert sorted(seen) == ["a1", "a2"]
    while (done := await client.redrive_progress(queue, job.id)).state == "running":
        await yield_to_loop()
    assert (done.id, done.moved) == (job.id, 2)
    assert {each.id for each in await client.redrives(queue)} == {job.id, counted.id}
    assert await client.purge_dead(queue, wire.DeadFilter(reason="expired")) == 0
    assert await client.purge_dead(queue) == 1
    assert await dead_letters(client, queue) == []


async def test_dead_letters_can_go_elsewhere(client: Client, queue: str) -> None:
    other = f"other/{queue}"
    await client.create_queue(other)
    await client.send(queue, "x")
    await (await take_one(client, queue)).reject()
    await client.redrive(queue, to=other)
    assert (await take_one(client, other)).text() == "x"
    assert await take(client, queue) == []


async def test_a_redriven_message_that_dies_again_is_a_dead_letter_again(client: Client, queue: str) -> None:
    sent = await client.send(queue, "x")
    for _ in range(2):
        await (await take_one(client, queue)).reject("again")
        (dead_letter,) = await dead_letters(client, queue)
        await client.retry_dead(queue, dead_letter.id)
    back = await take_one(client, queue)
    assert back.origin is not None
    assert back.origin.source_id != ""
    assert sent.id


async def test_what_is_redriven_for_one_of_several_groups_is_edited_while_it_is_a_dead_letter(
    client: Client, queue: str
) -> None:
    await client.create_queue(queue)
    for group in ("a", "b"):
        await client.create_group(queue, group)
    await client.send(queue, "x")
    await (await take_one(client, queue, "a")).reject()
    assert await texts(client, queue, group="b") == ["x"]
    (dead_letter,) = await dead_letters(client, queue)
    await client.edit(f"dlq/{queue}", dead_letter.id, priority=3)
    moved = await client.retry_dead(queue, dead_letter.id)
    with pytest.raises(MessageNotWaiting, match="settled in group 'b'"):
        await client.edit(queue, moved.id, priority=5)  # the other group has had it
    back = await take_one(client, queue, "a")
    assert (back.id, back.priority) == (moved.id, 3)


async def test_a_group_that_wants_all_that_is_stored_has_what_was_redriven_for_another_too(
    client: Client, queue: str
) -> None:
    await client.create_queue(queue)
    for group in ("a", "b"):
        await client.create_group(queue, group)
    await client.send(queue, "x")
    await (await take_one(client, queue, "a")).reject()
    assert await texts(client, queue, group="b") == ["x"]
    await client.retry_dead(queue, (await dead_letters(client, queue))[0].id)
    await client.create_group(queue, "late")
    await client.create_group(queue, "all", start="earliest")
    seen = {group: await texts(client, queue, group=group) for group in ("a", "b", "late", "all")}
    assert seen == {"a": ["x"], "b": [], "late": [], "all": ["x"]}
