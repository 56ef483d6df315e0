"""Durations, sizes and instants as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import units


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("250ms", 250_000),
        ("5s", 5_000_000),
        ("2m", 120_000_000),
        ("1h", 3_600_000_000),
        ("7d", 604_800_000_000),
        ("10us", 10),
        ("10µs", 10),
        ("1.5s", 1_500_000),
        ("0.1s", 100_000),
        (" 5 S ", 5_000_000),
        ("0", 0),
        ("30", 30_000_000),
        (30, 30_000_000),
        (0.25, 250_000),
        (0.1, 100_000),
    ],
)
def test_durations_are_read_as_people_write_them(text: str | float, microseconds: int) -> None:
    assert units.parse_duration(text) == microseconds


@pytest.mark.parametrize(
    "wrong",
    ["", "s", "5 weeks", "5w", "-5s", "1h30m", "1e3s", "5,0s", "٣s", -1, float("nan"), float("inf"), True, None, []],
)
def test_what_is_no_duration_is_refused_with_the_ways_to_write_one(wrong: object) -> None:
    with pytest.raises(ValueError, match="is not a duration: write 250ms, 5s"):
        units.parse_duration(wrong)


@pytest.mark.parametrize("wrong", ["36501d", "9" * 40 + "d", 1e300, pytest.param(10**5000, id="10**5000")])
def test_a_duration_beyond_a_hundred_years_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="longer than a duration can be"):
        units.parse_duration(wrong)


@given(st.integers(0, units.DURATION_MAX))
def test_every_duration_reads_back_as_itself(microseconds: int) -> None:
    assert units.parse_duration(units.format_duration(microseconds)) == microseconds


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [(0, "0s"), (1, "1us"), (1_500, "1500us"), (250_000, "250ms"), (90 * units.SECOND, "90s"), (7 * units.DAY, "7d")],
)
def test_a_duration_is_written_in_the_largest_exact_unit(microseconds: int, text: str) -> None:
    assert units.format_duration(microseconds) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (512, 512),
        ("512", 512),
        ("512B", 512),
        ("64KiB", 65_536),
        ("64MiB", 67_108_864),
        ("1gib", 1 << 30),
        ("2TiB", 2 << 40),
        ("1kB", 1_000),
        ("1.5 MB", 1_500_000),
        ("0.5KiB", 512),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str | int, size: int) -> None:
    assert units.parse_size(text) == size


@pytest.mark.parametrize("wrong", ["", "MiB", "64M", "-1", "1 potato", -1, True, None])
def test_what_is_no_size_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="is not a size: write a number of bytes"):
        units.parse_size(wrong)


@pytest.mark.parametrize("wrong", ["1.5", 0.5, "0.0001KiB"])
def test_a_fraction_of_a_byte_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="is not a whole number of bytes"):
        units.parse_size(wrong)


def test_a_size_that_needs_64_bits_is_refused() -> None:
    assert units.parse_size(units.SIZE_MAX) == units.SIZE_MAX
    with pytest.raises(ValueError, match="63 bits"):
        units.parse_size(str(units.SIZE_MAX + 1))


@given(st.integers(0, units.SIZE_MAX))
def test_every_size_reads_back_as_itself(size: int) -> None:
    assert units.parse_size(units.format_size(size)) == size


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-01-01T00:00:00Z", 1_767_225_600_000_000),
        ("2026-01-01t00:00:00z", 1_767_225_600_000_000),
        ("2026-01-01 00:00:00Z", 1_767_225_600_000_000),
        ("2026-01-01T02:00:00+02:00", 1_767_225_600_000_000),
        ("2025-12-31T23:00:00.5-01:00", 1_767_225_600_500_000),
        ("2026-01-01T00:00:00.1234567Z", 1_767_225_600_123_456),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000_000),
        (1_767_225_600_000, 1_767_225_600_000_000),
        ("1767225600000", 1_767_225_600_000_000),
        (0.5, 500),
    ],
)
def test_instants_are_rfc_3339_or_epoch_milliseconds(text: str | float, microseconds: int) -> None:
    assert units.parse_instant(text) == microseconds


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "now",
        "2026-01-01",
        "2026-01-01T00:00:00",
        "20260101T000000Z",
        "2026-02-30T00:00:00Z",
        "2026-01-01T24:01:00Z",
        "5s",
        -1,
        True,
        None,
    ],
)
def test_what_is_no_instant_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="is not an instant: write RFC 3339"):
        units.parse_instant(wrong)


@pytest.mark.parametrize("wrong", ["1969-12-31T23:59:59Z", "9999-12-31T23:59:60Z", 10**18])
def test_an_instant_outside_1970_to_9999_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="9999"):
        units.parse_instant(wrong)


@given(st.integers(0, units.INSTANT_MAX))
def test_every_instant_reads_back_as_itself(microseconds: int) -> None:
    assert units.parse_instant(units.format_instant(microseconds)) == microseconds


@given(st.datetimes(datetime(1971, 1, 1), datetime(9998, 1, 1)), st.integers(-23 * 60, 23 * 60))  # noqa: DTZ001
def test_any_offset_means_the_same_instant(moment: datetime, offset_minutes: int) -> None:
    there = moment.replace(tzinfo=timezone(timedelta(minutes=offset_minutes)))
    here = there.astimezone(UTC)
    assert units.parse_instant(there.isoformat()) == units.parse_instant(here.isoformat())
    assert units.parse_instant(here.isoformat()) == (here - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
        microseconds=1
    )
