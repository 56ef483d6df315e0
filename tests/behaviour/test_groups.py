"""Groups: every one sees every message, its members share, and some read the queue as a log."""

from __future__ import annotations

import pytest

from holdfast.client import Client
from holdfast.errors import CursorOutOfRange, GroupExists, GroupNotFound, WrongGroupKind
from holdfast.testing import Broker
from tests.behaviour.conftest import take, take_one, texts, yield_to_loop

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_every_group_sees_every_message_and_it_goes_when_all_have_settled_it(client: Client, queue: str) -> None:
    await client.create_queue(queue)
    for group in ("mail", "audit"):
        await client.create_group(queue, group)
    await client.send_many(queue, ["a", "b"])
    assert await texts(client, queue, group="mail") == ["a", "b"]
    assert (await client.queue(queue)).depth == 2
    assert await texts(client, queue, group="audit") == ["a", "b"]
    assert (await client.queue(queue)).depth == 0


async def test_members_of_a_group_share(client: Client, broker: Broker, queue: str) -> None:
    await client.send_many(queue, [str(n) for n in range(10)])
    async with broker.client(name="other") as other:
        mine = await client.receive(queue, limit=5)
        theirs = await other.receive(queue, limit=10)
        assert sorted(message.text() for message in mine + theirs) == [str(n) for n in range(10)]
        held = {view.deliveries[0].consumer async for view in client.browse(queue, state="leased")}
        (name,) = held - {"other"}
        assert name.startswith(client.name)  # over MQTT each of its connections has a name of its own
        assert "other" in held


async def test_the_first_group_has_all_that_is_stored_and_a_later_one_what_comes_after_it(
    client: Client, queue: str
) -> None:
    await client.send(queue, "old")
    assert (await take_one(client, queue, "first")).text() == "old"
    assert await take(client, queue, group="second") == []
    await client.create_group(queue, "third", start="earliest")
    await client.send(queue, "new")
    assert await texts(client, queue, group="second") == ["new"]
    assert await texts(client, queue, group="third") == ["old", "new"]


async def test_a_failure_in_one_group_is_nothing_to_another(client: Client, queue: str) -> None:
    await client.create_queue(queue)
    for group in ("a", "b"):
        await client.create_group(queue, group)
    await client.send(queue, "x")
    await (await take_one(client, queue, "a")).nack(delay="1h", error="only here")
    message = await take_one(client, queue, "b")
    assert message.attempt == 1
    statuses = {each.group: each.state for each in (await client.message(queue, message.id)).deliveries}
    assert statuses == {"a": "scheduled", "b": "leased"}


async def test_a_deleted_group_holds_nothing_back(client: Client, queue: str) -> None:
    await client.create_queue(queue)
    for group in ("a", "b"):
        await client.create_group(queue, group)
    await client.send(queue, "x")
    assert await texts(client, queue, group="a") == ["x"]
    assert [group.name for group in await client.groups(queue)] == ["a", "b"]
    await client.delete_group(queue, "b")
    assert (await client.queue(queue)).depth == 0
    with pytest.raises(GroupNotFound):
        await client.delete_group(queue, "b")


async def test_a_cursor_group_reads_as_often_as_it_likes_until_it_commits(client: Client, queue: str) -> None:
    await client.create_queue(queue, {"partitions": 1})
    await client.create_group(queue, "log", kind="cursor")
    await client.send_many(queue, ["a", "b", "c"])
    found = await client.read(queue, "log")
    assert [message.body() for message in found.messages] == [b"a", b"b", b"c"]
    assert await client.read(queue, "log") == found
    second = found.messages[1].sequence
    assert await client.commit(queue, "log", {0: second}) == 2
    assert (await client.queue(queue)).depth == 1
    after = await client.read(queue, "log")
    assert [message.body() for message in after.messages] == [b"c"]
    with pytest.raises(CursorOutOfRange):
        await client.commit(queue, "log", {0: second + 100})


async def test_a_cursor_group_and_a_leasing_group_side_by_side(client: Client, queue: str) -> None:
    await client.create_queue(queue, {"partitions": 1})
    await client.create_group(queue, "log", kind="cursor")
    await client.create_group(queue, "work")
    await client.send(queue, "x")
    assert await texts(client, queue, group="work") == ["x"]
    found = await client.read(queue, "log")  # settled by the other, but not yet by this one
    assert [message.body() for message in found.messages] == [b"x"]
    await client.commit(queue, "log", {0: found.messages[-1].sequence})
    assert (await client.read(queue, "log")).messages == []


async def test_a_group_is_of_one_kind(client: Client, queue: str) -> None:
    await client.create_queue(queue)
    await client.create_group(queue, "log", kind="cursor")
    with pytest.raises(WrongGroupKind):
        await take(client, queue, group="log")
    with pytest.raises(GroupExists):
        await client.create_group(queue, "log", kind="lease")


async def test_a_cursor_that_lags_too_far_is_moved_on_and_told_so(client: Client, queue: str) -> None:
    await client.create_queue(queue, {"partitions": 1})
    await client.create_group(queue, "log", kind="cursor", max_lag_messages=2)
    await client.send_many(queue, [str(n) for n in range(5)])
    while len((found := await client.read(queue, "log")).messages) > 2:
        await yield_to_loop()  # it is moved on in the broker's next turn
    assert [message.body() for message in found.messages] == [b"3", b"4"]
    assert found.lost_to - found.lost_from == 2  # three messages
