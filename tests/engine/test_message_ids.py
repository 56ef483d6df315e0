"""A producer's message id: it deduplicates in the whole queue, and stays with the message wherever that goes."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.codecs import dedup_value
from holdfast.core.commands import Draft, Verb
from holdfast.core.records import REPLAYED, Extra, Origin, Table, dedup_end_key, dedup_key
from holdfast.core.transactions import TransactionName
from holdfast.engine import audited_redrive
from holdfast.engine.dead_letters import DeadLetterFilter
from holdfast.engine.messages import find_named
from holdfast.engine.queues import delete_queue, update_queue
from holdfast.engine.redrive import Destination, redrive
from holdfast.errors import MessageTooLarge, QueueFull
from tests.engine.rig import DEAD, TASKS, Rig

SECOND = 1_000_000
OTHER = ("default", "other")


def named(message_id: str, key: str | None = None, payload: bytes = b"m", origin: Origin | None = None) -> Draft:
    return Draft(payload, extra=Extra(key=key, message_id=message_id, origin=origin))


def ids_of(cell: Rig, name: tuple[str, str] = TASKS) -> list[str | None]:
    return [message.extra.message_id for message in cell.live(name)]


def bring_back(cell: Rig, to: str = "") -> list[int]:
    """Redrive all dead letters; returns the ids of the new messages."""
    steps = cell.run(redrive(cell.engine, DEAD, DeadLetterFilter(), cell.clock, to=Destination(queue=to)))
    return [message_id for step in steps for _, message_id in step.moved]


# --- it stays with the message ----------------------------------------------------------------------------------------


def test_it_stays_through_death_and_redrive_within_the_window_too(cell: Rig) -> None:
    cell.create_queue(partitions=3)
    (first,) = cell.enqueue(named("order-1")).ids
    for _ in range(2):
        cell.consume(1, Verb.REJECT)
        assert ids_of(cell, DEAD) == ["order-1"]
        (again,) = bring_back(cell)
        assert ids_of(cell) == ["order-1"]
        assert again != first
    assert ids_of(cell, DEAD) == []
    assert cell.enqueue(named("order-1")).duplicates == {0: first}


def test_it_stays_when_the_redrive_goes_elsewhere(cell: Rig) -> None:
    cell.create_queue()
    cell.create_queue(OTHER)
    cell.enqueue(named("order-1"))
    cell.enqueue(named("order-1"), name=OTHER)
    cell.consume(1, Verb.REJECT)
    bring_back(cell, "other")
    assert ids_of(cell, OTHER) == ["order-1", "order-1"]


def test_each_group_has_its_dead_letter(cell: Rig) -> None:
    cell.create_queue()
    cell.create_group("g")
    cell.create_group("h")
    cell.enqueue(named("order-1"))
    for group in ("g", "h"):
        cell.consume(1, Verb.REJECT, group)
    assert ids_of(cell, DEAD) == ["order-1", "order-1"]


def test_it_stays_when_a_redrive_is_undone(cell: Rig) -> None:
    cell.create_queue()
    cell.enqueue(named("order-1"))
    cell.consume(1, Verb.REJECT)
    (dead_letter,) = cell.live(DEAD)
    steps = audited_redrive.move(
        cell.engine, DEAD, "audit", {dead_letter.id: b"changed"}, to="", by="", note="", clock=cell.clock
    )
    cell.run(steps)
    assert ids_of(cell) == ["order-1"]
    cell.run(audited_redrive.undo(cell.engine, DEAD, "audit", 0, 9, cell.clock))
    assert (ids_of(cell), ids_of(cell, DEAD)) == ([], ["order-1"])


def test_what_is_imported_is_known_by_its_source(cell: Rig) -> None:
    cell.create_queue(partitions=2)
    origins = [Origin(number, "elsewhere", "") for number in (1, 2, 1)]
    reply = cell.enqueue(*[named("order-1", origin=origin) for origin in origins])
    assert reply.duplicates == {2: reply.ids[0]}
    assert ids_of(cell) == ["order-1", "order-1"]
    assert not cell.enqueue(named("order-1")).duplicates


def test_a_replay_is_stored_within_the_window_too(cell: Rig) -> None:
    cell.create_queue(partitions=2)
    (source,) = cell.enqueue(named("order-1")).ids
    for run in ("one", "two"):
        replay = named("order-1", origin=Origin(source, "tasks", "", REPLAYED))
        cell.engine.transactions.stage(TransactionName("default", run), [("tasks", [replay])], "", "", 0, cell.now)
        record, _ = cell.engine.transactions.publish(TransactionName("default", run), None, "test", cell.now)
        cell.engine.write()
        assert (record.published, record.duplicates) == (1, 0)
    assert ids_of(cell) == ["order-1"] * 3


# --- it deduplicates in the whole queue -------------------------------------------------------------------------------


def test_it_is_known_whatever_the_key_and_partition(cell: Rig) -> None:
    cell.create_queue(partitions=10)
    (first,) = cell.enqueue(named("order-1", "a")).ids
    for key in (None, "a", "b", "c", "d", "e"):
        reply = cell.enqueue(named("order-1", key))
        assert (reply.ids, reply.duplicates) == ([first], {0: first})
    cell.restart()
    assert cell.enqueue(named("order-1", "z")).duplicates == {0: first}
    assert [message.id for message in cell.live()] == [first]


def test_it_is_known_after_partitions_were_added(cell: Rig) -> None:
    cell.create_queue(partitions=1)
    names = [f"order-{number}" for number in range(20)]
    firsts = cell.enqueue(*map(named, names)).ids
    update_queue(cell.engine, TASKS, {"partitions": 7}, cell.now)
    cell.engine.write()
    assert list(cell.enqueue(*map(named, names)).duplicates.values()) == firsts


def test_within_a_batch_the_first_counts(cell: Rig) -> None:
    cell.create_queue(partitions=10)
    drafts = [named("x", "a"), named("y", "b"), named("x", "c"), Draft(b"plain"), named("y", "a"), named("x")]
    reply = cell.enqueue(*drafts)
    assert reply.duplicates == {2: reply.ids[0], 4: reply.ids[1], 5: reply.ids[0]}
    assert (reply.ids[2], reply.ids[4], reply.ids[5]) == (reply.ids[0], reply.ids[1], reply.ids[0])
    assert len(cell.live()) == 3


def test_within_a_turn_the_first_counts(memory: Rig) -> None:
    """Nothing is written between the two."""
    memory.create_queue(partitions=10)
    first = memory.engine.enqueue(TASKS, [named("x", "a")], "test", memory.now)
    again = memory.engine.enqueue(TASKS, [named("x", "b")], "test", memory.now)
    assert again.duplicates == {0: first.ids[0]}


@pytest.mark.parametrize("partitions", [1, 10])
def test_one_that_is_refused_does_not_count(cell: Rig, partitions: int) -> None:
    cell.create_queue(partitions=partitions, max_message_size=10)
    reply = cell.enqueue(named("x", "a", b"m" * 11), named("x", "b"), named("x", "c"))
    assert isinstance(reply.errors[0], MessageTooLarge)
    assert reply.duplicates == {2: reply.ids[1]}
    again = cell.enqueue(named("x", "d"), named("x", "e", b"m" * 11))
    assert again.duplicates == {0: reply.ids[1]}
    assert isinstance(again.errors[1], MessageTooLarge)
    other = cell.enqueue(named("y", "a"), named("y", "b", b"m" * 11))
    assert (list(other.errors), other.duplicates) == ([1], {})


@pytest.mark.parametrize("partitions", [1, 10])
def test_duplicates_need_no_room(cell: Rig, partitions: int) -> None:
    cell.create_queue(partitions=partitions, max_depth=2)
    for atomic in (True, False):
        reply = cell.enqueue(named("x", "a"), named("x", "b"), named("y", "c"), atomic=atomic)
        assert reply.errors == {}
    full = cell.enqueue(named("z", "a"), named("x", "b"), named("z", "c"), Draft(b"plain"))
    assert {index: type(error) for index, error in full.errors.items()} == dict.fromkeys((0, 2, 3), QueueFull)
    assert list(full.duplicates) == [1]
    assert cell.enqueue(named("z", "a"), named("x", "b"), Draft(b"plain"), atomic=True).ids == [0, 0, 0]


@pytest.mark.parametrize("size", [1, 11], ids=["stored", "refused"])
@pytest.mark.parametrize("room", [1, 5_000], ids=["full", "room"])
def test_many_of_one_id_take_few_steps(memory: Rig, monkeypatch: pytest.MonkeyPatch, size: int, room: int) -> None:
    memory.create_queue(partitions=1, max_message_size=10, max_depth=room)
    steps: list[object] = []
    right = memory.engine.step

    def counted(*given: Any) -> Any:
        steps.append(given[2])
        return right(*given)

    monkeypatch.setattr(memory.engine, "step", counted)
    reply = memory.enqueue(*[named(f"x{number % 2}", payload=bytes(size)) for number in range(2_000)])
    assert len(reply.duplicates) + len(reply.errors) >= 1_998
    assert len(steps) <= 12


def test_the_window_ends_and_nothing_is_left_of_it(cell: Rig) -> None:
    cell.create_queue(partitions=3, dedup_window="1m")
    cell.enqueue(named("x", "a"), named("y", "b"))
    cell.advance(60 * SECOND)
    assert not cell.enqueue(named("x", "b")).duplicates
    cell.advance(600 * SECOND)
    for table in (Table.DEDUP, Table.DEDUP_ENDS):
        assert cell.engine.store.scan(table, b"", b"\xff" * 9, 9) == []


def test_without_a_window_nothing_is_known(cell: Rig) -> None:
    cell.create_queue(partitions=3, dedup_window="0s")
    reply = cell.enqueue(named("x", "a"), named("x", "a"))
    assert reply.duplicates == {}
    assert cell.engine.store.scan(Table.DEDUP, b"", b"\xff" * 9, 9) == []


def test_nothing_is_known_of_a_queue_that_was_deleted(cell: Rig) -> None:
    cell.create_queue(partitions=3)
    cell.enqueue(named("x", "a"))
    cell.run(delete_queue(cell.engine, TASKS, cell.clock))
    assert cell.engine.store.scan(Table.DEDUP, b"", b"\xff" * 9, 9) == []
    cell.create_queue(partitions=3)
    assert not cell.enqueue(named("x", "a")).duplicates


def test_it_is_known_in_a_transaction_whatever_the_partition(cell: Rig) -> None:
    cell.create_queue(partitions=10)
    (first,) = cell.enqueue(named("x", "a")).ids
    drafts = [named("x", "b"), named("y", "c"), named("y", "d"), named("y", "c"), Draft(b"plain")]
    cell.engine.transactions.stage(TransactionName("default", "t"), [("tasks", drafts)], "", "", 0, cell.now)
    record, _ = cell.engine.transactions.publish(TransactionName("default", "t"), None, "test", cell.now)
    cell.engine.write()
    assert (record.published, record.duplicates) == (5, 3)
    assert sorted(filter(None, ids_of(cell))) == ["x", "y"]
    assert cell.enqueue(named("y", "z")).duplicates
    assert cell.enqueue(named("x", "z")).duplicates == {0: first}


def test_what_an_earlier_version_remembers_counts(cell: Rig) -> None:
    """It kept a message id with the partition of its message."""
    cell.create_queue(partitions=4)
    shard = cell.queue().shards[2]
    end = cell.now + 60 * SECOND
    cell.engine.add(
        [
            (Table.DEDUP, dedup_key(shard.number, "x"), dedup_value(77, end)),
            (Table.DEDUP_ENDS, dedup_end_key(shard.number, end, "x"), b""),
        ]
    )
    shard.head.dedup_end = end
    cell.enqueue(Draft(b"in the same shard", extra=Extra(key=_key_for(cell, 2))))
    cell.restart()
    assert cell.enqueue(named("x", "a")).duplicates == {0: 77}
    cell.advance(120 * SECOND)
    assert cell.queue().shards[2].head.dedup_end == 0
    assert not cell.enqueue(named("x", "a")).duplicates


def _key_for(cell: Rig, partition: int) -> str:
    """A key whose messages are in this partition."""
    queue = cell.queue()
    keys = (f"k{number}" for number in range(1_000))
    return next(key for key in keys if queue.route([named("", key)], simple=False)[0][0].partition == partition)


def test_repetitions_are_counted_and_journalled(memory: Rig) -> None:
    memory.create_queue(partitions=4)
    memory.enqueue(named("x", "a"))
    before = memory.engine.record.next_lsn
    memory.enqueue(named("x", "b"), named("x", "c"))
    assert sum(shard.head.duplicates for shard in memory.queue().shards) == 2
    assert memory.engine.record.next_lsn == before + 2


def test_a_message_is_found_by_its_producers_id_while_that_is_remembered(cell: Rig) -> None:
    cell.create_queue(partitions=3, dedup_window="1m")
    (first,) = cell.enqueue(Draft(b"a", extra=Extra(message_id="a"))).ids
    assert find_named(cell.engine, TASKS, "a", cell.now) == first
    assert find_named(cell.engine, TASKS, "b", cell.now) is None
    cell.now += 61 * SECOND
    assert find_named(cell.engine, TASKS, "a", cell.now) is None
