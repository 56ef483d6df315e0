"""Filter pushdown: conditions of a query that the server checks, so that only matching messages are sent."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

from pyspark_holdfast.ranges import Range

_PLACE = frozenset({"id", "sequence", "partition", "priority", "enqueued_at", "key", "message_id"})
_MESSAGES = _PLACE | {"correlation_id", "source_id", "source_queue", "source_group", "reason"}
PUSHED = {
    "messages": _MESSAGES,
    "dead_letters": _MESSAGES,
    "deliveries": _PLACE | {"group", "state", "attempt", "consumer"},
}
"""By view, the columns whose conditions the server checks."""

IN_MAX = 1_000

_OPERATORS: dict[type[Filter], str] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    In: "in",
    IsNull: "null",
    IsNotNull: "not null",
}

Condition = tuple[str, str, Any]
"""Column, operator, value: as in the server's `where`."""


def condition_of(given: Filter, view: str) -> Condition | None:
    """The filter in the server's form; None: the server cannot check it, and Spark has to."""
    operator = _OPERATORS.get(type(given))
    path: tuple[str, ...] = getattr(given, "attribute", ())
    if operator is None or len(path) != 1 or path[0] not in PUSHED[view]:
        return None
    value: Any = getattr(given, "value", None)
    if operator == "in":
        values = [_value(one) for one in value]
        return (path[0], operator, values) if len(values) <= IN_MAX and None not in values else None
    if operator in ("null", "not null"):
        return (path[0], operator, None) if (path[0], operator) != ("partition", "null") else None
    wanted = _value(value)
    return None if wanted is None else (path[0], operator, wanted)


def _value(value: Any) -> int | str | None:
    match value:
        case bool():
            return None
        case int() | str():
            return value
        case datetime():
            return value.astimezone(UTC).isoformat()  # in microseconds, as in the server
    return None


def narrowed(ranges: list[Range], conditions: list[Condition]) -> list[Range]:
    """The ranges that remain after conditions on partitions and sequences."""
    for column, operator, value in conditions:
        if column == "partition":
            ranges = [one for one in ranges if _holds(one.partition, operator, value)]
        elif column == "sequence":
            low, high = _between(operator, value)
            ranges = [Range(one.partition, max(one.first, low), min(one.until, high)) for one in ranges]
    return ranges


def _holds(number: int, operator: str, value: Any) -> bool:
    low, high = _between(operator, value)
    return low <= number < high and (operator != "in" or number in value)


def _between(operator: str, value: Any) -> tuple[int, int]:
    """The bounds of a condition: first, and end (exclusive)."""
    everything = 1 << 62
    match operator:
        case "=":
            return value, value + 1
        case ">":
            return value + 1, everything
        case ">=":
            return value, everything
        case "<":
            return 0, value
        case "<=":
            return 0, value + 1
        case "in" if value:
            return min(value), max(value) + 1
    return 0, everything
