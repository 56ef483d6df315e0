"""Targets, error budgets, forecasts and comparisons, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.errors import InvalidArgument
from holdfast.pipeline.jobs import outlook
from holdfast.pipeline.jobs.objectives import Change, Key, Target, forecast, measured, read_targets

START = datetime(2026, 3, 1, tzinfo=UTC)
KEY: Key = ("default", "orders", "workers")
Sums = dict[Key, dict[str, dict[int, int]]]


def at(minute: int) -> datetime:
    return START + timedelta(minutes=minute)


def test_a_target_is_met_as_long_as_its_budget_lasts() -> None:
    sums: Sums = {
        KEY: {"wait": {0: 990, 120: 10}, "processing": {80: 10}, "counts": {0: 200, 1: 4}},
        ("default", "orders", None): {"wait": {120: 5}},
        ("other", "orders", "workers"): {"wait": {120: 5}},
    }
    recent: Sums = {KEY: {"wait": {0: 10, 120: 10}}}
    target = Target(queue="orders", wait="5s", processing="2s", share=0.98, failures=0.01)
    wait, processing, failures = measured(target, sums, recent)
    assert (wait.what, wait.total, wait.good, wait.met) == ("wait", 1000, 990, True)
    assert wait.burn_rate == pytest.approx(0.5)
    assert wait.budget_left == pytest.approx(0.5)
    assert wait.recent_burn_rate == pytest.approx(25)
    assert (processing.good, processing.met, processing.recent_burn_rate) == (10, True, None)
    assert (failures.total, failures.good, failures.met) == (200, 196, False)
    assert failures.budget_left == pytest.approx(-1)
    assert list(measured(Target(queue="orders", group="audit", wait="5s"), sums, recent)) == []
    titles, rows = outlook.objectives([wait, failures])
    assert len(titles) == len(rows[0])
    assert [row[-1] for row in rows] == ["met", "missed"]


def test_targets_are_read_and_what_is_wrong_is_named(tmp_path: Path) -> None:
    path = tmp_path / "targets.toml"
    path.write_text('[[target]]\nqueue = "orders"\nwait = "5s"\nshare = 0.95\n')
    assert read_targets(path) == [Target(queue="orders", wait="5s", share=0.95)]
    for text, problem in (
        ('[[target]]\nqueue = "orders"\n', "says nothing"),
        ('[[target]]\nqueue = "orders"\nwait = "soon"\n', "a duration that is none"),
        ('[[target]]\nqueue = "orders"\nwait = "5s"\nshare = 1.0\n', "not between 0 and 1"),
        ('[[target]]\nqueue = "orders"\nwaits = "5s"\n', "waits"),
        ("[[target]", "cannot be read"),
    ):
        path.write_text(text)
        with pytest.raises(InvalidArgument, match=problem):
            read_targets(path)


def test_a_backlog_that_falls_steadily_is_done_at_a_certain_time() -> None:
    steady = forecast(KEY, [(at(minute), 1000 - 10 * minute) for minute in range(60)], at(60), 1)
    assert steady is not None
    assert (steady.depth, steady.change_per_minute) == (410, -10)
    assert steady.empty_in_s == steady.earliest_s == steady.latest_s == pytest.approx(41 * 60)


def test_a_backlog_that_falls_unevenly_has_a_range() -> None:
    uneven = forecast(KEY, [(at(minute), 1000 - 10 * minute - 40 * (minute % 2)) for minute in range(60)], at(60), 1)
    assert uneven is not None
    assert uneven.empty_in_s is not None
    assert uneven.earliest_s is not None
    assert uneven.earliest_s < uneven.empty_in_s
    assert uneven.latest_s is None, "the swings are larger than what it falls by"


@pytest.mark.parametrize("depths", [[10, 20, 30], [30, 30, 30], [30]])
def test_a_backlog_that_does_not_fall_is_never_done(depths: list[int]) -> None:
    found = forecast(KEY, [(at(minute), depth) for minute, depth in enumerate(depths)], at(len(depths)), 1)
    assert found is not None
    assert (found.depth, found.empty_in_s, found.latest_s) == (30, None, None)
    assert outlook.forecasts([found])[1][0][4] == "not, as it is"


def test_minutes_without_events_keep_the_depth() -> None:
    assert forecast(KEY, [(at(0), 10), (at(5), 0)], at(6), 1) is None
    found = forecast(KEY, [(at(0), 100), (at(10), 50)], at(21), 1)
    assert found is not None
    assert found.change_per_minute == pytest.approx(-50 / 20)


def test_a_change_is_a_percentage_of_what_was() -> None:
    change = Change(
        namespace="default",
        queue="orders",
        group=None,
        before={"enqueued": 200, "acked": 0, "failed": 4},
        now={"enqueued": 250, "acked": 7, "failed": 0},
    )
    assert outlook.changes([change])[1] == [["orders", "-", "+25 %", "new", "-100 %", "-", "-", "-"]]
