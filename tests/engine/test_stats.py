"""Statistics of queues and groups, and rates over the last minute."""

from __future__ import annotations

import pytest

from holdfast.core.commands import Draft, Verb
from holdfast.core.queue import GroupKind
from holdfast.engine.cursors import cursor_commit
from holdfast.engine.rates import RATE_WINDOW, RateWindow
from holdfast.engine.stats import Histogram, QueueStats, queue_stats
from holdfast.errors import QueueNotFound
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
    assert group.delivery_latency.quantile_ms(0.5) == 7, "all took 5 ms, and 7 is the bound above"
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
    queue.sample_rates(cell.now)
    assert stats(cell).rates["enqueued"] == 0.0, "nothing is known of a time that has no length"
    cell.enqueue(*[b"m"] * 20)
    cell.consume(10)
    cell.consume(2, Verb.NACK)
    cell.now += 10 * SECOND
    assert stats(cell).rates == {"enqueued": 2.0, "leased": 1.2, "acked": 1.0, "failed": 0.2}
    cell.now += RATE_WINDOW
    assert set(stats(cell).rates.values()) == {0.0}, "what was sampled is too long ago"


def test_samples_are_taken_once_a_second() -> None:
    window = RateWindow()
    asked: list[int] = []

    def totals() -> dict[str, int]:
        asked.append(1)
        return {"acked": len(asked)}

    for now in (0, 1, SECOND - 1, SECOND):
        window.sample(totals, now)
    assert len(asked) == 2
    assert window.per_second({"acked": 11}, 5 * SECOND) == {"acked": 2.0}


def test_a_quantile_is_an_upper_bound() -> None:
    assert Histogram([0, 1, 3], [0, 0, 0]).quantile_ms(0.5) == 0
    assert Histogram([0, 1, 3], [1, 1, 2]).quantile_ms(0.5) == 1
    assert Histogram([0, 1, 3], [1, 1, 2]).quantile_ms(0.99) == 3
