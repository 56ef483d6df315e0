"""Stats and health of a node and its queues."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """How long something took. The quantiles are upper bounds, at most a quarter above the truth."""

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
    consumers: int = 0
    """Members, consumers that wait, and those that have asked for messages within the last minute."""
    waiting: int = 0
    """Long polls that wait for a message."""
    unattended_seconds: float = 0.0
    """For how long it has had a backlog and no consumer. Such a group keeps every message, until the queue is full."""


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """Stats of a queue. Counters start at its creation; rates are per second over the last minute. `ready` and
    `scheduled` are those of the group that has most."""

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
    max_depth: int = 0
    paused: bool = False


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


class Readiness(Status, frozen=True, kw_only=True):
    """Ready, and if not, why."""

    lake_bytes: int | None = None
    """How large the lake is, looked at every few minutes; null: it was not measured yet."""
    lake_full_in_seconds: int | None = None
    """When the lake's disk is full if it goes on filling as it has; null: it does not fill, or nobody can say yet."""


class UnattendedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group that has a backlog and no consumer."""

    queue: str
    group: str
    seconds: float
    """For how long."""


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
    unattended: list[UnattendedGroup] = []
    """Groups with a backlog that nobody has consumed for five minutes; of many, the first hundred."""
    ok: bool
