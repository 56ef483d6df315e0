"""Durations, sizes and instants as people write them, to and from the integers the program counts in.

Inside, a duration is whole microseconds, an instant is microseconds since 1970-01-01 UTC, a size is bytes. Outside,
in configuration files, flags, message properties and every front, the same spellings are understood everywhere:

    duration   250us  250ms  5s  2m  1h  7d  1.5s, or a number of seconds
    size       512  512B  64KiB  64MiB  1GiB  (and the decimal kB, MB, GB)
    instant    RFC 3339 with its offset, or a number of milliseconds since 1970

A value that cannot be understood raises ValueError whose text completes the sentence "<field> ...": the caller knows
the field and turns it into an error of `holdfast.errors`. Nothing here reads a clock.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

MILLISECOND: Final = 1_000
SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40

DURATION_MAX: Final = 36_500 * DAY
"""A hundred years. An instant plus a duration then always fits the 63 bits that keys on disk give to a time."""

INSTANT_MAX: Final = 253_402_300_799_999_999
"""9999-12-31T23:59:59.999999Z, the last instant RFC 3339 can write."""

NEVER: Final = (1 << 63) - 1
"""An instant that does not come."""

SIZE_MAX: Final = (1 << 63) - 1

_DURATION_UNITS: Final = {
    "us": 1,
    "µs": 1,
    "ms": MILLISECOND,
    "s": SECOND,
    "m": MINUTE,
    "h": HOUR,
    "d": DAY,
}
_SIZE_UNITS: Final = {
    "": 1,
    "b": 1,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}

_QUANTITY = re.compile(r"([0-9]{1,40}(?:\.[0-9]{1,40})?)\s*([a-zµ]*)", re.IGNORECASE)
_RFC3339 = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}):([0-9]{2})(?:\.([0-9]+))?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_DURATION_HELP = "is not a duration: write 250ms, 5s, 2m, 1h, 7d or a number of seconds"
_SIZE_HELP = "is not a size: write a number of bytes, or 64KiB, 64MiB, 1GiB"
_INSTANT_HELP = "is not an instant: write RFC 3339 with its offset (2026-01-31T12:00:00Z) or milliseconds since 1970"


def parse_duration(value: object) -> int:
    """Microseconds. A bare number, also one in a string, is seconds. Fractions of a microsecond are rounded."""
    amount, unit = _quantity(value, _DURATION_HELP)
    factor = SECOND if unit == "" else _DURATION_UNITS.get(unit)
    if factor is None:
        raise ValueError(_DURATION_HELP)
    return _bounded(amount * factor, DURATION_MAX, "is longer than a duration can be (36500d)")


def format_duration(microseconds: int) -> str:
    """The shortest exact spelling in one unit: 90000000 is `90s`, 120000000 is `2m`. Reads back as the same number."""
    for unit, factor in (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND), ("ms", MILLISECOND)):
        if microseconds and microseconds % factor == 0:
            return f"{microseconds // factor}{unit}"
    return f"{microseconds}us" if microseconds else "0s"


def parse_size(value: object) -> int:
    """Bytes. KiB, MiB, GiB, TiB are powers of 1024; kB, MB, GB, TB powers of 1000; upper or lower case."""
    amount, unit = _quantity(value, _SIZE_HELP)
    factor = _SIZE_UNITS.get(unit)
    if factor is None:
        raise ValueError(_SIZE_HELP)
    total = amount * factor
    if total != total.to_integral_value():
        raise ValueError("is not a whole number of bytes")
    return _bounded(total, SIZE_MAX, "is more bytes than fit in 63 bits")


def format_size(size_bytes: int) -> str:
    """The shortest exact spelling: 67108864 is `64MiB`, 1000 is `1000B`. Reads back as the same number."""
    for unit, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return f"{size_bytes}B"


def parse_instant(value: object) -> int:
    """Microseconds since 1970-01-01 UTC. A bare number, also one in a string, is milliseconds since then."""
    if isinstance(value, str) and (match := _RFC3339.fullmatch(value.strip())):
        microseconds = _from_rfc3339(*match.groups(default=""))
    else:
        amount, unit = _quantity(value, _INSTANT_HELP)
        if unit:
            raise ValueError(_INSTANT_HELP)
        microseconds = _bounded(amount * MILLISECOND, INSTANT_MAX, "is later than the year 9999")
    if not 0 <= microseconds <= INSTANT_MAX:
        raise ValueError("is outside the years 1970 to 9999")
    return microseconds


def format_instant(microseconds: int) -> str:
    """RFC 3339 in UTC, with milliseconds, or microseconds where there are any. Reads back as the same number."""
    precision = "milliseconds" if microseconds % MILLISECOND == 0 else "microseconds"
    moment = _EPOCH + timedelta(microseconds=microseconds)
    return moment.replace(tzinfo=None).isoformat(timespec=precision) + "Z"


def _quantity(value: object, problem: str) -> tuple[Decimal, str]:
    """A number and its unit in lower case. Decimal, because 0.1s must be exactly 100 ms."""
    if isinstance(value, bool):  # True is an int in Python; nobody means one second by it
        raise ValueError(problem)
    if isinstance(value, int | float):
        amount = Decimal(value) if isinstance(value, int) else Decimal(repr(value))
        if not amount.is_finite() or amount < 0:
            raise ValueError(problem)
        return amount, ""
    match = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(problem)
    return Decimal(match[1]), match[2].lower()


def _bounded(amount: Decimal, limit: int, problem: str) -> int:
    if amount > limit:
        raise ValueError(problem)
    return int(amount.to_integral_value())


def _from_rfc3339(day: str, minute: str, second: str, fraction: str, offset: str) -> int:
    # datetime knows no leap second; RFC 3339 does. 23:59:60 is read as the instant one second after 23:59:59.
    leap = second == "60"
    zone = "+00:00" if offset in "Zz" else offset
    try:
        moment = datetime.fromisoformat(f"{day}T{minute}:{'59' if leap else second}{zone}")
        since = moment - _EPOCH
    except (ValueError, OverflowError) as error:
        raise ValueError(_INSTANT_HELP) from error
    whole = since // timedelta(microseconds=1) + (SECOND if leap else 0)
    return whole + int(fraction[:6].ljust(6, "0"))
