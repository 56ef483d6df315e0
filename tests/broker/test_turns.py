"""A node whose store counts: what falls due together is done in turns of bounded work, with others' between them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.broker.dispatch.dispatcher import TURN_WORK_MAX
from holdfast.broker.node import Node
from holdfast.core.commands import Draft, Leased
from holdfast.engine.engine import Engine
from holdfast.store import MemoryDisk, MemoryStore
from holdfast.units import SECOND
from tests.broker.conftest import config_for
from tests.engine.counting import TURN_RECORDS_MAX, CountingStore
from tests.waiting import until

DELAYED, OTHER = ("default", "delayed"), ("default", "other")
MANY = 3_000


async def test_delayed_messages_that_fall_due_together_hold_up_no_enqueue(tmp_path: Path) -> None:
    now = 1_772_323_200 * SECOND
    store = CountingStore(MemoryDisk())
    node = Node(config_for(tmp_path), store, lambda: now)
    await node.start()
    await node.queues.create(DELAYED, {"partitions": 1})
    await node.groups.create(DELAYED, "g")
    await node.messages.enqueue(DELAYED, [Draft(b"m", deliver_at=now + SECOND) for _ in range(MANY)], "test")
    turns: list[int] = []

    def end_turn(must_sync: bool) -> None:
        turns.append(store.records)
        store.records = 0
        after_write(must_sync)

    after_write = node.cell.commit._after_write
    node.cell.commit._after_write = end_turn
    store.records = 0
    now += SECOND
    node.cell.run_due()
    await node.messages.enqueue(OTHER, [Draft(b"m")], "test")
    assert (await node.inspection.stats(DELAYED)).scheduled > MANY // 2, "the rest waits its turn"
    await until(lambda: not node.inspection.current_stats(DELAYED).scheduled)
    assert len(turns) > 10
    assert max(turns) <= TURN_RECORDS_MAX
    await node.stop()
    store.close()


async def test_a_queue_that_grows_by_many_partitions_goes_on_after_a_restart(tmp_path: Path) -> None:
    disk = MemoryDisk()
    node = Node(config_for(tmp_path), MemoryStore(disk))
    await node.start()
    await node.queues.create(OTHER, {"partitions": 1})
    for number in range(20):
        await node.groups.create(OTHER, f"g{number}")
    record = await node.queues.update(OTHER, {"partitions": 1_024})
    assert (record.config.partitions, len(record.shards) < 100) == (1_024, True)
    await node.stop()
    node = Node(config_for(tmp_path), MemoryStore(disk))
    await node.start()
    await node.queues.grown(OTHER)
    assert (await node.inspection.stats(OTHER)).partitions == 1_024
    await node.queues.grown(OTHER)
    await node.stop()


async def test_partitions_that_follow_are_given_to_the_members_of_a_group(tmp_path: Path) -> None:
    node = Node(config_for(tmp_path), MemoryStore())
    await node.start()
    await node.queues.create(OTHER, {"partitions": 1})
    got: list[Leased] = []
    for number in range(20):
        await node.groups.create(OTHER, f"g{number}")
    await node.subscriptions.join(OTHER, "g0", "m", got.extend, credit=1_000)
    await node.queues.update(OTHER, {"partitions": 200})
    await node.queues.grown(OTHER)
    for _ in range(200):
        await node.messages.enqueue(OTHER, [Draft(b"m")])
    await until(lambda: len(got) == 200)
    assert {leased.partition for leased in got} == set(range(200))
    await node.stop()


def leased_in_turns(node: Node) -> list[int]:
    """How many each turn leases for those that wait, from now on."""
    turns: list[int] = []
    dispatcher = node.cell.dispatcher
    lease = dispatcher.lease

    def counted_lease(engine: Engine, now: int) -> None:
        lease(engine, now)
        turns.append(sum(len(leased) for _, leased in dispatcher._granted))

    dispatcher.lease = counted_lease  # type: ignore[method-assign]
    return turns


@pytest.mark.parametrize(("queues", "messages"), [(1, 3 * TURN_WORK_MAX), (30, TURN_WORK_MAX // 10)])
async def test_a_turn_leases_a_bounded_number_for_all_consumers_together(
    tmp_path: Path, queues: int, messages: int
) -> None:
    node = Node(config_for(tmp_path), MemoryStore(MemoryDisk()))
    await node.start()
    turns = leased_in_turns(node)
    got: list[Leased] = []
    names = [("default", f"q{number}") for number in range(queues)]
    for name in names:
        for member in range(10):
            await node.subscriptions.join(name, "g", f"m{member}", got.extend, credit=min(messages, 1_000))
    for name in names:  # in one pass of the loop, and so in one turn
        for _ in range(0, messages, 100):
            node.messages.enqueue(name, [Draft(b"m")] * 100, "test")
    await until(lambda: len(got) == queues * messages)
    assert max(turns) <= TURN_WORK_MAX
    assert len([one for one in turns if one]) >= 3
    await node.stop()


async def test_long_polls_that_are_served_together_share_the_bound_of_a_turn(tmp_path: Path) -> None:
    node = Node(config_for(tmp_path), MemoryStore(MemoryDisk()))
    await node.start()
    await node.queues.create(OTHER)
    turns = leased_in_turns(node)
    limit = TURN_WORK_MAX // 2
    polls = [asyncio.ensure_future(node.messages.lease(OTHER, "g", limit, wait=60 * SECOND)) for _ in range(6)]
    await until(lambda: node.cell.dispatcher.waiters.count == 6)
    for _ in range(0, 3 * TURN_WORK_MAX, 100):
        node.messages.enqueue(OTHER, [Draft(b"m")] * 100, "test")
    assert [len(leased) for leased in await asyncio.gather(*polls)] == [limit] * 6
    assert max(turns) == 2 * limit, "the others are served in the next turns"
    await node.stop()
