"""The engine itself: batches, routing, time, and what it leaves for the broker."""

from __future__ import annotations

from typing import TypeVar

import pytest

from holdfast.core.commands import Command, Draft, Settlement, Tick, Verb
from holdfast.core.ids import CELL_MAX
from holdfast.core.records import Extra, Table
from holdfast.core.shard import Shard
from holdfast.core.transactions import TransactionName
from holdfast.engine.catalog import Queue
from holdfast.engine.cell_record import CELL_KEY, UNFINISHED_KEY, read_cell_record
from holdfast.engine.dead_lettering import FailedRequest
from holdfast.engine.dead_letters import DeadLetterFilter
from holdfast.engine.engine import Engine, Limits
from holdfast.engine.queues import delete_queue, update_queue
from holdfast.engine.redrive import IDS_MAX, redrive
from holdfast.errors import InvalidArgument, MessageTooLarge, StoreUnfinished
from holdfast.store import MemoryDisk, MemoryStore
from holdfast.units import NEVER, SECOND
from tests.engine.rig import DEAD, START, TASKS, Rig

R = TypeVar("R")


def test_ids_carry_the_number_of_the_cell() -> None:
    engine = Engine(MemoryStore(), cell=5)
    engine.open(START)
    [message_id] = engine.enqueue(TASKS, [Draft(b"m")], "test", START).ids
    assert message_id >> 12 & CELL_MAX == 5
    engine.write()
    value = engine.store.get(Table.META, CELL_KEY)
    assert value is not None
    assert read_cell_record(value).cell == 5


def test_a_store_that_a_copy_has_not_finished_is_not_worked_with() -> None:
    store = MemoryStore()
    store.write(store.acquire(), [(Table.META, UNFINISHED_KEY, b"1")])
    with pytest.raises(StoreUnfinished):
        Engine(store, cell=5).open(START)
    engine = Engine(store, cell=5)
    engine.open(START, filling=True)
    engine.add([(Table.META, UNFINISHED_KEY, None)])
    engine.write()
    Engine(store, cell=5).open(START)


def test_a_batch_that_reserves_ids_or_changes_a_queue_must_be_synced(memory: Rig) -> None:
    engine = memory.engine
    assert engine.write() is False, "there is nothing to write"
    engine.enqueue(TASKS, [Draft(b"m")], "test", memory.now)
    assert engine.pending
    assert engine.write() is True, "the queue is new"
    engine.enqueue(TASKS, [Draft(b"m")], "test", memory.now)
    assert engine.write() is False
    memory.now += 60 * SECOND
    engine.enqueue(TASKS, [Draft(b"m")], "test", memory.now)
    assert engine.write() is True, "ids are reserved further ahead"
    engine.drop_written_batch()
    writes = engine.writes
    engine.write()
    assert engine.writes == writes, "there was nothing to write"


def test_a_turn_reads_what_it_has_changed_and_writes_once(memory: Rig) -> None:
    memory.create_queue(partitions=1)
    engine, writes = memory.engine, memory.engine.writes
    named = [Draft(b"m", extra=Extra(message_id="a"))]
    first = engine.enqueue(TASKS, named, "test", memory.now)
    assert engine.enqueue(TASKS, named, "test", memory.now).duplicates == {0: first.ids[0]}
    [leased] = engine.lease(TASKS, "work", 10, -1, "c", "test", memory.now)
    assert engine.settle(TASKS, "work", [Settlement(leased.message.id, leased.token, Verb.REJECT)], memory.now) == [
        None
    ]
    assert engine.writes == writes, "what belongs together would be torn by a crash"
    engine.write()
    assert engine.writes == writes + 1


@pytest.mark.parametrize("keys", [("a", "b", "c", "d"), (None,)])
def test_an_atomic_batch_is_stored_whole_or_not_at_all(cell: Rig, keys: tuple[str | None, ...]) -> None:
    cell.create_queue(partitions=3, max_message_size="1KiB")
    good = [Draft(b"m", extra=Extra(key=key)) for key in keys]
    reply = cell.enqueue(*good, Draft(b"x" * 2000, extra=Extra(key=keys[0])), atomic=True)
    assert set(reply.ids) == {0}
    assert isinstance(reply.errors[len(keys)], MessageTooLarge)
    assert cell.live() == []
    assert all(cell.enqueue(*good, atomic=True).ids)
    assert len(cell.live()) == len(keys)


def test_a_batch_over_partitions_keeps_room_and_duplicates(cell: Rig) -> None:
    cell.create_queue(partitions=4, max_depth=3, dedup_window="1h")
    drafts = [Draft(b"%d" % n, extra=Extra(key=f"k{n}", message_id=f"id{n % 4}")) for n in range(4)]
    reply = cell.enqueue(*drafts)
    assert (len(reply.errors), sum(map(bool, reply.ids))) == (1, 3)
    again = cell.enqueue(*[draft for index, draft in enumerate(drafts) if reply.ids[index]])
    assert len(again.duplicates) == 3
    assert len(cell.live()) == 3


def test_a_lease_is_bounded_by_bytes_over_all_partitions(cell: Rig) -> None:
    cell.create_queue(partitions=3)
    for _ in range(3):
        cell.enqueue(b"x" * 40)
    assert len(cell.lease(9, max_bytes=100)) == 2
    assert len(cell.lease(9, max_bytes=10)) == 1, "one at least"
    assert cell.lease(9, max_bytes=10) == []


def test_a_lease_that_stops_behind_a_hot_key_says_so(memory: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engine.engine.SKIP_BLOCKED_MAX", 50)
    monkeypatch.setattr("holdfast.core.shard.SKIP_BLOCKED_MAX", 50)
    monkeypatch.setattr("holdfast.core.shard.SKIP_BLOCKED_WINDOW", 20)
    monkeypatch.setattr("holdfast.core.shard.WINDOW", 20)
    memory.create_queue(partitions=1)
    memory.enqueue(*[Draft(b"hot", extra=Extra(key="hot"))] * 300, Draft(b"cold", extra=Extra(key="cold")))
    assert len(memory.lease(1)) == 1
    rounds = 0
    while not (found := memory.lease(1)):
        assert memory.engine.unfinished == {TASKS}
        rounds += 1
    assert [leased.message.payload for leased in found] == [b"cold"]
    assert rounds > 2
    assert memory.engine.unfinished == set()


def test_a_partition_in_line_that_a_lease_has_ticked_waits_for_what_is_next(
    memory: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.create_queue(partitions=3)
    memory.create_group("g")
    for delay in (1, 1, 1, 10, 10, 10):
        memory.enqueue(Draft(b"m", deliver_at=memory.now + delay * SECOND))
    monkeypatch.setattr("holdfast.engine.engine.TICK_DELIVERIES_MAX", 1)
    memory.now += SECOND
    memory.engine.tick(memory.now)
    assert memory.engine.wake_at() == 0, "one is in line"
    assert len(memory.lease(3)) == 3
    memory.engine.tick(memory.now)
    assert memory.engine.wake_at() == memory.now + 9 * SECOND
    memory.advance(9 * SECOND)
    assert len(memory.lease(3)) == 3


def test_a_lease_ticks_a_partition_that_becomes_due_while_another_is_ticked(
    memory: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.create_queue(partitions=2)
    memory.create_group("g")
    for payload in (b"a", b"b"):
        memory.enqueue(Draft(payload, deliver_at=memory.now + SECOND))
    first, second = memory.queue().shards
    assert first.head.scheduled == second.head.scheduled == 1
    wake_ups = memory.engine.wake_ups
    wake_ups.cancel(second)
    step = memory.engine.step

    def step_and_schedule(queue: Queue, shard: Shard, command: Command[R], now: int) -> R:
        if isinstance(command, Tick) and shard is first:
            wake_ups.schedule(second)
        return step(queue, shard, command, now)

    monkeypatch.setattr(memory.engine, "step", step_and_schedule)
    memory.now += SECOND
    assert sorted(one.message.payload for one in memory.lease(2)) == [b"a", b"b"]


def test_a_shard_that_is_deleted_while_it_is_due_is_passed_over(memory: Rig) -> None:
    other = ("default", "other")
    for name in (TASKS, other):
        memory.create_queue(name, partitions=1)
        memory.enqueue(*[Draft(b"m", deliver_at=memory.now + SECOND) for _ in range(300)], name=name)
    memory.now += SECOND
    memory.engine.tick(memory.now)
    assert memory.engine.wake_at() <= memory.now, "the rest is still due"
    memory.run(delete_queue(memory.engine, other, memory.clock))
    memory.advance(0)
    assert memory.engine.wake_at() > memory.now
    assert memory.queue().shards[0].head.ready == 300


def test_queues_are_dirty_in_the_order_in_which_something_happened(memory: Rig) -> None:
    other = ("default", "other")
    memory.enqueue(b"m")
    memory.enqueue(b"m", name=other)
    memory.enqueue(b"m")
    assert memory.engine.take_dirty() == [TASKS, other]
    assert memory.engine.take_dirty() == []
    leased = memory.lease(1)
    memory.engine.take_dirty()
    memory.settle(leased, Verb.RELEASE)
    memory.engine.mark_dirty(other)
    assert memory.engine.take_dirty() == [TASKS, other]


def test_a_deleted_shard_is_not_woken(memory: Rig) -> None:
    memory.create_queue(partitions=1)
    memory.enqueue(Draft(b"m", deliver_at=memory.now + SECOND))
    [shard] = memory.queue().shards
    assert memory.engine.wake_at() == memory.now + SECOND
    memory.run(delete_queue(memory.engine, TASKS, memory.clock))
    assert memory.engine.wake_at() == NEVER
    shard.head.next_due = memory.now
    memory.engine.wake_ups.schedule(shard)
    memory.advance(SECOND)
    assert memory.engine.wake_at() == NEVER
    assert not memory.engine.pending


def test_a_dead_letter_is_announced_where_a_webhook_is_set_and_dropped_without_a_dead_queue(memory: Rig) -> None:
    memory.create_queue(dlq={"alert_webhook": "https://alerts.example/x"})
    [message_id] = memory.enqueue(b"a").ids
    memory.consume(1, Verb.REJECT)
    [alert] = memory.engine.alerts
    assert (alert.message_id, alert.dead_queue, alert.reason, alert.attempts) == (
        message_id,
        "dlq/tasks",
        "rejected",
        1,
    )
    other = ("default", "other")
    memory.create_queue(other, dlq={"enabled": False})
    [dropped] = memory.enqueue(b"b", name=other).ids
    memory.consume(1, Verb.REJECT, name=other)
    assert [item.message.id for item in memory.engine.dropped] == [dropped]


def test_a_dead_queue_for_which_there_is_no_room_takes_nothing() -> None:
    disk = MemoryDisk()
    cell = Rig(lambda: MemoryStore(disk), Limits(max_queues=1))
    cell.enqueue(b"a")
    cell.consume(1, Verb.REJECT)
    assert set(cell.engine.queues) == {TASKS}
    assert [message.payload for message in cell.live()] == [b"a"], "it waits until there is room"


def test_a_redrive_names_no_more_than_it_can_search_for(memory: Rig) -> None:
    memory.enqueue(b"a")
    memory.consume(1, Verb.REJECT)
    which = DeadLetterFilter(ids=frozenset(range(IDS_MAX + 1)))
    with pytest.raises(InvalidArgument, match="at most"):
        next(redrive(memory.engine, DEAD, which, memory.clock))


def test_dead_letters_that_arrive_during_a_redrive_are_left_alone(memory: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engine.dead_letters.PAGE_MESSAGES", 1)
    memory.create_queue(DEAD, partitions=1, dlq={"enabled": False})
    memory.enqueue(*[b"%d" % number for number in range(10)])
    memory.consume(3, Verb.REJECT)
    memory.now += SECOND
    memory.consume(7, Verb.REJECT)
    memory.now += SECOND
    work = redrive(memory.engine, DEAD, DeadLetterFilter(), memory.clock, step=2)
    moved = len(next(work).moved)
    memory.consume(1, Verb.REJECT)
    moved += sum(len(step.moved) for step in memory.run(work))
    assert (moved, len(memory.live(DEAD))) == (10, 1)


def test_a_transaction_that_is_not_published_does_not_move(memory: Rig) -> None:
    transactions = memory.engine.transactions
    assert transactions.move(TransactionName("default", "unknown"), memory.now) is False
    transactions.stage(TransactionName("default", "t"), [("tasks", [Draft(b"m")])], "p", "1", 0, memory.now)
    assert transactions.move(TransactionName("default", "t"), memory.now) is False
    assert memory.live() == []


def test_requests_that_died_are_noted_where_no_other_group_can_answer(memory: Rig) -> None:
    memory.create_queue(partitions=1)
    memory.create_group("g")
    extra = Extra(reply_to="answers", correlation_id="c")
    memory.enqueue(Draft(b"m", extra=extra), b"plain")
    memory.consume(2, Verb.REJECT)
    [failed] = memory.engine.failed_requests
    assert failed == FailedRequest("default", "c", "rejected", "boom", 1)
    memory.engine.failed_requests.clear()
    memory.create_group("other")
    memory.enqueue(Draft(b"m", extra=extra))
    memory.consume(1, Verb.REJECT)
    assert memory.engine.failed_requests == []


def test_what_was_read_for_a_search_that_failed_is_read_again(cell: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    cell.create_queue(partitions=1)
    cell.create_group("g")
    cell.enqueue(b"m")
    cell.restart()

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    [shard] = cell.queue().shards
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.core.shard.read_places", broken)
        with pytest.raises(ZeroDivisionError):
            cell.engine.heads([shard], "g")
    assert shard._have == {}
    assert [leased.message.payload for leased in cell.lease(1)] == [b"m"]


def test_a_paused_queue_leases_nothing_from_any_of_its_partitions(memory: Rig) -> None:
    memory.create_queue(partitions=2)
    memory.create_group("g")
    memory.enqueue(b"a")
    memory.enqueue(b"b")
    update_queue(memory.engine, TASKS, {"paused": True}, memory.now)
    assert memory.lease(2) == []
    update_queue(memory.engine, TASKS, {"paused": False}, memory.now)
    assert [leased.message.payload for leased in memory.lease(2)] == [b"a", b"b"]


def test_nothing_overtakes_a_message_that_does_not_fit_into_a_lease(memory: Rig) -> None:
    memory.create_queue(partitions=2)
    memory.create_group("g")
    memory.enqueue(bytes(10), bytes(10), bytes(30))
    memory.enqueue(bytes(1))
    assert [len(leased.message.payload) for leased in memory.lease(3, max_bytes=25)] == [10, 10]
    assert [len(leased.message.payload) for leased in memory.lease(3, max_bytes=40)] == [30, 1]
