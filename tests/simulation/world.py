"""What a seed decides before the first step: queues with small limits, and constants of the core made small.

Everything is tiny on purpose. Windows of a few places, chunks of two messages and lives of a few seconds make a run of
three hundred steps meet the refills, spills and sweeps that a real node meets after millions of messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from msgspec.structs import replace

from holdfast.core import (
    admin,
    cursors,
    deliveries,
    enqueue,
    groups,
    leasing,
    reading,
    shard,
    sweeps,
    transactions,
    windows,
)
from holdfast.core.ids import EPOCH_MS
from holdfast.core.queue import DeadLetterPolicy, DeliveryLimits, JournalMode, Ordering, QueueConfig, RetryPolicy
from holdfast.core.shard import SKIP_BLOCKED_MAX
from holdfast.engine import engine
from holdfast.engine.open_transaction import TransactionLimits
from holdfast.store import rocks
from holdfast.store import runs as store_runs

SECOND = 1_000_000
START = EPOCH_MS * 1000 + 40 * 24 * 3600 * SECOND
SIZE_MAX = 64
NAMED_DEAD_QUEUE = "graves"

_MODULES = (
    admin,
    engine,
    cursors,
    deliveries,
    enqueue,
    groups,
    windows,
    leasing,
    reading,
    shard,
    sweeps,
    transactions,
    rocks,
    store_runs,
)


@dataclass(frozen=True)
class World:
    """One seed's choice."""

    seed: int
    queues: dict[str, QueueConfig]
    constants: dict[str, int]
    hot_bytes: int
    crash_rate: float
    fault_rate: float
    wild_clock: bool
    transactions: TransactionLimits

    @property
    def plain(self) -> bool:
        """Whether most messages bring nothing but a payload and queues have one group: what the short ways are for."""
        return self.seed % 4 == 0

    @property
    def logged(self) -> bool:
        """Whether queues are only read as logs: nobody leases, and what all cursors have passed goes in ranges."""
        return self.seed % 8 == 6

    @property
    def window_places(self) -> int:
        """How many messages all windows together may show: with few, they are cut after every step."""
        return (3, 40, 500_000)[self.seed % 3]

    @property
    def short_leases(self) -> bool:
        """Whether a lease may give less than there is, because it has passed by enough for one turn."""
        return self.constants.get("SKIP_BLOCKED_MAX", SKIP_BLOCKED_MAX) < SKIP_BLOCKED_MAX

    @property
    def bounded_retries(self) -> bool:
        """Whether a group may run into MAX_RETRYING, and then rightly holds fresh messages back."""
        return "MAX_RETRYING" in self.constants


def make_world(seed: int) -> World:
    random = Random(f"world {seed}")
    queues = {NAMED_DEAD_QUEUE: _dead_queue(random)}
    for name in ("orders", "images", "mails")[: random.randint(1, 3)]:
        config = _queue(random)
        queues[name] = replace(config, throttle=_limits(Random(f"limits {name} {seed}"), config))
    return World(
        seed=seed,
        queues=queues,
        constants=_constants(random),
        hot_bytes=random.choice((0, 500, 64 << 20)),
        crash_rate=random.choice((0.0, 0.02, 0.08)),
        fault_rate=random.choice((0.0, 0.0, 0.02)),
        wild_clock=random.random() < 0.4,
        transactions=TransactionLimits(
            timeout=random.choice((5 * SECOND, 60 * SECOND)),
            remember=random.choice((10 * SECOND, 600 * SECOND)),
            max_remembered=random.choice((1, 3, 1_000)),
            step_messages=random.choice((1, 3, 1_000)),
            step_bytes=random.choice((1, 100, 1_000_000)),
        ),
    )


def _queue(random: Random) -> QueueConfig:
    ordering = random.choice((Ordering.NONE, Ordering.PARTITION, Ordering.PARTITION, Ordering.STRICT))
    initial = random.choice((0, SECOND // 2, 2 * SECOND))
    return QueueConfig(
        partitions=1 if ordering is Ordering.STRICT else random.choice((1, 1, 2, 3, 10)),
        ordering=ordering,
        max_message_size=SIZE_MAX,
        max_depth=random.choice((0, 10, 30, 100)),
        message_ttl=random.choice((0, 0, 5 * SECOND, 30 * SECOND)),
        delivery_timeout=random.choice((SECOND, 5 * SECOND)),
        dedup_window=random.choice((0, 3 * SECOND, 60 * SECOND)),
        journal=random.choice((JournalMode.PAYLOAD, JournalMode.PAYLOAD, JournalMode.METADATA, JournalMode.OFF)),
        retry=RetryPolicy(
            max_retries=random.randint(0, 3),
            initial_backoff=initial,
            max_backoff=max(initial, 3 * SECOND),
            multiplier=random.choice((1.0, 2.0)),
            total_timeout=random.choice((0, 0, 10 * SECOND)),
        ),
        dlq=random.choice(
            (
                DeadLetterPolicy(),
                DeadLetterPolicy(),
                DeadLetterPolicy(enabled=False),
                DeadLetterPolicy(queue=NAMED_DEAD_QUEUE),
            )
        ),
    )


def _limits(random: Random, config: QueueConfig) -> DeliveryLimits:
    """Limits that most queues do not have."""
    if random.random() < 0.6:
        return DeliveryLimits()
    keyed = DeliveryLimits()
    if config.keyed:
        keyed = DeliveryLimits(key_concurrency=random.choice((1, 2, 3)), fair=random.random() < 0.4)
    return replace(
        keyed,
        concurrency=random.choice((0, 0, 1, 2, 5)),
        rate=random.choice((0.0, 0.0, 0.5, 4.0)),
        burst=random.choice((0, 1, 3)),
    )


def _dead_queue(random: Random) -> QueueConfig:
    """A dead queue made by hand. Sometimes it refuses large letters, which must then wait at their source."""
    return QueueConfig(
        partitions=random.choice((1, 2)),
        ordering=random.choice((Ordering.NONE, Ordering.PARTITION)),
        max_message_size=random.choice((SIZE_MAX, SIZE_MAX, SIZE_MAX // 3)),
        max_depth=3,
        message_ttl=random.choice((0, 20 * SECOND)),
        journal=random.choice((JournalMode.PAYLOAD, JournalMode.OFF)),
        retry=RetryPolicy(max_retries=2, initial_backoff=SECOND, max_backoff=SECOND, multiplier=1.0, total_timeout=0),
        dlq=DeadLetterPolicy(enabled=False),
    )


def _constants(random: Random) -> dict[str, int]:
    """Constants of the core, and of the store's runs, that this seed makes small; none for a quarter of the seeds."""
    if random.random() < 0.25:
        return {}
    window = random.choice((2, 3, 5, 16))
    chosen = {
        "WINDOW": window,
        "WINDOW_MAX": window * random.choice((1, 2, 4)),
        "CHUNK": random.choice((1, 2, 5, 64)),
        "SPAN": window - 1,
        "MOVE_BYTES": random.choice((1, 100, 8 << 20)),
        "SWEEP_CHUNK": random.choice((1, 2, 50)),
        "SWEEP_BYTES": random.choice((1, 100, 4 << 20)),
        "TICK_DELIVERIES_MAX": 10_000,  # more than is ever due: the model does all of it, test_turns.py shows the bound
        "DEDUP_CHUNK": random.choice((1, 3, 100)),
        "KEYED_READ_MAX": random.choice((1, 2, 4)),
        "MASKS_MAX": random.choice((1, 5, 1000)),
        "RANGE_READ_MIN": random.choice((1, 2, 32)),
        "SKIP_BLOCKED_MAX": random.choice((1, 10, 20_000)),
        "SKIP_BLOCKED_WINDOW": random.choice((1, 5, 4_000)),
        "RANGE_MIN": random.choice((1, 2, 4)),
        "MESSAGE_RANGE_MIN": 2,
        "RUN_MIN": 2,
        "COLUMNAR_MIN": 2,
        "PACK_MIN": 2,
        "PACK_MAX": window + 3,
        "RESOLVED_AT": 3,
        "PAGE": 2,
        "REMEMBERED_MAX": 6,
        "STALE_MAX": random.choice((0, 3, 1_000)),
        "BLOCK_MESSAGES": random.choice((1, 2, 1_000)),
        "BLOCK_BYTES": random.choice((1, 50, 1 << 20)),
    }
    if random.random() < 0.2:
        chosen["MAX_RETRYING"] = random.choice((1, 3))
    return chosen


@contextmanager
def small(constants: dict[str, int]) -> Iterator[None]:
    """The core with these constants, wherever a module has taken one over by name."""
    undo: list[tuple[object, str, int]] = []
    try:
        for name, value in constants.items():
            owners = [module for module in _MODULES if hasattr(module, name)]
            assert owners, f"no module has the constant {name}"
            for module in owners:
                undo.append((module, name, getattr(module, name)))
                setattr(module, name, value)
        yield
    finally:
        for owner, name, value in undo:
            setattr(owner, name, value)
