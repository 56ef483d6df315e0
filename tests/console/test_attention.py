"""What needs attention: which state of the server and its queues is worth a line, and which is not."""

from __future__ import annotations

from typing import Any

from holdfast.broker.health import ComponentHealth
from holdfast.broker.lookout.unattended import UNATTENDED_AFTER
from holdfast.console.attention import Concern, node_concerns, queue_concerns
from holdfast.console.samples import STEP, Samples
from holdfast.core.queue import GroupKind, QueueConfig, QueueRecord
from holdfast.engine.stats import GroupStats, Histogram, QueueStats

NOW = 1_000_000 * STEP
NAME = ("default", "q")
EMPTY = Histogram([], [])


def record(automatic: bool = False, **config: Any) -> QueueRecord:
    return QueueRecord(
        namespace=NAME[0],
        name=NAME[1],
        created_at=0,
        config=QueueConfig(**config),
        automatic=automatic,
        groups=(),
        shards=(1,),
    )


def stats(depth: int = 0, unattended: int = 0, **rates: float) -> QueueStats:
    group = GroupStats(
        name="g", kind=GroupKind.LEASE, unattended=unattended, delivery_latency=EMPTY, processing_latency=EMPTY
    )
    return QueueStats(
        namespace=NAME[0],
        name=NAME[1],
        partitions=1,
        depth=depth,
        max_depth=0,
        paused=False,
        ready=depth,
        scheduled=0,
        size_bytes=0,
        enqueued=0,
        duplicates=0,
        refused=0,
        rates=rates,
        oldest_age=0,
        groups=[group],
    )


async def concerns(of: QueueStats, known: QueueRecord, samples: Samples | None = None) -> list[tuple[str, str]]:
    found = await queue_concerns([of], lambda _: known, samples or Samples(10), NOW)
    return [(concern.level, concern.title) for concern in found]


def grown(*depths: float) -> Samples:
    samples = Samples(10)
    for at, depth in enumerate(depths):
        samples.add(NAME, NOW - (len(depths) - at) * STEP, {"depth": depth})
    return samples


async def test_a_queue_that_works_is_no_concern() -> None:
    assert await concerns(stats(10, enqueued=5.0, acked=5.0), record()) == []


async def test_a_full_queue_is_worse_than_one_nearly_full() -> None:
    assert await concerns(stats(79), record(max_depth=100)) == []
    assert await concerns(stats(80), record(max_depth=100)) == [("warn", "q is nearly full")]
    assert await concerns(stats(100), record(max_depth=100)) == [("bad", "q is full")]
    assert await concerns(stats(1_000_000), record(max_depth=0)) == []


async def test_a_paused_queue_is_a_concern_if_something_waits() -> None:
    assert await concerns(stats(0), record(paused=True)) == []
    assert await concerns(stats(1), record(paused=True)) == [("warn", "q is paused")]


async def test_a_backlog_without_a_consumer() -> None:
    assert await concerns(stats(5, unattended=UNATTENDED_AFTER - 1), record()) == []
    assert await concerns(stats(5, unattended=UNATTENDED_AFTER), record()) == [("bad", "Nobody consumes q")]


async def test_failures() -> None:
    assert await concerns(stats(failed=0.01), record()) == []
    assert await concerns(stats(failed=1.0, acked=99.0), record()) == []
    assert await concerns(stats(failed=2.0, acked=8.0), record()) == [("warn", "Consumers of q fail")]
    assert await concerns(stats(failed=8.0, acked=2.0), record()) == [("bad", "Consumers of q fail")]


async def test_growth_counts_if_it_is_much_and_goes_on() -> None:
    rising = [float(100 + 20 * at) for at in range(40)]
    assert await concerns(stats(900), record(), grown(*rising)) == [("warn", "q is growing")]
    assert await concerns(stats(900), record(), grown(*rising[:10])) == []  # it is too early to say
    assert await concerns(stats(100), record(), grown(*reversed(rising))) == []
    assert await concerns(stats(140), record(), grown(*[100.0 + at for at in range(40)])) == []


async def test_dead_letters_are_counted_over_all_dead_queues() -> None:
    assert await concerns(stats(3), record(automatic=True)) == [("warn", "3 dead letters")]
    assert await concerns(stats(0), record(automatic=True)) == []


def test_the_server_itself() -> None:
    disk = ComponentHealth("disk", facts={"free_bytes": 300, "min_free_bytes": 100})
    broken = ComponentHealth("store", "a sync took too long", ready=False)
    found: list[Concern] = list(node_concerns([disk, broken]))
    assert [(one.level, one.title) for one in found] == [
        ("warn", "The disk is nearly full"),
        ("bad", "The store has a problem"),
    ]
    assert list(node_concerns([ComponentHealth("disk", facts={"free_bytes": 400, "min_free_bytes": 100})])) == []
