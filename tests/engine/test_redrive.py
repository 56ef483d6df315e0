"""Which dead letters a filter selects, and what goes back with those that a consumer has seen."""

from __future__ import annotations

from holdfast.core.commands import Verb
from holdfast.core.records import NO_EXTRA, Message
from holdfast.engine.catalog import QueueName
from holdfast.engine.dead_letters import DeadLetterFilter
from holdfast.engine.messages import edit_message
from holdfast.engine.redrive import redrive
from holdfast.errors import Forbidden, InvalidArgument
from tests.engine.rig import DEAD, TASKS, Rig

ALL = DeadLetterFilter()


def test_a_dead_letter_that_was_delivered_without_a_state_goes_back_without_one(memory: Rig) -> None:
    memory.create_queue()
    memory.enqueue(b"one")
    memory.consume(1, Verb.REJECT)
    memory.consume(1, Verb.NACK, name=DEAD)  # its delivery in the dead queue stays, for the next attempt
    [done] = memory.run(redrive(memory.engine, DEAD, DeadLetterFilter(), memory.clock))
    assert len(done.moved) == 1
    [back] = memory.live()
    assert (back.payload, back.extra.state) == (b"one", None)


def test_an_edit_changes_no_row_of_what_was_enqueued(memory: Rig) -> None:
    """Not the message's own, and not that of the dead letter it becomes, or of the message that this becomes."""

    def edit(name: QueueName, priority: int) -> None:
        [message] = memory.live(name)
        edit_message(memory.engine, name, message.id, priority, None, memory.now)
        memory.engine.write()

    memory.create_queue()
    memory.enqueue(b"one")
    edit(TASKS, 7)
    edit(TASKS, 8)
    memory.consume(1, Verb.REJECT)
    edit(DEAD, 9)
    memory.run(redrive(memory.engine, DEAD, ALL, memory.clock))
    found = [(row.event, row.queue, row.priority) for row in memory.journal() if row.priority is not None]
    assert found == [
        ("enqueued", "tasks", 128),
        ("edited", "tasks", 7),
        ("edited", "tasks", 8),
        ("enqueued", "dlq/tasks", 8),
        ("edited", "dlq/tasks", 9),
        ("enqueued", "tasks", 9),
    ]


def test_dead_letters_stay_that_would_go_where_the_caller_may_not_send(memory: Rig) -> None:
    def require(queue: str) -> None:
        raise Forbidden(action="produce", resource=queue, scope=f"produce:{queue}")

    memory.create_queue()
    memory.enqueue(b"one")
    memory.consume(1, Verb.REJECT)
    by_hand = memory.enqueue(b"by hand", name=DEAD).ids[0]
    dead_letter = memory.live(DEAD)[0].id
    [done] = memory.run(redrive(memory.engine, DEAD, ALL, memory.clock, dry_run=True, require=require))
    assert {one: type(error) for one, error in done.refused.items()} == {dead_letter: Forbidden}
    [done] = memory.run(redrive(memory.engine, DEAD, ALL, memory.clock, require=require))
    assert {one: type(error) for one, error in done.refused.items()} == {
        dead_letter: Forbidden,
        by_hand: InvalidArgument,
    }
    assert (memory.live(), len(memory.live(DEAD))) == ([], 2)
    [done] = memory.run(redrive(memory.engine, DEAD, ALL, memory.clock, discard=True, require=require))
    assert len(done.moved) == 2


def test_what_a_step_moves_to_several_queues_is_one_write(memory: Rig) -> None:
    """A fault in between would have moved dead letters that the progress of the redrive does not count."""
    other = ("default", "other")
    memory.create_queue(("default", "shared"), dlq={"enabled": False})
    memory.create_queue(dlq={"queue": "shared"})
    memory.create_queue(other, dlq={"queue": "shared"})
    for name in (TASKS, other):
        memory.enqueue(b"one", b"two", name=name)
        memory.consume(2, Verb.REJECT, name=name)
    writes = memory.engine.writes
    done = next(redrive(memory.engine, ("default", "shared"), ALL, memory.clock))
    assert len(done.moved) == 4
    assert memory.engine.writes == writes
    memory.engine.write()
    assert [len(memory.live(name)) for name in (TASKS, other)] == [2, 2]


def test_a_condition_on_the_origin_matches_no_message_without_one() -> None:
    message = Message(id=1, seq=1, priority=128, enqueued_at=5, deliver_at=5, expires_at=0, payload=b"", extra=NO_EXTRA)
    assert DeadLetterFilter(after=5).match(message)
    for which in (
        DeadLetterFilter(reasons=frozenset({"rejected"})),
        DeadLetterFilter(error="boom"),
        DeadLetterFilter(source_queue="tasks"),
        DeadLetterFilter(source_group="g"),
    ):
        assert not which.match(message)
