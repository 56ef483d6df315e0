"""Workflow states, found in whichever partition their delivery is."""

from __future__ import annotations

import pytest

from holdfast.core.commands import Leased, PutState
from holdfast.core.records import WorkflowState
from holdfast.engine.browse import finish
from holdfast.engine.workflow_states import get_state, put_state, states_of_leased
from holdfast.errors import GroupNotFound, LeaseLost, MessageNotFound
from tests.engine.rig import TASKS, Rig


def put(cell: Rig, leased: Leased, data: bytes | None, group: str = "g") -> WorkflowState:
    return put_state(cell.engine, TASKS, PutState(group, leased.message.id, leased.token, data), cell.now)


def get(cell: Rig, message_id: int, token: int = 0) -> WorkflowState | None:
    found = finish(get_state(cell.engine, TASKS, "g", message_id, token, cell.clock))
    return found[0] if found else None


def states(cell: Rig, leased: list[Leased], name: tuple[str, str] = TASKS) -> list[bytes | None]:
    found = states_of_leased(cell.engine, name, "g", leased, cell.now)
    return [None if state is None else state.data for state in found]


@pytest.fixture
def leased(cell: Rig) -> list[Leased]:
    """Four messages in three partitions, under lease."""
    cell.create_queue(partitions=3)
    for number in range(4):
        cell.enqueue(b"%d" % number)
    return cell.lease(4)


def test_a_state_is_put_under_a_lease_and_read_by_anybody(cell: Rig, leased: list[Leased]) -> None:
    [other] = cell.enqueue(b"not leased").ids
    for one in leased:
        assert put(cell, one, one.message.payload).etag == 1
    assert states(cell, leased) == [one.message.payload for one in leased]
    first = leased[0]
    assert get(cell, first.message.id) == get(cell, first.message.id, first.token) == WorkflowState(1, b"0")
    assert get(cell, other) is None, "it is found among the messages that are not delivered yet"
    assert put(cell, first, None).etag == 2
    assert get(cell, first.message.id) is None
    assert states(cell, leased[:1]) == [None]


def test_what_is_not_leased_has_no_state_and_takes_none(cell: Rig, leased: list[Leased]) -> None:
    put(cell, leased[0], b"x")
    put(cell, leased[1], b"y")
    cell.settle(leased[:1])
    assert states(cell, leased[:2]) == [None, b"y"]
    assert states(cell, leased[:2], ("default", "nowhere")) == [None, None]
    with pytest.raises(LeaseLost):
        put(cell, leased[0], b"z")
    with pytest.raises(GroupNotFound):
        put(cell, leased[1], b"z", group="nobody")
    cell.restart()
    with pytest.raises(LeaseLost):
        put(cell, leased[0], b"z")
    with pytest.raises(MessageNotFound):
        get(cell, leased[0].message.id)


def test_dropping_a_state_that_is_not_there_changes_nothing(cell: Rig, leased: list[Leased]) -> None:
    assert put(cell, leased[0], None).etag == 0
    assert get(cell, leased[0].message.id) is None
    assert put(cell, leased[0], b"first").etag == 1
