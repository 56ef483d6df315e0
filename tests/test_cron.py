"""When cron expressions tick, in time zones and over both changes of the clock."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import cron
from holdfast.units import DAY, MINUTE, NEVER, format_instant, parse_instant

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "America/Havana", "Africa/Cairo", "Asia/Kathmandu")
EXPRESSIONS = (
    "* * * * *",
    "*/7 * * * *",
    "30 2 * * *",
    "0 9-17 * * MON-FRI",
    "15,45 0-3 * * *",
    "0 0 L * *",
    "0 12 29 2 *",
)


def ticks(expression: str, zone: str, after: str, count: int) -> list[str]:
    """The next ticks, in UTC."""
    found: list[str] = []
    at = parse_instant(after)
    for _ in range(count):
        at = cron.next_tick(expression, zone, at)
        found.append(format_instant(at).removesuffix(":00.000Z"))
    return found


def test_a_time_of_day_that_the_clock_skips_comes_when_the_skipped_hour_ends() -> None:
    # On 29 March 2026 clocks in Berlin go from 02:00 to 03:00, which is 01:00 UTC.
    assert ticks("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z", 3) == [
        "2026-03-28T01:30",
        "2026-03-29T01:00",
        "2026-03-30T00:30",
    ]


def test_a_time_of_day_that_the_clock_repeats_comes_once() -> None:
    # On 25 October 2026 they go from 03:00 back to 02:00, which is 01:00 UTC.
    once = ["2026-10-25T00:30", "2026-10-26T01:30"]
    assert ticks("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 2) == once
    assert ticks("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00Z", 1) == once[1:]


def test_wildcards_follow_the_clock_on_the_wall() -> None:
    assert ticks("*/30 * * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", 4) == [
        "2026-03-29T00:30",
        "2026-03-29T01:00",
        "2026-03-29T01:30",
        "2026-03-29T02:00",
    ]
    assert ticks("*/30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", 1) == ["2026-03-30T00:00"]
    assert ticks("*/30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 5) == [
        "2026-10-25T00:00",
        "2026-10-25T00:30",
        "2026-10-25T01:00",
        "2026-10-25T01:30",
        "2026-10-26T01:00",
    ]


def test_a_change_of_the_clock_at_midnight_neither_loses_nor_repeats_an_hour() -> None:
    # In Cairo 24 April 2026 begins at 01:00, which is 22:00 UTC of the day before.
    assert ticks("0 * * * *", "Africa/Cairo", "2026-04-23T20:00:00Z", 4) == [
        f"2026-04-23T{hour}:00" for hour in (21, 22, 23)
    ] + ["2026-04-24T00:00"]
    assert ticks("0 0 * * *", "Africa/Cairo", "2026-04-23T12:00:00Z", 2) == ["2026-04-23T22:00", "2026-04-24T21:00"]


@pytest.mark.parametrize(("nickname", "expression"), cron.NICKNAMES.items())
def test_nicknames(nickname: str, expression: str) -> None:
    after = parse_instant("2026-06-15T12:34:56Z")
    assert cron.next_tick(nickname.upper(), "UTC", after) == cron.next_tick(expression, "UTC", after)


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("", "has 0 fields"),
        ("* * * * * *", "has 6 fields"),
        ("@reboot", "has 1 fields"),
        ("61 * * * *", "is not a cron expression: bad minute"),
        ("*/0 * * * *", "is not a cron expression: bad minute"),
        ("0 0 * * 1#5/2", "is not a cron expression: bad day-of-week"),
        ("0 0 31 2 *", "is not a cron expression: bad day-of-month"),
        ("0 0 */31 * 1#5", "never comes"),
        ("0 " * 200, "is longer than 256 characters"),
    ],
)
def test_what_is_no_expression_is_refused(expression: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        cron.check_expression(expression, "UTC", parse_instant("2026-06-15T12:34:56Z"))


@pytest.mark.parametrize("zone", ["", "Europe", "Mars/Olympus", "../../etc/passwd", "/etc/localtime", "a\0b", "x" * 65])
def test_what_is_no_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(ValueError, match="is not a time zone: write a name of the IANA database, as Europe/Berlin"):
        cron.check_zone(zone)


def test_the_search_ends_before_the_years_do() -> None:
    assert cron.next_tick("0 0 * * *", "UTC", parse_instant("9999-12-30T00:00:00Z")) == NEVER


@given(
    st.sampled_from(EXPRESSIONS),
    st.sampled_from(ZONES),
    st.integers(parse_instant("2026-01-01T00:00:00Z"), parse_instant("2028-12-31T00:00:00Z")),
    st.integers(0, 3 * DAY),
)
def test_ticks_are_the_same_wherever_the_search_begins(expression: str, zone: str, start: int, span: int) -> None:
    until = start + span
    found: list[int] = []
    at = start
    while (at := cron.next_tick(expression, zone, at)) <= until and len(found) < 500:
        found.append(at)
    assert found == sorted(set(found))
    if len(found) < 500:
        assert cron.last_tick(expression, zone, start, until) == (found[-1] if found else None)
    for earlier, tick in islice(pairwise(found), 20):
        between = earlier + (tick - earlier) // 2
        assert cron.next_tick(expression, zone, between) == tick
        assert cron.next_tick(expression, zone, tick - MINUTE // 2) == tick
