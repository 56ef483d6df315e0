"""Workflow state through the node."""

from __future__ import annotations

import pytest

from holdfast.broker.node import Node
from holdfast.core.commands import Draft, Leased, Settlement, Verb
from holdfast.core.records import Extra, WorkflowState
from holdfast.errors import GroupNotFound, LeaseLost, LimitExceeded, MessageNotFound, QueueNotFound, StateChanged
from tests.broker.conftest import Restart

TASKS = ("default", "tasks")
DEAD = ("default", "dlq/tasks")


async def one(node: Node) -> Leased:
    (leased,) = await node.messages.lease(TASKS, "g", 1)
    return leased


async def settle(node: Node, leased: Leased, verb: Verb) -> None:
    settlement = Settlement(leased.message.id, leased.token, verb, delay=0 if verb is Verb.NACK else -1)
    assert await node.messages.settle(TASKS, "g", [settlement]) == [None]


async def test_a_state_is_kept_from_one_attempt_to_the_next_and_over_a_restart(restart: Restart) -> None:
    node = await restart()
    await node.messages.enqueue(TASKS, [Draft(b"job")])
    leased = await one(node)
    message_id = leased.message.id
    assert await node.workflow_state.get(TASKS, "g", message_id) is None
    assert await node.workflow_state.put(TASKS, "g", message_id, leased.token, b"half", if_match=0) == WorkflowState(
        1, b"half"
    )
    await settle(node, leased, Verb.NACK)
    node = await restart()
    assert await node.workflow_state.get(TASKS, "g", message_id) == WorkflowState(1, b"half")
    again = await one(node)
    assert await node.workflow_state.of_leased(TASKS, "g", [again]) == [WorkflowState(1, b"half")]
    with pytest.raises(StateChanged):
        await node.workflow_state.put(TASKS, "g", message_id, again.token, b"other", if_match=0)
    await node.workflow_state.put(TASKS, "g", message_id, again.token, b"done", if_match=1)
    await settle(node, again, Verb.ACK)
    with pytest.raises(MessageNotFound):
        await node.workflow_state.get(TASKS, "g", message_id)


async def test_states_of_many_are_read_together(node: Node) -> None:
    await node.messages.enqueue(TASKS, [Draft(b"%d" % i, extra=Extra(key=f"k{i}")) for i in range(6)])
    leased = await node.messages.lease(TASKS, "g", 6)
    for item in leased[::2]:
        await node.workflow_state.put(TASKS, "g", item.message.id, item.token, item.message.payload)
    await settle(node, leased[1], Verb.ACK)
    states = await node.workflow_state.of_leased(TASKS, "g", leased)
    assert [state.data if state else None for state in states] == [
        item.message.payload if index % 2 == 0 else None for index, item in enumerate(leased)
    ]
    assert await node.workflow_state.of_leased(("default", "nowhere"), "g", leased[:1]) == [None]
    assert await node.workflow_state.of_leased(TASKS, "other", leased[:1]) == [None]


async def test_correlation_and_state_go_into_the_dead_letter_and_back(node: Node) -> None:
    await node.messages.enqueue(TASKS, [Draft(b"job", extra=Extra(correlation_id="request-7"))])
    leased = await one(node)
    await node.workflow_state.put(TASKS, "g", leased.message.id, leased.token, b"half")
    await settle(node, leased, Verb.REJECT)
    ((_, dead_letter, _),) = (await node.inspection.browse(DEAD)).messages
    assert dead_letter.extra.correlation_id == "request-7"
    assert await _state_of_dead_letter(node, dead_letter.id) == WorkflowState(1, b"half")
    assert [len(step.moved) async for step in node.dead_letters.redrive(DEAD)] == [1]
    back = await one(node)
    assert back.message.extra.correlation_id == "request-7"
    assert await node.workflow_state.of_leased(TASKS, "g", [back]) == [WorkflowState(1, b"half")]


async def _state_of_dead_letter(node: Node, dead_letter_id: int) -> WorkflowState | None:
    await node.groups.create(DEAD, "look")
    return await node.workflow_state.get(DEAD, "look", dead_letter_id)


async def test_a_state_that_was_dropped_is_none_and_what_is_put_later_has_another_etag(restart: Restart) -> None:
    node = await restart()
    await node.messages.enqueue(TASKS, [Draft(b"job")])
    leased = await one(node)
    message_id, token = leased.message.id, leased.token
    await node.workflow_state.drop(TASKS, "g", message_id, token, if_match=0)  # there is none: that is well
    await node.workflow_state.put(TASKS, "g", message_id, token, b"half")
    for wrong in (0, 2):
        with pytest.raises(StateChanged):
            await node.workflow_state.drop(TASKS, "g", message_id, token, if_match=wrong)
    with pytest.raises(LeaseLost):
        await node.workflow_state.drop(TASKS, "g", message_id, token + 1)
    await node.workflow_state.drop(TASKS, "g", message_id, token, if_match=1)
    await node.workflow_state.drop(TASKS, "g", message_id, token)
    node = await restart()
    assert await node.workflow_state.get(TASKS, "g", message_id) is None
    assert await node.workflow_state.put(TASKS, "g", message_id, token, b"new", if_match=0) == WorkflowState(3, b"new")


async def test_a_dropped_state_dies_with_nobody(node: Node) -> None:
    await node.messages.enqueue(TASKS, [Draft(b"job")])
    leased = await one(node)
    await node.workflow_state.put(TASKS, "g", leased.message.id, leased.token, b"half")
    await settle(node, leased, Verb.REJECT)
    assert [len(step.moved) async for step in node.dead_letters.redrive(DEAD)] == [1]
    back = await one(node)  # with the state that the letter had
    await node.workflow_state.drop(TASKS, "g", back.message.id, back.token)
    assert await node.workflow_state.of_leased(TASKS, "g", [back]) == [None]
    await settle(node, back, Verb.REJECT)
    ((_, dead_letter, _),) = (await node.inspection.browse(DEAD)).messages
    assert dead_letter.extra.state is None


async def test_a_consumer_of_dead_letters_may_drop_a_state_for_the_redrive(node: Node) -> None:
    await node.messages.enqueue(TASKS, [Draft(b"job")])
    leased = await one(node)
    await node.workflow_state.put(TASKS, "g", leased.message.id, leased.token, b"half")
    await settle(node, leased, Verb.REJECT)
    (dead_letter,) = await node.messages.lease(DEAD, "mender", 1)
    await node.workflow_state.drop(DEAD, "mender", dead_letter.message.id, dead_letter.token)
    released = Settlement(dead_letter.message.id, dead_letter.token, Verb.RELEASE)
    assert await node.messages.settle(DEAD, "mender", [released]) == [None]
    assert [len(step.moved) async for step in node.dead_letters.redrive(DEAD)] == [1]
    assert await node.workflow_state.of_leased(TASKS, "g", [await one(node)]) == [None]


async def test_what_cannot_be_kept_is_refused(node: Node) -> None:
    with pytest.raises(QueueNotFound):
        await node.workflow_state.put(TASKS, "g", 1, 1, b"")
    await node.messages.enqueue(TASKS, [Draft(b"job")])
    with pytest.raises(GroupNotFound):
        await node.workflow_state.put(TASKS, "g", 1, 1, b"")
    leased = await one(node)
    with pytest.raises(LeaseLost):
        await node.workflow_state.put(TASKS, "g", leased.message.id + 1, leased.token, b"")
    with pytest.raises(LeaseLost):
        await node.workflow_state.get(TASKS, "g", leased.message.id, leased.token + 1)
    with pytest.raises(LimitExceeded, match="1048576 bytes"):
        await node.workflow_state.put(TASKS, "g", leased.message.id, leased.token, b"x" * ((1 << 20) + 1))
