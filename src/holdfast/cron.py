"""Cron expressions in time zones: when they tick. Nothing here reads a clock; the time zone database is all it reads.

An expression has five fields: minute, hour, day of month, month, day of week. `cronsim` reads it, and follows Debian's
cron where clocks change. A time of day that is fixed (neither minute nor hour begins with `*`) comes once a day also
where the clock skips it (then at the end of what is skipped) or repeats it (then the first time). With `*` the ticks
follow the clock on the wall: what is skipped does not come, what is repeated comes twice. (Where clocks change by half
an hour, on Lord Howe Island, cronsim loses up to half an hour of such ticks on the two days of the change.)

Instants are epoch microseconds. A text that cannot be understood raises ValueError that completes "<field> ...".
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from holdfast.units import DAY, INSTANT_MAX, MINUTE, NEVER

NICKNAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
EXPRESSION_LENGTH_MAX: Final = 256
ZONE_LENGTH_MAX: Final = 64

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_LAST_START: Final = INSTANT_MAX - 60 * 366 * DAY
"""A search ends after fifty years without a tick; it must not leave the years that a date can have."""


def check_zone(name: str) -> None:
    """Raise ValueError unless there is such a time zone."""
    _zone(name)


def check_expression(expression: str, zone: str, after: int) -> None:
    """Raise ValueError unless the expression ticks after an instant."""
    if next_tick(expression, zone, after) == NEVER:
        raise ValueError("never comes: there is no such day")


def next_tick(expression: str, zone: str, after: int) -> int:
    """The first tick later than an instant, NEVER if there is none in the next fifty years."""
    return next(_ticks(expression, zone, after), NEVER)


def last_tick(expression: str, zone: str, after: int, until: int) -> int | None:
    """The last tick that is later than `after` and not later than `until`; None if there is none.

    It looks back from `until`, over a minute, two, four and so on: after a year of absence there is one such search and
    not half a million ticks.
    """
    window = MINUTE
    while True:
        start = max(after, until - window)
        found = None
        for tick in _ticks(expression, zone, start):
            if tick > until:
                break
            found = tick
        if found is not None or start == after:
            return found
        window *= 2


def _ticks(expression: str, zone: str, after: int) -> Iterator[int]:
    """The ticks later than an instant, in order."""
    if after >= _LAST_START:
        return
    start = (_EPOCH + timedelta(microseconds=max(after, 0))).astimezone(_zone(zone))
    for moment in _parse(expression, start):
        tick = (moment.astimezone(UTC) - _EPOCH) // _MICROSECOND
        if tick > after:  # one that the clock repeats may lie before, if the search starts within the repetition
            yield tick


def _parse(expression: str, start: datetime) -> CronSim:
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise ValueError(f"is longer than {EXPRESSION_LENGTH_MAX} characters")
    fields = NICKNAMES.get(expression.strip().lower(), expression)
    count = len(fields.split())
    if count != 5:
        raise ValueError(
            f"has {count} fields: write minute, hour, day of month, month and day of week, as in '30 9 * * MON-FRI', "
            f"or one of {', '.join(NICKNAMES)}"
        )
    try:
        return CronSim(fields, start)
    except (CronSimError, AssertionError, ValueError) as error:
        reason = str(error) or "it cannot be read"
        raise ValueError(f"is not a cron expression: {reason[0].lower()}{reason[1:]}") from None


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    if name and len(name) <= ZONE_LENGTH_MAX:
        try:
            return ZoneInfo(name)
        except (ValueError, OSError, LookupError):  # not a name, a directory, or unknown
            pass
    raise ValueError("is not a time zone: write a name of the IANA database, as Europe/Berlin or UTC")
