"""What transactions do within one turn, before anything of it is written."""

from __future__ import annotations

from holdfast.core.commands import Draft
from holdfast.core.transactions import TransactionState
from tests.engine.rig import TASKS, Rig

NAME = ("default", "t1")


def test_a_queue_with_no_messages_in_a_stage_is_left_out(memory: Rig) -> None:
    memory.create_queue()
    memory.create_queue(("default", "other"))
    staged = memory.engine.transactions.stage(NAME, [("other", []), (TASKS[1], [Draft(b"one")])], "", "", 0, memory.now)
    assert staged.messages == 1
    record, decided = memory.engine.transactions.publish(NAME, None, "test", memory.now)
    memory.engine.write()
    assert decided
    assert record.state is TransactionState.PUBLISHED
    assert [message.payload for message in memory.live()] == [b"one"]
    assert memory.live(("default", "other")) == []


def test_a_publish_repeated_in_the_same_turn_is_answered_with_the_record(memory: Rig) -> None:
    memory.create_queue()
    transactions = memory.engine.transactions
    transactions.stage(NAME, [(TASKS[1], [Draft(b"one")])], "", "", 0, memory.now)
    first, decided = transactions.publish(NAME, None, "test", memory.now)
    again, decided_again = transactions.publish(NAME, None, "test", memory.now)
    assert (decided, decided_again) == (True, False)
    assert first.state is again.state is TransactionState.PUBLISHED
    memory.engine.write()
    assert [message.payload for message in memory.live()] == [b"one"]
