"""Converts durations and instants between Python's types and the wire format."""

from __future__ import annotations

from datetime import datetime, timedelta

from holdfast import wire
from holdfast.errors import InvalidArgument
from holdfast.units import SECOND, parse_duration

Duration = str | int | float | timedelta
"""`"250ms"`, `"5s"`, `"2m"`, `"1h"`, `"7d"`, a number of seconds, or a timedelta."""

Instant = str | int | datetime
"""A datetime with its time zone, RFC 3339 text, or milliseconds since 1970."""


def duration(value: Duration) -> wire.Duration:
    return value.total_seconds() if isinstance(value, timedelta) else value


def optional_duration(value: Duration | None) -> wire.Duration | None:
    return None if value is None else duration(value)


def seconds(value: Duration, field: str) -> float:
    """A duration in seconds."""
    try:
        return parse_duration(duration(value)) / SECOND
    except ValueError as error:
        raise InvalidArgument(field=field, problem=str(error)) from None


def instant(value: Instant | None) -> wire.Instant | None:
    if not isinstance(value, datetime):
        return value
    if value.tzinfo is None:
        raise InvalidArgument(field="deliver_at", problem="needs a time zone: write datetime.now(UTC)")
    return value.isoformat()


def moment(text: str) -> datetime:
    """An instant of a response."""
    return datetime.fromisoformat(text)
