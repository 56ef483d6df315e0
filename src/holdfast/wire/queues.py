"""Queues, their configuration and their groups."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from holdfast.wire.times import Duration, Size


class RetryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What happens after a failure."""

    max_retries: int = 10
    initial_backoff: Duration = "5s"
    max_backoff: Duration = "5m"
    multiplier: float = 2.0
    jitter: float = 0.0
    total_timeout: Duration = "3h"
    """`0s`: no limit."""


class DeadLetterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where dead messages go."""

    enabled: bool = True
    queue: str = ""
    """Empty: `dlq/<name>`, which appears with the first dead letter."""
    alert_webhook: str = ""


class QueueConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue is set to. In requests every field is optional; what is not named keeps its value or default."""

    partitions: int = 10
    ordering: Literal["none", "partition", "strict"] = "partition"
    max_message_size: Size = 1 << 20
    max_depth: int = 100_000
    """`0`: no limit."""
    message_ttl: Duration = "7d"
    """`0s`: messages never expire."""
    delivery_timeout: Duration = "30s"
    """How long a lease lasts, unless who leases says otherwise."""
    batch_size: int = 1
    dedup_window: Duration = "5m"
    """How long a producer's `message_id` is remembered. `0s`: not at all."""
    journal: Literal["payload", "metadata", "off"] = "payload"
    durability: Literal["fsync", "buffered"] = "fsync"
    topics: list[str] = []
    """MQTT topic filters whose messages this queue captures too."""
    paused: bool = False
    """A paused queue takes messages and gives none out."""
    retry: RetryConfig = RetryConfig()
    dlq: DeadLetterConfig = DeadLetterConfig()


ConfigFields = dict[str, Any]
"""Settings of a queue as a request gives them: any fields of `QueueConfig`, nested or as `retry.max_retries`."""


class QueueCreate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A queue to make."""

    name: str
    config: ConfigFields = {}


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A durable named subscriber of a queue."""

    name: str
    kind: Literal["lease", "cursor"] = "lease"
    created_at: str
    max_lag_messages: int = 0
    max_lag_age: Duration = "0s"


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue."""

    name: str
    namespace: str
    created_at: str
    automatic: bool = False
    """It is a dead letter queue that appeared by itself."""
    depth: int = 0
    config: QueueConfig = QueueConfig()
    groups: list[Group] = []


class QueueList(msgspec.Struct, frozen=True):
    """A page of queues by name. Go on with `cursor`; empty: there are no more."""

    queues: list[Queue]
    cursor: str = ""


class QueueDeleted(msgspec.Struct, frozen=True):
    """How many messages went with the queue."""

    messages: int


class Purged(msgspec.Struct, frozen=True):
    """How many waiting messages were removed."""

    messages: int


class GroupCreate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A group to make. Without `start` the first group of a queue starts with all that is stored, others at the end."""

    kind: Literal["lease", "cursor"] = "lease"
    start: Literal["earliest", "latest"] | None = None
    max_lag_messages: int = 0
    """Cursor groups: how many messages it may hold back; `0`: no limit."""
    max_lag_age: Duration = 0
    """Cursor groups: how old a message may grow for it; `0`: no limit."""


class GroupList(msgspec.Struct, frozen=True):
    """The groups of a queue."""

    groups: list[Group]


class Consumer(msgspec.Struct, frozen=True):
    """A push consumer: the partitions it serves and what it has in flight."""

    name: str
    group: str
    protocol: str
    partitions: list[int]
    in_flight: int
    credit: int


class ConsumerList(msgspec.Struct, frozen=True):
    """The push consumers of a queue, and how many lease requests wait for a message."""

    consumers: list[Consumer]
    waiting: int
