"""Stats and health of a node and its queues."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """How long something took. The quantiles are upper bounds."""

    count: int
    p50_ms: int
    p95_ms: int
    p99_ms: int
    bounds_ms: list[int]
    counts: list[int]


class GroupStats(msgspec.Struct, frozen=True, kw_only=True):
    """Stats of a group. Counters start at the creation of the group."""

    name: str
    kind: Literal["lease", "cursor"]
    ready: int
    scheduled: int
    leased: int
    lag: int
    """Cursor groups: messages not committed yet."""
    acked: int
    leases: int
    redelivered: int
    released: int
    extended: int
    failures: dict[str, int]
    dead: dict[str, int]
    dropped: dict[str, int]
    expired: int
    purged: int
    oldest_message_age_seconds: float
    delivery_latency: Latency
    """From enqueue to the first lease."""
    processing_latency: Latency
    """From lease to ack."""
    members: dict[str, list[int]]
    """Push consumers with the partitions each serves."""
    in_flight: dict[str, int]


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """Stats of a queue. Counters start at its creation; rates are per second over the last minute."""

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
    oldest_message_age_seconds: float
    groups: list[GroupStats]


class PartHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the node. `facts` are for people and may change."""

    name: str
    ok: bool
    problem: str = ""
    facts: dict[str, Any] = {}


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the node works, by its parts."""

    ok: bool
    parts: list[PartHealth]


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Alive or ready, and if not, why."""

    ok: bool
    problems: list[str] = []


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """An overview of a node. Queues are those of the caller's namespace."""

    version: str
    node: int
    namespace: str
    started_at: str
    now: str
    queues: int
    depth: int
    size_bytes: int
    ready: int
    scheduled: int
    leased: int
    dead: int
    """Messages in automatic dead queues."""
    enqueued: int
    acked: int
    failed: int
    rates: dict[str, float]
    consumers: int
    waiting: int
    """Lease requests that wait for a message, over all namespaces."""
    staged: int = 0
    """Messages in transactions that are not published yet."""
    oldest_message_age_seconds: float
    ok: bool
