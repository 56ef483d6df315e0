"""When the disk will be full, and how much of it the lake takes."""

from __future__ import annotations

import math
from pathlib import Path

from holdfast.broker.lookout.disk_forecast import SAMPLES_MIN, DiskForecast
from holdfast.broker.lookout.lake_size import LakeMeter, LakeSize
from holdfast.units import HOUR, MINUTE, SECOND

START = 1_800_000_000 * SECOND
GB = 10**9


def test_a_disk_that_fills_evenly_is_full_when_a_straight_line_says() -> None:
    forecast = DiskForecast()
    for minute in range(60):
        forecast.add(START + minute * MINUTE, 100 * GB - minute * GB)
        forecast.add(START + minute * MINUTE + SECOND, 0)  # one a minute counts
    assert math.isclose(forecast.seconds_left(0), 41 * 60)
    assert math.isclose(forecast.seconds_left(11 * GB), 30 * 60)
    assert forecast.seconds_left(60 * GB) == 0


def test_it_says_nothing_of_a_disk_that_does_not_fill_or_is_hardly_known() -> None:
    forecast = DiskForecast()
    for minute in range(SAMPLES_MIN - 1):
        forecast.add(START + minute * MINUTE, 100 * GB - minute * GB)
    assert forecast.seconds_left(0) == math.inf
    forecast.add(START - HOUR, 100 * GB)  # the clock was set back: it begins again
    for minute in range(SAMPLES_MIN):
        forecast.add(START + minute * MINUTE, 100 * GB + minute % 2)
    assert forecast.seconds_left(0) == math.inf


def test_only_the_last_hours_count() -> None:
    forecast = DiskForecast()
    for minute in range(24 * 60):
        forecast.add(START + minute * MINUTE, 50 * GB if minute < 12 * 60 else 50 * GB + minute)
    assert forecast.seconds_left(0) == math.inf


async def test_the_lake_is_measured_once_for_many_who_ask(tmp_path: Path) -> None:
    segment = tmp_path / "journal" / "date=2026-01-01" / f"0000-{1:019d}-{9:019d}.parquet"
    segment.parent.mkdir(parents=True)
    segment.write_bytes(b"x" * 1000)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "part").write_bytes(b"x" * 24)
    meter = LakeMeter(tmp_path)
    assert await meter.read() == LakeSize(1024, 1)
    segment.unlink()
    assert await meter.read() == LakeSize(1024, 1), "for some minutes"
    assert await LakeMeter(tmp_path / "none").read() == LakeSize(0, 0)
