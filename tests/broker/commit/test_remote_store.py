"""A node whose store has a network between: what it does while that answers late, not at all, or belongs to another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from holdfast.broker import cell
from holdfast.broker.node import Node
from holdfast.core.commands import Draft, Settlement
from holdfast.core.records import Extra
from holdfast.errors import Fenced, StoreAway, StoreUnavailable
from holdfast.store.remote.simulated import SimulatedServer, SimulatedTable
from holdfast.store.remote.store import RemoteStore
from tests.broker.conftest import config_for
from tests.waiting import PATIENCE_SECONDS, until

Q = ("default", "tasks")


class Rig:
    """A node on a simulated server. While it is `held`, nothing that is sent arrives."""

    def __init__(self, path: Path) -> None:
        self.server = SimulatedServer()
        self.loop = asyncio.get_running_loop()
        self.held = False
        self.waiting: list[Callable[[], None]] = []
        self.now = 0.0
        self.table = SimulatedTable(self.server, later=self._later)
        self.store = RemoteStore(self.table, patience_seconds=PATIENCE_SECONDS, clock=lambda: self.now)
        self.node = Node(config_for(path), self.store)

    def _later(self, work: Callable[[], None]) -> None:
        if self.held:
            self.waiting.append(work)
        else:
            self.loop.call_soon_threadsafe(work)

    def release(self) -> None:
        """What was sent arrives."""
        self.held = False
        for work in self.waiting:
            self.loop.call_soon_threadsafe(work)
        self.waiting.clear()


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(cell, "RECOVERY_PAUSE_SECONDS", 0.005)
    rig = Rig(tmp_path)
    await rig.node.start()
    yield rig
    rig.server.away = False
    rig.release()
    await rig.node.stop()
    rig.store.close()


async def test_messages_are_stored_leased_and_acked(rig: Rig) -> None:
    messages = rig.node.messages
    await messages.enqueue(Q, [Draft(b"%d" % number) for number in range(100)])
    leased = await messages.lease(Q, "g", 100)
    assert [one.message.payload for one in leased] == [b"%d" % number for number in range(100)]
    settled = await messages.settle(Q, "g", [Settlement(one.message.id, one.token) for one in leased])
    assert settled == [None] * 100
    assert rig.node.inspection.current_stats(Q).depth == 0
    await rig.node.cell.export()
    assert rig.store.behind().writes == 0


async def test_two_batches_are_under_way_and_answered_in_order(rig: Rig) -> None:
    await rig.node.messages.enqueue(Q, [Draft(b"first")])
    rig.held = True
    answered: list[int] = []
    for number in range(5):
        submission = rig.node.messages.enqueue(Q, [Draft(b"%d" % number)])
        submission.on_done(lambda _, number=number: answered.append(number))  # type: ignore[misc]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await until(lambda: len(rig.waiting) == 2)
    assert not answered, "nothing is confirmed before it is stored"
    rig.release()
    await until(lambda: len(answered) == 5)
    assert answered == [0, 1, 2, 3, 4]


async def test_every_batch_is_sent_also_one_that_nobody_waits_for(rig: Rig) -> None:
    await rig.node.messages.enqueue(Q, [Draft(b"one")])
    assert len(await rig.node.messages.lease(Q, "g")) == 1
    await until(lambda: rig.store.behind().writes == 0)


async def test_while_the_store_does_not_answer_nothing_is_leased(rig: Rig) -> None:
    messages = rig.node.messages
    await messages.enqueue(Q, [Draft(b"one"), Draft(b"two")])
    assert len(await messages.lease(Q, "g")) == 1
    await until(lambda: rig.store.behind().writes == 0)
    rig.held = True
    enqueued = messages.enqueue(Q, [Draft(b"three")])
    await until(lambda: rig.waiting)
    assert len(await messages.lease(Q, "g")) == 1, "it was silent for less than a second"
    rig.now += cell.MAX_BEHIND_SECONDS + 0.1
    assert await messages.lease(Q, "g") == []
    waiting = asyncio.ensure_future(messages.lease(Q, "g", wait=int(PATIENCE_SECONDS * 200_000)))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    rig.release()
    assert [one.message.payload for one in await waiting] == [b"three"]
    await enqueued


async def test_after_a_silence_a_lease_is_handed_out_when_it_is_durable(rig: Rig) -> None:
    messages = rig.node.messages
    await messages.enqueue(Q, [Draft(b"one")])
    await until(lambda: rig.store.behind().writes == 0)
    rig.held = True
    rig.now += cell.MAX_BEHIND_SECONDS + 0.1
    leasing = asyncio.ensure_future(messages.lease(Q, "g"))
    await until(lambda: rig.waiting)
    assert not leasing.done(), "this node may have been frozen: is it still the owner?"
    rig.release()
    assert len(await leasing) == 1


async def test_a_node_that_was_replaced_hands_out_nothing_and_ends(rig: Rig) -> None:
    messages = rig.node.messages
    await messages.enqueue(Q, [Draft(b"one")])
    await until(lambda: rig.store.behind().writes == 0)
    rig.now += cell.MAX_BEHIND_SECONDS + 0.1  # it was frozen
    other = RemoteStore(SimulatedTable(rig.server))
    other.acquire()
    with pytest.raises(Fenced):
        await messages.lease(Q, "g")
    assert rig.node.cell.broken is not None
    assert isinstance(await rig.node.cell.broken, Fenced)
    other.close()


async def test_a_store_that_is_away_for_a_while_fails_nothing(rig: Rig) -> None:
    messages = rig.node.messages
    await messages.enqueue(Q, [Draft(b"one")])
    engine = rig.node.cell.engine
    rig.server.away = True
    enqueued = messages.enqueue(Q, [Draft(b"two")])
    await until(lambda: rig.store.behind().writes)
    rig.server.away = False
    await enqueued
    assert rig.node.cell.engine is engine, "the engine, and so every MQTT connection, goes on"
    assert rig.node.inspection.current_stats(Q).depth == 2


async def test_an_operation_that_cannot_be_read_for_fails_alone(rig: Rig) -> None:
    """Nothing waits for a store that does not answer but the first read, and the engine goes on."""
    messages = rig.node.messages
    await messages.enqueue(Q, [Draft(b"%d" % number, extra=Extra(message_id=f"m{number}")) for number in range(3)])
    engine = rig.node.cell.engine
    rig.held = True
    rig.server.away = True
    for _ in range(3):
        with pytest.raises(StoreAway):
            await messages.enqueue(Q, [Draft(b"again", extra=Extra(message_id="other"))])
    asked = rig.table.reads
    with pytest.raises(StoreAway):
        await messages.enqueue(Q, [Draft(b"again", extra=Extra(message_id="other"))])
    assert rig.table.reads == asked, "nobody else waits for it"
    rig.server.away = False
    rig.release()
    await until(lambda: not rig.store._away)
    assert (await messages.enqueue(Q, [Draft(b"1", extra=Extra(message_id="m1"))])).duplicates
    assert not (await messages.enqueue(Q, [Draft(b"again", extra=Extra(message_id="other"))])).duplicates
    assert rig.node.cell.engine is engine, "the engine, and so every MQTT connection, goes on"


async def test_an_operation_that_changed_something_before_has_the_store_opened_again(rig: Rig) -> None:
    await rig.node.messages.enqueue(Q, [Draft(b"one")])
    engine = rig.node.cell.engine

    def half() -> None:
        with rig.node.cell.guard:
            engine.enqueue(Q, [Draft(b"half")], "test", rig.node.clock())
            raise StoreAway(problem="a test")

    with pytest.raises(StoreAway):
        half()
    await until(lambda: rig.node.cell.open_engine not in (None, engine))
    assert rig.node.inspection.current_stats(Q).depth == 1


async def test_a_consumer_that_waits_is_served_when_the_store_answers_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell, "AWAY_PAUSE_SECONDS", 0.005)
    node, messages = rig.node, rig.node.messages
    await messages.enqueue(Q, [Draft(b"one"), Draft(b"two")])
    assert len(await messages.lease(Q, "g")) == 1
    await node.queues.update(Q, {"paused": True})
    node.cell.commit.fail(StoreUnavailable(problem="a test"))  # so that nothing is in memory
    await until(lambda: node.cell.open_engine is not None)
    engine = node.cell.engine
    waiting = asyncio.ensure_future(messages.lease(Q, "g", wait=int(PATIENCE_SECONDS * 1_000_000)))
    await until(lambda: node.cell.dispatcher.waiters.count == 1)
    rig.server.away = True
    resuming = node.queues.update(Q, {"paused": False})
    await until(lambda: rig.store._away)
    assert not waiting.done()
    rig.server.away = False
    assert [one.message.payload for one in await waiting] == [b"two"]
    await resuming
    assert node.cell.engine is engine
