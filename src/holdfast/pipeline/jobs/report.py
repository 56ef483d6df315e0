"""`report`: throughput, depth, times and dead letters of the queues in a range of time. report_page.py draws it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast.core.queue import DEAD_PREFIX
from holdfast.errors import InvalidArgument
from holdfast.pipeline.build.timeline import percentile
from holdfast.pipeline.jobs.anomalies import Anomaly, anomalies
from holdfast.pipeline.jobs.objectives import Change, Forecast, Objective, Target, forecast, objectives
from holdfast.pipeline.lake.tables import MINUTE_COUNTS
from holdfast.pipeline.spark.stages import Stages

POINTS_MAX = 240
"""Points of a curve: one for every few pixels of a chart."""

CONSUMERS_MAX = 15
DEATHS_MAX = 200
CURVES_MAX = 12
"""Queues whose percentiles are also computed for each point: the busiest."""

QUEUES_MAX = 500
"""Queues in a report: those in which most happened, or was left. Each has points for itself and its groups."""

_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 240, 360, 720, 1440, 2880, 10080, 43200]


class Percentiles(msgspec.Struct, frozen=True):
    """Milliseconds; None: nothing was measured."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class Point(msgspec.Struct, frozen=True):
    """A point of a curve, for a step of time."""

    at: datetime
    enqueued: int = 0
    acked: int = 0
    failed: int = 0
    dead: int = 0
    depth: int | None = None
    """At its end."""
    depth_max: int | None = None
    """The deepest of its minutes."""
    wait: Percentiles | None = None
    """Of the queues that have curves of their own (`CURVES_MAX`)."""
    processing: Percentiles | None = None


class QueueSummary(msgspec.Struct, kw_only=True):
    """A queue (group None) or one of its groups."""

    namespace: str
    queue: str
    group: str | None
    counts: dict[str, int]
    depth: int
    depth_max: int
    wait: Percentiles = Percentiles()
    processing: Percentiles = Percentiles()
    points: list[Point] = []

    @property
    def retried(self) -> float:
        """Failures for each lease."""
        return self.counts["failed"] / self.counts["leased"] if self.counts["leased"] else 0.0


class Deaths(msgspec.Struct, frozen=True):
    namespace: str
    queue: str
    reason: str
    error_pattern: str
    count: int
    waiting: int
    dead_queue: str | None = None


class ReportedConsumer(msgspec.Struct, frozen=True):
    namespace: str
    queue: str
    group: str | None
    consumer: str
    acked: int
    p50: float
    p95: float


class Report(msgspec.Struct, kw_only=True):
    since: datetime
    until: datetime
    step_minutes: int
    summaries: list[QueueSummary]
    deaths: list[Deaths]
    consumers: list[ReportedConsumer]
    forecasts: list[Forecast] = []
    """Of groups that have something to do."""
    objectives: list[Objective] = []
    changes: list[Change] = []
    """Against the same length of time before, if that was wanted."""
    anomalies: list[Anomaly] = []
    """What is unlike other times, if that was wanted."""
    left_out: int = 0
    """Queues that are not in the report, because more happened in others, or was left in them."""
    quarantined: int = 0
    """Rows of the journal that fail an expectation: what follows them is not in the tables."""

    @property
    def queues(self) -> list[QueueSummary]:
        return [summary for summary in self.summaries if summary.group is None]

    @property
    def dead_queues(self) -> list[QueueSummary]:
        """Queues that hold dead letters. They are not counted as work: their messages were counted where they died."""
        named = {(death.namespace, death.dead_queue) for death in self.deaths}
        return [one for one in self.queues if one.queue.startswith(DEAD_PREFIX) or (one.namespace, one.queue) in named]

    @property
    def work_queues(self) -> list[QueueSummary]:
        dead = self.dead_queues
        return [queue for queue in self.queues if queue not in dead]

    def groups_of(self, queue: QueueSummary) -> list[QueueSummary]:
        key = (queue.namespace, queue.queue)
        return [one for one in self.summaries if one.group is not None and (one.namespace, one.queue) == key]


def report(
    minutes: DataFrame,
    messages: DataFrame,
    dead_letters: DataFrame,
    stages: Stages,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    queue: str = "",
    targets: Sequence[Target] = (),
    compare: bool = False,
    unusual: bool = False,
) -> Report:
    """The report from `since` to `until`; without them from the first minute to the last. `compare`: also with the same
    length of time before. `unusual`: also what is unlike all times before and in the range."""
    if queue:
        minutes, messages = minutes.where(F.col("queue") == queue), messages.where(F.col("queue") == queue)
        dead_letters = dead_letters.where(F.col("source_queue") == queue)
    with stages.stage("find the range"):
        since, until, queues = _range(minutes, since, until)
    step = step_for(since, until)
    left_out, every = max(queues - QUEUES_MAX, 0), minutes
    if left_out:
        minutes = minutes.join(F.broadcast(_busiest(minutes, since, until)), ["namespace", "queue"], "left_semi")
    inside = minutes.where((F.col("minute") >= F.lit(since)) & (F.col("minute") < F.lit(until)))
    stages.explain("queue_minutes", inside)
    with stages.stage("add up minutes"):
        summaries = _summaries(inside, step)
        _carry_forward(minutes.where(F.col("minute") < F.lit(since)), summaries, since, step)
    with stages.stage("percentiles"):
        _measure(inside, summaries)
        _measure_points(inside, summaries, step)
    with stages.stage("deaths"):
        deaths = _deaths(dead_letters.where((F.col("died_at") >= F.lit(since)) & (F.col("died_at") < F.lit(until))))
    with stages.stage("consumers"):
        consumers = _consumers(messages.where((F.col("ended_at") >= F.lit(since)) & (F.col("ended_at") < F.lit(until))))
    ordered = sorted(
        summaries.values(), key=lambda one: (-one.counts["enqueued"], one.namespace, one.queue, one.group or "")
    )
    found = Report(since=since, until=until, step_minutes=step, summaries=ordered, deaths=deaths, consumers=consumers)
    found.left_out = left_out
    found.forecasts = _forecasts(found)
    if targets:
        with stages.stage("targets"):
            whole = every.where((F.col("minute") >= F.lit(since)) & (F.col("minute") < F.lit(until)))
            found.objectives = objectives(whole, since, until, targets)
    if compare:
        with stages.stage("the time before"):
            earlier = (F.col("minute") >= F.lit(since - (until - since))) & (F.col("minute") < F.lit(since))
            found.changes = _changes(minutes.where(earlier), found)
    if unusual:
        with stages.stage("anomalies"):
            found.anomalies = anomalies(every, messages, since, until)
    return found


def _forecasts(report: Report) -> list[Forecast]:
    groups = [group for queue in report.work_queues for group in report.groups_of(queue) or [queue]]
    made = [
        forecast(
            (one.namespace, one.queue, one.group),
            [(point.at, point.depth) for point in one.points if point.depth is not None],
            report.until,
            report.step_minutes,
        )
        for one in groups
    ]
    return [one for one in made if one is not None]


def _changes(earlier: DataFrame, report: Report) -> list[Change]:
    """Counts and times of each group then and now."""
    before = _summaries(earlier, report.step_minutes)
    _measure(earlier, before)
    now = {(one.namespace, one.queue, one.group): one for one in report.summaries}
    return [
        Change(
            namespace=key[0], queue=key[1], group=key[2], before=_compared(before.get(key)), now=_compared(now.get(key))
        )
        for key in sorted({*before, *now}, key=str)
    ]


def _compared(summary: QueueSummary | None) -> dict[str, float | None]:
    if summary is None:
        return {}
    counts = {name: summary.counts[name] for name in ("enqueued", "acked", "failed", "dead")}
    return {**counts, "wait_p95_ms": summary.wait.p95, "processing_p95_ms": summary.processing.p95}


def _busiest(minutes: DataFrame, since: datetime, until: datetime) -> DataFrame:
    """The queues with the most messages stored and leased in a range, or left at its end: one that stands still is what
    a report is for."""
    inside = F.col("minute") >= F.lit(since)
    happened = F.coalesce(F.sum(F.when(inside, F.col("enqueued") + F.col("leased"))), F.lit(0))
    left = F.coalesce(F.max_by("depth", F.when(F.col("group").isNull(), F.col("minute"))), F.lit(0))
    earlier = minutes.where(F.col("minute") < F.lit(until))
    counted = earlier.groupBy("namespace", "queue").agg((happened + left).alias("busy"))
    return counted.orderBy(F.desc("busy"), "namespace", "queue").limit(QUEUES_MAX).drop("busy")


def _range(minutes: DataFrame, since: datetime | None, until: datetime | None) -> tuple[datetime, datetime, int]:
    """The range, and how many queues there are."""
    queues = F.count_distinct("namespace", "queue")
    found = minutes.agg(F.unix_seconds(F.min("minute")), F.unix_seconds(F.max("minute")), queues).collect()[0]
    if found[0] is None:
        raise InvalidArgument(
            field="the lake", problem="holds no minute of such a queue; look at `--queue`, or build first"
        )
    first, last = (datetime.fromtimestamp(seconds, UTC) for seconds in found[:2])
    since, until = since or first, until or last + timedelta(minutes=1)
    if since >= until:
        raise InvalidArgument(field="--since", problem=f"must be before --until, and {since} is not before {until}")
    return since, until, found[2]


def step_for(since: datetime, until: datetime) -> int:
    """Minutes for each point of a curve."""
    minutes = (until - since).total_seconds() / 60
    return next((step for step in _STEPS if minutes / step <= POINTS_MAX), int(minutes // POINTS_MAX) + 1)


def _summaries(inside: DataFrame, step: int) -> dict[tuple[str, str, str | None], QueueSummary]:
    width = 60 * step
    bucket = (F.floor(F.unix_seconds("minute") / width) * width).alias("at")
    summed = inside.groupBy("namespace", "queue", "group", bucket).agg(
        *[F.sum(name).alias(name) for name in MINUTE_COUNTS],
        F.max(F.struct("minute", "depth")).getField("depth").alias("depth"),
        F.max("depth").alias("depth_max"),
    )
    found: dict[tuple[str, str, str | None], QueueSummary] = {}
    for row in summed.orderBy("at").collect():
        key = (row["namespace"], row["queue"], row["group"])
        summary = found.get(key)
        if summary is None:
            summary = found[key] = _empty_summary(key)
        for name in MINUTE_COUNTS:
            summary.counts[name] += row[name]
        summary.depth = row["depth"]
        summary.depth_max = max(summary.depth_max, row["depth_max"])
        at = datetime.fromtimestamp(row["at"], UTC)
        counts = (row["enqueued"], row["acked"], row["failed"], row["dead"])
        summary.points.append(Point(at, *counts, row["depth"], row["depth_max"]))
    return found


def _carry_forward(
    earlier: DataFrame, summaries: dict[tuple[str, str, str | None], QueueSummary], since: datetime, step: int
) -> None:
    """Queues and groups begin with the depth of their last minute before the range, and keep it if nothing happens."""
    width = 60 * step
    at = datetime.fromtimestamp(since.timestamp() // width * width, UTC)
    last = earlier.groupBy("namespace", "queue", "group").agg(F.max(F.struct("minute", "depth")).alias("last"))
    for row in last.where("last.depth != 0").collect():
        key, depth = (row["namespace"], row["queue"], row["group"]), row["last"]["depth"]
        summary = summaries.get(key)
        if summary is None:
            summary = summaries[key] = _empty_summary(key)
            summary.depth = depth
        summary.depth_max = max(summary.depth_max, depth)
        if not summary.points or summary.points[0].at > at:
            summary.points.insert(0, Point(at, 0, 0, 0, 0, depth, depth))


def _empty_summary(key: tuple[str, str, str | None]) -> QueueSummary:
    return QueueSummary(
        namespace=key[0],
        queue=key[1],
        group=key[2],
        counts=dict.fromkeys(MINUTE_COUNTS, 0),
        depth=0,
        depth_max=0,
        points=[],
    )


def _measure(inside: DataFrame, summaries: dict[tuple[str, str, str | None], QueueSummary]) -> None:
    """Percentiles of waiting and processing times, from the sum of the minutes' histograms."""
    for column, field in (("waits", "wait"), ("processings", "processing")):
        exploded = inside.select("namespace", "queue", "group", F.explode(column).alias("bucket", "value"))
        summed = exploded.groupBy("namespace", "queue", "group", "bucket").agg(F.sum("value").alias("value"))
        histograms: dict[tuple[str, str, str | None], dict[int, int]] = {}
        for row in summed.collect():
            histograms.setdefault((row[0], row[1], row[2]), {})[row[3]] = row[4]
        for key, histogram in histograms.items():
            setattr(summaries[key], field, Percentiles(*(percentile(histogram, percent) for percent in (50, 95, 99))))


def _measure_points(inside: DataFrame, summaries: dict[tuple[str, str, str | None], QueueSummary], step: int) -> None:
    """The same for each point, for the groups of the busiest queues."""
    busy = sorted((one for one in summaries.values() if one.group is None), key=lambda one: -one.counts["enqueued"])
    names = {(one.namespace, one.queue) for one in busy[:CURVES_MAX]}
    width = 60 * step
    at = (F.floor(F.unix_seconds("minute") / width) * width).alias("at")
    chosen = inside.where(F.col("group").isNotNull() & F.col("queue").isin([queue for _, queue in names]))
    found: dict[tuple[str, str, str | None], dict[datetime, dict[str, Percentiles]]] = {}
    for column, field in (("waits", "wait"), ("processings", "processing")):
        exploded = chosen.select("namespace", "queue", "group", at, F.explode(column).alias("bucket", "value"))
        summed = exploded.groupBy("namespace", "queue", "group", "at", "bucket").agg(F.sum("value").alias("value"))
        histograms: dict[tuple[tuple[str, str, str | None], int], dict[int, int]] = {}
        for row in summed.collect():
            histograms.setdefault(((row[0], row[1], row[2]), row[3]), {})[row[4]] = row[5]
        for (key, seconds), histogram in histograms.items():
            percentiles = Percentiles(*(percentile(histogram, percent) for percent in (50, 95, 99)))
            found.setdefault(key, {}).setdefault(datetime.fromtimestamp(seconds, UTC), {})[field] = percentiles
    for key, points in found.items():
        summary = summaries[key]
        summary.points = [msgspec.structs.replace(point, **points.get(point.at, {})) for point in summary.points]


def _deaths(inside: DataFrame) -> list[Deaths]:
    counted = inside.groupBy("namespace", "source_queue", "reason", "error_pattern").agg(
        F.count("*").alias("count"),
        F.sum(F.col("outcome").isNull().cast("int")).alias("waiting"),
        F.max("dead_queue").alias("dead_queue"),
    )
    rows = counted.orderBy(F.desc("count"), "source_queue").limit(DEATHS_MAX).collect()
    return [Deaths(row[0], row[1], row[2] or "", *row[3:]) for row in rows]


def _consumers(inside: DataFrame) -> list[ReportedConsumer]:
    """The slowest consumers, by the 95th percentile of their processing times."""
    timed = inside.where("outcome = 'acked' AND consumer IS NOT NULL AND processing_ms IS NOT NULL")
    measured = timed.groupBy("namespace", "queue", "group", "consumer").agg(
        F.count("*").alias("acked"), F.percentile_approx("processing_ms", [0.5, 0.95], 1000).alias("times")
    )
    rows = measured.orderBy(F.desc(F.col("times")[1]), "consumer").limit(CONSUMERS_MAX).collect()
    return [ReportedConsumer(*row[:5], *row[5]) for row in rows]
