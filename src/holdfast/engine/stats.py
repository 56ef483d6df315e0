"""Statistics of a queue and its groups. Counted as things happen and stored with them: asking reads no message."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

import msgspec

from holdfast.core.codecs import read_ready
from holdfast.core.groups import GroupCounts, bound_ms
from holdfast.core.ids import time_of_id
from holdfast.core.queue import GroupKind, GroupRecord
from holdfast.core.records import LAST, Table, ready_key
from holdfast.core.shard import Shard
from holdfast.engine.browse import finish
from holdfast.engine.catalog import Queue, QueueName
from holdfast.engine.engine import Engine
from holdfast.engine.wake_ups import Clock
from holdfast.errors import QueueNotFound

STEP_SHARDS = 128  # shards that one step counts, each for every group: about 5 ms


class Histogram(msgspec.Struct, frozen=True):
    """Counts by upper bound in milliseconds."""

    bounds_ms: list[int]
    counts: list[int]

    def quantile_ms(self, share: float) -> int:
        """An upper bound of the value below which `share` of all lie; 0 if there are none."""
        rank = share * sum(self.counts)
        seen = 0
        for bound, count in zip(self.bounds_ms, self.counts, strict=True):
            seen += count
            if seen and seen >= rank:
                return bound
        return 0


class GroupStats(msgspec.Struct, frozen=True, kw_only=True):
    """A group over all partitions. What is known of its consumers is the broker's to add: `unattended` is for how long
    it has had a backlog and none of them."""

    name: str
    kind: GroupKind
    ready: int = 0
    scheduled: int = 0
    leased: int = 0
    lag: int = 0
    acked: int = 0
    leases: int = 0
    redelivered: int = 0
    released: int = 0
    extended: int = 0
    failures: dict[str, int] = {}
    dead: dict[str, int] = {}
    dropped: dict[str, int] = {}
    expired: int = 0
    purged: int = 0
    oldest_age: int = 0
    delivery_latency: Histogram
    processing_latency: Histogram
    members: dict[str, list[int]] = {}
    in_flight: dict[str, int] = {}
    consumers: int = 0
    waiting: int = 0
    unattended: int = 0


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """A queue. `ready` and `scheduled` are those of the group that has most."""

    namespace: str
    name: str
    partitions: int
    depth: int
    max_depth: int
    paused: bool
    ready: int
    scheduled: int
    size_bytes: int
    enqueued: int
    duplicates: int
    refused: int
    rates: dict[str, float]
    oldest_age: int
    groups: list[GroupStats]


def queue_stats(engine: Engine, name: QueueName, now: int) -> QueueStats:
    """`stats_steps`, in one turn."""
    return finish(stats_steps(engine, name, lambda: now))


def stats_of_all(engine: Engine, namespace: str | None, clock: Clock) -> Iterator[list[QueueStats] | None]:
    """The statistics of all queues, or of those of a namespace. Before that None after each step."""
    found: list[QueueStats] = []
    work = 0
    for name in [name for name in engine.queues if namespace is None or name[0] == namespace]:
        queue = engine.queues.get(name)
        if queue is None or queue.record.closing:
            continue
        try:
            for stats in stats_steps(engine, name, clock):
                if stats is None:
                    yield None
                else:
                    found.append(stats)
        except QueueNotFound:
            continue  # deleted meanwhile
        work += queue.partitions * (len(queue.record.groups) + 1)
        if work >= STEP_SHARDS:
            work = 0
            yield None
    yield found


def stats_steps(engine: Engine, name: QueueName, clock: Clock) -> Iterator[QueueStats | None]:
    """The statistics of a queue: they cost the same at any depth. Before that None after each step."""
    queue = engine.queue(name, clock())
    groups: list[GroupStats] = []
    work = 0
    for record in queue.record.groups:
        counts: list[GroupCounts] = []
        for shard in queue.shards if record.kind is GroupKind.LEASE else ():
            if queue.find_group(record.name) is None:
                break  # deleted meanwhile
            counts.append(_group_counts(engine, shard, record.name))
            work += 1
            if work % STEP_SHARDS == 0:
                yield None
                engine.check_open(queue)
        if queue.find_group(record.name) is not None:
            groups.append(_group_stats(queue, record, counts, clock()))
    leasing = [group for group in groups if group.kind is GroupKind.LEASE]
    heads = [shard.head for shard in queue.shards]
    now = clock()
    yield QueueStats(
        namespace=name[0],
        name=name[1],
        partitions=queue.partitions,
        depth=queue.depth,
        max_depth=queue.record.config.max_depth,
        paused=queue.record.config.paused,
        ready=max([group.ready for group in leasing], default=sum([head.ready for head in heads])),
        scheduled=max([group.scheduled for group in leasing], default=sum([head.scheduled for head in heads])),
        size_bytes=queue.size_bytes,
        enqueued=sum([head.enqueued for head in heads]),
        duplicates=sum([head.duplicates for head in heads]),
        refused=sum([head.refused for head in heads]),
        rates=queue.rates.per_second(queue.totals(), now),
        oldest_age=max([group.oldest_age for group in groups]) if groups else _oldest_age(engine, queue, now),
        groups=groups,
    )


def _oldest_age(engine: Engine, queue: Queue, now: int) -> int:
    """The age of the oldest message of a queue that has no group yet."""
    stamps = [place.stamp for places in engine.oldest_places(queue.shards) for place in places]
    return now - time_of_id(min(stamps)) if stamps else 0


def _group_counts(engine: Engine, shard: Shard, group: str) -> GroupCounts:
    """The counts of a leasing group in one shard. Where no window shows its oldest message, that is looked up: to load
    a window for each group that somebody asks about would fill the memory."""
    counts = shard.group_counts(group)
    number, oldest = shard.number, [] if counts.oldest_at is None else [counts.oldest_at]
    for priority, stamp in shard.unloaded(group):
        start, end = ready_key(number, priority, stamp + 1), ready_key(number, priority, LAST)
        oldest += [time_of_id(read_ready(*row).stamp) for row in engine.overlay.scan(Table.READY, start, end, 1)]
    return counts._replace(oldest_at=min(oldest, default=None))


def _group_stats(queue: Queue, record: GroupRecord, parts: list[GroupCounts], now: int) -> GroupStats:
    if record.kind is GroupKind.CURSOR:
        return _cursor_stats(queue, record.name)
    name = record.name
    counters: dict[str, int] = {}
    for part in parts:
        for key, value in part.counters.items():
            counters[key] = counters.get(key, 0) + value
    return GroupStats(
        name=name,
        kind=GroupKind.LEASE,
        ready=sum(part.ready for part in parts),
        scheduled=sum(part.waiting for part in parts) + sum(shard.head.scheduled for shard in queue.shards),
        leased=sum(part.leased for part in parts),
        acked=counters.get("acked", 0),
        leases=counters.get("leased", 0),
        redelivered=counters.get("redelivered", 0),
        released=counters.get("released", 0),
        extended=counters.get("extended", 0),
        failures=_labelled(counters, "failed:"),
        dead=_labelled(counters, "dead:"),
        dropped=_labelled(counters, "dropped:"),
        expired=sum(_labelled(counters, "expired:").values()),
        purged=counters.get("purged", 0),
        oldest_age=max([now - part.oldest_at for part in parts if part.oldest_at is not None], default=0),
        delivery_latency=_histogram([part.delivery_times for part in parts]),
        processing_latency=_histogram([part.processing_times for part in parts]),
    )


def _cursor_stats(queue: Queue, name: str) -> GroupStats:
    heads = [shard.cursor_head(name) for shard in queue.shards]
    empty = Histogram([], [])
    return GroupStats(
        name=name,
        kind=GroupKind.CURSOR,
        lag=sum(shard.head.next_seq - 1 for shard in queue.shards) - sum(head.committed for head in heads),
        acked=sum(head.counters.get("acked", 0) for head in heads),
        dropped={"max_lag": sum(head.counters.get("dropped", 0) for head in heads)},
        delivery_latency=empty,
        processing_latency=empty,
    )


def _labelled(counters: dict[str, int], prefix: str) -> dict[str, int]:
    return {key.removeprefix(prefix): value for key, value in counters.items() if key.startswith(prefix)}


def _histogram(rows: list[list[int]]) -> Histogram:
    counts = [sum(column) for column in zip_longest(*rows, fillvalue=0)]
    return Histogram([bound_ms(index) for index in range(len(counts))], counts)
