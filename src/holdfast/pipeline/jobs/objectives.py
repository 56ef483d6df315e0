"""What managers ask of a report: are targets met, how does it compare with the time before, when is a backlog done?

A target says which share of deliveries must be good. The rest is the error budget of the range: `burn_rate` 1 uses it
up exactly, 2 in half of the time; `recent_burn_rate` is that of the last twelfth of the range, which tells an incident
that goes on from one that is over. A wait or processing time is good if it is at most the target's; it is taken from
the histograms of `queue_minutes`, so a target is rounded to their buckets (9 %).
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

import msgspec
from msgspec import structs
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast.errors import InvalidArgument
from holdfast.pipeline.build.timeline import milliseconds
from holdfast.units import parse_duration

RECENT_SHARE = 12
FORECAST_STEPS = 30
"""Points that a forecast is made from: the last ones."""

CONFIDENCE = 1.96
"""Standard errors on each side: 95 of 100 forecasts are right if the load stays as it is."""

FAILURES = ("failed", "dead", "dropped", "expired")
Key = tuple[str, str, str | None]


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A target for a queue's groups, or one of them, as it is written in the file."""

    queue: str
    group: str | None = None
    namespace: str = "default"
    wait: str | None = None
    processing: str | None = None
    share: float = 0.99
    """Of deliveries, that wait or take no longer."""
    failures: float | None = None
    """The share of leases that may fail."""


class Targets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    target: list[Target]


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """A target and what was."""

    namespace: str
    queue: str
    group: str | None
    what: str
    """`wait`, `processing` or `failures`."""
    limit_ms: float | None
    share: float
    """That must be good."""
    total: int
    good: int
    burn_rate: float | None
    recent_burn_rate: float | None

    @property
    def met(self) -> bool:
        return self.total == 0 or self.good >= self.share * self.total

    @property
    def budget_left(self) -> float:
        """The share of the error budget that is left; below 0 the target is missed."""
        return 1.0 if self.burn_rate is None else 1.0 - self.burn_rate


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """When a group has done what it has to do, if messages come and go as in the last points."""

    namespace: str
    queue: str
    group: str | None
    depth: int
    change_per_minute: float
    """Of the depth."""
    empty_in_s: float | None = None
    """None: the depth does not fall."""
    earliest_s: float | None = None
    latest_s: float | None = None
    """None: it may never be done, or there are too few points to say."""


# --- targets ----------------------------------------------------------------------------------------------------------


def read_targets(path: Path) -> list[Target]:
    """The targets of a TOML file."""
    try:
        targets = msgspec.convert(tomllib.loads(path.read_text()), Targets).target
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise InvalidArgument(field="--targets", problem=f"cannot be read from {path}: {error}") from error
    for target in targets:
        if target.wait is None and target.processing is None and target.failures is None:
            raise _invalid(target, "says nothing: give `wait`, `processing` or `failures`")
        if not 0 < target.share < 1 or not 0 < (target.failures or 0.5) < 1:
            raise _invalid(target, "has a share that is not between 0 and 1")
        for duration in (target.wait, target.processing):
            if duration is not None:
                _milliseconds(target, duration)
    return targets


def _invalid(target: Target, problem: str) -> InvalidArgument:
    return InvalidArgument(field="--targets", problem=f"the target of {target.queue!r} {problem}")


def _milliseconds(target: Target, duration: str) -> float:
    try:
        return parse_duration(duration) / 1000
    except ValueError as error:
        raise _invalid(target, f"has a duration that is none: {error}") from error


def sums(minutes: DataFrame) -> dict[Key, dict[str, dict[int, int]]]:
    """By queue and group: the histograms of its times, and under `counts` its leases (0) and failures (1)."""
    failed = sum((F.col(name) for name in FAILURES[1:]), F.col(FAILURES[0]))
    counts = F.map_from_arrays(F.array(F.lit(0), F.lit(1)), F.array("leased", failed))
    parts = [
        minutes.select("namespace", "queue", "group", F.lit(name).alias("what"), F.explode(column).alias("at", "value"))
        for name, column in (("wait", F.col("waits")), ("processing", F.col("processings")), ("counts", counts))
    ]
    rows = parts[0].union(parts[1]).union(parts[2]).groupBy("namespace", "queue", "group", "what", "at")
    found: dict[Key, dict[str, dict[int, int]]] = {}
    for row in rows.agg(F.sum("value").alias("value")).collect():
        found.setdefault((row[0], row[1], row[2]), {}).setdefault(row[3], {})[row[4]] = row[5]
    return found


def objectives(inside: DataFrame, since: datetime, until: datetime, targets: Sequence[Target]) -> list[Objective]:
    """Each target in each of the groups that it names, from `queue_minutes` in a range."""
    recent = until - (until - since) / RECENT_SHARE
    whole, last = sums(inside), sums(inside.where(F.col("minute") >= F.lit(recent)))
    return [one for target in targets for one in measured(target, whole, last)]


def measured(
    target: Target, whole: dict[Key, dict[str, dict[int, int]]], last: dict[Key, dict[str, dict[int, int]]]
) -> Iterator[Objective]:
    """A target in its groups, from what `sums` gives for the range and for its last part."""
    for key in sorted(whole, key=str):
        namespace, queue, group = key
        if (namespace, queue) != (target.namespace, target.queue) or group is None:
            continue
        if target.group not in (None, group):
            continue
        wanted: list[tuple[str, float | None, float]] = [
            (what, _milliseconds(target, limit), target.share)
            for what, limit in (("wait", target.wait), ("processing", target.processing))
            if limit is not None
        ]
        if target.failures is not None:
            wanted.append(("failures", None, 1 - target.failures))
        for what, limit_ms, share in wanted:
            total, good = _good(whole.get(key, {}), what, limit_ms)
            recent_total, recent_good = _good(last.get(key, {}), what, limit_ms)
            yield Objective(
                namespace=namespace,
                queue=queue,
                group=group,
                what=what,
                limit_ms=limit_ms,
                share=share,
                total=total,
                good=good,
                burn_rate=_burn_rate(total, good, share),
                recent_burn_rate=_burn_rate(recent_total, recent_good, share),
            )


def _good(found: dict[str, dict[int, int]], what: str, limit_ms: float | None) -> tuple[int, int]:
    """How many there were, and how many of them were good."""
    if limit_ms is None:
        leased, failed = (found.get("counts", {}).get(number, 0) for number in (0, 1))
        return leased, max(leased - failed, 0)
    histogram = found.get(what, {})
    good = sum(count for bucket, count in histogram.items() if milliseconds(bucket) <= limit_ms)
    return sum(histogram.values()), good


def _burn_rate(total: int, good: int, share: float) -> float | None:
    return (total - good) / total / (1 - share) if total else None


# --- forecasts --------------------------------------------------------------------------------------------------------


def forecast(key: Key, depths: Sequence[tuple[datetime, int]], until: datetime, step_minutes: int) -> Forecast | None:
    """When a group is done, from its depths at the ends of steps, each named by its beginning; None if it has nothing
    to do. A step without a depth has that of the step before."""
    if not depths or not depths[-1][1]:
        return None
    step = timedelta(minutes=step_minutes)
    steps = max(-((depths[0][0] - until) // step), 1)
    grid: list[int] = [depths[0][1]] * steps
    for at, depth in depths:
        first = (at - depths[0][0]) // step
        grid[first:] = [depth] * (steps - first)
    changes = [later - earlier for earlier, later in pairwise(grid[-FORECAST_STEPS - 1 :])]
    mean = fmean(changes) if changes else 0.0
    namespace, queue, group = key
    left, seconds = depths[-1][1], step.total_seconds()
    made = Forecast(namespace=namespace, queue=queue, group=group, depth=left, change_per_minute=mean / step_minutes)
    if mean >= 0:
        return made
    made = structs.replace(made, empty_in_s=left / -mean * seconds)
    if len(changes) < 2:
        return made
    error = CONFIDENCE * stdev(changes) / math.sqrt(len(changes))
    latest = left / (-mean - error) * seconds if error < -mean else None
    return structs.replace(made, earliest_s=left / (error - mean) * seconds, latest_s=latest)


# --- the time before --------------------------------------------------------------------------------------------------


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's group against the same length of time before."""

    namespace: str
    queue: str
    group: str | None
    before: dict[str, float | None]
    now: dict[str, float | None]
