"""A node whose store counts: what falls due together is done in turns of bounded work, with others' between them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.broker.cell import LEAVING_DELIVERIES_MAX
from holdfast.broker.dispatch.dispatcher import TURN_WORK_MAX
from holdfast.broker.dispatch.members import HEARTBEATS_MAX, Member, Members
from holdfast.broker.node import Node
from holdfast.config.settings import MemberSettings
from holdfast.core.commands import Draft, Leased, Settlement, Verb
from holdfast.core.queue import QueueConfig, QueueRecord
from holdfast.engine.catalog import Queue, QueueName
from holdfast.engine.engine import Engine, SettleResult
from holdfast.store import MemoryDisk, MemoryStore
from holdfast.units import NEVER, SECOND
from tests.broker.conftest import config_for, running
from tests.engine.calls import calls_of
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


def sizes_of_settlements(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many deliveries each settlement is for, from now on."""
    counts: list[int] = []
    right = Engine.settle

    def settle(
        self: Engine, name: QueueName, group: str, settlements: list[Settlement], now: int
    ) -> list[SettleResult]:
        counts.append(len(settlements))
        return right(self, name, group, settlements, now)

    monkeypatch.setattr(Engine, "settle", settle)
    return counts


async def test_what_a_member_that_leaves_has_held_is_released_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(config_for(tmp_path), members=MemberSettings(max_prefetch=10_000))
    async with running(config, MemoryStore()) as node:
        count = 3 * LEAVING_DELIVERIES_MAX + 7
        got: list[Leased] = []
        leaving = await node.subscriptions.join(OTHER, "g", "m", got.extend, credit=count)
        await node.messages.enqueue(OTHER, [Draft(b"x")] * count)
        await until(lambda: len(got) == count)
        counts = sizes_of_settlements(monkeypatch)
        leaving.leave(Verb.RELEASE)
        assert counts == [LEAVING_DELIVERIES_MAX], "others have their turn"
        again = await node.subscriptions.join(OTHER, "g", "m", got.extend, credit=2 * count)
        await until(lambda: len(got) == 2 * count)
        assert counts == [LEAVING_DELIVERIES_MAX] * 3 + [7]
        assert {one.message.id for one in got[count:]} == {one.message.id for one in got[:count]}
        assert again.in_flight == count


async def test_all_that_members_hold_is_released_before_the_node_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.broker.cell.LEAVING_DELIVERIES_MAX", 2)  # more turns than a sync takes
    disk = MemoryDisk()
    count = 1_000
    config = config_for(tmp_path)
    async with running(config, MemoryStore(disk)) as node:
        got: list[Leased] = []
        for member in range(3):
            await node.subscriptions.join(("default", f"q{member}"), "g", "m", got.extend, credit=count)
            await node.messages.enqueue(("default", f"q{member}"), [Draft(b"x")] * count)
        await until(lambda: len(got) == 3 * count)
        counts = sizes_of_settlements(monkeypatch)
    assert max(counts) == 2
    async with running(config, MemoryStore(disk)) as node:
        stats = [await node.inspection.stats(("default", f"q{member}")) for member in range(3)]
        assert [(one.groups[0].leased, one.groups[0].ready) for one in stats] == [(0, count)] * 3


def test_heartbeats_that_come_in_time_are_looked_at_by_their_timeouts() -> None:
    """And as many as one turn can look at: no turn looks at all members."""
    queue = Queue(QueueRecord("default", "jobs", QueueConfig(), (), 0), [])
    count = 2 * HEARTBEATS_MAX
    members = Members(1 << 20)
    everybody = [
        Member((OTHER, f"g{number}"), "m", "test", 1, -1, 10 * SECOND, lambda _: None, number)
        for number in range(count)
    ]
    for member in everybody:
        members.join(member, queue)
    for member in everybody[:-1]:
        member.last_seen += SECOND
    assert calls_of(lambda: members.next_timed_out(9 * SECOND)) < 10
    now = 10 * SECOND + count
    assert members.overdue_at == 10 * SECOND
    found = [members.next_timed_out(now) for _ in range(3)]
    assert found == [None, everybody[-1], None]
    assert members.overdue_at == 11 * SECOND
    for member in everybody[:-1]:
        members.leave(member, queue)
    assert members.overdue_at == NEVER
