"""The configuration of a queue with its defaults, ranges and checks, and the record that describes a queue.

Durations are microseconds inside; `from_fields` takes them as people write them (`5s`, `2m`). An unknown field or a
value out of range is refused by name, with what is allowed.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import TypeVar

import msgspec

from holdfast.error_text import SUGGESTED_LENGTH_MAX
from holdfast.errors import InvalidConfig, InvalidName
from holdfast.units import DAY, HOUR, MIB, MINUTE, SECOND, format_duration, parse_duration, parse_size
from holdfast.web_address import HIDDEN, URL_LENGTH_MAX, hide_credentials, is_web_address

NAME_BYTES_MAX = 255  # an MQTT topic is at most 65,535 bytes; 255 leaves room for prefixes and stays readable
NAMESPACE_DEFAULT = "default"
GROUP_DEFAULT = "default"
DEAD_PREFIX = "dlq/"
DELIVERIES_PER_SECOND_MAX = 1_000_000  # more than a node delivers: past it a limit is none
BREAKER_DEAD_LETTERS_MAX = 10_000  # their times are in memory
PARTITIONS_MAX = 1024  # each costs a head record and its place in every merge of a lease
PRIORITY_DEFAULT = 128
PRIORITY_MAX = 255
TOPICS_MAX = 100  # every filter that matches a publish costs it an enqueue
TOPIC_BYTES_MAX = 1_024
TOPIC_LEVELS_MAX = 64


_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class Ordering(StrEnum):
    NONE = "none"
    PARTITION = "partition"
    STRICT = "strict"


class JournalMode(StrEnum):
    PAYLOAD = "payload"
    METADATA = "metadata"
    OFF = "off"


class Durability(StrEnum):
    FSYNC = "fsync"
    BUFFERED = "buffered"


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    max_retries: int = 10
    initial_backoff: int = 5 * SECOND
    max_backoff: int = 5 * MINUTE
    multiplier: float = 2.0
    jitter: float = 0.0
    total_timeout: int = 3 * HOUR  # 0: no limit


class DeadLetterPolicy(msgspec.Struct, frozen=True, kw_only=True):
    enabled: bool = True
    queue: str = ""  # empty: dlq/<name>, created on first use
    alert_webhook: str = ""


class DeliveryLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a group of a queue may be given, over all its consumers. The token buckets are in token_buckets.py."""

    concurrency: int = 0  # deliveries under lease; 0: no limit
    rate: float = 0.0  # deliveries a second; 0: no limit
    burst: int = 0  # what the bucket holds; 0: those of a second, and at least one
    key_concurrency: int = 1  # of one key
    key_rate: float = 0.0
    key_burst: int = 0
    fair: bool = False  # keys take turns

    @property
    def bucket_size(self) -> int:
        return self.burst or max(math.ceil(self.rate), 1)

    @property
    def key_bucket_size(self) -> int:
        return self.key_burst or max(math.ceil(self.key_rate), 1)


class CircuitBreaker(msgspec.Struct, frozen=True, kw_only=True):
    """When the queue pauses itself: at so many dead letters within a time. Those that expired do not count."""

    dead_letters: int = 0  # 0: never
    window: int = MINUTE


class QueueConfig(msgspec.Struct, frozen=True, kw_only=True):
    partitions: int = 10
    ordering: Ordering = Ordering.PARTITION
    max_message_size: int = MIB
    max_depth: int = 100_000
    message_ttl: int = 7 * DAY  # 0: never
    delivery_timeout: int = 30 * SECOND
    batch_size: int = 1
    dedup_window: int = 5 * MINUTE  # 0: off
    journal: JournalMode = JournalMode.PAYLOAD
    durability: Durability = Durability.FSYNC
    topics: tuple[str, ...] = ()
    paused: bool = False
    retry: RetryPolicy = RetryPolicy()
    dlq: DeadLetterPolicy = DeadLetterPolicy()
    throttle: DeliveryLimits = DeliveryLimits()
    breaker: CircuitBreaker = CircuitBreaker()

    @property
    def keyed(self) -> bool:
        """Whether messages of one key wait for each other."""
        return self.ordering is Ordering.PARTITION

    @property
    def strict(self) -> bool:
        return self.ordering is Ordering.STRICT


def dead_queue_of(name: str, config: QueueConfig) -> str | None:
    """The queue that takes the dead letters of `name`, or None if they are dropped."""
    if not config.dlq.enabled:
        return None
    return config.dlq.queue or DEAD_PREFIX + name


# An automatic dead queue keeps its messages until a person or a job handles them: nothing expires, nothing is
# dropped for having failed too often, and nothing is refused for depth.
DEAD_QUEUE_CONFIG = QueueConfig(
    message_ttl=0,
    max_depth=0,
    max_message_size=256 * MIB,
    retry=RetryPolicy(max_retries=1_000_000, total_timeout=0),
    dlq=DeadLetterPolicy(enabled=False),
)


class _Range(msgspec.Struct, frozen=True):
    low: float
    high: float
    kind: str  # "count", "duration", "size", "number"

    def describe(self) -> str:
        if self.kind == "duration":
            return f"{format_duration(int(self.low))} to {format_duration(int(self.high))}"
        return f"{self.low:g} to {self.high:g}" if self.kind == "number" else f"{int(self.low)} to {int(self.high)}"


_RANGES = {
    "partitions": _Range(1, PARTITIONS_MAX, "count"),
    "max_message_size": _Range(1, 256 * MIB, "size"),
    "max_depth": _Range(0, 1 << 40, "count"),  # 0: no limit
    "message_ttl": _Range(0, 3650 * DAY, "duration"),
    "delivery_timeout": _Range(1000, 7 * DAY, "duration"),
    "batch_size": _Range(1, 1000, "count"),
    "dedup_window": _Range(0, 7 * DAY, "duration"),
    "retry.max_retries": _Range(0, 1_000_000, "count"),
    "retry.initial_backoff": _Range(0, 30 * DAY, "duration"),
    "retry.max_backoff": _Range(0, 30 * DAY, "duration"),
    "retry.multiplier": _Range(1, 100, "number"),
    "retry.jitter": _Range(0, 1, "number"),
    "retry.total_timeout": _Range(0, 3650 * DAY, "duration"),
    "throttle.concurrency": _Range(0, 1_000_000, "count"),
    "throttle.rate": _Range(0, DELIVERIES_PER_SECOND_MAX, "number"),
    "throttle.burst": _Range(0, 1_000_000, "count"),
    "throttle.key_concurrency": _Range(1, 10_000, "count"),
    "throttle.key_rate": _Range(0, DELIVERIES_PER_SECOND_MAX, "number"),
    "throttle.key_burst": _Range(0, 1_000_000, "count"),
    "breaker.dead_letters": _Range(0, BREAKER_DEAD_LETTERS_MAX, "count"),
    "breaker.window": _Range(SECOND, DAY, "duration"),
}
_CHOICES: dict[str, type[StrEnum]] = {"ordering": Ordering, "journal": JournalMode, "durability": Durability}
_FLAGS = ("paused", "dlq.enabled", "throttle.fair")
_TEXTS = ("dlq.queue", "dlq.alert_webhook")
FIELDS = (*_RANGES, *_CHOICES, *_FLAGS, *_TEXTS, "topics")


def from_fields(fields: Mapping[str, object], base: QueueConfig | None = None) -> QueueConfig:
    """A configuration from what a user wrote, on top of `base`. Nested fields as `retry.jitter` or as a mapping."""
    flat = _flatten(fields)
    for name in flat:
        if name not in FIELDS:
            close = difflib.get_close_matches(name, FIELDS, 1) if len(name) <= SUGGESTED_LENGTH_MAX else ()
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(FIELDS))}"
            raise InvalidConfig(field=name, value=flat[name], problem=f"there is no such setting; {hint}")
    if "dlq.alert_webhook" in flat:
        before = base.dlq.alert_webhook if base is not None else ""
        flat["dlq.alert_webhook"] = _webhook(flat["dlq.alert_webhook"], before)
    values = {name: _checked(name, value) for name, value in flat.items()}
    if base is None and values.get("ordering") is Ordering.STRICT:
        values.setdefault("partitions", 1)
    start = base or QueueConfig()
    retry = _replaced(start.retry, "retry.", values)
    dlq = _replaced(start.dlq, "dlq.", values)
    throttle = _replaced(start.throttle, "throttle.", values)
    breaker = _replaced(start.breaker, "breaker.", values)
    config = msgspec.structs.replace(
        _replaced(start, "", values), retry=retry, dlq=dlq, throttle=throttle, breaker=breaker
    )
    _check_together(config, base)
    return config


def _flatten(fields: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat


def _replaced(struct: _Struct, prefix: str, values: Mapping[str, object]) -> _Struct:
    """A copy of `struct` with the values whose names are `prefix` and one of its fields."""
    changes = {name: values[prefix + name] for name in struct.__struct_fields__ if prefix + name in values}
    return msgspec.structs.replace(struct, **changes)


def _checked(name: str, value: object) -> object:
    """The value of one setting in the form we keep, or `InvalidConfig`."""
    if name in _RANGES:
        return _in_range(name, value, _RANGES[name])
    if name in _CHOICES:
        try:
            return _CHOICES[name](str(value))
        except ValueError:
            allowed = ", ".join(choice.value for choice in _CHOICES[name])
            raise InvalidConfig(field=name, value=value, problem=f"it is one of {allowed}") from None
    if name in _FLAGS:
        if not isinstance(value, bool):
            raise InvalidConfig(field=name, value=value, problem="it is true or false")
        return value
    if name == "topics":
        if not isinstance(value, (list, tuple)) or len(value) > TOPICS_MAX:
            raise InvalidConfig(field=name, value=value, problem=f"it is a list of at most {TOPICS_MAX} topic filters")
        return tuple(_topic_filter(topic) for topic in value)
    if not isinstance(value, str):
        raise InvalidConfig(field=name, value=value, problem="it is a text")
    if name == "dlq.alert_webhook" and value and not is_web_address(value):
        problem = f"it is an address as https://alerts.example/holdfast, of at most {URL_LENGTH_MAX} characters"
        raise InvalidConfig(field=name, value=hide_credentials(value), problem=problem)
    return value


def _webhook(address: object, before: str) -> object:
    """The address that is meant: one that was shown with its credentials hidden, and comes back, is the one before."""
    if not isinstance(address, str) or HIDDEN not in address:
        return address
    if address == hide_credentials(before):
        return before
    problem = "it holds hidden credentials of another address; give it whole"
    raise InvalidConfig(field="dlq.alert_webhook", value=address, problem=problem)


def _topic_filter(value: object) -> str:
    """A filter of ordinary topics; what begins with `$` is not one."""
    problem = ""
    if not isinstance(value, str) or not value:
        raise InvalidConfig(field="topics", value=value, problem="a topic filter is a text, and not empty")
    levels = value.split("/")
    if value.startswith("$"):
        problem = "topics that begin with '$' cannot be captured"
    elif "\0" in value or len(value.encode(errors="replace")) > TOPIC_BYTES_MAX or len(levels) > TOPIC_LEVELS_MAX:
        problem = f"it is at most {TOPIC_BYTES_MAX} bytes and {TOPIC_LEVELS_MAX} levels, without NUL"
    elif any("#" in level for level in levels[:-1]) or ("#" in levels[-1] and levels[-1] != "#"):
        problem = "'#' stands alone, at the end"
    elif any("+" in level and level != "+" for level in levels):
        problem = "'+' stands for a whole level"
    if problem:
        raise InvalidConfig(field="topics", value=value, problem=problem)
    return value


def _in_range(name: str, value: object, allowed: _Range) -> int | float:
    try:
        number = _number(value, allowed.kind)
    except (TypeError, ValueError) as error:
        raise InvalidConfig(field=name, value=value, problem=f"{error}; allowed is {allowed.describe()}") from None
    if not allowed.low <= number <= allowed.high:
        raise InvalidConfig(field=name, value=value, problem=f"allowed is {allowed.describe()}")
    return number


def _number(value: object, kind: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError("it is a number")
    if kind == "duration":
        return parse_duration(value)
    if kind == "size" and isinstance(value, str):
        return parse_size(value)
    if kind == "number":
        return _parsed(float, value, "it is a number")
    if isinstance(value, float) and not value.is_integer():
        raise ValueError("it is a whole number")
    return _parsed(int, value, "it is a whole number")


def _parsed(parse: Callable[[float | str], float], value: float | str, problem: str) -> float:
    try:
        return parse(value)
    except (ValueError, OverflowError):
        raise ValueError(problem) from None


def _check_together(config: QueueConfig, base: QueueConfig | None) -> None:
    """Rules over several settings."""
    if base is not None and config.partitions < base.partitions:
        raise InvalidConfig(
            field="partitions", value=config.partitions, problem=f"it can grow, not shrink, from {base.partitions}"
        )
    if base is not None and config.ordering is not base.ordering:
        raise InvalidConfig(
            field="ordering", value=config.ordering.value, problem="it is fixed when the queue is created"
        )
    if config.strict and config.partitions != 1:
        problem = "a queue with ordering strict has exactly one partition; leave it out, or choose another ordering"
        raise InvalidConfig(field="partitions", value=config.partitions, problem=problem)
    if config.retry.max_backoff < config.retry.initial_backoff:
        raise InvalidConfig(
            field="retry.max_backoff",
            value=format_duration(config.retry.max_backoff),
            problem=f"it is at least retry.initial_backoff ({format_duration(config.retry.initial_backoff)})",
        )
    if not config.keyed:
        _check_unkeyed(config)


def _check_unkeyed(config: QueueConfig) -> None:
    """Only a queue that keeps keys in order knows its messages by key."""
    limits, defaults = config.throttle, DeliveryLimits()
    for name in ("key_concurrency", "key_rate", "key_burst", "fair"):
        if getattr(limits, name) != getattr(defaults, name):
            problem = (
                f"with ordering {config.ordering.value} a queue does not look at keys; this needs ordering partition"
            )
            raise InvalidConfig(field=f"throttle.{name}", value=getattr(limits, name), problem=problem)


def to_fields(config: QueueConfig) -> dict[str, object]:
    """The configuration as people write it; `from_fields` takes it back. Credentials in it are hidden."""
    fields: dict[str, object] = {}
    for name in FIELDS:
        value: object = config
        for part in name.split("."):
            value = getattr(value, part)
        if name in _RANGES and _RANGES[name].kind == "duration" and isinstance(value, int):
            value = format_duration(value)
        elif isinstance(value, StrEnum):
            value = value.value
        fields[name] = list(value) if isinstance(value, tuple) else value
    fields["dlq.alert_webhook"] = hide_credentials(config.dlq.alert_webhook)
    return fields


@lru_cache(maxsize=4_096)  # every call names its queue; only good names are kept, and those are short
def check_name(name: str, what: str = "queue") -> str:
    """`name`, or `InvalidName` with the rule it breaks."""
    problem = ""
    if not name:
        problem = "it is empty"
    elif len(name.encode(errors="surrogatepass")) > NAME_BYTES_MAX:
        problem = f"it is longer than {NAME_BYTES_MAX} bytes"
    elif any(char in name for char in "+#\0"):
        problem = "it contains '+', '#' or NUL"
    elif any(not level for level in name.split("/")):
        problem = "a level between '/' is empty"
    elif any(level.startswith("$") for level in name.split("/")):
        problem = "a level starts with '$'"
    elif any("\ud800" <= char <= "\udfff" for char in name):
        problem = "it is not valid UTF-8"
    if problem:
        raise InvalidName(what=what, name=name, problem=problem)
    return name


def qualified_consumer(owner: str, name: str) -> str:
    """The name under which a lease is held: what a consumer calls itself is its own within its owner only, so that no
    one holds, settles or resumes what another owner's consumer of the same name has leased."""
    return f"{owner}/{name}" if owner and name else name


class GroupKind(StrEnum):
    LEASE = "lease"
    CURSOR = "cursor"


class GroupRecord(msgspec.Struct, frozen=True, array_like=True):
    """A group of a queue, as kept in the queue's record."""

    number: int
    name: str
    kind: GroupKind
    created_at: int
    max_lag_messages: int = 0  # cursor groups: 0 is no bound
    max_lag_age: int = 0


class QueueRecord(msgspec.Struct, frozen=True, array_like=True):
    """A queue, as kept in the store. `shards` are the numbers of its partitions, in order."""

    namespace: str
    name: str
    config: QueueConfig
    shards: tuple[int, ...]
    created_at: int
    groups: tuple[GroupRecord, ...] = ()
    groups_made: int = 0  # numbers are never reused: they are bits in SETTLED records
    automatic: bool = False  # a dead queue that was created automatically
    closing: bool = False  # being deleted: it accepts nothing, its messages are purged in steps

    def group(self, name: str) -> GroupRecord | None:
        return next((group for group in self.groups if group.name == name), None)


# --- backoff ----------------------------------------------------------------------------------------------------------

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def backoff(policy: RetryPolicy, failure: int, seed: int) -> int:
    """Microseconds before retry `failure` (1-based): min(initial * multiplier**(n-1), max), then plus or minus jitter.

    The jitter is drawn from `seed` (the message's id), so that the same failure always waits the same time: a
    simulation repeats, and two messages that failed together are still ready at different times.
    """
    # The exponent is bounded by where the cap is reached, because multiplier**n overflows a float long before n does.
    wait = float(policy.initial_backoff)
    steps = failure - 1
    if policy.multiplier > 1.0 and wait > 0:
        while steps > 0 and wait < policy.max_backoff:
            wait *= policy.multiplier
            steps -= 1
    wait = min(wait, float(policy.max_backoff))
    if policy.jitter:
        wait *= 1.0 + policy.jitter * (2.0 * _unit(seed, failure) - 1.0)
    return int(wait)


def _unit(seed: int, failure: int) -> float:
    """A number in [0, 1) that looks random (splitmix64)."""
    z = (seed + failure * _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((z ^ (z >> 31)) >> 11) / (1 << 53)
