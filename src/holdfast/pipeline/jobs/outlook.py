"""Forecasts, targets and comparisons as tables of text: for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.pipeline.jobs.anomalies import Anomaly
from holdfast.pipeline.jobs.charts import show, show_ms
from holdfast.pipeline.jobs.objectives import Change, Forecast, Objective

Table = tuple[list[str], list[list[str]]]
"""Titles, and rows."""

_COMPARED = ("enqueued", "acked", "failed", "dead", "wait_p95_ms", "processing_p95_ms")


def forecasts(found: Sequence[Forecast]) -> Table:
    titles = ["queue", "group", "depth", "change a minute", "done in", "at the earliest", "at the latest"]
    rows = [
        [
            one.queue,
            one.group or "-",
            show(one.depth),
            f"{one.change_per_minute:+.3g}",
            "not, as it is" if one.empty_in_s is None else show_ms(one.empty_in_s * 1000),
            "-" if one.earliest_s is None else show_ms(one.earliest_s * 1000),
            "-" if one.latest_s is None else show_ms(one.latest_s * 1000),
        ]
        for one in found
    ]
    return titles, rows


def objectives(found: Sequence[Objective]) -> Table:
    titles = ["queue", "group", "target", "good", "wanted", "budget left", "burn rate", "lately", ""]
    rows = [
        [
            one.queue,
            one.group or "-",
            one.what if one.limit_ms is None else f"{one.what} ≤ {show_ms(one.limit_ms)}",
            f"{one.good / one.total * 100:.4g} %" if one.total else "-",
            f"{one.share * 100:.4g} %",
            f"{one.budget_left * 100:.3g} %",
            "-" if one.burn_rate is None else f"{one.burn_rate:.2g}",
            "-" if one.recent_burn_rate is None else f"{one.recent_burn_rate:.2g}",
            "met" if one.met else "missed",
        ]
        for one in found
    ]
    return titles, rows


def changes(found: Sequence[Change]) -> Table:
    titles = ["queue", "group", "enqueued", "acked", "failed", "dead", "wait p95", "work p95"]
    rows = [
        [one.queue, one.group or "-", *(percent(one.before.get(name), one.now.get(name)) for name in _COMPARED)]
        for one in found
    ]
    return titles, rows


_WHAT = {"wait_p95_ms": "wait p95", "processing_p95_ms": "work p95"}


def anomalies(found: Sequence[Anomaly]) -> Table:
    titles = ["from", "to", "queue", "group", "what", "was", "usual", "messages", "for example", "error"]
    rows = [
        [
            f"{one.since:%Y-%m-%d %H:%M}",
            f"{one.until:%Y-%m-%d %H:%M}",
            one.queue,
            one.group or "-",
            _WHAT.get(one.what, one.what),
            *map(show_ms if one.what in _WHAT else show, (one.value, one.usual)),
            show(one.behind.messages),
            " ".join(map(str, one.behind.examples)) or "-",
            one.behind.error or "-",
        ]
        for one in found
    ]
    return titles, rows


def told(one: Anomaly) -> str:
    """An anomaly in a few words."""
    spell = show_ms if one.what in _WHAT else show
    return f"{_WHAT.get(one.what, one.what)} {spell(one.value)} instead of {spell(one.usual)}"


def percent(before: float | None, now: float | None) -> str:
    """A change as people read it."""
    if not before:
        return "new" if now else "-"
    return f"{((now or 0) - before) / before * 100:+.0f} %"
