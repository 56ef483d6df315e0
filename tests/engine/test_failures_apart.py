"""A bug in one operation is nobody else's: an undo costs what the operation has changed, whatever else there is, and
work that is due and fails holds up nothing that is due elsewhere."""

from __future__ import annotations

from typing import Any, cast

import pytest

from holdfast.core.commands import Draft, Tick
from holdfast.core.records import Table
from holdfast.core.shard import COMMANDS
from holdfast.core.transactions import TransactionName, TransactionState
from holdfast.engine import transactions
from holdfast.engine.engine import FAILED_PAUSE, Limits
from holdfast.engine.open_transaction import TransactionLimits
from holdfast.engine.queues import create_queue
from holdfast.engine.schedules import schedules
from holdfast.engine.schedules.records import Rule, Schedule, draft_of
from holdfast.engine.transactions import Transactions
from holdfast.store.memory import MemoryDisk, MemoryStore
from holdfast.units import HOUR, MINUTE, SECOND
from tests.engine.calls import calls_of
from tests.engine.counting import CountingRig
from tests.engine.rig import TASKS, Rig

OTHER = ("default", "other")


class Bug(Exception):
    pass


def work_of_undos(queues: int) -> tuple[int, int]:
    """Records read, and functions called, when operations on one queue, one transaction and one schedule are undone
    in a cell that has so many."""
    rig = CountingRig()
    engine = rig.engine
    for number in range(queues):
        name = ("default", f"q{number}")
        create_queue(engine, name, {}, rig.now)
        engine.enqueue(name, [Draft(b"x")] * 3, "test", rig.now)
        engine.transactions.stage(TransactionName("default", f"t{number}"), [("q0", [Draft(b"x")])], "", "", 0, rig.now)
        schedule = Schedule(
            "default", f"s{number}", queue="q0", rule=Rule(every=MINUTE), payload=b"x", priority=128, ttl=-1
        )
        engine.schedules.put(schedule, rig.now)
    engine.write()
    for number in range(queues):  # of this turn, and not written
        engine.begin()
        engine.enqueue(("default", f"q{number}"), [Draft(b"y")], "test", rig.now)
    rig.store.records = 0

    def fail() -> None:
        for _ in range(3):
            engine.begin()
            engine.enqueue(("default", "q1"), [Draft(b"z")], "test", rig.now)
            engine.transactions.stage(TransactionName("default", "t1"), [("q0", [Draft(b"x")])], "", "", 1, rig.now)
            engine.schedules.delete(("default", "s1"))
            create_queue(engine, ("default", "new"), {}, rig.now)
            engine.undo(rig.now)

    calls = calls_of(fail)
    return rig.store.records, calls


def test_an_undo_costs_the_same_among_many_queues_transactions_and_schedules() -> None:
    few, many = work_of_undos(20), work_of_undos(200)
    assert many[0] == few[0]
    assert many[1] < few[1] * 1.05, "heaps and sorted keys are a little deeper, and nothing else"


def test_a_transaction_an_operation_left_alone_stays_the_object_that_it_is() -> None:
    """Whoever publishes it waits for its end."""
    rig = Rig(lambda: MemoryStore(MemoryDisk()))
    rig.create_queue()
    name = TransactionName("default", "t1")
    rig.engine.transactions.stage(name, [(TASKS[1], [Draft(b"x")])], "", "", 0, rig.now)
    record = rig.engine.transactions.live[name].record
    rig.engine.begin()
    rig.engine.enqueue(TASKS, [Draft(b"y")], "test", rig.now)
    rig.engine.undo(rig.now)
    assert rig.engine.transactions.live[name].record is record
    rig.engine.begin()
    rig.engine.transactions.stage(name, [(TASKS[1], [Draft(b"y")])], "", "", 1, rig.now)
    rig.engine.undo(rig.now)
    assert rig.engine.transactions.live[name].record is record
    assert record.messages == 1


def test_a_step_of_a_publish_and_one_of_a_redrive_are_undone_alone() -> None:
    limits = Limits(transactions=TransactionLimits(step_messages=1))
    rig = Rig(lambda: MemoryStore(MemoryDisk()), limits)
    rig.create_queue()
    name = TransactionName("default", "t1")
    for chunk in range(3):
        rig.engine.transactions.stage(name, [(TASKS[1], [Draft(b"x")])], "", "", chunk, rig.now)
    record, _ = rig.engine.transactions.publish(name, None, "test", rig.now)
    audit = rig.engine.audits.begin(("default", "dlq/tasks"), "fix", "", "me", "", rig.now)
    rig.engine.begin()
    assert rig.engine.transactions.move(name, rig.now)
    rig.engine.audits.begin(("default", "dlq/tasks"), "fix", "", "me", "", rig.now).moved = 7
    assert record.published == 2
    rig.engine.undo(rig.now)
    assert record.published == 1
    assert rig.engine.audits.get(("default", "dlq/tasks"), "fix").moved == 0
    assert audit.moved == 7, "it was read again"
    while rig.engine.transactions.move(name, rig.now):
        pass
    assert (record.state, record.published, rig.queue().depth) == (TransactionState.PUBLISHED, 3, 3)


def test_what_an_undone_operation_has_read_of_its_own_is_read_no_more() -> None:
    engine = Rig(lambda: MemoryStore(MemoryDisk())).engine
    for value in (b"before", b"undone"):
        engine.begin()
        engine.add([(Table.META, b"key", value)])
        assert engine.overlay.get(Table.META, b"key") == value
    engine.undo(0)
    assert engine.overlay.get(Table.META, b"key") == b"before"


def test_what_an_undone_stage_took_of_a_limit_is_free_again() -> None:
    limits = Limits(transactions=TransactionLimits(max_parts=1))
    rig = Rig(lambda: MemoryStore(MemoryDisk()), limits)
    for number in range(3):
        rig.engine.begin()
        name = TransactionName("default", f"t{number}")
        rig.engine.transactions.stage(name, [(TASKS[1], [Draft(b"x")])], "", "", 0, rig.now)
        rig.engine.undo(rig.now)
    assert not rig.engine.transactions.live


@pytest.fixture
def rig() -> Rig:
    disk = MemoryDisk()
    return Rig(lambda: MemoryStore(disk))


def test_a_shard_whose_work_fails_holds_up_no_other(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (TASKS, OTHER):
        rig.create_queue(name, partitions=1)
        rig.enqueue(Draft(b"m", deliver_at=rig.now + SECOND), name=name)
    bad = rig.queue(TASKS).shards[0]
    right: Any = COMMANDS[Tick]

    def wrong(shard: Any, *arguments: Any) -> None:
        right(shard, *arguments)
        if shard is bad:
            raise Bug

    with monkeypatch.context() as patch:
        patch.setitem(cast("dict[object, object]", COMMANDS), Tick, wrong)
        rig.now += SECOND
        rig.engine.tick(rig.now)
        rig.engine.write()
        assert rig.queue(OTHER).shards[0].head.ready == 1
        assert (bad.head.ready, bad.head.scheduled) == (0, 1)
        assert [(where, type(error)) for where, error in rig.engine.failures] == [("tasks", Bug)]
        assert rig.engine.wake_at() == rig.now + FAILED_PAUSE
        # What happens in that queue meanwhile changes nothing of it, and a lease there does not fail.
        rig.enqueue(b"x")
        rig.engine.begin()
        assert [one.message.payload for one in rig.lease(10)] == [b"x"]
        assert rig.engine.wake_at() == rig.now + FAILED_PAUSE
        rig.now += FAILED_PAUSE
        assert rig.lease(10) == []
        rig.engine.tick(rig.now)
        assert len(rig.engine.failures) == 2
    rig.advance(FAILED_PAUSE)
    assert [one.message.payload for one in rig.lease(10)] == [b"m"]
    assert len(rig.engine.failures) == 2


def test_a_schedule_whose_tick_fails_holds_up_no_other(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bad", "good"):
        rule = Rule(every=MINUTE)
        rig.engine.schedules.put(
            Schedule("default", name, queue=name, rule=rule, payload=b"x", priority=128, ttl=-1), rig.now
        )
    rig.engine.write()
    right = draft_of

    def wrong(schedule: Schedule, *arguments: Any) -> Draft:
        if schedule.name == "bad":
            raise Bug
        return right(schedule, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(schedules, "draft_of", wrong)
        rig.advance(MINUTE)
        assert rig.queue(("default", "good")).depth == 1
        assert [where for where, _ in rig.engine.failures] == ["bad"]
    rig.advance(schedules.RETRY)
    assert rig.queue(("default", "bad")).depth == 1
    assert [run.number for run in rig.engine.schedules.runs(("default", "bad"))] == [1]


def test_a_transaction_whose_end_fails_holds_up_no_other(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [TransactionName("default", f"t{number}") for number in range(3)]
    for name in names:
        rig.engine.transactions.stage(name, [(TASKS[1], [Draft(b"x")])], "", "", 0, rig.now)
    rig.engine.write()
    right = Transactions._remove

    def wrong(self: Transactions, found: Any) -> None:
        right(self, found)
        if found.record.name == names[0]:
            raise Bug

    with monkeypatch.context() as patch:
        patch.setattr(Transactions, "_remove", wrong)
        rig.advance(rig.engine.transactions.limits.timeout)
        assert list(rig.engine.transactions.live) == names[:1]
        assert len(rig.engine.failures) == 1
    rig.advance(transactions.RETRY)
    assert not rig.engine.transactions.live


@pytest.mark.parametrize("what", ["transactions", "redrives"])
def test_forgetting_what_is_over_is_tried_again(what: str, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = rig.engine
    rig.create_queue()
    engine.transactions.publish(TransactionName("default", "t1"), {}, "test", rig.now)
    engine.audits.begin(("default", "dlq/tasks"), "fix", "", "me", "", rig.now)
    engine.write()
    part: Any = engine.transactions if what == "transactions" else engine.audits
    function = "_delete" if what == "transactions" else "_forget"
    right = getattr(type(part), function)

    def wrong(self: Any, *arguments: Any) -> None:
        right(self, *arguments)
        raise Bug

    with monkeypatch.context() as patch:
        patch.setattr(type(part), function, wrong)
        rig.now += 1_000 * 24 * HOUR
        engine.tick(rig.now)
        assert [where for where, _ in engine.failures] == [what]
        assert engine.wake_at() == rig.now + SECOND
    assert engine.transactions.remembered("default") == (what == "transactions")
    assert len(engine.audits.of(("default", "dlq/tasks"))) == (what == "redrives")
    rig.advance(SECOND)
    assert engine.transactions.remembered("default") == 0
    assert engine.audits.of(("default", "dlq/tasks")) == []
