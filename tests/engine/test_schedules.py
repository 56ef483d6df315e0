"""Schedules on the simulated clock: each tick is enqueued once, over restarts, changes, refusals and absences."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from holdfast.core.commands import Draft
from holdfast.core.records import Extra, Table
from holdfast.engine.engine import Limits
from holdfast.engine.queues import delete_queue, update_queue
from holdfast.engine.schedules import schedules
from holdfast.engine.schedules.records import (
    EVERY_MAX,
    JITTER_MAX,
    RUNS_KEPT,
    CatchUp,
    Overlap,
    Rule,
    Schedule,
    TickOutcome,
    due_at,
)
from holdfast.errors import (
    DiskFull,
    InvalidArgument,
    InvalidName,
    LimitExceeded,
    QueueFull,
    QuotaExceeded,
    ScheduleNotFound,
    StoreUnavailable,
)
from holdfast.quotas import Quota, Quotas
from holdfast.store.memory import MemoryDisk, MemoryStore
from holdfast.units import DAY, HOUR, MINUTE, NEVER, SECOND, parse_instant
from tests.engine.rig import START, TASKS, Rig

NAME = ("default", "nightly")
EVERY_MINUTE = Rule(every=MINUTE)


def schedule(rule: Rule = EVERY_MINUTE, **fields: object) -> Schedule:
    made = Schedule(*NAME, queue="tasks", rule=rule, payload=b"work", priority=128, ttl=-1)
    return replace(made, **fields)


def put(rig: Rig, rule: Rule = EVERY_MINUTE, **fields: object) -> schedules.Scheduled:
    found = rig.engine.schedules.put(schedule(rule, **fields), rig.now)
    rig.engine.write()
    return found


def outcomes(rig: Rig) -> list[tuple[str, int]]:
    """What became of the last ticks, oldest first: the outcome, and the seconds from the start to the tick."""
    runs = reversed(rig.engine.schedules.runs(NAME))
    return [(run.outcome.value, (run.tick - START) // SECOND if run.tick else 0) for run in runs]


def ids(rig: Rig) -> list[str | None]:
    return [message.extra.message_id for message in rig.live()]


def test_each_tick_enqueues_one_message_that_carries_it(cell: Rig) -> None:
    put(cell, extra=Extra(key="k", properties=(("a", "b"),), content_type="text/plain"), priority=3)
    assert cell.engine.wake_at() == START + MINUTE
    cell.advance(MINUTE - 1)
    assert cell.live() == []
    cell.advance(1)
    cell.advance(MINUTE)
    first, second = cell.live()
    assert (first.payload, first.priority, first.extra.key, first.extra.content_type) == (b"work", 3, "k", "text/plain")
    assert first.extra.message_id == "nightly@2026-03-01T00:01:00.000Z"
    assert first.extra.properties == (
        ("a", "b"),
        ("holdfast-schedule", "nightly"),
        ("holdfast-tick", "2026-03-01T00:01:00.000Z"),
    )
    assert second.extra.message_id == "nightly@2026-03-01T00:02:00.000Z"
    assert [row.protocol for row in cell.journal()] == ["schedule", "schedule"]
    assert outcomes(cell) == [("enqueued", 60), ("enqueued", 120)]
    state = cell.engine.schedules.get(NAME).state
    assert (state.enqueued, state.runs, state.message) == (2, 2, second.id)


def test_a_restart_repeats_no_tick_and_loses_none(cell: Rig) -> None:
    put(cell, catch_up=CatchUp.ALL)
    for _ in range(3):
        cell.advance(MINUTE)
        cell.restart()
    cell.now += 2 * MINUTE
    cell.restart()
    cell.advance(0)
    assert ids(cell) == [f"nightly@2026-03-01T00:0{minute}:00.000Z" for minute in range(1, 6)]
    assert outcomes(cell) == [("enqueued", 60 * minute) for minute in range(1, 6)]


def test_what_was_not_written_is_done_again_as_a_whole() -> None:
    disk = MemoryDisk()
    rig = Rig(lambda: MemoryStore(disk))
    put(rig)
    rig.engine.store.sync()
    rig.now += MINUTE
    rig.engine.tick(rig.now)
    rig.engine = rig._open()  # the turn was not written: message and state are gone together
    rig.advance(0)
    assert ids(rig) == ["nightly@2026-03-01T00:01:00.000Z"]
    assert outcomes(rig) == [("enqueued", 60)]


@pytest.mark.parametrize(
    ("catch_up", "late", "found"),
    [
        (CatchUp.SKIP, 10 * MINUTE + 30 * SECOND, [("enqueued", 600)]),
        (CatchUp.SKIP, 70 * MINUTE + 90 * SECOND, [("missed", 4200)]),
        (CatchUp.ONE, 10 * MINUTE + 30 * SECOND, [("enqueued", 600)]),
        (CatchUp.ONE, 70 * MINUTE + 90 * SECOND, [("enqueued", 4200)]),
        (CatchUp.ALL, 30 * MINUTE + 90 * SECOND, [("enqueued", 600), ("enqueued", 1200), ("enqueued", 1800)]),
    ],
)
def test_catch_up(memory: Rig, catch_up: CatchUp, late: int, found: list[tuple[str, int]]) -> None:
    put(memory, Rule(every=10 * MINUTE), catch_up=catch_up)
    memory.now += late
    memory.restart()
    memory.advance(0)
    assert outcomes(memory) == found
    memory.advance(10 * MINUTE - late % (10 * MINUTE))
    assert outcomes(memory)[-1][0] == "enqueued"


def test_catching_up_with_a_long_absence_takes_several_turns(memory: Rig) -> None:
    put(memory, Rule(every=SECOND), catch_up=CatchUp.ALL)
    memory.now += 3 * schedules.TICKS_MAX * SECOND
    memory.engine.tick(memory.now)
    memory.engine.write()
    assert len(memory.live()) == schedules.TICKS_MAX
    assert memory.engine.wake_at() <= memory.now
    memory.advance(0)
    assert len(memory.live()) == 3 * schedules.TICKS_MAX
    assert len(memory.engine.schedules.runs(NAME)) == RUNS_KEPT
    assert memory.engine.schedules.get(NAME).state.runs == 3 * schedules.TICKS_MAX


def test_a_year_of_absence_is_one_search(memory: Rig) -> None:
    put(memory, Rule(cron="*/5 * * * *", zone="Europe/Berlin"), catch_up=CatchUp.ONE)
    memory.now += 366 * DAY + 7 * MINUTE
    memory.advance(0)
    assert outcomes(memory) == [("enqueued", 366 * 86400 + 300)]


def test_overlap_skips_while_the_message_before_is_there(memory: Rig) -> None:
    put(memory, overlap=Overlap.SKIP)
    memory.advance(MINUTE)
    memory.advance(MINUTE)
    (leased,) = memory.lease()
    memory.advance(MINUTE - 30 * SECOND)  # the lease ends then; the delivery is retried
    memory.advance(30 * SECOND)
    assert outcomes(memory) == [("enqueued", 60), ("overlap", 120), ("overlap", 180)]
    assert memory.engine.schedules.runs(NAME)[0].message == leased.message.id
    memory.consume(1)
    memory.advance(MINUTE)
    assert outcomes(memory)[-1] == ("enqueued", 240)
    list(delete_queue(memory.engine, TASKS, memory.clock))
    memory.advance(MINUTE)
    assert outcomes(memory)[-1] == ("enqueued", 300)


def test_overlap_replaces_what_waits_and_not_what_somebody_works_on(memory: Rig) -> None:
    put(memory, overlap=Overlap.REPLACE)
    memory.advance(MINUTE)
    memory.advance(MINUTE)
    assert ids(memory) == ["nightly@2026-03-01T00:02:00.000Z"]
    memory.lease()
    update_queue(memory.engine, TASKS, {"delivery_timeout": "1h"}, memory.now)
    memory.consume(1)
    memory.advance(MINUTE)
    memory.lease()
    memory.advance(MINUTE)
    assert ids(memory) == [f"nightly@2026-03-01T00:0{minute}:00.000Z" for minute in (3, 4)]
    list(delete_queue(memory.engine, TASKS, memory.clock))
    memory.advance(MINUTE)
    assert ids(memory) == ["nightly@2026-03-01T00:05:00.000Z"]


def test_jitter_is_the_same_whenever_it_is_computed(cell: Rig) -> None:
    rule = Rule(every=HOUR, jitter=10 * MINUTE)
    put(cell, rule)
    dues = [due_at(schedule(rule), START + HOUR * hour) - (START + HOUR * hour) for hour in range(1, 50)]
    assert all(0 <= late <= 10 * MINUTE for late in dues)
    assert len(set(dues)) > 40
    assert cell.engine.wake_at() == START + HOUR + dues[0]
    cell.restart()
    cell.advance(HOUR + dues[0] - 1)
    assert cell.live() == []
    cell.advance(1)
    assert ids(cell) == ["nightly@2026-03-01T01:00:00.000Z"]
    cell.advance(HOUR - dues[0] + dues[1])
    assert outcomes(cell) == [("enqueued", 3600), ("enqueued", 7200)]


def test_start_and_end(memory: Rig) -> None:
    start = START + 90 * SECOND
    found = put(memory, Rule(every=MINUTE, starts_at=start, ends_at=start + 3 * MINUTE))
    assert found.next_ticks(10) == [start, start + MINUTE, start + 2 * MINUTE]
    memory.advance(10 * MINUTE)
    assert outcomes(memory) == [("missed", 210)]
    assert memory.engine.schedules.get(NAME).next_ticks(10) == []
    assert memory.engine.schedules.wake_at == NEVER
    assert put(memory, Rule(cron="* * * * *", starts_at=START + DAY)).next_ticks(1) == [START + DAY]
    assert put(memory, Rule(every=7 * MINUTE, starts_at=START)).next_ticks(1) == [START + 14 * MINUTE]


def test_a_start_can_be_moved_to_the_front(memory: Rig) -> None:
    put(memory, Rule(every=MINUTE, starts_at=START + DAY))
    assert put(memory, Rule(every=MINUTE, starts_at=START + HOUR)).next_ticks(1) == [START + HOUR]


def test_a_changed_message_keeps_the_ticks_and_a_changed_rule_begins_again(memory: Rig) -> None:
    put(memory, catch_up=CatchUp.ALL)
    memory.now += 2 * MINUTE + 30 * SECOND
    put(memory, payload=b"other", catch_up=CatchUp.ALL)
    memory.advance(0)
    assert [message.payload for message in memory.live()] == [b"other", b"other"]
    memory.now += 2 * MINUTE
    put(memory, Rule(every=HOUR), catch_up=CatchUp.ALL)
    memory.advance(0)
    assert len(memory.live()) == 2
    found = memory.engine.schedules.get(NAME)
    assert found.tick == START + 4 * MINUTE + 30 * SECOND + HOUR
    assert (found.schedule.created_at, found.schedule.changed_at) == (START, memory.now)


def test_a_paused_schedule_does_not_tick_and_does_not_catch_up(cell: Rig) -> None:
    put(cell, catch_up=CatchUp.ALL)
    cell.engine.schedules.pause(NAME, True, cell.now)
    assert cell.engine.schedules.pause(NAME, True, cell.now).next_ticks(3) == []
    cell.restart()
    cell.advance(10 * MINUTE + SECOND)
    assert cell.live() == []
    cell.engine.schedules.pause(NAME, False, cell.now)
    cell.advance(0)
    assert cell.live() == []
    cell.advance(MINUTE)
    assert ids(cell) == ["nightly@2026-03-01T00:11:00.000Z"]


def test_run_now(memory: Rig) -> None:
    put(memory, overlap=Overlap.REPLACE)
    memory.advance(MINUTE)
    memory.engine.schedules.pause(NAME, True, memory.now)
    memory.now += SECOND
    run = memory.engine.schedules.run(NAME, memory.now)
    assert (run.outcome, run.tick, run.at) == (TickOutcome.ENQUEUED, 0, memory.now)
    assert ids(memory) == ["nightly@2026-03-01T00:01:00.000Z", "nightly@2026-03-01T00:01:01.000Z/asked"]
    assert memory.engine.schedules.run(NAME, memory.now).outcome is TickOutcome.DUPLICATE
    assert memory.engine.schedules.get(NAME).state.enqueued == 2


def test_a_full_queue_is_tried_again_and_the_tick_is_enqueued_once(memory: Rig) -> None:
    memory.create_queue(max_depth=1)
    memory.enqueue(b"other")
    put(memory)
    memory.advance(MINUTE)
    (run,) = memory.engine.schedules.runs(NAME)
    assert (run.outcome, run.message) == (TickOutcome.REFUSED, 0)
    assert run.error.startswith("queue_full: ")
    assert memory.engine.wake_at() == memory.now + schedules.RETRY
    memory.advance(schedules.RETRY)
    assert outcomes(memory) == [("refused", 60)]
    with pytest.raises(QueueFull):
        memory.engine.schedules.run(NAME, memory.now)
    memory.consume(1)
    memory.advance(schedules.RETRY)
    assert outcomes(memory) == [("enqueued", 60)]
    memory.consume(1)
    assert memory.engine.schedules.outcomes == {
        TickOutcome.ENQUEUED: 1,
        TickOutcome.DUPLICATE: 0,
        TickOutcome.OVERLAP: 0,
        TickOutcome.MISSED: 0,
        TickOutcome.REFUSED: 2,
    }


def test_a_run_between_a_refusal_and_its_retry_has_its_own_place_in_the_history(memory: Rig) -> None:
    memory.create_queue(max_depth=1)
    memory.enqueue(b"other")
    put(memory)
    memory.advance(MINUTE)
    memory.consume(1)
    memory.engine.schedules.run(NAME, memory.now)
    memory.consume(1)
    memory.advance(schedules.RETRY)
    assert outcomes(memory) == [("refused", 60), ("enqueued", 0), ("enqueued", 60)]


def test_what_the_broker_does_not_admit_is_tried_again(memory: Rig) -> None:
    def refuse(namespace: str, size_bytes: int, now: int) -> None:
        assert (namespace, size_bytes, now) == ("default", 4, memory.now)
        raise DiskFull(path="/data", free=0, reserve=1)

    put(memory)
    memory.engine.schedules.admit = refuse
    memory.advance(MINUTE)
    assert outcomes(memory) == [("refused", 60)]


def test_a_store_that_fails_is_no_refusal(memory: Rig) -> None:
    def fail(namespace: str, size_bytes: int, now: int) -> None:
        raise StoreUnavailable(problem="broken")

    put(memory)
    memory.engine.schedules.admit = fail
    with pytest.raises(StoreUnavailable):
        memory.advance(MINUTE)


def test_a_producer_that_used_the_id_before_has_done_the_work(memory: Rig) -> None:
    put(memory)
    memory.advance(MINUTE - SECOND)
    memory.enqueue(Draft(b"x", extra=Extra(message_id="nightly@2026-03-01T00:01:00.000Z")))
    memory.advance(SECOND)
    assert outcomes(memory) == [("duplicate", 60)]
    assert [message.payload for message in memory.live()] == [b"x"]


def test_a_clock_that_goes_back_repeats_nothing(memory: Rig) -> None:
    put(memory)
    memory.advance(MINUTE)
    memory.now -= 30 * SECOND
    memory.advance(0)
    put(memory, Rule(every=30 * SECOND))
    assert memory.engine.schedules.get(NAME).tick == START + MINUTE + 30 * SECOND
    assert len(memory.live()) == 1


def test_deleting(cell: Rig) -> None:
    put(cell)
    cell.advance(MINUTE)
    cell.engine.schedules.delete(NAME)
    cell.engine.write()
    for table in (Table.SCHEDULES, Table.SCHEDULE_STATES, Table.SCHEDULE_RUNS):
        assert list(cell.engine.store.scan(table, b"", b"\xff" * 8, 10)) == []
    cell.advance(MINUTE)
    cell.restart()
    assert len(cell.live()) == 1
    assert (len(cell.engine.schedules), cell.engine.schedules.count("default")) == (0, 0)
    for act in (
        lambda: cell.engine.schedules.delete(NAME),
        lambda: cell.engine.schedules.runs(NAME),
        lambda: cell.engine.schedules.pause(NAME, True, cell.now),
    ):
        with pytest.raises(ScheduleNotFound, match="There is no schedule 'nightly' in namespace 'default'"):
            act()


def test_schedules_of_a_namespace_by_name(memory: Rig) -> None:
    for namespace, name in (("default", "b"), ("default", "a/x"), ("default", "a/y"), ("other", "a/z")):
        put(memory, namespace=namespace, name=name)

    def names(prefix: str = "", after: str = "") -> list[str]:
        return [one.schedule.name for one in memory.engine.schedules.in_namespace("default", prefix, after)]

    assert names() == ["a/x", "a/y", "b"]
    assert names("a/") == ["a/x", "a/y"]
    assert names(after="a/x") == ["a/y", "b"]
    assert memory.engine.schedules.count("default") == 3
    memory.engine.schedules.delete(("default", "b"))
    assert (names(), memory.engine.schedules.count("default")) == (["a/x", "a/y"], 2)


def test_a_namespace_has_as_many_as_its_quota_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(MemoryStore, Limits(quotas=Quotas({Quota.SCHEDULES: 1})))
    put(rig)
    put(rig, payload=b"again")
    with pytest.raises(QuotaExceeded, match="schedules"):
        put(rig, name="second")
    put(rig, namespace="other")
    monkeypatch.setattr(schedules, "SCHEDULES_MAX", 2)
    with pytest.raises(LimitExceeded, match="The number of schedules is limited to 2"):
        put(rig, namespace="third")


Change = Callable[[], Schedule]


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (lambda: schedule(Rule()), "cron and every: give exactly one of them"),
        (lambda: schedule(Rule(cron="* * * * *", every=MINUTE)), "exactly one"),
        (lambda: schedule(Rule(every=SECOND - 1)), "every is 1s to 366d"),
        (lambda: schedule(Rule(every=EVERY_MAX + 1)), "every is 1s to 366d"),
        (lambda: schedule(Rule(every=MINUTE, jitter=JITTER_MAX + 1)), "jitter is at most 1h"),
        (lambda: schedule(Rule(every=MINUTE, starts_at=5, ends_at=5)), "ends_at is not later than starts_at"),
        (lambda: schedule(Rule(every=MINUTE, zone="Mars")), "timezone is not a time zone"),
        (lambda: schedule(Rule(cron="x")), "cron has 1 fields"),
        (lambda: schedule(priority=256), "priority is 0 to 255"),
        (lambda: schedule(payload=b"x" * 16_385), "message has 165.. bytes with its properties"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_stored(memory: Rig, changed: Change, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        memory.engine.schedules.put(changed(), memory.now)
    assert len(memory.engine.schedules) == 0
    assert not memory.engine.pending


@pytest.mark.parametrize("wrong", [schedule(name="a+b"), schedule(queue="#")])
def test_names_are_those_of_queues(memory: Rig, wrong: Schedule) -> None:
    with pytest.raises(InvalidName):
        memory.engine.schedules.put(wrong, memory.now)


def test_cron_over_both_changes_of_the_clock(memory: Rig) -> None:
    memory.now = parse_instant("2026-03-28T12:00:00Z")
    put(memory, Rule(cron="30 2 * * *", zone="Europe/Berlin"))
    for _ in range(72):
        memory.advance(30 * MINUTE)
    assert ids(memory) == ["nightly@2026-03-29T01:00:00.000Z"]
    memory.advance(30 * MINUTE)
    memory.now = parse_instant("2026-10-24T12:00:00Z")
    memory.restart()
    memory.advance(0)
    for _ in range(80):
        memory.advance(30 * MINUTE)
    assert [run.tick for run in memory.engine.schedules.runs(NAME)[:2]] == [
        parse_instant("2026-10-26T01:30:00Z"),
        parse_instant("2026-10-25T00:30:00Z"),
    ]
