"""A submission ends when its commit is durable or written, and counts itself into the inbox until then."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from holdfast.broker import cell
from holdfast.broker.commit.group_commit import LAZY_SYNC_SECONDS
from holdfast.broker.commit.syncer import Syncer
from holdfast.broker.dispatch.dispatcher import Unclaimed
from holdfast.broker.node import Node
from holdfast.broker.parts.transactions import TransactionView
from holdfast.broker.submission import Moment, Submission
from holdfast.core.commands import Draft, Leased, Settlement
from holdfast.core.queue import GroupKind
from holdfast.core.transactions import TransactionName, TransactionState
from holdfast.engine.engine import Engine
from holdfast.errors import (
    GroupExists,
    HoldfastError,
    LeaseLost,
    QueueExists,
    QueueFull,
    ShuttingDown,
    StateChanged,
    StoreUnavailable,
    TransactionPublished,
)
from holdfast.store.memory import MemoryDisk, MemoryStore
from tests.broker.conftest import config_for, running
from tests.waiting import until

Q = ("default", "tasks")
PATIENCE_SECONDS = 30


class SlowDisk(MemoryStore):
    """Its syncs wait for `go_on` while it is held; it can be made to fail."""

    def __init__(self, disk: MemoryDisk | None = None) -> None:
        super().__init__(disk)
        self.syncs = 0
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.failure: StoreUnavailable | None = None
        self._one = False

    def sync(self) -> None:
        self.begun.set()
        assert self.go_on.wait(PATIENCE_SECONDS)
        if self._one:
            self._one = False
            self.go_on.clear()
        self.syncs += 1
        if self.failure is not None:
            raise self.failure
        super().sync()

    @contextmanager
    def held(self) -> Iterator[None]:
        self.begun.clear()
        self.go_on.clear()
        try:
            yield
        finally:
            self.go_on.set()

    def let_one_end(self) -> None:
        """Let the sync that is under way end, and hold the next."""
        self._one = True
        self.go_on.set()

    async def until_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, PATIENCE_SECONDS)


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


@pytest.fixture
async def node(disk: SlowDisk, tmp_path: Path) -> AsyncIterator[Node]:
    async with running(config_for(tmp_path), disk) as node:
        now = node.clock()
        node.cell.clock = lambda: now
        # A new queue or group, and ids reserved for a while, make a turn whose answers must all wait for its sync.
        await node.queues.create(Q)
        await node.groups.create(Q, "g")
        await node.messages.enqueue(("default", "other"), drafts(b"reserves ids"))
        yield node


def drafts(*payloads: bytes) -> list[Draft]:
    return [Draft(payload) for payload in payloads]


def outcome(submission: Submission[object]) -> list[HoldfastError | None]:
    """What the submission's callback is called with."""
    called: list[HoldfastError | None] = []
    submission.on_done(called.append)
    return called


def acks(leased: list[Leased]) -> list[Settlement]:
    return [Settlement(one.message.id, one.token, partition=one.partition) for one in leased]


async def some_passes() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_it_is_applied_when_the_call_returns_and_done_when_it_is_synced(node: Node, disk: SlowDisk) -> None:
    with disk.held():
        submission = node.messages.enqueue(Q, drafts(b"a"))
        assert submission.moment is Moment.DURABLE
        assert submission.result.ids[0]
        assert node.inspection.current_stats(Q).depth == 1
        called = outcome(submission)
        await disk.until_begun()
        await some_passes()
        assert called == []
    assert await submission is submission.result
    assert called == [None]
    assert outcome(submission) == [None], "one that is done calls back at once"
    assert await submission is submission.result, "and can be awaited again"


async def test_what_is_applied_while_a_sync_runs_waits_for_the_next(node: Node, disk: SlowDisk) -> None:
    with disk.held():
        first = node.messages.enqueue(Q, drafts(b"a"))
        await disk.until_begun()
        disk.begun.clear()
        second = outcome(node.messages.enqueue(Q, drafts(b"b")))
        await some_passes()
        disk.go_on.set()
        await first
        disk.go_on.clear()
        await disk.until_begun()
        await some_passes()
        assert second == [], "the sync that has ended began before it was written"
    await node.cell.commit.durable()
    assert second == [None]


async def test_a_change_that_a_delivery_causes_inside_a_turn_is_not_taken_for_synced_with_it(
    node: Node, disk: SlowDisk
) -> None:
    """`deliver` runs after the turn's batch is written and before its sync starts."""
    settled: list[HoldfastError | None] = []
    lost_in_a_crash: list[bool] = []

    def deliver(leased: list[Leased]) -> None:
        writes = node.cell.engine.writes

        def done(error: HoldfastError | None) -> None:
            settled.append(error)
            lost_in_a_crash.append(node.cell.engine.writes == writes)

        node.messages.settle(Q, "g", acks(leased)).on_done(done)

    await node.subscriptions.join(Q, "g", "m", deliver)
    await node.messages.enqueue(Q, drafts(b"a"))
    await node.cell.commit.durable()
    assert settled == [None]
    assert lost_in_a_crash == [False], "the ack was confirmed by a sync that began before it was written"


@pytest.mark.parametrize("in_place", [False, True])
async def test_a_callback_may_submit_more(node: Node, monkeypatch: pytest.MonkeyPatch, in_place: bool) -> None:
    if in_place:
        syncer = node.cell.commit._syncer
        assert isinstance(syncer, Syncer)
        monkeypatch.setattr(syncer, "start", lambda: syncer._done(*syncer._sync()))
    more: list[Submission[object]] = []
    node.messages.enqueue(Q, drafts(b"a")).on_done(lambda _: more.append(node.messages.enqueue(Q, drafts(b"b"))))
    await node.cell.commit.durable()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await more[0]
    assert node.inspection.current_stats(Q).depth == 2


async def test_a_callback_that_raises_keeps_nothing_from_the_others(node: Node) -> None:
    def fails(_: HoldfastError | None) -> None:
        raise RuntimeError("an answer that cannot be sent")

    submission = node.messages.enqueue(Q, drafts(b"a"))
    submission.on_done(fails)
    called = outcome(submission)
    await submission
    assert called == [None]


async def test_it_counts_into_the_inbox_until_it_is_done_whether_somebody_waits_or_not(
    node: Node, disk: SlowDisk
) -> None:
    inbox = node.cell.inbox
    with disk.held():
        waiting = asyncio.ensure_future(node.messages.enqueue(Q, drafts(b"abc", b"de")))
        node.messages.enqueue(Q, drafts(b"f"))
        assert (inbox.messages, inbox.size_bytes) == (3, 6)
        await disk.until_begun()
        waiting.cancel()
        await some_passes()
        assert (inbox.messages, inbox.size_bytes) == (3, 6), "what is under way is under way"
    await node.cell.commit.durable()
    assert (inbox.messages, inbox.size_bytes) == (0, 0)


async def test_a_store_that_fails_ends_all_of_them_with_the_error(node: Node, disk: SlowDisk) -> None:
    with disk.held():
        running_sync = node.messages.enqueue(Q, drafts(b"a"))
        await disk.until_begun()
        written = node.messages.enqueue(Q, drafts(b"b"))
        called = outcome(written)
        await some_passes()
        applied = node.messages.enqueue(Q, drafts(b"c"))
        disk.failure = StoreUnavailable(problem="the disk is gone")
    for submission in (running_sync, written, applied):
        with pytest.raises(StoreUnavailable, match="the disk is gone"):
            await submission
    assert called == [disk.failure]
    assert (node.cell.inbox.messages, node.cell.inbox.size_bytes) == (0, 0)
    disk.failure = None


async def test_a_callback_that_submits_when_the_store_has_failed_is_refused(node: Node, disk: SlowDisk) -> None:
    refusals: list[Exception] = []

    def submit_again(_: HoldfastError | None) -> None:
        try:
            node.messages.enqueue(Q, drafts(b"again"))
        except (HoldfastError, AssertionError) as error:
            refusals.append(error)

    with disk.held():
        running_sync = node.messages.enqueue(Q, drafts(b"a"))
        running_sync.on_done(submit_again)
        await disk.until_begun()
        written = node.messages.enqueue(Q, drafts(b"b"))
        written.on_done(submit_again)
        await some_passes()
        disk.failure = StoreUnavailable(problem="the disk is gone")
    for submission in (running_sync, written):
        with pytest.raises(StoreUnavailable, match="the disk is gone"):
            await submission
    assert refusals == [disk.failure, disk.failure]
    disk.failure = None


async def test_a_sync_from_before_a_failure_delivers_nothing_that_was_granted_after_it(
    node: Node, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell, "RECOVERY_PAUSE_SECONDS", 0.005)
    commit, dispatcher = node.cell.commit, node.cell.dispatcher
    deliver_held = dispatcher.deliver_held
    delivered_after: list[int] = []  # syncs

    def deliver(engine: Engine) -> Unclaimed:
        delivered_after.append(commit.syncs - before)
        return deliver_held(engine)

    monkeypatch.setattr(dispatcher, "deliver_held", deliver)
    await node.messages.enqueue(Q, drafts(b"a"))
    before = commit.syncs
    with disk.held():
        node.groups.submit_create(Q, "old")  # all of its turn waits for the sync
        await disk.until_begun()
        commit.fail(StoreUnavailable(problem="the disk is gone"))
        await until(lambda: commit.engine is not None)
        node.groups.submit_create(Q, "new")
        await some_passes()
        assert dispatcher.has_held
    await commit.durable()
    assert delivered_after
    assert min(delivered_after) > 1, "the first is the sync from before"


async def test_a_lease_is_done_when_it_is_written(node: Node, disk: SlowDisk) -> None:
    await node.messages.enqueue(Q, drafts(b"a"))
    with disk.held():
        node.messages.enqueue(Q, drafts(b"b"))
        await disk.until_begun()
        lease = node.messages.lease_ready(Q, "g", 1)
        assert lease is not None
        assert lease.moment is Moment.WRITTEN
        assert [one.message.payload for one in await lease] == [b"a"]
        assert not disk.go_on.is_set()
    lease.release()
    assert [one.message.payload for one in await node.messages.lease(Q, "g", 2)] == [b"a", b"b"]


async def test_a_buffered_queue_is_done_when_it_is_written_and_synced_later(
    node: Node, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.queues.update(Q, {"durability": "buffered"})
    delays: list[float] = []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def noted(delay: float, callback: object, *args: object) -> asyncio.TimerHandle:
        if callback == node.cell.commit._sync_lazily:
            delays.append(delay)
            delay = 0
        return call_later(delay, callback, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_later", noted)
    with disk.held():
        submission = node.messages.enqueue(Q, drafts(b"a"))
        assert submission.moment is Moment.WRITTEN
        await submission
        await disk.until_begun()  # nobody waits for it
    assert delays == [LAZY_SYNC_SECONDS]


async def test_what_was_refused_as_a_whole_is_not_synced(node: Node, disk: SlowDisk) -> None:
    await node.queues.update(Q, {"max_depth": 1})
    await node.messages.enqueue(Q, drafts(b"a"))
    syncs = disk.syncs
    refused = node.messages.enqueue(Q, drafts(b"b"))
    assert isinstance(refused.result.errors[0], QueueFull)
    lost = node.messages.settle(Q, "g", [Settlement(1, 1)])
    assert isinstance(lost.result[0], LeaseLost)
    assert {refused.moment, lost.moment} == {Moment.WRITTEN}
    await refused
    await lost
    assert disk.syncs == syncs


async def test_a_response_can_be_made_while_the_disk_works(node: Node, disk: SlowDisk) -> None:
    made: list[HoldfastError | None] = []
    with disk.held():
        submission = node.messages.enqueue(Q, drafts(b"a"))
        submission.on_written(made.append)
        called = outcome(submission)
        await disk.until_begun()
        await some_passes()
        assert (made, called) == ([None], [])
    await submission


async def test_nobody_is_answered_that_a_transaction_is_published_before_it_is_durable(
    node: Node, disk: SlowDisk
) -> None:
    """Else a producer would take its messages for sent that a crash still loses."""
    name = TransactionName("default", "t")
    await node.transactions.stage(name, [("tasks", drafts(b"a"))])
    with disk.held():
        publish = asyncio.ensure_future(node.transactions.publish(name))
        await disk.until_begun()
        others = [
            asyncio.ensure_future(call)
            for call in (
                node.transactions.get(name),
                node.transactions.stage(name, [("tasks", drafts(b"again"))], attempt="2"),
                node.transactions.abort(name),
            )
        ]
        await some_passes()
        assert [publish.done(), *[other.done() for other in others]] == [False] * 4
    assert (await publish).published == 1
    view, staged, aborted = await asyncio.gather(*others, return_exceptions=True)
    assert isinstance(view, TransactionView)
    assert view.state is TransactionState.PUBLISHED
    assert isinstance(staged, TransactionPublished)
    assert isinstance(aborted, TransactionPublished)


async def test_a_lease_that_waits_for_its_sync_when_the_node_stops_is_released(tmp_path: Path) -> None:
    """Else its message would be nobody's until the lease ends, which may be in hours."""
    data, pushed, hour = MemoryDisk(), ("default", "pushed"), 3_600_000_000
    disk = SlowDisk(data)
    stopping = Node(config_for(tmp_path), disk)
    await stopping.start()
    poll = asyncio.ensure_future(stopping.messages.lease(Q, "g", wait=60_000_000, timeout=hour))
    await stopping.subscriptions.join(pushed, "g", "worker", lambda _: None, lease_timeout=hour)
    with disk.held():
        stopping.queues.submit_create(("default", "new"))  # whose turn must be synced
        stopping.messages.enqueue(Q, drafts(b"polled"))
        stopping.messages.enqueue(pushed, drafts(b"pushed"))
        await disk.until_begun()
        assert stopping.cell.dispatcher.has_held
        stopped = asyncio.ensure_future(stopping.stop())
        await some_passes()
    await stopped
    with pytest.raises(ShuttingDown):
        await poll
    async with running(config_for(tmp_path), MemoryStore(data)) as node:
        assert [one.message.payload for one in await node.messages.lease(Q, "g")] == [b"polled"]
        assert [one.message.payload for one in await node.messages.lease(pushed, "g")] == [b"pushed"]


async def test_what_is_granted_later_is_delivered_later(node: Node, disk: SlowDisk) -> None:
    """Although its own turn need not be synced first, as the one before it had to be."""
    delivered: list[bytes] = []
    await node.subscriptions.join(
        Q, "g", "worker", lambda leased: delivered.extend(one.message.payload for one in leased), credit=9
    )
    with disk.held():
        node.queues.submit_create(("default", "new"))  # all answers wait for its sync
        await disk.until_begun()
        node.messages.enqueue(Q, drafts(b"held"))
        await some_passes()
        disk.begun.clear()
        disk.let_one_end()
        await disk.until_begun()  # the next sync, which covers the first lease
        node.messages.enqueue(Q, drafts(b"later"))
        await some_passes()
        assert delivered == []
    await until(lambda: len(delivered) == 2)
    assert delivered == [b"held", b"later"]


async def test_a_lease_that_ended_while_it_waited_for_its_sync_is_not_delivered(node: Node, disk: SlowDisk) -> None:
    """The member came back on another connection; the lease was that of the old one."""
    delivered: list[Leased] = []
    await node.subscriptions.join(Q, "g", "worker", delivered.extend, lease_timeout=1_000)
    with disk.held():
        node.queues.submit_create(("default", "new"))  # all answers wait for its sync
        node.messages.enqueue(Q, drafts(b"x"))
        await disk.until_begun()
        assert node.cell.dispatcher.has_held
        node.subscriptions.join(Q, "g", "worker", delivered.extend, lease_timeout=3_600_000_000)
        later = node.clock() + 3_600_000_000
        node.cell.clock = lambda: later
        node.cell.run_due()
    await node.cell.commit.durable()
    node.cell.clock = lambda: later + 3_600_000_000
    node.cell.run_due()  # after its backoff
    await until(lambda: delivered)
    results = await node.messages.settle(Q, "g", acks(delivered))
    assert results == [None]


async def test_a_member_that_left_and_came_back_has_no_more_than_its_credit(node: Node, disk: SlowDisk) -> None:
    delivered: list[Leased] = []
    gone = await node.subscriptions.join(Q, "g", "worker", delivered.extend)
    with disk.held():
        node.queues.submit_create(("default", "new"))  # all answers wait for its sync
        node.messages.enqueue(Q, drafts(b"first"))
        await disk.until_begun()
        assert node.cell.dispatcher.has_held
        gone.leave(None)
        back = node.subscriptions.join(Q, "g", "worker", delivered.extend)
    member = await back
    await until(lambda: delivered)
    await node.messages.enqueue(Q, drafts(b"second"))
    await some_passes()
    assert ([one.message.payload for one in delivered], member.in_flight) == ([b"first"], 1)


async def test_a_refusal_that_reveals_a_change_waits_until_that_is_durable(node: Node, disk: SlowDisk) -> None:
    new = ("default", "new")
    await node.messages.enqueue(Q, drafts(b"x"))
    (leased,) = await node.messages.lease(Q, "g")
    put = partial(node.workflow_state.put, Q, "g", leased.message.id, leased.token)
    with disk.held():
        changes = [
            asyncio.ensure_future(one)
            for one in (node.queues.create(new), node.groups.create(Q, "log"), put(b"state", if_match=0))
        ]
        await asyncio.sleep(0)
        refused = [
            asyncio.ensure_future(one)
            for one in (
                node.queues.create(new),
                node.groups.create(Q, "log", GroupKind.CURSOR),
                put(b"another", if_match=0),
            )
        ]
        await disk.until_begun()
        await some_passes()
        assert not any(one.done() for one in [*changes, *refused])
    await asyncio.gather(*changes)
    errors = await asyncio.gather(*refused, return_exceptions=True)
    assert [type(error) for error in errors] == [QueueExists, GroupExists, StateChanged]
