"""A store that fails under a running node: nothing is confirmed that is not stored, and the node comes back alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.broker import cell
from holdfast.broker.node import Node, wall_clock
from holdfast.broker.submission import Submission
from holdfast.core.commands import Draft, Settlement
from holdfast.core.effects import Op
from holdfast.core.transactions import TransactionName
from holdfast.engine.engine import Engine
from holdfast.errors import (
    DiskFull,
    Fenced,
    HoldfastError,
    InternalError,
    StoreCorrupt,
    StoreFull,
    StoreLocked,
    StoreUnavailable,
)
from holdfast.store.faulty import Fault, FaultyStore
from holdfast.store.memory import MemoryStore
from tests.broker.conftest import config_for
from tests.waiting import PATIENCE_SECONDS, until

Q = ("default", "tasks")


class Switch:
    """A plan of faults that a test turns on and off."""

    def __init__(self) -> None:
        self.fault: Fault | None = None

    def __call__(self) -> Fault | None:
        return self.fault


class Rig:
    def __init__(self, path: Path) -> None:
        self.write, self.sync, self.reopen = Switch(), Switch(), Switch()
        self.inner = MemoryStore()
        self.store = FaultyStore(self.inner, write=self.write, sync=self.sync, reopen=self.reopen)
        self.node = Node(config_for(path), self.store)


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(cell, "RECOVERY_PAUSE_SECONDS", 0.005)
    rig = Rig(tmp_path)
    await rig.node.start()
    yield rig
    rig.write.fault = rig.sync.fault = rig.reopen.fault = None
    await rig.node.stop()


def full(after: bool) -> Fault:
    return Fault(StoreFull(path="data"), after=after)


async def until_back(node: Node) -> None:
    """Waits until the node takes calls again."""
    while True:
        try:
            node.queues.in_namespace("default")
        except StoreUnavailable:
            await asyncio.sleep(0.002)
        else:
            return


@pytest.mark.parametrize("where", ["write", "sync"])
@pytest.mark.parametrize("after", [False, True], ids=["before it is applied", "after it is applied"])
async def test_a_failed_commit_confirms_nothing_and_the_node_recovers(rig: Rig, where: str, after: bool) -> None:
    node = rig.node
    await node.messages.enqueue(Q, [Draft(b"kept")])
    switch: Switch = getattr(rig, where)
    switch.fault = full(after)
    with pytest.raises(StoreFull) as caught:
        await node.messages.enqueue(Q, [Draft(b"unknown")])
    assert caught.value.retryable
    with pytest.raises(StoreUnavailable):
        await node.messages.enqueue(Q, [Draft(b"refused")])
    with pytest.raises(StoreUnavailable):
        await node.messages.lease(Q, "g")

    switch.fault = None
    await until_back(node)
    leased = await node.messages.lease(Q, "g", 10)
    payloads = [item.message.payload for item in leased]
    assert payloads[0] == b"kept"
    assert b"refused" not in payloads
    await node.messages.enqueue(Q, [Draft(b"after")])
    (last,) = await node.messages.lease(Q, "g", 10)
    assert last.message.payload == b"after"


async def test_while_the_store_cannot_be_opened_the_node_keeps_refusing(rig: Rig) -> None:
    rig.sync.fault = full(False)
    rig.reopen.fault = full(False)
    with pytest.raises(StoreFull):
        await rig.node.messages.enqueue(Q, [Draft(b"x")])
    for _ in range(5):
        await asyncio.sleep(0.005)
        with pytest.raises(StoreUnavailable):
            await rig.node.messages.enqueue(Q, [Draft(b"y")])
    rig.sync.fault = rig.reopen.fault = None
    await until_back(rig.node)
    assert (await rig.node.messages.enqueue(Q, [Draft(b"z")])).ids[0]


async def test_a_long_poll_is_told_that_the_store_failed(rig: Rig) -> None:
    poll = asyncio.create_task(rig.node.messages.lease(Q, "g", wait=60_000_000))
    await asyncio.sleep(0)
    rig.write.fault = full(False)
    with pytest.raises(StoreFull):
        await rig.node.messages.enqueue(Q, [Draft(b"x")])
    with pytest.raises(StoreUnavailable):
        await poll


async def test_an_ack_that_failed_can_be_repeated(rig: Rig) -> None:
    node = rig.node
    await node.messages.enqueue(Q, [Draft(b"x")])
    (leased,) = await node.messages.lease(Q, "g")
    rig.write.fault = full(False)
    ack = [Settlement(leased.message.id, leased.token, partition=leased.partition)]
    with pytest.raises(StoreFull):
        await node.messages.settle(Q, "g", ack)
    rig.write.fault = None
    await until_back(node)
    assert await node.messages.settle(Q, "g", ack) == [None]


async def test_low_disk_space_refuses_messages_but_not_acks(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    node = rig.node
    await node.messages.enqueue(Q, [Draft(b"x")])
    (leased,) = await node.messages.lease(Q, "g")
    monkeypatch.setattr(rig.store, "room", lambda: 1000)
    node.cell.clock = lambda: wall_clock() + 2_000_000
    with pytest.raises(DiskFull):
        await node.messages.enqueue(Q, [Draft(b"y")])
    assert await node.messages.settle(Q, "g", [Settlement(leased.message.id, leased.token)]) == [None]
    monkeypatch.setattr(rig.store, "room", lambda: None)
    node.cell.clock = lambda: wall_clock() + 4_000_000
    assert (await node.messages.enqueue(Q, [Draft(b"y")])).ids[0]


async def test_after_a_full_disk_leases_and_acks_go_on_so_that_the_node_drains(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk has room for the store, and less than what it keeps for messages."""
    node = rig.node
    await node.messages.enqueue(Q, [Draft(b"x"), Draft(b"y")])
    monkeypatch.setattr(rig.store, "room", lambda: 1000)
    rig.sync.fault = full(False)
    with pytest.raises(StoreFull):
        await node.groups.create(Q, "g")
    rig.sync.fault = None
    await until_back(node)
    node.cell.clock = lambda: wall_clock() + 2_000_000
    with pytest.raises(DiskFull):
        await node.messages.enqueue(Q, [Draft(b"z")])
    leased = await node.messages.lease(Q, "g", 2)
    assert [one.message.payload for one in leased] == [b"x", b"y"]
    acks = [Settlement(one.message.id, one.token) for one in leased]
    assert await node.messages.settle(Q, "g", acks) == [None, None]


async def test_a_node_that_was_fenced_says_so_and_stays_down(rig: Rig) -> None:
    await rig.node.messages.enqueue(Q, [Draft(b"x")])
    rig.inner.acquire()
    with pytest.raises(Fenced):
        await rig.node.messages.enqueue(Q, [Draft(b"y")])
    assert rig.node.cell.broken is not None
    assert isinstance(await rig.node.cell.broken, Fenced)
    with pytest.raises(Fenced):
        await rig.node.messages.enqueue(Q, [Draft(b"z")])


async def test_stats_keep_their_counts_over_a_failure(rig: Rig) -> None:
    node = rig.node
    await node.messages.enqueue(Q, [Draft(b"x") for _ in range(5)])
    before = await node.inspection.stats(Q)
    rig.sync.fault = full(False)
    with pytest.raises(StoreFull):
        await node.groups.create(Q, "g")
    rig.sync.fault = None
    await until_back(node)
    after = await node.inspection.stats(Q)
    assert after.oldest_age > before.oldest_age
    assert (
        (after.depth, after.enqueued, after.size_bytes)
        == (before.depth, before.enqueued, before.size_bytes)
        == (5, 5, 5)
    )


async def test_an_error_nobody_expected_is_its_callers_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    node = rig.node
    await node.messages.enqueue(Q, [Draft(b"kept")])

    def bug(*_: object) -> None:
        raise KeyError("bug")

    with monkeypatch.context() as patch:
        patch.setattr(type(node.cell.engine), "lease", bug)
        with pytest.raises(InternalError):
            await node.messages.lease(Q, "g")
    (leased,) = await node.messages.lease(Q, "g")
    assert leased.message.payload == b"kept"


async def test_an_error_nobody_expected_in_a_turn_is_told_to_all_who_wait(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = rig.node

    def bug(*_: object) -> None:
        raise KeyError("bug")

    with monkeypatch.context() as patch:
        patch.setattr(type(node.cell.engine), "write", bug)
        with pytest.raises(StoreUnavailable, match="internal error"):
            await node.messages.enqueue(Q, [Draft(b"x")])
    await until_back(node)
    assert (await node.messages.enqueue(Q, [Draft(b"y")])).ids[0]


async def test_a_transaction_that_was_decided_is_moved_to_its_end_when_the_store_is_back(rig: Rig) -> None:
    node, name = rig.node, TransactionName("default", "batch-1")
    for chunk in range(10):
        await node.transactions.stage(name, [("tasks", [Draft(b"%d" % chunk)])], chunk=chunk)
    node.cell.engine.transactions.limits = replace(node.cell.engine.transactions.limits, step_messages=1)
    publishing = asyncio.ensure_future(node.transactions.publish(name))
    while (await node.transactions.get(name)).published < 3:  # noqa: ASYNC110 - the move tells nobody
        await asyncio.sleep(0)
    rig.write.fault = full(after=False)
    with pytest.raises(StoreUnavailable):
        await publishing
    rig.write.fault = None
    await until_back(node)
    done = await node.transactions.publish(name)
    assert (done.published, done.repeated) == (10, True)
    leased = await node.messages.lease(Q, "g", 100)
    assert sorted(item.message.payload for item in leased) == [b"%d" % chunk for chunk in range(10)]


class Participant:
    """A front that cannot always be opened again."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.opens = 0
        self.failures = 0

    def collect_ops(self, now: int) -> list[Op]:
        return []

    def written(self) -> None:
        """Nothing to send."""

    def delivered(self) -> None:
        """Nothing to send."""

    def failed(self, error: HoldfastError) -> None:
        self.failures += 1

    def load(self) -> None:
        """Nothing is stored."""

    def opened(self) -> None:
        self.opens += 1
        if self.errors:
            raise self.errors.pop(0)


async def let_fail(rig: Rig) -> None:
    """One commit fails; the store works again at once."""
    rig.sync.fault = full(False)
    with pytest.raises(StoreFull):
        await rig.node.messages.enqueue(Q, [Draft(b"x")])
    rig.sync.fault = None


async def test_an_engine_whose_participants_cannot_be_opened_takes_no_work(rig: Rig) -> None:
    node = rig.node
    participant = Participant(StoreUnavailable(problem="the sessions cannot be read"))
    node.cell.participants.append(participant)
    submitted: list[Submission[object]] = []
    refusing: list[bool] = []

    def resume() -> None:
        submitted.append(node.messages.enqueue(Q, [Draft(b"x")]))
        asyncio.get_running_loop().call_soon(lambda: refusing.append(node.cell.refusal is not None))

    node.cell.on_opened.append(resume)
    await let_fail(rig)
    await until(lambda: participant.opens >= 1)
    with pytest.raises(StoreUnavailable, match="the sessions"):
        await submitted[0]
    await until_back(node)
    await submitted[1]
    assert (participant.opens, participant.failures) == (2, 2)
    assert refusing == [True, False]
    await node.messages.enqueue(Q, [Draft(b"z")])


async def test_a_failure_while_the_store_is_opened_again_does_not_end_the_attempts(rig: Rig) -> None:
    node = rig.node
    opens: list[bool] = []

    def resume() -> None:
        opens.append(True)
        if len(opens) == 1:  # as work that nobody waits for does: its guard reports the error, and it goes no further
            node.cell.commit.fail(StoreUnavailable(problem="again"))

    node.cell.on_opened.append(resume)
    await let_fail(rig)
    await until_back(node)
    assert len(opens) == 2
    await node.messages.enqueue(Q, [Draft(b"z")])


async def test_grants_that_were_held_when_the_store_failed_are_forgotten(rig: Rig) -> None:
    """Else the first grant of the engine that is opened then waits behind them, and is never delivered."""
    dispatcher = rig.node.cell.dispatcher
    dispatcher.hold_until_synced()
    assert dispatcher.has_held
    rig.node.cell.commit.fail(StoreUnavailable(problem="the disk is gone"))
    assert not dispatcher.has_held


async def test_a_node_whose_store_is_damaged_does_not_open_it_again(rig: Rig) -> None:
    node = rig.node
    assert node.cell.broken is not None
    node.cell.commit.fail(StoreCorrupt(path="data", problem="a checksum is wrong"))
    assert node.cell.broken.done()
    assert isinstance(node.cell.broken.result(), StoreCorrupt)
    with pytest.raises(StoreCorrupt):
        node.messages.enqueue(Q, [Draft(b"x")])


async def test_nothing_of_an_operation_is_kept_that_an_internal_error_ended_in_the_middle(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = rig.node
    await node.messages.enqueue(Q, [Draft(b"kept")])
    right = Engine.enqueue

    def wrong(*arguments: Any) -> None:
        right(*arguments)
        raise KeyError("bug")

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "enqueue", wrong)
        with pytest.raises(InternalError):
            node.messages.enqueue(Q, [Draft(b"half")])
    await node.messages.enqueue(Q, [Draft(b"after")])
    leased = await node.messages.lease(Q, "g", 10)
    assert [item.message.payload for item in leased] == [b"kept", b"after"]


async def test_where_an_operation_cannot_be_undone_the_store_is_opened_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = rig.node
    await node.messages.enqueue(Q, [Draft(b"kept")])

    def bug(*_: object) -> None:
        raise KeyError("bug")

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "lease", bug)
        patch.setattr(Engine, "undo", bug)
        with pytest.raises(InternalError):
            await node.messages.lease(Q, "g")
        with pytest.raises(StoreUnavailable, match="internal error"):
            await node.messages.lease(Q, "g")
    await until_back(node)
    (leased,) = await node.messages.lease(Q, "g")
    assert leased.message.payload == b"kept"


@pytest.mark.parametrize(
    ("error", "reported"), [(KeyError("bug"), StoreUnavailable), (StoreLocked(path="data", holder=""), StoreLocked)]
)
async def test_a_node_that_cannot_be_opened_again_says_so(
    rig: Rig, error: Exception, reported: type[HoldfastError]
) -> None:
    node = rig.node
    participant = Participant(error)
    node.cell.participants.append(participant)
    await let_fail(rig)
    assert node.cell.broken is not None
    assert isinstance(await asyncio.wait_for(node.cell.broken, PATIENCE_SECONDS), reported)
    with pytest.raises(reported):
        node.messages.enqueue(Q, [Draft(b"y")])
    await asyncio.sleep(0.02)
    assert participant.opens == 1
