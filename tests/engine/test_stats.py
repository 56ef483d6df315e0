"""Statistics of queues and groups, and rates over the last minute."""

from __future__ import annotations

import pytest

from holdfast.core.commands import Draft, Verb
from holdfast.core.queue import GroupKind
from holdfast.engine.cursors import cursor_commit
from holdfast.engine.queues import update_queue
from holdfast.engine.stats import Histogram, QueueStats, queue_stats
from holdfast.errors import QueueNotFound
from holdfast.rates import RATE_WINDOW, RateWindow
from holdfast.units import SECOND
from tests.engine.rig import TASKS, Rig


def stats(cell: Rig) -> QueueStats:
    return queue_stats(cell.engine, TASKS, cell.now)


def test_a_queue_without_groups_has_the_age_of_its_oldest_message(cell: Rig) -> None:
    with pytest.raises(QueueNotFound):
        stats(cell)
    cell.create_queue(partitions=2)
    assert (stats(cell).oldest_age, stats(cell).groups) == (0, [])
    cell.enqueue(b"old")
    cell.now += 3 * SECOND
    cell.enqueue(b"young!", Draft(b"later", deliver_at=cell.now + SECOND))
    found = stats(cell)
    assert (found.partitions, found.depth, found.ready, found.scheduled) == (2, 3, 2, 1)
    assert (found.size_bytes, found.enqueued, found.oldest_age) == (14, 3, 3 * SECOND)


def test_a_leasing_group_is_counted_over_all_partitions(cell: Rig) -> None:
    cell.create_queue(partitions=3, retry={"max_retries": 9, "initial_backoff": "10s"})
    cell.create_group("g")
    for number in range(6):
        cell.enqueue(b"%d" % number)
    cell.now += 5_000
    cell.consume(1)
    cell.consume(1, Verb.NACK)
    cell.consume(1, Verb.REJECT)
    cell.lease(2)
    [group] = stats(cell).groups
    assert (group.kind, group.ready, group.leased, group.scheduled) == (GroupKind.LEASE, 1, 2, 1)
    assert (group.acked, group.leases, group.failures, group.dead) == (1, 5, {"nack": 1}, {"rejected": 1})
    assert group.oldest_age == 5_000
    assert sum(group.delivery_latency.counts) == 5
    assert group.delivery_latency.quantile_ms(0.5) == 5
    cell.restart()
    [after] = stats(cell).groups
    assert (after.ready, after.leased, after.scheduled, after.acked) == (1, 2, 1, 1)


def test_a_group_that_has_done_everything_has_no_oldest_message(memory: Rig) -> None:
    memory.enqueue(b"a")
    memory.consume(1)
    [group] = stats(memory).groups
    assert (group.oldest_age, group.acked) == (0, 1)


def test_a_cursor_group_lags_by_what_it_has_not_committed(cell: Rig) -> None:
    cell.create_queue(partitions=2)
    cell.create_group("log", kind=GroupKind.CURSOR)
    for _ in range(6):
        cell.enqueue(b"m")
    cell.run(cursor_commit(cell.engine, TASKS, "log", 0, 2, cell.clock))
    [group] = stats(cell).groups
    assert (group.kind, group.lag, group.acked, group.dropped) == (GroupKind.CURSOR, 4, 2, {"max_lag": 0})


def test_rates_are_over_the_last_minute(cell: Rig) -> None:
    cell.create_queue(partitions=2)
    cell.create_group("g")
    queue = cell.queue()
    assert set(stats(cell).rates.values()) == {0.0}
    cell.enqueue(*[b"m"] * 20)
    cell.consume(10)
    cell.consume(2, Verb.NACK)
    assert stats(cell).rates["enqueued"] == 20.0, "a burst is there immediately, as if it had taken a second"
    cell.now += SECOND
    queue.sample_rates(cell.now)
    cell.now += 9 * SECOND
    assert stats(cell).rates == {"enqueued": 2.0, "leased": 1.2, "acked": 1.0, "failed": 0.2}
    cell.now += RATE_WINDOW
    assert set(stats(cell).rates.values()) == {0.0}, "it is too long ago"
    cell.enqueue(*[b"m"] * 30)
    assert stats(cell).rates["enqueued"] == 0.5, "a burst after a long silence counts in full"
    cell.now += SECOND
    queue.sample_rates(cell.now)
    cell.now += 50 * SECOND
    assert stats(cell).rates["enqueued"] == 0.5
    queue.rates = RateWindow()
    assert set(stats(cell).rates.values()) == {0.0}, "a queue that was just opened"


def test_a_quantile_is_an_upper_bound() -> None:
    assert Histogram([0, 1, 3], [0, 0, 0]).quantile_ms(0.5) == 0
    assert Histogram([0, 1, 3], [1, 1, 2]).quantile_ms(0.5) == 1
    assert Histogram([0, 1, 3], [1, 1, 2]).quantile_ms(0.99) == 3


def test_what_is_ready_is_not_what_is_leased(cell: Rig) -> None:
    cell.create_queue(partitions=2, retry={"max_retries": 9, "initial_backoff": "10s"})
    cell.enqueue(*[b"m"] * 6, Draft(b"later", deliver_at=cell.now + SECOND))
    assert (stats(cell).ready, stats(cell).scheduled) == (6, 1), "with no group, what one would get"
    cell.create_group("g")
    cell.lease(2)
    cell.consume(1, Verb.NACK)
    found = stats(cell)
    assert (found.depth, found.ready, found.groups[0].leased, found.scheduled) == (7, 3, 2, 2)
    cell.create_group("late")
    cell.enqueue(*[b"n"] * 5)
    assert stats(cell).ready == 8, "of the group that has most"


def test_a_full_queue_names_the_group_that_holds_it_back(cell: Rig) -> None:
    cell.create_queue(partitions=2, max_depth=3)
    errors = cell.enqueue(*[b"m"] * 4).errors
    assert "holds 3 messages and has no room for more (its max_depth is 3). It has no group" in str(errors[3])
    cell.create_group("quick")
    cell.create_group("stalled", earliest=True)
    cell.consume(2, group="quick")
    error = cell.enqueue(b"m").errors[0]
    assert "Group 'stalled' has not settled 3 of them." in str(error)
    assert error.details == {
        "queue": "tasks",
        "depth": 3,
        "max_depth": 3,
        "holder": "Group 'stalled' has not settled 3 of them",
        "group": "stalled",
        "backlog": 3,
    }
    cell.create_group("log", kind=GroupKind.CURSOR, earliest=True)
    cell.consume(3, group="stalled")
    assert cell.enqueue(b"m", b"m", atomic=True).errors[0].details["group"] == "log"


def test_a_limit_below_the_depth_is_told_apart_from_it(cell: Rig) -> None:
    cell.create_queue(partitions=1)
    cell.enqueue(*[b"m"] * 5)
    update_queue(cell.engine, TASKS, {"max_depth": 2}, cell.now)
    error = cell.enqueue(b"m").errors[0]
    assert (error.details["depth"], error.details["max_depth"]) == (5, 2)


def test_what_is_leased_is_counted_over_all_partitions(cell: Rig) -> None:
    cell.create_queue(partitions=2)
    cell.create_group("g")
    cell.create_group("log", kind=GroupKind.CURSOR)
    for number in range(4):
        cell.enqueue(b"%d" % number)
    cell.lease(3)
    assert (cell.queue().leased("g"), cell.queue().leased("log")) == (3, 0)
    assert (cell.queue().backlog("g"), cell.queue().backlog("log")) == (4, 4)
