"""The report as one HTML page without external files, so that it can be mailed or attached to a ticket."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from html import escape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from holdfast.pipeline.jobs import outlook
from holdfast.pipeline.jobs.charts import Curve, bar_chart, line_chart, nice_count, nice_ms, show, show_ms
from holdfast.pipeline.jobs.report import CURVES_MAX, Deaths, Point, QueueSummary, Report

UNLIKE = "Unlike other times"
STYLE = (Path(__file__).parent / "report.css").read_text()


def page(report: Report, made_at: datetime, console: str = "") -> str:
    """The whole page. Its findings link to the console at the URL `console`, if there is one, else into the page."""
    body = [
        "<h1>Queues</h1>",
        f'<p class="sub">{_when(report.since)} to {_when(report.until)} · a point is {_step(report.step_minutes)}</p>',
        _tiles(report),
        _findings(report, _Links(console.rstrip("/"), frozenset(one.queue for one in _charted(report)))),
        _overview(report),
        _groups(report),
        *_outlook(report),
        *[_queue(report, queue) for queue in _charted(report)],
        _deaths(report.deaths),
        _consumers(report),
        f"<footer>Made by Holdfast from its journal, {_when(made_at)}. Percentiles are right within 5 %.</footer>",
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"{'<base target=_top>' if console else ''}"  # in the console's frame, links lead out of it
        f"<title>Queues {_when(report.since)}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _charted(report: Report) -> list[QueueSummary]:
    """Queues that get charts of their own: the busiest of those in which something happened."""
    return [queue for queue in report.queues if queue.counts["enqueued"] or report.groups_of(queue)][:CURVES_MAX]


def _when(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M %Z").strip()


def _step(minutes: int) -> str:
    for size, unit in ((1_440, "day"), (60, "hour"), (1, "minute")):
        if minutes % size == 0:
            return f"{'an' if unit == 'hour' else 'a'} {unit}" if minutes == size else f"{minutes // size} {unit}s"
    raise AssertionError


def _tiles(report: Report) -> str:
    groups = [group for queue in report.work_queues for group in report.groups_of(queue)]
    enqueued = sum(queue.counts["enqueued"] for queue in report.work_queues)
    seconds = max((report.until - report.since).total_seconds(), 1)
    factor, unit = _unit([("", "", [enqueued / seconds])])
    leased = sum(group.counts["leased"] for group in groups)
    failed = sum(group.counts["failed"] for group in groups)
    tiles = [
        (show(enqueued), "messages enqueued"),
        (show(sum(group.counts["acked"] for group in groups)), "deliveries acked"),
        (show(enqueued / seconds * factor), f"enqueued {unit} on average"),
        (f"{failed / leased * 100:.3g} %" if leased else "–", "of leases failed and were tried again"),
        (show(sum(death.count for death in report.deaths)), "deliveries died"),
        (show(sum(queue.depth for queue in report.work_queues)), "messages to do at the end"),
        (show(sum(queue.depth for queue in report.dead_queues)), "in dead queues at the end"),
    ]
    return (
        '<div class="tiles">'
        + "".join(f'<div class="tile"><b>{value}</b><span>{name}</span></div>' for value, name in tiles)
        + "</div>"
    )


class _Links(NamedTuple):
    """Names of queues, with links to where more is said of them."""

    console: str
    charted: frozenset[str]

    def queue(self, name: str) -> str:
        place = f"{self.console}/queues/{quote(name, safe='')}" if self.console else f"#{_anchor(name)}"
        return self._named(name, place if self.console or name in self.charted else "")

    def dead_queue(self, name: str) -> str:
        return self._named(
            name, f"{self.console}/dead-letters/{quote(name, safe='')}" if self.console else "#dead-letters"
        )

    def _named(self, name: str, place: str) -> str:
        bold = f"<b>{escape(name)}</b>"
        return f'<a href="{escape(place)}">{bold}</a>' if place else bold


def _anchor(queue: str) -> str:
    return f"queue-{quote(queue, safe='')}"


def _gaps(report: Report) -> list[str]:
    """What is not in the report."""
    found: list[str] = []
    if report.quarantined:
        found.append(
            f"<b>{show(report.quarantined)} rows of the journal are in quarantine</b>: what follows them is not in this"
            " report. See the table <code>quarantine</code>."
        )
    if report.left_out:
        found.append(f"{show(report.left_out)} queues are left out, in which less happened.")
    return found


def _findings(report: Report, links: _Links) -> str:
    """The most important findings, as sentences."""
    found: list[str] = []
    if report.anomalies:
        strangest = report.anomalies[0]
        others = f", and {len(report.anomalies) - 1} more" if len(report.anomalies) > 1 else ""
        when = f'<a href="#unlike">unlike other times</a> at {strangest.since:%H:%M on %d %b}'
        found.append(f"{links.queue(strangest.queue)} was {when}: {outlook.told(strangest)}{others}.")
    for one in report.objectives:
        if not one.met:
            group = f", {escape(one.group)}" if one.group else ""
            good = f"{one.good / one.total * 100:.4g} % of {show(one.total)} were good"
            found.append(
                f"{links.queue(one.queue)}{group} misses its target for {one.what}: {good},"
                f" {one.share * 100:.4g} % should be."
            )
    found += _gaps(report)
    backlog = max(report.work_queues, key=lambda queue: queue.depth_max, default=None)
    if backlog is not None and backlog.depth_max:
        peak = max(backlog.points, key=lambda point: point.depth_max or 0)
        hour = f"{peak.at:%H:%M} on " if report.step_minutes < 1_440 else ""
        found.append(
            f"{links.queue(backlog.queue)} was the deepest: {show(backlog.depth_max)} messages around "
            f"{hour}{peak.at:%d %b}, {show(backlog.depth)} at the end."
        )
    groups = [group for queue in report.work_queues for group in report.groups_of(queue) if group.counts["leased"]]
    retrying = max(groups, key=lambda group: group.counts["failed"], default=None)
    if retrying is not None and retrying.counts["failed"]:
        found.append(
            f"{links.queue(retrying.queue)} failed most: {show(retrying.counts['failed'])} of "
            f"{show(retrying.counts['leased'])} leases ({retrying.retried * 100:.3g} %) were tried again."
        )
    waiting = max(groups, key=lambda group: group.wait.p95 or 0, default=None)
    if waiting is not None and waiting.wait.p95:
        found.append(
            f"{links.queue(waiting.queue)} kept messages waiting longest: 1 of 20 for more than "
            f"{show_ms(waiting.wait.p95)}."
        )
    if report.deaths:
        worst = report.deaths[0]
        why = f" <code>{escape(worst.error_pattern)}</code>" if worst.error_pattern else ""
        triage = f"holdfast pipeline triage --waiting --queue {shlex.quote(worst.queue)}"
        where = links.dead_queue(worst.dead_queue or worst.queue)
        found.append(
            f"Most dead letters: {show(worst.count)} of {escape(worst.queue)} in {where}, {escape(worst.reason)}{why}; "
            f"{show(worst.waiting)} still wait. By cause: <code>{escape(triage)}</code>."
        )
    if len(report.consumers) > 1:
        slowest, middle = report.consumers[0], report.consumers[len(report.consumers) // 2]
        if slowest.p95 > 2 * middle.p95:
            found.append(
                f"Consumer <b>{escape(slowest.consumer)}</b> of {escape(slowest.queue)} is slow: p95 "
                f"{show_ms(slowest.p95)}, others about {show_ms(middle.p95)}."
            )
    if not found:
        return ""
    return f'<ul class="found">{"".join(f"<li>{line}</li>" for line in found)}</ul>'


def _grid_of(report: Report, summaries: list[QueueSummary]) -> tuple[list[datetime], list[dict[datetime, Point]]]:
    """The instants of all curves, the same for every queue, and each summary's points by instant."""
    known = [{point.at: point for point in summary.points} for summary in summaries]
    step = timedelta(minutes=report.step_minutes)
    width = report.step_minutes * 60
    times = [datetime.fromtimestamp(report.since.timestamp() // width * width, UTC)]
    while times[-1] + step < report.until:
        times.append(times[-1] + step)
    return times, known


def _rates(report: Report, name: str, times: list[datetime], known: list[dict[datetime, Point]]) -> list[float]:
    seconds = report.step_minutes * 60
    return [sum(getattr(points[at], name) for points in known if at in points) / seconds for at in times]


def _unit(curves: list[Curve]) -> tuple[float, str]:
    """The unit in which the highest of these rates a second is at least one."""
    high = max((value for _, _, values in curves for value in values if value is not None), default=0.0)
    return next(
        ((factor, name) for factor, name in ((1, "per second"), (60, "per minute")) if high * factor >= 1),
        (3600, "per hour"),
    )


def _depths(times: list[datetime], known: list[dict[datetime, Point]]) -> list[float]:
    """The greatest depth at each point. The depth at the end of a point holds until the next one."""
    totals = [0.0] * len(times)
    for points in known:
        depth = 0
        for index, at in enumerate(times):
            point = points.get(at)
            totals[index] += depth if point is None else point.depth_max or 0
            depth = depth if point is None else point.depth or 0
    return totals


def _throughput(report: Report, queues: list[QueueSummary]) -> str:
    groups = [group for queue in queues for group in report.groups_of(queue)]
    times, of_all = _grid_of(report, [*queues, *groups])
    of_queues, of_groups = of_all[: len(queues)], of_all[len(queues) :]
    through: list[Curve] = [
        ("enqueued", "c1", _rates(report, "enqueued", times, of_queues)),
        ("acked", "c2", _rates(report, "acked", times, of_groups)),
        ("failed", "c3", _rates(report, "failed", times, of_groups)),
        ("dead", "c4", _rates(report, "dead", times, of_groups)),
    ]
    drawn = [one for one in through if any(one[2]) or one[0] in {"enqueued", "acked"}]
    factor, unit = _unit(drawn)
    scaled: list[Curve] = [
        (name, colour, [(value or 0) * factor for value in values]) for name, colour, values in drawn
    ]
    return f'<div class="card"><h3>Throughput</h3>{line_chart(times, scaled, unit)}</div>'


def _depth(report: Report, queues: list[QueueSummary]) -> str:
    """Stored messages; for one queue with several groups also what each has not settled yet."""
    times, known = _grid_of(report, queues)
    curves: list[Curve] = [("stored", "c5", _depths(times, known))]
    groups = report.groups_of(queues[0]) if len(queues) == 1 else []
    if len(groups) > 1:
        for group, colour in zip(groups, ("c1", "c2", "c3"), strict=False):
            curves.append((f"to do for {group.group}", colour, _depths(times, _grid_of(report, [group])[1])))
    chart = line_chart(times, curves, "messages", filled=len(curves) == 1, end=nice_count)
    return f'<div class="card"><h3>Depth</h3>{chart}</div>'


def _latency(report: Report, queue: QueueSummary) -> str:
    """Waiting and processing times, point by point; of several groups the busiest."""
    groups = sorted(report.groups_of(queue), key=lambda group: -group.counts["leased"])
    if not groups or not groups[0].counts["leased"]:
        return ""
    group = groups[0]
    times, (known,) = _grid_of(report, [group])
    cards: list[str] = []
    for title, field in (("Waiting time", "wait"), ("Processing time", "processing")):
        percentiles = [getattr(known[at], field) if at in known else None for at in times]
        curves: list[Curve] = [
            (name, colour, [getattr(one, name) if one is not None else None for one in percentiles])
            for name, colour in (("p50", "c2"), ("p95", "c3"), ("p99", "c4"))
        ]
        of = f" in {escape(group.group or '')}" if len(groups) > 1 else ""
        chart = line_chart(times, curves, "", say=show_ms, end=nice_ms)
        cards.append(f'<div class="card"><h3>{title}{of}</h3>{chart}</div>')
    return f'<div class="two">{"".join(cards)}</div>'


def _charts(report: Report, queues: list[QueueSummary]) -> str:
    return f'<div class="two">{_throughput(report, queues)}{_depth(report, queues)}</div>'


def _overview(report: Report) -> str:
    return "<h2>All queues</h2>" + _charts(report, report.work_queues or report.queues)


def _queue(report: Report, queue: QueueSummary) -> str:
    return (
        f'<h2 id="{escape(_anchor(queue.queue))}">{escape(_name(queue))}</h2>'
        + _charts(report, [queue])
        + _latency(report, queue)
    )


def _name(summary: QueueSummary) -> str:
    return summary.queue if summary.namespace == "default" else f"{summary.namespace} / {summary.queue}"


def _groups(report: Report) -> str:
    head = (
        ("queue", "group"),
        ("enqueued", "acked", "retried", "dead", "depth", "wait p50", "p95", "p99", "work p50", "p95", "p99"),
    )
    rows: list[str] = []
    for queue in report.queues:
        for index, group in enumerate(report.groups_of(queue) or [queue]):
            cells = [
                show(queue.counts["enqueued"]),
                show(group.counts["acked"]),
                f"{group.retried * 100:.3g} %",
                show(group.counts["dead"]),
                show(group.depth),
                *(show_ms(value) for value in (group.wait.p50, group.wait.p95, group.wait.p99)),
                *(show_ms(value) for value in (group.processing.p50, group.processing.p95, group.processing.p99)),
            ]
            name = escape(_name(queue)) if index == 0 else ""
            numbers = "".join(f'<td class="n">{cell}</td>' for cell in cells)
            rows.append(f"<tr><td>{name}</td><td>{escape(group.group or '–')}</td>{numbers}</tr>")
    titles = "".join(f"<th>{name}</th>" for name in head[0]) + "".join(f'<th class="n">{name}</th>' for name in head[1])
    return f'<div class="card scroll"><table><tr>{titles}</tr>{"".join(rows)}</table></div>'


def _outlook(report: Report) -> list[str]:
    """Targets, backlogs and the time before."""
    parts = []
    for title, (titles, rows) in (
        ("Targets", outlook.objectives(report.objectives)),
        ("Backlogs, if it goes on like this", outlook.forecasts(report.forecasts)),
        ("Against the same time before", outlook.changes(report.changes)),
        (UNLIKE, outlook.anomalies(report.anomalies)),
    ):
        if rows:
            head = "".join(f"<th>{escape(name)}</th>" for name in titles)
            body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
            anchor = ' id="unlike"' if title == UNLIKE else ""
            parts.append(f'<h2{anchor}>{title}</h2><div class="card scroll"><table><tr>{head}</tr>{body}</table></div>')
    return parts


def _deaths(deaths: list[Deaths]) -> str:
    if not deaths:
        return '<h2 id="dead-letters">Dead letters</h2><p class="none">None in this time.</p>'
    reasons: dict[str, int] = {}
    queues: dict[str, int] = {}
    for death in deaths:
        reasons[death.reason] = reasons.get(death.reason, 0) + death.count
        queues[death.queue] = queues.get(death.queue, 0) + death.count
    bars = [
        bar_chart([(name, count, "c4") for name, count in sorted(found.items(), key=lambda item: -item[1])[:10]])
        for found in (reasons, queues)
    ]
    rows = "".join(
        f"<tr><td>{escape(death.queue)}</td><td>{escape(death.reason)}</td>"
        f"<td><code>{escape(death.error_pattern or '–')}</code></td>"
        f'<td class="n">{show(death.count)}</td><td class="n">{show(death.waiting)}</td></tr>'
        for death in deaths[:25]
    )
    return (
        f'<h2 id="dead-letters">Dead letters</h2><div class="two"><div class="card"><h3>By reason</h3>{bars[0]}</div>'
        f'<div class="card"><h3>By queue</h3>{bars[1]}</div></div><div class="card scroll"><table>'
        '<tr><th>queue</th><th>reason</th><th>error</th><th class="n">deaths</th><th class="n">waiting</th></tr>'
        f"{rows}</table></div>"
    )


def _consumers(report: Report) -> str:
    if not report.consumers:
        return ""
    rows = "".join(
        f"<tr><td>{escape(one.consumer)}</td><td>{escape(one.queue)}</td><td>{escape(one.group or '–')}</td>"
        f'<td class="n">{show(one.acked)}</td><td class="n">{show_ms(one.p50)}</td>'
        f'<td class="n">{show_ms(one.p95)}</td></tr>'
        for one in report.consumers
    )
    return (
        '<h2>Slowest consumers</h2><div class="card scroll"><table><tr><th>consumer</th><th>queue</th><th>group</th>'
        f'<th class="n">acked</th><th class="n">p50</th><th class="n">p95</th></tr>{rows}</table></div>'
    )
