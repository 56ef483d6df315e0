"""No turn does more than a bounded amount of work for one caller or one queue: the rest waits for the next."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from functools import partial

import pytest

from holdfast.core.commands import Draft, Settlement, Verb
from holdfast.core.queue import GroupKind
from holdfast.core.records import Extra, Table, queue_key
from holdfast.core.windows import WINDOW_MAX
from holdfast.engine.browse import browse_messages, browse_steps, partition_bounds
from holdfast.engine.cursors import cursor_read
from holdfast.engine.dead_letters import DeadLetterFilter
from holdfast.engine.groups import create_group, delete_group
from holdfast.engine.messages import delete_message, edit_message, find_message, find_steps
from holdfast.engine.queues import delete_queue, finish_growth, purge_queue, update_queue
from holdfast.engine.redrive import Destination, Redriven, redrive
from holdfast.engine.stats import queue_stats, stats_of_all, stats_steps
from holdfast.engine.workflow_states import get_state
from holdfast.errors import LeaseLost, MessageNotFound, QueueNotFound
from holdfast.units import SECOND
from tests.engine.calls import calls_of
from tests.engine.counting import CountingRig
from tests.engine.rig import DEAD, TASKS

MANY = 3_000


@pytest.fixture
def counted() -> Iterator[CountingRig]:
    rig = CountingRig()
    yield rig
    rig.close()


def drafts(count: int, payload: bytes = b"m", deliver_at: int = 0, ttl: int = -1) -> list[Draft]:
    return [Draft(payload, deliver_at=deliver_at, ttl=ttl) for _ in range(count)]


def test_messages_that_expire_together_are_dead_lettered_in_turns(counted: CountingRig) -> None:
    counted.create_queue(partitions=1)
    counted.create_group("g")
    counted.enqueue(*drafts(MANY, ttl=SECOND))
    counted.now += SECOND
    assert counted.turns_due() > 10
    assert (counted.queue().depth, counted.queue(DEAD).depth) == (0, MANY)


def test_messages_that_expire_before_older_ones_are_dead_lettered_in_turns(counted: CountingRig) -> None:
    counted.create_queue(partitions=1)
    counted.create_group("g")
    counted.enqueue(Draft(b"old", ttl=100 * SECOND), *drafts(MANY, ttl=SECOND))
    counted.now += SECOND
    assert counted.turns_due() > 10
    assert (counted.queue().depth, counted.queue(DEAD).depth) == (1, MANY)


def test_messages_expire_for_many_groups_in_turns(counted: CountingRig) -> None:
    """Each is a dead letter of each group."""
    counted.create_queue(partitions=1)
    for number in range(20):
        counted.create_group(f"g{number}")
    counted.enqueue(*drafts(100, ttl=SECOND))
    counted.now += SECOND
    assert counted.turns_due() > 5
    assert (counted.queue().depth, counted.queue(DEAD).depth) == (0, 2_000)


def test_large_messages_expire_in_turns(counted: CountingRig) -> None:
    counted.create_queue(partitions=1)
    counted.create_group("g")
    for _ in range(100):
        counted.enqueue(Draft(bytes(1 << 20), ttl=SECOND))
    counted.now += SECOND
    assert counted.turns_due() > 5
    assert counted.queue(DEAD).depth == 100


def test_delayed_messages_that_fall_due_together_become_ready_in_turns(counted: CountingRig) -> None:
    counted.create_queue(partitions=1)
    counted.create_group("g")
    counted.enqueue(b"consumed")
    counted.consume(1)
    counted.enqueue(*drafts(MANY, deliver_at=counted.now + SECOND))
    counted.now += SECOND
    assert counted.turns_due() > 10
    [shard] = counted.queue().shards
    assert (shard.head.ready, shard.head.scheduled) == (MANY, 0)
    [window] = shard.groups["g"].windows.values()
    assert len(window.loaded) == WINDOW_MAX, "the rest is in the store only"
    leased: list[int] = []
    while found := counted.lease(1_000):
        leased += [one.message.seq for one in found]
        counted.settle(found)
    assert leased == list(range(2, MANY + 2))


def test_leases_that_end_together_fail_in_turns(counted: CountingRig) -> None:
    counted.create_queue(partitions=1, retry={"max_retries": 0})
    counted.create_group("g")
    counted.enqueue(*drafts(MANY))
    assert len(counted.lease(MANY)) == MANY
    counted.now += 3_600 * SECOND
    assert counted.turns_due() > 10
    assert counted.queue(DEAD).depth == MANY


def test_backoffs_that_end_together_do_so_in_turns(counted: CountingRig) -> None:
    counted.create_queue(partitions=1, retry={"max_retries": 5})
    counted.create_group("g")
    counted.enqueue(*drafts(MANY))
    counted.settle(counted.lease(MANY), Verb.NACK)
    counted.now += 3_600 * SECOND
    assert counted.turns_due() > 10
    [shard] = counted.queue().shards
    assert shard.group_counts("g").waiting == 0


def test_producers_ids_are_forgotten_in_turns(counted: CountingRig) -> None:
    counted.create_queue(partitions=1, dedup_window="1s")
    counted.enqueue(*[Draft(b"m", extra=Extra(message_id=str(number))) for number in range(MANY)])
    counted.now += 3_600 * SECOND
    assert counted.turns_due() > 2
    assert counted.queue().shards[0].head.dedup_end == 0


def test_no_queue_waits_for_all_that_is_due_in_another(counted: CountingRig) -> None:
    other = ("default", "other")
    counted.create_queue(partitions=1)
    counted.create_queue(other, partitions=1)
    counted.enqueue(*drafts(MANY, deliver_at=counted.now + SECOND))
    counted.enqueue(Draft(b"m", deliver_at=counted.now + 2 * SECOND), name=other)
    counted.now += 2 * SECOND
    for _ in range(2):
        counted.turn(lambda: counted.engine.tick(counted.now))
    assert counted.queue(other).shards[0].head.ready == 1
    assert counted.queue().shards[0].head.scheduled > MANY // 2


def test_many_queues_in_which_something_is_due_are_served_in_turns(counted: CountingRig) -> None:
    names = [("default", f"q{number}") for number in range(1_000)]
    for name in names:
        counted.create_queue(name, partitions=1)
        counted.enqueue(Draft(b"m", deliver_at=counted.now + SECOND), name=name)
    counted.now += SECOND
    assert counted.turns_due() >= 4
    assert all(counted.queue(name).shards[0].head.ready == 1 for name in names)


def test_a_lease_does_a_bounded_part_of_what_is_due_and_the_rest_follows(counted: CountingRig) -> None:
    counted.create_queue(partitions=4)
    counted.create_group("g")
    counted.enqueue(*[Draft(b"m", deliver_at=counted.now + SECOND) for _ in range(MANY)])
    counted.now += SECOND
    leased: list[int] = []
    counted.turn(lambda: leased.extend(one.message.seq for one in counted.lease(10)))
    assert leased == list(range(1, 11))
    assert counted.engine.wake_at() <= counted.now
    counted.turns_due()
    assert sum(shard.head.scheduled for shard in counted.queue().shards) == 0


def test_many_queues_are_opened_by_reading_ranges_and_not_shard_by_shard(counted: CountingRig) -> None:
    """A hundred thousand shards are opened in a second by that; a read of each table for each takes ten."""
    for number in range(50):
        counted.create_queue(("default", f"q{number}"), partitions=20)
    counted.create_group("g", ("default", "q7"))
    counted.restart()
    assert len(counted.engine.queues) == 50
    assert counted.store.calls < 50 * 20 / 10


def test_records_of_a_shard_that_no_queue_has_are_passed_over(counted: CountingRig) -> None:
    lost, other = ("default", "lost"), ("default", "other")
    for name in (lost, other):
        counted.create_queue(name, partitions=1)
        counted.create_group("g", name)
        counted.enqueue(b"m", name=name)
    counted.engine.add([(Table.QUEUES, queue_key(*lost), None)])
    counted.restart()
    assert [one.message.payload for one in counted.lease(10, name=other)] == [b"m"]


def test_settling_an_unknown_delivery_copies_nothing_of_what_is_remembered(counted: CountingRig) -> None:
    counted.create_queue(partitions=50)
    counted.create_group("g")
    for shard in counted.queue().shards:
        tokens = list(range(shard.number * 10_000, shard.number * 10_000 + 4_000))
        shard.groups["g"].ended.remember_acked(tokens, tokens)
    tracemalloc.start()
    try:
        [lost] = counted.engine.settle(TASKS, "g", [Settlement(17, 18)], counted.now)
        [also_lost] = counted.engine.ack(TASKS, "g", [17], [18], counted.now)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(lost, LeaseLost)
    assert isinstance(also_lost, LeaseLost)
    assert peak_bytes < 100_000, "200,000 remembered leases are some megabytes"


def test_a_page_over_many_partitions_reads_little_more_than_it_shows(counted: CountingRig) -> None:
    counted.create_queue(partitions=200)
    for number in range(600):
        counted.enqueue(b"%03d" % number)
    work = browse_steps(counted.engine, TASKS, 50, "", "", "", counted.clock)
    page, steps = counted.steps(work)
    assert [message.payload for _, message, _ in page.messages] == [b"%03d" % number for number in range(50)]
    assert steps > 1
    rest = browse_messages(counted.engine, TASKS, 1_000, page.cursor, "", "", counted.now)
    assert [message.payload for _, message, _ in rest.messages] == [b"%03d" % number for number in range(50, 600)]
    assert rest.cursor == ""


def test_a_page_ends_where_too_many_records_are_not_live(counted: CountingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are acked stay until the journal is exported."""
    monkeypatch.setattr("holdfast.engine.browse.BROWSE_RECORDS", 1_000)
    counted.create_queue(partitions=1)
    counted.enqueue(*drafts(MANY))
    for _ in range(MANY // 1_000):
        counted.consume(1_000)
    counted.enqueue(b"live")
    seen: list[bytes] = []
    pages, cursor = 0, ""
    while not pages or cursor:
        page, _ = counted.steps(browse_steps(counted.engine, TASKS, 10, cursor, "", "", counted.clock))
        seen += [message.payload for _, message, _ in page.messages]
        pages, cursor = pages + 1, page.cursor
    assert (seen, pages) == ([b"live"], 3)


def test_a_page_over_many_partitions_without_live_records_is_read_in_turns(counted: CountingRig) -> None:
    """What is read of each partition at a time grows, and then fewer of them are read in a round."""
    counted.create_queue(partitions=128)
    counted.create_group("g")
    for batch in range(50):
        counted.enqueue(*[Draft(b"m", extra=Extra(key=f"{batch}-{number}")) for number in range(512)])
    for _ in range(26):
        counted.consume(1_000)
    assert not counted.queue().depth
    page, steps = counted.steps(browse_steps(counted.engine, TASKS, 100, "", "", "", counted.clock))
    assert not page.messages
    assert steps >= 15


def test_reading_writes_nothing(counted: CountingRig) -> None:
    counted.create_queue(partitions=1)
    create_group(counted.engine, TASKS, "log", GroupKind.CURSOR, counted.now, True, 0, 0)
    counted.enqueue(b"m")
    counted.engine.write()
    for _ in range(3):
        counted.engine.begin()
        cursor_read(counted.engine, TASKS, "log", 0, 1, 10, 1 << 20, counted.now, 0, True)
        browse_messages(counted.engine, TASKS, 10, "", "", "", counted.now)
        assert not counted.engine.pending


def test_a_page_of_large_messages_is_bounded_by_bytes(counted: CountingRig) -> None:
    counted.create_queue(partitions=2)
    for _ in range(30):
        counted.enqueue(bytes(1 << 20))
    page, steps = counted.steps(browse_steps(counted.engine, TASKS, 100, "", "", "", counted.clock))
    assert 8 <= len(page.messages) <= 10
    assert page.cursor
    assert steps > 1


def test_a_queue_that_is_deleted_between_two_steps_is_not_read_on(counted: CountingRig) -> None:
    counted.create_queue(partitions=200)
    counted.create_group("g")
    for _ in range(400):
        counted.enqueue(b"m")
    works: list[Iterator[object]] = [
        browse_steps(counted.engine, TASKS, 10, "", "", "", counted.clock),
        partition_bounds(counted.engine, TASKS, 0, counted.clock),
        find_steps(counted.engine, TASKS, 17, counted.clock),
        stats_steps(counted.engine, TASKS, counted.clock),
    ]
    assert [next(work) for work in works] == [None] * len(works)
    counted.run(delete_queue(counted.engine, TASKS, counted.clock))
    for work in works:
        with pytest.raises(QueueNotFound):
            next(work)


def test_a_message_is_searched_for_in_many_partitions_in_turns(counted: CountingRig) -> None:
    counted.create_queue(partitions=100)
    ids = [counted.enqueue(b"m", b"n").ids[0] for _ in range(100)]
    counted.consume(2)
    (partition, message, _), steps = counted.steps(find_steps(counted.engine, TASKS, ids[-2], counted.clock))
    assert (message.id, steps) == (ids[-2], partition // 16 + 1)
    bounds, steps = counted.steps(partition_bounds(counted.engine, TASKS, counted.now, counted.clock))
    assert ({one.first for one in bounds}, steps) == ({1}, 7)
    states, _ = counted.steps(get_state(counted.engine, TASKS, "g", ids[-2], 0, counted.clock))
    assert states == []
    edited = edit_message(counted.engine, TASKS, ids[-2], 7, None, counted.now, partition)
    assert edited.priority == 7
    delete_message(counted.engine, TASKS, ids[-2], counted.now, partition)
    for gone in (ids[0], ids[-2]):
        with pytest.raises(MessageNotFound):
            find_message(counted.engine, TASKS, gone, counted.now)


def test_stats_of_many_partitions_and_groups_are_collected_in_turns(counted: CountingRig) -> None:
    counted.create_queue(partitions=100)
    for number in range(3):
        counted.enqueue(*drafts(100))
        counted.create_group(f"g{number}")
    counted.create_group("log", kind=GroupKind.CURSOR)
    stats, steps = counted.steps(stats_steps(counted.engine, TASKS, counted.clock))
    assert [group.name for group in stats.groups] == ["g0", "g1", "g2", "log"]
    assert (stats.depth, steps) == (300, 3)


def test_stats_look_up_the_oldest_message_and_load_no_window(counted: CountingRig) -> None:
    counted.create_queue(partitions=1)
    counted.create_group("g")
    counted.enqueue(*drafts(MANY), Draft(b"urgent", priority=1))
    counted.restart()
    counted.now += SECOND
    assert counted.turn(lambda: queue_stats(counted.engine, TASKS, counted.now)) < 10
    [group] = queue_stats(counted.engine, TASKS, counted.now).groups
    assert group.oldest_age == SECOND
    assert counted.queue().shards[0].groups["g"].windows == {}
    found = counted.lease(MANY)
    counted.settle(found[:1_500])
    counted.now += SECOND
    [group] = queue_stats(counted.engine, TASKS, counted.now).groups
    assert group.oldest_age == 2 * SECOND


def test_stats_go_on_without_a_group_that_is_deleted_meanwhile(counted: CountingRig) -> None:
    counted.create_queue(partitions=200)
    counted.create_group("g")
    counted.create_group("h")
    work = stats_steps(counted.engine, TASKS, counted.clock)
    assert next(work) is None
    counted.run(delete_group(counted.engine, TASKS, "g", counted.clock))
    stats, _ = counted.steps(work)
    assert [group.name for group in stats.groups] == ["h"]


def test_stats_of_all_queues_are_collected_in_turns(counted: CountingRig) -> None:
    names = [("default", f"q{number:02d}") for number in range(40)]
    for name in names:
        counted.create_queue(name, partitions=10)
        counted.create_group("g", name)
    stats, steps = counted.steps(stats_of_all(counted.engine, None, counted.clock))
    assert ([(one.namespace, one.name) for one in stats], steps > 5) == (names, True)
    assert counted.steps(stats_of_all(counted.engine, "other", counted.clock))[0] == []


def test_stats_of_all_queues_go_on_without_one_that_is_deleted_meanwhile(counted: CountingRig) -> None:
    large, small = ("default", "large"), ("default", "small")
    counted.create_queue(large, partitions=200)
    counted.create_group("g", large)
    counted.create_queue(small, partitions=1)
    counted.create_queue(partitions=1)
    work = stats_of_all(counted.engine, None, counted.clock)
    assert next(work) is None, "in the middle of the large one"
    for name in (large, small):
        counted.run(delete_queue(counted.engine, name, counted.clock))
    stats, _ = counted.steps(work)
    assert [one.name for one in stats] == ["tasks"]


WIDE = 1_024


def test_a_queue_of_many_partitions_is_deleted_in_turns_that_each_do_much(counted: CountingRig) -> None:
    """And not in one for each partition: each waits for a sync."""
    counted.create_queue(partitions=WIDE // 2)
    counted.create_queue(("default", "between"), partitions=1)
    update_queue(counted.engine, TASKS, {"partitions": WIDE}, counted.now)
    counted.create_group("g")
    counted.enqueue(b"m", name=("default", "between"))
    work = delete_queue(counted.engine, TASKS, counted.clock)
    steps: list[int | None] = []
    while not steps or steps[-1] is not None:
        counted.turn(lambda: steps.append(next(work, None)))
    assert TASKS not in counted.engine.queues
    assert len(steps) < WIDE // 20
    assert counted.records_of_shards() == {shard.number for shard in counted.queue(("default", "between")).shards}


def test_a_group_of_many_partitions_is_deleted_in_turns_that_each_do_much(counted: CountingRig) -> None:
    counted.create_queue(partitions=WIDE)
    counted.turn(lambda: counted.create_group("g"))
    counted.enqueue(b"m")
    assert len(counted.lease(1)) == 1
    counted.engine.write()
    work = delete_group(counted.engine, TASKS, "g", counted.clock)
    steps: list[int | None] = []
    while not steps or steps[-1] is not None:
        counted.turn(lambda: steps.append(next(work, None)))
    assert len(steps) < WIDE // 20
    counted.restart()
    assert counted.queue().record.groups == ()


def test_a_group_is_created_and_deleted_at_the_same_cost_beside_any_others(counted: CountingRig) -> None:
    """In all of a thousand partitions at once, which is why it matters what each of them costs."""
    counted.create_queue(partitions=1_024)
    costs: list[int] = []
    for number in range(40):
        work = partial(create_group, counted.engine, TASKS, f"g{number}", GroupKind.LEASE, counted.now, None, 0, 0)
        counted.turn(lambda work=work: costs.append(calls_of(work)))  # type: ignore[misc]
    assert max(costs[1:]) <= min(costs) * 1.1
    deletions: list[int] = []
    for number in (3, 39):
        steps = delete_group(counted.engine, TASKS, f"g{number}", counted.clock)
        counted.turn(lambda steps=steps: deletions.append(calls_of(lambda: next(steps))))  # type: ignore[misc]
        for _ in steps:
            counted.engine.write()
    assert max(deletions) <= min(deletions) * 1.1


def test_a_queue_with_many_groups_grows_in_turns(counted: CountingRig) -> None:
    counted.create_queue(partitions=1)
    for number in range(20):
        counted.create_group(f"g{number}")
    counted.turn(lambda: update_queue(counted.engine, TASKS, {"partitions": WIDE}, counted.now))
    queue = counted.queue()
    assert (queue.config.partitions, queue.partitions < 100) == (WIDE, True)
    counted.restart()
    queue = counted.queue()
    work = finish_growth(counted.engine, queue, counted.clock)
    turns = 0
    while queue.lacking:
        counted.turn(lambda: next(work))
        turns += 1
    assert next(work, None) is None
    assert (queue.partitions, turns > 20) == (WIDE, True)
    assert {len(shard.groups) for shard in queue.shards} == {20}


def test_a_queue_that_is_deleted_grows_no_more(counted: CountingRig) -> None:
    counted.create_queue(partitions=1)
    for number in range(20):
        counted.create_group(f"g{number}")
    update_queue(counted.engine, TASKS, {"partitions": WIDE}, counted.now)
    queue = counted.queue()
    work = finish_growth(counted.engine, queue, counted.clock)
    next(work)
    counted.run(delete_queue(counted.engine, TASKS, counted.clock))
    there = queue.partitions
    assert next(work, None) is None
    assert queue.partitions == there


def test_a_purge_of_many_partitions_counts_what_it_removes(counted: CountingRig) -> None:
    counted.create_queue(partitions=300)
    for _ in range(300):
        counted.enqueue(b"m", b"n")
    steps = counted.run(purge_queue(counted.engine, TASKS, counted.clock))
    assert (sum(steps), len(steps) < 330) == (600, True)


@pytest.mark.parametrize("partitions", [1, 10])
def test_dead_letters_of_the_same_time_are_redriven_in_turns(counted: CountingRig, partitions: int) -> None:
    """They are sorted before the first is moved, so that many must be read for it."""
    counted.create_queue(partitions=1)
    counted.create_group("g")
    counted.create_queue(DEAD, partitions=partitions, dlq={"enabled": False})
    counted.enqueue(*drafts(MANY))
    leased = counted.lease(MANY)
    for start in range(0, MANY, 500):
        counted.settle(leased[start : start + 500], Verb.REJECT)
    work = redrive(counted.engine, DEAD, DeadLetterFilter(), counted.clock)
    steps: list[Redriven | None] = []
    while not steps or steps[-1] is not None:
        counted.turn(lambda: steps.append(next(work, None)))
    done = [step for step in steps if step is not None]
    assert done[0].looked == 0
    assert [id_ for step in done for id_, _ in step.moved] == sorted(id_ for step in done for id_, _ in step.moved)
    assert (counted.queue().depth, counted.queue(DEAD).depth) == (MANY, 0)


def test_dead_letters_that_are_named_are_searched_for_in_turns(counted: CountingRig) -> None:
    counted.create_queue(partitions=1)
    counted.create_group("g")
    counted.create_queue(DEAD, partitions=100, dlq={"enabled": False})
    counted.enqueue(*drafts(300))
    counted.consume(300, Verb.REJECT)
    ids = frozenset(message.id for message in counted.live(DEAD)[:3])
    work = redrive(counted.engine, DEAD, DeadLetterFilter(ids=ids | {17}), counted.clock)
    done = counted.run(work)
    assert sum(len(step.moved) for step in done) == 3
    assert len(done) > 1


def test_a_redrive_ends_when_its_queue_is_deleted_and_created_again(counted: CountingRig) -> None:
    counted.create_queue(partitions=1)
    counted.create_group("g")
    counted.enqueue(*drafts(600))
    counted.consume(600, Verb.REJECT)
    counted.create_queue(("default", "other"), partitions=1)
    work = redrive(counted.engine, DEAD, DeadLetterFilter(), counted.clock, to=Destination(queue="other"))
    assert next(work).moved
    counted.run(delete_queue(counted.engine, TASKS, counted.clock))
    counted.run(delete_queue(counted.engine, DEAD, counted.clock))
    counted.create_queue(DEAD, partitions=1, dlq={"enabled": False})
    assert next(work, None) is None
