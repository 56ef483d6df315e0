"""Queues, their configuration and their groups."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from holdfast.wire.times import Duration, Size


class RetryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What happens after a failure."""

    max_retries: int = 10
    """Failures after which a message is dead."""
    initial_backoff: Duration = "5s"
    """How long after the first failure a message is delivered again."""
    max_backoff: Duration = "5m"
    """The longest backoff between two attempts."""
    multiplier: float = 2.0
    """The factor by which each backoff is longer than the one before."""
    jitter: float = 0.0
    """The random part of a backoff, from 0 to 1, so that many messages do not come again at the same moment."""
    total_timeout: Duration = "3h"
    """A message is dead at the first failure after this time. `0s`: no limit."""


class DeadLetterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to messages that can no longer be delivered."""

    enabled: bool = True
    """Whether dead messages are moved to a dead queue. Otherwise they are dropped."""
    queue: str = ""
    """The dead queue. Empty: `dlq/<name>`, which is created with the first dead letter."""
    alert_webhook: str = ""
    """A URL that is called for each dead letter, and when the circuit breaker pauses the queue."""


class ThrottleConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How much each group of the queue is given at most, over all its consumers. A rate is a token bucket: it refills
    at the rate and holds a burst. Buckets are full after a restart of the server."""

    concurrency: int = 0
    """Deliveries that the consumers of a group hold at a time. `0`: no limit."""
    rate: float = 0.0
    """Deliveries a second, retries included; `0.1` is one in ten seconds. `0`: no limit."""
    burst: int = 0
    """Deliveries that may follow each other immediately. `0`: as many as the rate gives in a second, and at least 1."""
    key_concurrency: int = 1
    """Deliveries of one key that are held at a time, with ordering `partition`. They start in the order of the key;
    with `1` each is settled before the next one starts."""
    key_rate: float = 0.0
    """Deliveries a second of one key, with ordering `partition`. `0`: no limit."""
    key_burst: int = 0
    """As `burst`, for one key."""
    fair: bool = False
    """Keys take turns: when a message of a key is settled, the key's next one goes behind what other keys have ready,
    in the same priority. So one with a large backlog holds up nobody. With ordering `partition`."""


class BreakerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """When the queue pauses itself because its messages die. It is resumed by a person."""

    dead_letters: int = 0
    """So many dead letters within `window` pause the queue; those that expired do not count. `0`: it never pauses
    itself."""
    window: Duration = "1m"
    """The time in which they are counted."""


class QueueConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a queue. In requests every field is optional; others keep their value or default."""

    partitions: int = 10
    """How many parts the queue has, which consumers share. The number can grow later, not shrink."""
    ordering: Literal["none", "partition", "strict"] = "partition"
    """`partition`: messages of each key are delivered one after another; `strict`: all messages are; `none`: no order
    is kept."""
    max_message_size: Size = 1 << 20
    """The largest payload that the queue takes."""
    max_depth: int = 100_000
    """How many messages it holds; more are refused. `0`: no limit."""
    message_ttl: Duration = "7d"
    """How long a message may wait. `0s`: messages never expire."""
    delivery_timeout: Duration = "30s"
    """How long a lease lasts, unless the consumer gives another time."""
    batch_size: int = 1
    """Deliveries that are pushed together."""
    dedup_window: Duration = "5m"
    """How long a producer's `message_id` is remembered. `0s`: not at all."""
    journal: Literal["payload", "metadata", "off"] = "payload"
    """What the journal keeps of messages: everything, everything but payloads, or nothing."""
    durability: Literal["fsync", "buffered"] = "fsync"
    """`fsync`: a message is on disk before its producer gets the receipt; `buffered`: the last second may be lost when
    the machine fails."""
    topics: list[str] = []
    """MQTT topic filters whose messages this queue captures too."""
    paused: bool = False
    """A paused queue accepts messages and delivers none."""
    retry: RetryConfig = RetryConfig()
    dlq: DeadLetterConfig = DeadLetterConfig()
    throttle: ThrottleConfig = ThrottleConfig()
    breaker: BreakerConfig = BreakerConfig()


ConfigFields = dict[str, Any]
"""Settings of a queue as a request gives them: any fields of `QueueConfig`, nested or as `retry.max_retries`."""


class QueueCreate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A queue to create."""

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
    """It is a dead queue that was created automatically."""
    depth: int = 0
    config: QueueConfig = QueueConfig()
    groups: list[Group] = []


class QueueList(msgspec.Struct, frozen=True):
    """A page of queues by name. Continue with `cursor`; empty: there are no more."""

    queues: list[Queue]
    cursor: str = ""


class QueueDeleted(msgspec.Struct, frozen=True):
    """How many messages were deleted with the queue."""

    messages: int


class Purged(msgspec.Struct, frozen=True):
    """How many waiting messages were removed."""

    messages: int


class GroupCreate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A group to create. Without `start` the first group of a queue starts with the oldest message, others at the
    end."""

    kind: Literal["lease", "cursor"] = "lease"
    start: Literal["earliest", "latest"] | None = None
    max_lag_messages: int = 0
    """Cursor groups: how many uncommitted messages are kept for it; `0`: no limit."""
    max_lag_age: Duration = 0
    """Cursor groups: how long an uncommitted message is kept for it; `0`: no limit."""


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


class ConsumerEnd(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The consumer whose connection is to be ended."""

    consumer: str
    group: str = ""
    """In this group only. Empty: in every group of the queue."""


class ConsumersEnded(msgspec.Struct, frozen=True):
    """How many connections were ended."""

    disconnected: int


class ConsumerList(msgspec.Struct, frozen=True):
    """The push consumers of a queue, and how many lease requests wait for a message."""

    consumers: list[Consumer]
    waiting: int
