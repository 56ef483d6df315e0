"""No caller's input or error ends the node or has it open its store again: only the store's own failures do that."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

import holdfast
from holdfast.broker.enqueue_batcher import EnqueueBatcher
from holdfast.broker.node import Node
from holdfast.config import QueueSettings, StoreSettings
from holdfast.core.commands import Browse, Draft, Find, Leased, Settlement, Tick, Verb
from holdfast.core.effects import Op
from holdfast.core.queue import GroupKind
from holdfast.core.records import Extra
from holdfast.core.shard import COMMANDS, Shard
from holdfast.core.transactions import TransactionName, TransactionState
from holdfast.engine.dead_letters import DeadLetterFilter
from holdfast.engine.engine import Engine
from holdfast.engine.groups import delete_group
from holdfast.errors import (
    DiskFull,
    GroupNotFound,
    InternalError,
    LimitExceeded,
    StoreError,
    StoreUnavailable,
    all_errors,
)
from holdfast.store import MemoryStore
from holdfast.units import SECOND
from tests.broker.conftest import config_for, running
from tests.waiting import until

Q = ("default", "tasks")
SOURCE = Path(holdfast.__file__).parent


class Room:
    """A memory store whose free space a test sets."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.store = MemoryStore()
        self.store.room = lambda: self.left  # type: ignore[method-assign]


@pytest.fixture
def room() -> Room:
    return Room()


@pytest.fixture
async def node(room: Room, tmp_path: Path) -> AsyncIterator[Node]:
    config = replace(
        config_for(tmp_path), store=StoreSettings(min_free_bytes=1_000), queues=QueueSettings(max_groups_per_queue=3)
    )
    async with running(config, room.store) as node:
        engine = node.cell.engine
        yield node
        assert node.cell.broken is not None
        assert not node.cell.broken.done(), "the process would have ended"
        assert node.cell.engine is engine, "the store was opened again"


async def dead_letters(node: Node, count: int) -> None:
    await node.messages.enqueue(Q, [Draft(b"%d" % number) for number in range(count)])
    leased = await node.messages.lease(Q, "g", count)
    await node.messages.settle(Q, "g", [Settlement(one.message.id, one.token, Verb.REJECT) for one in leased])


async def test_members_of_a_group_that_became_a_cursor_group_are_removed(node: Node) -> None:
    removed = asyncio.Event()
    joined = await node.subscriptions.join(Q, "g", "m", lambda leased: None, removed=removed.set)
    await node.queues.delete(Q)
    await node.queues.create(Q, {})
    await node.groups.create(Q, "g", GroupKind.CURSOR)
    await node.messages.enqueue(Q, [Draft(b"x")])
    await removed.wait()
    assert not joined.joined


async def test_members_of_a_group_that_cannot_be_created_again_are_removed(node: Node) -> None:
    removed = asyncio.Event()
    await node.subscriptions.join(Q, "g", "m", lambda leased: None, removed=removed.set)
    got: list[Leased] = []
    await node.queues.delete(Q)
    node.queues.submit_create(Q, {})
    for name in ("a", "b", "c"):  # in the same turn, so that the member has not used the queue before
        node.groups.submit_create(Q, name)
    await node.subscriptions.join(Q, "a", "m", got.extend)
    await node.messages.enqueue(Q, [Draft(b"x")])
    await removed.wait()
    assert [leased.message.payload for leased in got] == [b"x"], "other groups are served"


async def test_a_long_poll_in_a_group_that_cannot_be_created_again_ends_with_the_reason(node: Node) -> None:
    poll = asyncio.ensure_future(node.messages.lease(Q, "g", wait=60_000_000))
    await asyncio.sleep(0)
    for _ in delete_group(node.cell.engine, Q, "g", node.cell.clock):
        pass
    for name in ("a", "b", "c"):
        node.groups.submit_create(Q, name)
    await node.messages.enqueue(Q, [Draft(b"x")])
    with pytest.raises(LimitExceeded):
        await poll
    assert len(await node.messages.lease(Q, "a")) == 1


async def test_a_redrive_on_a_disk_that_is_nearly_full_is_refused_to_its_caller_only(node: Node, room: Room) -> None:
    await dead_letters(node, 3)
    room.left = 10
    node.cell.disk_reserve._checked_at = 0
    with pytest.raises(DiskFull):
        async for _ in node.dead_letters.redrive(("default", "dlq/tasks"), DeadLetterFilter()):
            pass
    with pytest.raises(DiskFull):
        await node.transactions.stage(TransactionName("default", "t"), [("tasks", [Draft(b"x")])])
    with pytest.raises(DiskFull):
        node.messages.enqueue(Q, [Draft(b"x")])
    leased = await node.messages.lease(("default", "dlq/tasks"), "g", 2)
    assert len(leased) == 2, "others are served"


async def test_a_refusal_inside_an_operation_is_no_failure_of_the_store(node: Node) -> None:
    """Whatever class it has: only what the store itself raises is."""
    for kind in all_errors():
        if not issubclass(kind, StoreError):
            with pytest.raises(kind), node.cell.guard:
                raise kind


async def test_an_unexpected_error_in_a_turn_does_not_end_the_process(tmp_path: Path) -> None:
    """It opens the store again, because what is in memory may be half of something."""
    async with running(config_for(tmp_path), MemoryStore()) as node:

        class Broken(EnqueueBatcher):
            broken = True

            def collect_ops(self, now: int) -> list[Op]:
                if self.broken:
                    raise GroupNotFound(group="g", queue="q")
                return super().collect_ops(now)

        batcher = Broken(node, "http")
        node.cell.participants.append(batcher)
        with pytest.raises(StoreUnavailable, match="internal error"):
            await node.messages.enqueue(Q, [Draft(b"x")])
        batcher.broken = False
        assert node.cell.broken is not None
        assert not node.cell.broken.done()


async def test_a_bug_in_a_read_is_its_callers_alone(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was changed: neither the store is opened again, nor does anybody else notice."""
    await node.messages.enqueue(Q, [Draft(b"x")])
    await node.groups.create(Q, "g")

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    for command in (Browse, Find):
        monkeypatch.setitem(COMMANDS, command, broken)
    with pytest.raises(ZeroDivisionError):
        await node.inspection.browse(Q)
    with pytest.raises(ZeroDivisionError):
        await node.inspection.find(Q, 17)
    with monkeypatch.context() as patch:
        patch.setattr(Shard, "fill_windows", broken)
        with pytest.raises(ZeroDivisionError):
            node.inspection.head(Q, "g")
    [leased] = await node.messages.lease(Q, "g")
    assert leased.message.payload == b"x"


async def test_a_bug_in_a_change_is_undone_and_nobody_else_notices(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has left its window, and no lease was made of it: in memory it is nowhere. In the store it is."""
    await node.messages.enqueue(Q, [Draft(b"x")])
    before = node.messages.enqueue(Q, [Draft(b"y")])  # in the same turn
    with monkeypatch.context() as patch:
        patch.setattr(Shard, "pop_messages", lambda self, seqs: 1 // 0)
        with pytest.raises(InternalError, match="ZeroDivisionError"):
            await node.messages.lease(Q, "g")
    after = node.messages.enqueue(Q, [Draft(b"z")])
    await before
    await after
    leased = await node.messages.lease(Q, "g", 10)
    assert [item.message.payload for item in leased] == [b"x", b"y", b"z"]


async def test_a_bug_while_consumers_are_served_ends_their_wait_and_nothing_else(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = asyncio.Event()
    await node.subscriptions.join(Q, "push", "m", lambda leased: None, removed=removed.set)
    poll = asyncio.ensure_future(node.messages.lease(Q, "poll", wait=60_000_000))
    await until(lambda: node.cell.dispatcher.waiters.count == 1)
    with monkeypatch.context() as patch:
        patch.setattr(Shard, "pop_messages", lambda self, seqs: 1 // 0)
        await node.messages.enqueue(Q, [Draft(b"x")])
        with pytest.raises(InternalError):
            await poll
        await removed.wait()
    for group in ("push", "poll"):
        [leased] = await node.messages.lease(Q, group)
        assert (leased.message.payload, leased.attempt) == (b"x", 1)


async def test_leases_that_a_bug_undoes_are_not_handed_out(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first poll was granted one when the second met the bug: all that the turn did for the group is undone."""
    polls = [asyncio.ensure_future(node.messages.lease(Q, "g", wait=60 * SECOND)) for _ in range(2)]
    await until(lambda: node.cell.dispatcher.waiters.count == 2)
    right = Engine.lease_in
    leases: list[None] = []

    def wrong(*arguments: Any, **named: Any) -> list[Leased]:
        leases.append(None)
        found = right(*arguments, **named)
        if len(leases) == 2:
            raise ZeroDivisionError
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "lease_in", wrong)
        await node.messages.enqueue(Q, [Draft(b"x"), Draft(b"y")])
        for poll in polls:
            with pytest.raises(InternalError):
                await poll
    leased = await node.messages.lease(Q, "g", 10)
    assert [(item.message.payload, item.attempt) for item in leased] == [(b"x", 1), (b"y", 1)]


async def test_a_bug_in_work_that_is_due_is_logged_and_it_is_tried_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.messages.enqueue(Q, [Draft(b"x", deliver_at=node.clock() + SECOND // 10)])
    tries: list[int] = []
    right: Any = COMMANDS[Tick]

    def wrong(*arguments: Any) -> None:
        tries.append(node.clock())
        right(*arguments)
        if len(tries) == 1:
            raise ZeroDivisionError

    monkeypatch.setitem(cast("dict[object, object]", COMMANDS), Tick, wrong)
    [leased] = await node.messages.lease(Q, "g", wait=60 * SECOND)
    assert leased.message.payload == b"x"
    assert len(tries) > 1


async def test_a_deletion_that_fails_by_a_bug_is_tried_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.messages.enqueue(Q, [Draft(b"x")])
    await node.groups.create(Q, "g")
    tries: list[None] = []
    right = Engine.forget_queue

    def wrong(*arguments: Any) -> None:
        tries.append(None)
        right(*arguments)
        if len(tries) == 1:
            raise ZeroDivisionError

    monkeypatch.setattr(Engine, "forget_queue", wrong)
    monkeypatch.setattr("holdfast.broker.cell.FAILED_PAUSE_SECONDS", 0)
    assert await node.queues.delete(Q) == 1
    assert len(tries) == 2
    assert not node.queues.exists(Q)


async def test_a_publish_that_fails_by_a_bug_is_brought_to_its_end(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    name = TransactionName("default", "t1")
    drafts = [Draft(b"m", extra=Extra(key=f"k{number}")) for number in range(40)]
    await node.transactions.stage(name, [("tasks", drafts), ("others", drafts)])
    tries: list[None] = []
    transactions = node.cell.engine.transactions
    transactions.limits = replace(transactions.limits, step_messages=10)
    right = type(transactions).move

    def wrong(*arguments: Any) -> int:
        tries.append(None)
        moved = right(*arguments)
        if len(tries) == 1:
            raise ZeroDivisionError
        return moved

    monkeypatch.setattr(type(transactions), "move", wrong)
    monkeypatch.setattr("holdfast.broker.cell.FAILED_PAUSE_SECONDS", 0)
    view = await node.transactions.publish(name)
    assert len(tries) > 1
    assert (view.state, view.published) == (TransactionState.PUBLISHED, 80)
    assert [node.queues.depth(("default", queue)) for queue in ("tasks", "others")] == [40, 40]


async def test_what_is_undone_beside_a_publish_leaves_its_answer_as_it_is(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = TransactionName("default", "t1")
    await node.transactions.stage(name, [("tasks", [Draft(b"m", extra=Extra(key=f"k{at}")) for at in range(40)])])
    transactions = node.cell.engine.transactions
    transactions.limits = replace(transactions.limits, step_messages=10)
    right = type(transactions).move

    def beside(*arguments: Any) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "enqueue_in", broken)
            with pytest.raises(InternalError):
                node.messages.enqueue(Q, [Draft(b"x")])
        node.cell.engine.begin()
        return right(*arguments)

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(type(transactions), "move", beside)
    view = await node.transactions.publish(name)
    assert (view.state, view.published) == (TransactionState.PUBLISHED, 40)


async def test_due_work_that_is_refused_is_logged_and_tried_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[int] = []

    def refusing(now: int) -> None:
        ticks.append(now)
        raise GroupNotFound(group="g", queue="q")

    engine = node.cell.engine
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    monkeypatch.setattr(engine, "tick", refusing)
    monkeypatch.setattr(engine, "wake_at", lambda: 0)
    with capture_logs() as logs:
        node.cell.run_due()
        await node.messages.enqueue(Q, [Draft(b"x")])
    assert [entry["event"] for entry in logs] == ["work that was due was refused"]
    assert len(ticks) == 1, "it is not tried in every turn"
    assert node.cell._timer_at >= ticks[0] + SECOND
    assert problems == []


async def test_a_member_leaves_a_group_that_became_a_cursor_group(node: Node) -> None:
    got: list[Leased] = []
    joined = await node.subscriptions.join(Q, "g", "m", got.extend)
    await node.messages.enqueue(Q, [Draft(b"x")])
    await until(lambda: got)
    await node.queues.delete(Q)
    node.queues.submit_create(Q, {})
    node.groups.submit_create(Q, "g", GroupKind.CURSOR)
    joined.leave(Verb.RELEASE)
    assert not joined.joined


def test_errors_of_the_store_are_raised_by_the_store_alone() -> None:
    """Inside an operation such an error has the engine discarded, so none may stand for something else."""
    kinds = {kind.__name__ for kind in all_errors() if issubclass(kind, StoreUnavailable)}
    raised = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for room in ("core", "engine")
        for path in sorted((SOURCE / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Raise) and node.exc is not None and kinds & set(_names(node.exc))
    ]
    assert raised == []


def _names(expression: ast.expr) -> list[str]:
    return [node.id for node in ast.walk(expression) if isinstance(node, ast.Name)]
