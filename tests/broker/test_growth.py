"""A turn of a node costs what it does: queues, members and timers that are idle add nothing to the life of one
message. Counted in function calls, which do not depend on the machine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.broker.node import Node
from holdfast.core.commands import Draft, Leased
from holdfast.store import MemoryDisk, MemoryStore
from holdfast.units import SECOND
from tests.broker.conftest import config_for
from tests.engine.calls import calls_of
from tests.waiting import until

TASKS = ("default", "tasks")
SLACK = 12
"""Calls by which two lives may differ: a heap, a hash table and the store's own order are not quite flat."""


class Lives:
    """A node with one member, which is sent one message at a time and acks it."""

    def __init__(self, path: Path) -> None:
        self.now = 1_772_323_200 * SECOND
        self.sent: list[Leased] = []
        self.node = Node(config_for(path), MemoryStore(MemoryDisk()), lambda: self.now)

    async def start(self) -> None:
        await self.node.start()
        await self.node.queues.create(TASKS, {"partitions": 4})
        await self.node.subscriptions.join(TASKS, "g", "me", self.sent.extend, credit=10)

    async def stop(self) -> None:
        await self.node.stop()
        self.node.store.close()

    def live(self) -> None:
        """One message is enqueued and sent in one turn, and acked in the next."""
        node, commit = self.node, self.node.cell.commit
        node.messages.enqueue(TASKS, [Draft(b"m")], "test")
        commit.run_turn()
        leased = self.sent.pop()
        node.messages.ack(TASKS, "g", [leased.message.id], [leased.token], leased.partition)
        commit.run_turn()

    async def live_slowly(self) -> None:
        """The same with syncs between: after a pause, ids are reserved before anything is delivered."""
        await self.node.messages.enqueue(TASKS, [Draft(b"m")], "test")
        await until(lambda: bool(self.sent))
        leased = self.sent.pop()
        await self.node.messages.ack(TASKS, "g", [leased.message.id], [leased.token], leased.partition)

    async def calls(self) -> int:
        """Those of one life, the syncs not counted: they are on their thread."""
        counts: list[int] = []
        await self.live_slowly()
        for _ in range(16):
            self.now += 1_000
            counts.append(calls_of(self.live))
            await self.node.cell.commit.durable()
        return min(counts)


@pytest.mark.parametrize("idle", [1, 300])
async def test_a_life_costs_the_same_beside_idle_queues_and_members(idle: int, tmp_path: Path) -> None:
    lives = Lives(tmp_path)
    await lives.start()
    alone = await lives.calls()
    for number in range(idle):
        name = ("default", f"idle{number}")
        await lives.node.queues.create(name, {"partitions": 1})
        await lives.node.subscriptions.join(name, "g", "other", refuse, heartbeat=True)
    beside = await lives.calls()
    await lives.stop()
    assert beside - alone <= SLACK, (alone, beside)


def refuse(_leased: list[Leased]) -> None:
    """A member of an idle queue is sent nothing."""
    raise AssertionError


async def test_leases_that_are_acked_in_time_set_no_timer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lives = Lives(tmp_path)
    await lives.start()
    await lives.calls()  # which set it for the first of them
    timers: list[float] = []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def counted(delay: float, *call: object) -> asyncio.TimerHandle:
        timers.append(delay)
        return call_later(delay, *call)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_later", counted)
    for _ in range(10):
        lives.now += 1_000
        lives.live()
    assert timers == []
    monkeypatch.undo()
    await lives.stop()


async def test_a_timer_that_fires_before_anything_is_due_is_set_again_without_a_turn(tmp_path: Path) -> None:
    lives = Lives(tmp_path)
    await lives.start()
    await lives.calls()
    cell = lives.node.cell
    lives.now += 29 * SECOND
    await lives.node.messages.enqueue(TASKS, [Draft(b"held")], "test")
    await until(lambda: bool(lives.sent))
    assert lives.sent.pop().attempt == 1
    turns = cell.commit.batches
    lives.now += 2 * SECOND  # leases of before would have ended, this one has not
    cell.run_due()
    await asyncio.sleep(0)
    assert (cell.commit.batches, lives.sent) == (turns, [])
    lives.now += 29 * SECOND
    cell.run_due()
    await cell.commit.durable()
    lives.now += 6 * SECOND
    cell.run_due()
    await until(lambda: bool(lives.sent))
    assert lives.sent.pop().attempt == 2, "the lease has ended in time, and so has its backoff"
    await lives.stop()
