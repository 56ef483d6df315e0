"""Values of the core for hypothesis."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.deliveries import Delivery
from holdfast.core.ids import UNKEYED
from holdfast.core.queue import (
    CircuitBreaker,
    DeadLetterPolicy,
    DeliveryLimits,
    Durability,
    JournalMode,
    Ordering,
    QueueConfig,
    RetryPolicy,
)
from holdfast.core.records import CursorHead, Extra, GroupHead, Message, Origin, ShardHead
from holdfast.units import SECOND

_Head = TypeVar("_Head", bound=msgspec.Struct)
webhooks = st.sampled_from(["", "http://127.0.0.1:9/x", "https://alerts.example/y?z=1"])

u8 = st.integers(0, (1 << 8) - 1)
u32 = st.integers(0, (1 << 32) - 1)
u63 = st.integers(0, (1 << 63) - 1)
u64 = st.integers(0, (1 << 64) - 1)
text = st.text(max_size=20)
key_hashes = st.just(UNKEYED) | st.binary(min_size=8, max_size=8).filter(any)

origins = st.builds(Origin, u63, text, text, text, text, u32, u63, u63)
extras = st.builds(
    Extra,
    key=st.none() | text,
    message_id=st.none() | text,
    properties=st.lists(st.tuples(text, text), max_size=3).map(tuple),
    correlation_id=st.none() | text,
    content_type=st.none() | text,
    reply_to=st.none() | text,
    correlation_data=st.none() | st.binary(max_size=20),
    origin=st.none() | origins,
    flags=u8,
    enqueued_as=st.none() | st.tuples(u8, u63),
)
messages = st.builds(Message, u63, u63, u8, u63, u63, u63, extras, st.binary(max_size=50))
deliveries = st.builds(
    Delivery,
    *[u63, u63, u8, u63, u63, key_hashes, u8, u32, u63, u63, u63, u63, u63, u63, u63, u32, text, text, text, text],
)


def heads_of(kind: type[_Head]) -> st.SearchStrategy[_Head]:
    """Heads with any values in all their fields, so that a field added later is tried too."""
    by_type: dict[object, st.SearchStrategy[object]] = {
        int: u63,
        bytes: st.binary(max_size=20),
        list[int]: st.lists(u63, max_size=3),
        dict[int, int]: st.dictionaries(u8, u63, max_size=3),
        dict[str, int]: st.dictionaries(text, u63, max_size=3),
    }
    return st.builds(kind, *[by_type[field.type] for field in msgspec.structs.fields(kind)])


shard_heads = heads_of(ShardHead)
group_heads = heads_of(GroupHead)
cursor_heads = heads_of(CursorHead)


@st.composite
def retry_policies(draw: st.DrawFn) -> RetryPolicy:
    initial = draw(st.integers(0, 3600 * SECOND))
    return RetryPolicy(
        max_retries=draw(st.integers(0, 1_000_000)),
        initial_backoff=initial,
        max_backoff=draw(st.integers(initial, 30 * 86_400 * SECOND)),
        multiplier=draw(st.floats(1, 100)),
        jitter=draw(st.just(0.0) | st.floats(0, 1)),
        total_timeout=draw(st.integers(0, 3650 * 86_400 * SECOND)),
    )


@st.composite
def delivery_limits(draw: st.DrawFn, keyed: bool) -> DeliveryLimits:
    limits = DeliveryLimits(
        concurrency=draw(st.integers(0, 1_000_000)),
        rate=draw(st.floats(0, 1_000_000)),
        burst=draw(st.integers(0, 1_000_000)),
    )
    if not keyed:
        return limits
    return replace(
        limits,
        key_concurrency=draw(st.integers(1, 10_000)),
        key_rate=draw(st.floats(0, 1_000_000)),
        key_burst=draw(st.integers(0, 1_000_000)),
        fair=draw(st.booleans()),
    )


@st.composite
def configs(draw: st.DrawFn) -> QueueConfig:
    ordering = draw(st.sampled_from(Ordering))
    return QueueConfig(
        partitions=1 if ordering is Ordering.STRICT else draw(st.integers(1, 1024)),
        ordering=ordering,
        max_message_size=draw(st.integers(1, 256 << 20)),
        max_depth=draw(st.integers(0, 1 << 40)),
        message_ttl=draw(st.integers(0, 3650 * 86_400 * SECOND)),
        delivery_timeout=draw(st.integers(1000, 7 * 86_400 * SECOND)),
        batch_size=draw(st.integers(1, 1000)),
        dedup_window=draw(st.integers(0, 7 * 86_400 * SECOND)),
        journal=draw(st.sampled_from(JournalMode)),
        durability=draw(st.sampled_from(Durability)),
        topics=tuple(
            draw(st.lists(st.from_regex(r"([a-z]{1,3}|\+)(/([a-z]{1,3}|\+)){0,2}(/#)?", fullmatch=True), max_size=3))
        ),
        paused=draw(st.booleans()),
        retry=draw(retry_policies()),
        dlq=DeadLetterPolicy(enabled=draw(st.booleans()), queue=draw(text), alert_webhook=draw(webhooks)),
        throttle=draw(delivery_limits(ordering is Ordering.PARTITION)),
        breaker=CircuitBreaker(
            dead_letters=draw(st.integers(0, 10_000)), window=draw(st.integers(SECOND, 86_400 * SECOND))
        ),
    )
