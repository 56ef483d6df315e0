"""Push members: credit, partitions, heartbeats, leaving."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.broker.cell import LEAVING_DELIVERIES_MAX
from holdfast.broker.dispatch.assignment import assign
from holdfast.broker.dispatch.members import STALE_MAX, Member
from holdfast.broker.node import Node
from holdfast.config.settings import MemberSettings
from holdfast.core.commands import Draft, Leased, Settlement, Verb
from holdfast.core.ids import route_of
from holdfast.core.records import NO_EXTRA, Extra, Message
from holdfast.store.contract import Store
from tests.broker.conftest import config_for, running
from tests.waiting import until

Q = ("default", "tasks")


class Inbox:
    """Collects what a member is sent, and lets a test wait until there is enough."""

    def __init__(self) -> None:
        self.got: list[Leased] = []
        self._changed = asyncio.Event()

    def __call__(self, leased: list[Leased]) -> None:
        self.got += leased
        self._changed.set()

    async def expect(self, count: int) -> list[Leased]:
        while len(self.got) < count:
            self._changed.clear()
            await self._changed.wait()
        return self.got


def acks(leased: list[Leased], verb: Verb = Verb.ACK) -> list[Settlement]:
    return [Settlement(item.message.id, item.token, verb, partition=item.partition) for item in leased]


def test_deadlines_of_what_was_settled_do_not_pile_up() -> None:
    """Leases of an hour, each acked immediately."""
    member = Member((Q, "g"), "m", "test", 10, -1, 0, lambda _: None, 0)
    for number in range(1, 2_000):
        message = Message(number, number, 128, 0, 0, 0, NO_EXTRA, b"")
        member.add_in_flight([Leased(message, number, 1, 3_600_000_000 + number, 0, "g")])
        assert len(member.deadlines) <= 2 * len(member.in_flight) + STALE_MAX
        if number > 10:
            member.forget(number)
    assert {entry[1] for entry in member.deadlines} >= set(member.in_flight) == set(range(1, 11))


async def test_a_member_is_sent_no_more_than_its_credit(node: Node) -> None:
    inbox = Inbox()
    member = await node.subscriptions.join(Q, "g", "m1", inbox, credit=3)
    await node.messages.enqueue(Q, [Draft(b"%d" % n) for n in range(10)])
    await inbox.expect(3)
    assert member.in_flight == 3
    await node.messages.settle(Q, "g", acks(inbox.got[:2]))
    await inbox.expect(5)
    assert member.in_flight == 3
    member.set_credit(10)
    await inbox.expect(10)
    assert [item.message.payload for item in inbox.got] == [b"%d" % n for n in range(10)]


async def test_partitions_are_shared_evenly_and_moved_on_join_and_leave(node: Node) -> None:
    one, two, three = Inbox(), Inbox(), Inbox()
    first = await node.subscriptions.join(Q, "g", "m1", one, credit=1000)
    assert len(first.partitions) == 10
    second = await node.subscriptions.join(Q, "g", "m2", two, credit=1000)
    third = await node.subscriptions.join(Q, "g", "m3", three, credit=1000)
    assert sorted([len(first.partitions), len(second.partitions), len(third.partitions)]) == [3, 3, 4]
    assert sorted(first.partitions + second.partitions + third.partitions) == list(range(10))
    await node.messages.enqueue(Q, [Draft(b"x", extra=Extra(key=str(n))) for n in range(300)])
    for member, inbox in ((first, one), (second, two), (third, three)):
        await inbox.expect(sum(route_of(str(n)) % 10 in member.partitions for n in range(300)))
    got = one.got + two.got + three.got
    assert len(got) == len({item.message.id for item in got}) == 300
    assert {item.partition for item in one.got} <= set(first.partitions)
    second.leave()
    assert sorted(first.partitions + third.partitions) == list(range(10))


async def test_who_leaves_gracefully_releases_without_spending_an_attempt(node: Node) -> None:
    one, two = Inbox(), Inbox()
    first = await node.subscriptions.join(Q, "g", "m1", one, credit=10)
    await node.messages.enqueue(Q, [Draft(b"a"), Draft(b"b")])
    await one.expect(2)
    await node.subscriptions.join(Q, "g", "m2", two, credit=10)
    first.leave()
    got = await two.expect(2)
    assert [(item.message.payload, item.attempt) for item in got] == [(b"a", 1), (b"b", 1)]


async def test_who_vanishes_fails_what_it_had(node: Node) -> None:
    await node.queues.create(Q, {"retry.initial_backoff": "10ms"})
    one, two = Inbox(), Inbox()
    first = await node.subscriptions.join(Q, "g", "m1", one)
    await node.messages.enqueue(Q, [Draft(b"a")])
    await one.expect(1)
    await node.subscriptions.join(Q, "g", "m2", two)
    first.leave(Verb.DISCONNECT)
    (again,) = await two.expect(1)
    assert again.attempt == 2
    assert (await node.inspection.stats(Q)).groups[0].failures == {"disconnect": 1}


async def test_a_member_without_a_heartbeat_is_removed(store: Store, tmp_path: Path) -> None:
    config = replace(config_for(tmp_path), members=MemberSettings(heartbeat_timeout=30_000))
    async with running(config, store) as node:
        await node.queues.create(Q, {"retry.initial_backoff": 0})
        one, two = Inbox(), Inbox()
        await node.messages.enqueue(Q, [Draft(b"a")])
        clock, now = node.clock, node.clock()
        node.cell.clock = lambda: now  # time stands still until it has the message: a busy machine may take longer
        await node.subscriptions.join(Q, "g", "silent", one, heartbeat=True)
        await one.expect(1)
        node.cell.clock = clock
        await node.subscriptions.join(Q, "g", "alive", two)
        (again,) = await two.expect(1)
        assert again.attempt == 2
        assert list((await node.inspection.stats(Q)).groups[0].members) == ["alive"]


async def test_members_that_fall_silent_together_are_removed_in_several_turns(store: Store, tmp_path: Path) -> None:
    config = replace(config_for(tmp_path), members=MemberSettings(heartbeat_timeout=30_000_000))
    async with running(config, store) as node:
        now = node.clock()
        node.cell.clock = lambda: now
        count = LEAVING_DELIVERIES_MAX // 4
        queues = [("default", f"q{number}") for number in range(10)]
        for queue in queues:
            inbox = Inbox()
            await node.subscriptions.join(queue, "g", "m", inbox, heartbeat=True, credit=count)
            await node.messages.enqueue(queue, [Draft(b"x")] * count)
            await inbox.expect(count)
        now += 30_000_000
        node.cell.run_due()
        members = node.cell.dispatcher.members
        assert len(members.all_members()) == 6
        await until(lambda: not members.all_members())
        assert [(await node.inspection.stats(queue)).groups[0].leased for queue in queues] == [0] * 10


async def test_a_member_whose_lease_runs_out_has_its_credit_back(node: Node) -> None:
    await node.queues.create(Q, {"retry.initial_backoff": "10ms"})
    inbox = Inbox()
    await node.subscriptions.join(Q, "g", "m1", inbox, lease_timeout=20_000)
    await node.messages.enqueue(Q, [Draft(b"a")])
    got = await inbox.expect(2)
    assert [item.attempt for item in got[:2]] == [1, 2]  # on a busy machine there may be a third


async def test_stopping_releases_what_members_hold(node: Node) -> None:
    inbox = Inbox()
    await node.subscriptions.join(Q, "g", "m1", inbox, credit=5)
    await node.messages.enqueue(Q, [Draft(b"a")])
    await inbox.expect(1)
    await node.stop()
    await node.start()
    (again,) = await node.messages.lease(Q, "g")
    assert again.attempt == 1
    assert len(inbox.got) == 1


async def test_a_member_whose_callback_fails_does_not_bring_the_node_down(node: Node) -> None:
    def broken(leased: list[Leased]) -> None:
        raise RuntimeError("no")

    bad = await node.subscriptions.join(Q, "g", "bad", broken)
    await node.messages.enqueue(Q, [Draft(b"a")])
    bad.leave()
    (leased,) = await node.messages.lease(Q, "g", wait=10_000_000)
    assert leased.attempt == 1


async def test_a_member_that_comes_back_keeps_what_it_had(node: Node) -> None:
    old, new = Inbox(), Inbox()
    first = await node.subscriptions.join(Q, "g", "m1", old, credit=2)
    await node.messages.enqueue(Q, [Draft(b"%d" % n) for n in range(3)])
    await old.expect(2)
    second = await node.subscriptions.join(Q, "g", "m1", new, credit=2)
    assert second.in_flight == 2
    first.leave()
    await node.messages.settle(Q, "g", acks(old.got))
    (third,) = await new.expect(1)
    assert third.message.payload == b"2"


@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.booleans(), st.integers(0, 7)), max_size=30),
)
def test_assignment_is_even_complete_and_moves_as_little_as_can_be(
    partitions: int, changes: list[tuple[bool, int]]
) -> None:
    members: list[str] = []
    shares: dict[str, list[int]] = {}
    for joins, number in changes:
        name = f"m{number}"
        if joins and name not in members:
            members.append(name)
        elif not joins and name in members:
            members.remove(name)
        before, shares = shares, assign(partitions, members, shares)
        if not members:
            assert shares == {}
            continue
        sizes = [len(share) for share in shares.values()]
        assert max(sizes) - min(sizes) <= 1
        assert sorted(p for share in shares.values() for p in share) == list(range(partitions))
        kept = sum(len(set(shares[m]) & set(before.get(m, ()))) for m in members)
        most = partitions // len(members) + 1
        possible = sum(min(len(before.get(m, ())), most) for m in members)
        extra = partitions % len(members)
        above = sum(1 for m in members if len(before.get(m, ())) > partitions // len(members))
        assert kept == possible - max(above - extra, 0)


class Gated:
    """A store's sync that waits until it may end."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.begun = threading.Event()
        self._sync = node.store.sync
        monkeypatch.setattr(node.store, "sync", self)

    def __call__(self) -> None:
        self.begun.set()
        self.open.wait()
        self._sync()


async def held_back(node: Node, monkeypatch: pytest.MonkeyPatch) -> tuple[Inbox, Gated, asyncio.Task[object]]:
    """A member that has been granted a message in a turn which must be synced first, while that sync waits."""
    inbox = Inbox()
    await node.subscriptions.join(Q, "g", "m1", inbox, credit=10)
    gate = Gated(node, monkeypatch)
    monkeypatch.setattr(node.cell.commit._syncer, "_calm", 0)  # on its thread
    node.cell.engine.record.ids_reserved = 0  # so it is whenever ids are reserved anew
    enqueue = asyncio.ensure_future(node.messages.enqueue(Q, [Draft(b"1")]))
    await asyncio.to_thread(gate.begun.wait)
    return inbox, gate, enqueue


async def test_what_is_granted_in_a_turn_that_must_be_synced_goes_out_with_it_and_first(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox, gate, enqueue = await held_back(node, monkeypatch)
    later = asyncio.ensure_future(node.messages.enqueue(Q, [Draft(b"2")]))
    for _ in range(5):
        await asyncio.sleep(0)
    assert inbox.got == []
    gate.open.set()
    await inbox.expect(2)
    assert [item.message.payload for item in inbox.got] == [b"1", b"2"]
    await asyncio.gather(enqueue, later)


async def test_what_was_granted_in_a_group_that_was_deleted_meanwhile_holds_nobody_up(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox, gate, enqueue = await held_back(node, monkeypatch)
    delete = asyncio.create_task(node.groups.delete(Q, "g"))
    heard: list[object] = []
    for _ in range(40):
        node.cell.commit.on_written(heard.append)
        await asyncio.sleep(0)
    gate.open.set()
    await asyncio.gather(enqueue, delete)
    await node.messages.enqueue(Q, [Draft(b"3")])
    assert heard == [None] * 40
    assert inbox.got == []


async def test_a_caller_that_gives_up_before_it_is_answered_has_not_joined(node: Node) -> None:
    async def join() -> None:
        await node.subscriptions.join(Q, "g", "m", lambda leased: None)

    joining = asyncio.create_task(join())
    await asyncio.sleep(0)
    assert len(node.cell.dispatcher.members.of((Q, "g"))) == 1
    joining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await joining
    assert node.cell.dispatcher.members.of((Q, "g")) == []
    await node.messages.enqueue(Q, [Draft(b"x")])
    assert len(await node.messages.lease(Q, "g")) == 1
