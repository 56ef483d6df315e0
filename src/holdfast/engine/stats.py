"""Figures of a queue and its groups. Counted as things happen and stored with them; asking reads no message."""

from __future__ import annotations

from collections import deque

import msgspec

from holdfast.core.groups import CursorGroup, LeaseGroup
from holdfast.core.ids import time_of_id
from holdfast.core.queue import GroupKind
from holdfast.core.shard import Shard
from holdfast.engine.catalog import Queue

SAMPLE_EVERY = 1_000_000
RATE_WINDOW = 60_000_000
RATES = ("enqueued", "leased", "acked", "failed")


class Histogram(msgspec.Struct, frozen=True):
    """Counts by upper bound in milliseconds; the last has no bound."""

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


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    partitions: int
    depth: int
    ready: int
    scheduled: int
    size_bytes: int
    enqueued: int
    duplicates: int
    refused: int
    rates: dict[str, float]
    oldest_age: int
    groups: list[GroupStats]


def histogram(rows: list[list[int]]) -> Histogram:
    counts = [sum(column) for column in zip(*rows, strict=True)] if rows else []
    return Histogram([(1 << index) - 1 if index else 0 for index in range(len(counts))], counts)


def group_stats(name: str, groups: list[LeaseGroup], shards: list[Shard], now: int) -> GroupStats:
    """A leasing group over its shards."""
    counters: dict[str, int] = {}
    for group in groups:
        for key, value in group.head.counters.items():
            counters[key] = counters.get(key, 0) + value
    ready = sum(group.head.fresh + len(group.ready) for group in groups)
    leased = sum(group.leased for group in groups)
    waiting = sum(len(group.deliveries) - group.leased - len(group.ready) for group in groups)
    delayed = sum(shard.head.scheduled for shard in shards)
    return GroupStats(
        name=name,
        kind=GroupKind.LEASE,
        ready=ready,
        scheduled=waiting + delayed,
        leased=leased,
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
        oldest_age=max((now - at for group in groups if (at := _oldest(group)) is not None), default=0),
        delivery_latency=histogram([group.head.delivery_ms for group in groups]),
        processing_latency=histogram([group.head.processing_ms for group in groups]),
    )


def cursor_stats(name: str, cursors: list[CursorGroup], shards: list[Shard]) -> GroupStats:
    empty = Histogram([], [])
    return GroupStats(
        name=name,
        kind=GroupKind.CURSOR,
        lag=sum(s.head.next_seq - 1 - c.head.committed for c, s in zip(cursors, shards, strict=True)),
        acked=sum(cursor.head.counters.get("acked", 0) for cursor in cursors),
        dropped={"max_lag": sum(cursor.head.counters.get("dropped", 0) for cursor in cursors)},
        delivery_latency=empty,
        processing_latency=empty,
    )


def _labelled(counters: dict[str, int], prefix: str) -> dict[str, int]:
    return {key.removeprefix(prefix): value for key, value in counters.items() if key.startswith(prefix)}


def _oldest(group: LeaseGroup) -> int | None:
    """When the oldest message was enqueued that the group has not settled, as far as its window shows."""
    times = group.deliveries.enqueued_at()
    times += [time_of_id(window.loaded[0].stamp) for window in group.windows.values() if window.loaded]
    return min(times, default=None)


class RateWindow:
    """Rates of a queue over the last minute, from samples that are taken when something happens."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, dict[str, int]]] = deque(maxlen=RATE_WINDOW // SAMPLE_EVERY + 2)

    def sample(self, queue: Queue, now: int) -> None:
        """Note where the counters stand, at most once a second."""
        if not self._samples or now - self._samples[-1][0] >= SAMPLE_EVERY:
            self._samples.append((now, totals(queue)))

    def per_second(self, queue: Queue, now: int) -> dict[str, float]:
        current = totals(queue)
        start: tuple[int, dict[str, int]] | None = None
        for at, counts in self._samples:
            if now - at <= RATE_WINDOW:
                start = (at, counts)
                break
        if start is None or now <= start[0]:
            return dict.fromkeys(RATES, 0.0)
        seconds = max((now - start[0]) / 1e6, 1.0)
        return {name: (current[name] - start[1][name]) / seconds for name in RATES}


def totals(queue: Queue) -> dict[str, int]:
    found = dict.fromkeys(RATES, 0)
    for shard in queue.shards:
        found["enqueued"] += shard.head.enqueued
        for group in shard.groups.values():
            counters = group.head.counters
            found["leased"] += counters.get("leased", 0)
            found["acked"] += counters.get("acked", 0)
            found["failed"] += sum(value for key, value in counters.items() if key.startswith("failed:"))
    return found
