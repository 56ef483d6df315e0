"""Transactions through the node: seen all at once, published once, gone on with after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.broker.node import Node
from holdfast.config import Config
from holdfast.config.settings import JournalSettings, LimitSettings, NodeSettings, TransactionSettings
from holdfast.core.commands import Draft
from holdfast.core.queue import GroupKind
from holdfast.core.records import Extra
from holdfast.core.transactions import TransactionName, TransactionState
from holdfast.errors import LimitExceeded, Overloaded, TransactionNotFound, TransactionPublished
from holdfast.store import open_store
from holdfast.store.contract import Store
from tests.waiting import until

T1 = TransactionName("default", "t1")
A = ("default", "a")
B = ("default", "b")


def drafts(count: int, prefix: str = "m") -> list[Draft]:
    return [Draft(f"{prefix}{i}".encode(), extra=Extra(key=f"k{i % 7}")) for i in range(count)]


async def small_steps(node: Node, count: int = 40) -> None:
    """A transaction that takes several steps."""
    await node.queues.create(A, {"partitions": 4})
    for chunk in range(count):
        await node.transactions.stage(T1, [("a", drafts(5, f"{chunk}-"))], part="p", attempt="1", chunk=chunk)


@pytest.fixture
async def stepwise(store: Store, tmp_path: Path) -> Node:
    config = Config(
        node=NodeSettings(data_dir=tmp_path),
        journal=JournalSettings(segment_age=3_600_000_000),
        transactions=TransactionSettings(step_messages=20),
    )
    return Node(config, store)


async def test_everything_is_there_when_publish_answers_and_nothing_before(node: Node) -> None:
    await node.groups.create(A, "log", GroupKind.CURSOR)
    receipt = await node.transactions.stage(T1, [("a", drafts(30)), ("b", drafts(3))])
    assert (receipt.messages, receipt.errors) == (33, {})
    assert (await node.inspection.stats(A)).depth == (await node.inspection.stats(B)).depth == 0
    assert await node.messages.lease(A, "g", 100) == []
    view = await node.transactions.get(T1)
    assert (view.state, view.messages, [part.messages for part in view.parts]) == (TransactionState.OPEN, 33, [33])
    assert view.queues == ["a", "b"]
    done = await node.transactions.publish(T1, protocol="test")
    assert (done.state, done.published, done.repeated) == (TransactionState.PUBLISHED, 33, False)
    assert len(await node.messages.lease(B, "g", 100)) == 3
    ends = await node.cursors.ends(A, "log")
    assert sum(end.end - end.first for end in ends) == 30
    again = await node.transactions.publish(T1)
    assert (again.published, again.published_at, again.repeated) == (33, done.published_at, True)
    assert (await node.inspection.stats(A)).depth == 30


async def test_a_publish_ends_also_when_its_caller_is_cancelled(stepwise: Node) -> None:
    """Else a part of it would be visible, and the rest never."""
    await stepwise.start()
    await small_steps(stepwise)
    publish = asyncio.ensure_future(stepwise.transactions.publish(T1))
    await asyncio.sleep(0)
    publish.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publish
    await until(lambda: stepwise.queues.depth(A) == 200)
    await stepwise.stop()


async def test_a_waiting_consumer_is_served_by_a_publish(node: Node) -> None:
    waiting = asyncio.ensure_future(node.messages.lease(A, "g", 1, wait=30_000_000))
    await node.transactions.stage(T1, [("a", drafts(1))])
    assert not waiting.done()
    await node.transactions.publish(T1)
    assert [leased.message.payload for leased in await waiting] == [b"m0"]


async def test_a_large_one_is_moved_in_steps_and_whoever_asks_meanwhile_waits_too(stepwise: Node) -> None:
    await stepwise.start()
    await small_steps(stepwise)
    first, second = await asyncio.gather(
        stepwise.transactions.publish(T1, {"p": "1"}), stepwise.transactions.publish(T1, {"p": "1"})
    )
    assert first.published == second.published == 200
    assert (first.repeated, second.repeated) == (False, True)
    assert (await stepwise.inspection.stats(A)).depth == 200
    with pytest.raises(TransactionPublished):
        await stepwise.transactions.stage(T1, [("a", drafts(1))])
    await stepwise.stop()
    stepwise.store.close()


async def test_a_caller_who_goes_away_does_not_stop_the_move(stepwise: Node) -> None:
    await stepwise.start()
    await small_steps(stepwise)
    caller = asyncio.ensure_future(stepwise.transactions.publish(T1))
    await asyncio.sleep(0)
    assert (await stepwise.transactions.get(T1)).state is TransactionState.PUBLISHING
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert (await stepwise.transactions.publish(T1)).published == 200
    await stepwise.stop()
    stepwise.store.close()


async def test_a_restart_goes_on_with_what_was_decided(tmp_path: Path) -> None:
    config = Config(
        node=NodeSettings(data_dir=tmp_path),
        journal=JournalSettings(segment_age=3_600_000_000),
        transactions=TransactionSettings(step_messages=20),
    )
    store = open_store("rocks", tmp_path / "store")
    node = Node(config, store)
    await node.start()
    await small_steps(node)
    record, _ = node.cell.engine.transactions.publish(T1, None, "test", node.clock())
    assert (record.state, record.published) == (TransactionState.PUBLISHING, 20)
    await node.stop()
    store.close()
    store = open_store("rocks", tmp_path / "store")
    node = Node(config, store)
    await node.start()
    assert (await node.transactions.publish(T1)).published == 200
    assert (await node.inspection.stats(A)).depth == 200
    await node.stop()
    store.close()


async def test_what_is_wrong_is_refused_as_a_whole(node: Node) -> None:
    await node.queues.create(A, {"max_message_size": 10})
    receipt = await node.transactions.stage(T1, [("b", [Draft(b"fine")]), ("a", [Draft(b"ok"), Draft(b"x" * 11)])])
    assert list(receipt.errors) == [(1, 1)]
    with pytest.raises(TransactionNotFound):
        await node.transactions.get(T1)
    with pytest.raises(TransactionNotFound):
        await node.transactions.publish(T1)
    assert not await node.transactions.abort(T1)
    with pytest.raises(LimitExceeded, match="10000 messages"):
        await node.transactions.stage(T1, [("a", [Draft(b"")] * 10_001)])


async def test_staging_waits_its_turn_like_any_enqueue(store: Store, tmp_path: Path) -> None:
    config = Config(node=NodeSettings(data_dir=tmp_path), limits=LimitSettings(inbox_messages=10))
    node = Node(config, store)
    await node.start()
    one = asyncio.ensure_future(node.transactions.stage(T1, [("a", drafts(9))]))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await node.transactions.stage(T1, [("a", drafts(2))], part="other")
    assert (await one).messages == 9
    assert await node.transactions.abort(T1)
    await node.stop()
    store.close()
