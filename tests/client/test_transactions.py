"""Transactions, workflow states and imports through the client, in process and over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast import wire
from holdfast.client import Client, SyncClient, draft
from holdfast.client import transactions as module
from holdfast.errors import (
    BatchIncomplete,
    InvalidArgument,
    LeaseLost,
    MessageTooLarge,
    StateChanged,
    TransactionPublished,
)
from holdfast.testing import Broker


@pytest.fixture(params=[False, True], ids=["in-process", "http"])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    async with Broker(http=request.param) as running:
        yield running


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Client]:
    async with broker.client() as opened:
        yield opened


async def depth(client: Client, queue: str) -> int:
    return (await client.queue(queue)).depth


# --- transactions ---------------------------------------------------------------------------------------------------


async def test_what_is_staged_becomes_visible_together(client: Client) -> None:
    async with client.transaction() as transaction:
        await transaction.stage("orders", {"id": 7}, key="a", priority=3)
        assert await transaction.stage_many("emails", ["one", draft("two", properties={"to": "b"})]) == 2
        assert await client.receive("orders") == []
    (order,) = await client.receive("orders")
    assert (order.json(), order.key, order.priority) == ({"id": 7}, "a", 3)
    emails = await client.receive("emails", limit=10)
    assert [(email.text(), email.properties) for email in emails] == [("one", {}), ("two", {"to": "b"})]


async def test_an_exception_aborts(client: Client) -> None:
    await client.create_queue("orders")
    transaction = client.transaction()

    async def fail() -> None:
        async with transaction:
            await transaction.stage("orders", 1)
            await transaction.stage_many("orders", range(module.CHUNK_MESSAGES))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await depth(client, "orders") == 0
    assert not await client.transaction(transaction.id).abort(), "nothing is left of it"


async def test_many_messages_go_in_chunks_and_are_published_together(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_MESSAGES", 10)
    await client.create_queue("orders")
    transaction = client.transaction()
    assert await transaction.stage_many("orders", range(35)) == 35
    assert await depth(client, "orders") == 0
    published = await transaction.publish()
    assert (published.state, published.published, published.repeated) == ("published", 35, False)
    assert (await transaction.publish()).repeated
    assert [message.json() for message in await client.receive("orders", limit=100)] == list(range(35))
    with pytest.raises(InvalidArgument, match="is over"):
        await transaction.stage("orders", 1)


async def test_a_run_that_is_begun_again_with_the_same_id_stages_and_publishes_once(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_MESSAGES", 1)
    killed = client.transaction("nightly-7")
    await killed.stage("orders", "a")
    again = client.transaction("nightly-7")
    assert await again.stage_many("orders", ["a", "b"]) == 2
    assert (await again.publish()).published == 2
    with pytest.raises(TransactionPublished):
        await client.transaction("nightly-7").stage("orders", "a")
    assert (await client.transaction("nightly-7").publish()).repeated
    assert [message.text() for message in await client.receive("orders", limit=10)] == ["a", "b"]


async def test_a_message_that_cannot_be_staged_is_never_missing_from_what_is_published(client: Client) -> None:
    await client.create_queue("orders", {"max_message_size": 10})
    transaction = client.transaction()
    await transaction.stage("orders", "short")
    await transaction.stage("orders", "far too long")
    for _ in range(2):
        with pytest.raises(MessageTooLarge):
            await transaction.publish()
    assert await depth(client, "orders") == 0


async def test_aborting_by_hand_ends_the_block_in_peace(client: Client) -> None:
    await client.create_queue("orders")
    async with client.transaction() as transaction:
        await transaction.stage_many("orders", range(module.CHUNK_MESSAGES))
        assert await transaction.abort()
    assert await depth(client, "orders") == 0


# --- workflow state -------------------------------------------------------------------------------------------------


async def test_a_state_lives_through_retries_and_is_guarded_by_its_etag(client: Client) -> None:
    await client.create_queue("jobs", {"retry.initial_backoff": 0})
    await client.send("jobs", "x")
    (message,) = await client.receive("jobs")
    assert (await message.state()).etag == 0
    first = await message.put_state({"step": 1}, etag=0)
    assert first.etag == 1
    with pytest.raises(StateChanged):
        await message.put_state("else", etag=0)
    await message.nack()
    (again,) = await client.receive("jobs", wait="60s")
    assert (await again.state()).json(dict[str, int]) == {"step": 1}
    assert (await again.put_state("text", etag=1)).text() == "text"
    with pytest.raises(LeaseLost):
        await message.put_state("late")
    with pytest.raises(StateChanged):
        await again.clear_state(etag=1)
    await again.clear_state(etag=2)
    cleared = await again.state()
    assert (cleared.data, cleared.etag, await client.state("jobs", again.id)) == (b"", 0, cleared)
    with pytest.raises(InvalidArgument, match="is wrong"):
        cleared.json()
    put = await client.put_state("jobs", again.id, b"\xff", lease_token=again.lease_token, etag=0)
    assert (put.data, put.etag) == (b"\xff", 4)
    with pytest.raises(InvalidArgument, match="UTF-8"):
        (await again.state()).text()
    await client.clear_state("jobs", again.id, lease_token=again.lease_token)
    assert (await again.state()).etag == 0
    with pytest.raises(LeaseLost):
        await message.clear_state()


# --- import ---------------------------------------------------------------------------------------------------------


async def test_items_are_imported_once_by_their_source(client: Client) -> None:
    items = [
        wire.ImportItem(text=str(number), origin=wire.Origin(source_id=str(number + 1), source_queue="old"))
        for number in range(3)
    ]
    first = await client.import_items("jobs", items)
    again = await client.import_items("jobs", items)
    assert (again.ids, again.duplicates) == (first.ids, [0, 1, 2])
    (message, *_) = await client.receive("jobs", limit=10)
    assert message.origin is not None
    assert (message.origin.source_queue, message.message_id) == ("old", None)
    await client.update_queue("jobs", {"max_message_size": 1})
    bad = wire.ImportItem(text="long", origin=wire.Origin(source_id="9", source_queue="old"))
    with pytest.raises(BatchIncomplete):
        await client.import_items("jobs", [bad])
    assert isinstance((await client.import_items("jobs", [bad], check=False)).errors[0], MessageTooLarge)


# --- the twin -------------------------------------------------------------------------------------------------------


def test_the_sync_client_does_the_same() -> None:
    with Broker() as broker, broker.sync_client() as client:
        _use(client)


def _use(client: SyncClient) -> None:
    with client.transaction() as transaction:
        transaction.stage("jobs", "a")
        assert transaction.stage_many("jobs", ["b"]) == 1
    other = client.transaction()

    def fail() -> None:
        with other:
            other.stage("jobs", "c")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not client.transaction(other.id).abort()
    assert client.transaction(transaction.id).publish().repeated
    first, second = client.receive("jobs", limit=10)
    assert (first.text(), second.text()) == ("a", "b")
    assert first.put_state("s").etag == 1
    assert first.state() == client.state("jobs", first.id)
    first.clear_state()
    assert client.put_state("jobs", first.id, "t", lease_token=first.lease_token, etag=0).etag == 3
    client.clear_state("jobs", first.id, lease_token=first.lease_token, etag=3)
    assert first.state().etag == 0
    assert client.import_items("jobs", []).ids == []
