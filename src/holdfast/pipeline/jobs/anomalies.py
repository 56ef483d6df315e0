"""What was unlike other times: steps of `queue_minutes` that are far from what is usual at that time of day or week.

A step is compared with the same steps of other days (of other weeks, once there are two), and their neighbours: with
the median and the median deviation from it, which a few strange days do not move. A count deviates at least by its
square root, as counts of independent things do, so a quiet queue is not strange because three messages came. Minutes
without a row count as zero: silence is found too. A queue that is younger than two hours is not judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

STEP_MINUTES = 10
DEVIATIONS = 6.0
"""Far: of normal deviations one in a billion is, of what queues do still few."""

NEIGHBOURS = 2
"""Steps on each side that count as the same time."""

STEPS_NEEDED = 12
"""Fewer than so many steps of that time say nothing."""

NORMAL = 1.4826
"""Median deviations to standard deviations, of a normal distribution."""

SHARE_USUAL = 0.1
"""A time or a depth deviates at least by this share of what is usual."""

LEAST_MS, LEAST_DEPTH = 50.0, 5.0
"""It deviates at least by these: six of them are nobody's incident."""

ANOMALIES_MAX = 50
FLAGGED_MAX = 10_000
EXAMPLES = 3

DAY, WEEK = 86_400, 7 * 86_400
_KEY = ("namespace", "queue", "group")
_OF_QUEUE = ("enqueued", "depth")
_COUNTS = ("enqueued", "acked", "failures")
_TIMES = ("wait_p95_ms", "processing_p95_ms")
_BOTH_WAYS = ("enqueued", "acked")
"""Too few of these are strange as well."""


class Behind(msgspec.Struct, frozen=True, kw_only=True):
    """The messages behind an anomaly."""

    messages: int = 0
    examples: list[int] = []
    """The worst of them."""
    error: str | None = None
    """The most frequent."""
    consumer: str | None = None


class Anomaly(msgspec.Struct, kw_only=True):
    namespace: str
    queue: str
    group: str | None
    what: str
    """`enqueued`, `acked` or `failures` (in a step), `depth`, `wait_p95_ms` or `processing_p95_ms`."""
    since: datetime
    until: datetime
    value: float
    """The farthest."""
    usual: float
    """The median at that time."""
    deviations: float
    behind: Behind = Behind()


def anomalies(
    minutes: DataFrame, messages: DataFrame, since: datetime, until: datetime, *, step_minutes: int = STEP_MINUTES
) -> list[Anomaly]:
    """The anomalies from `since` to `until`, the farthest first, judged by all minutes before `until`."""
    flagged = far(series(minutes, until, step_minutes), step_minutes)
    inside = flagged.where(
        (F.col("at") >= since.timestamp() - 60 * step_minutes + 1) & (F.col("at") < until.timestamp())
    )
    rows = inside.orderBy(F.abs("deviations").desc()).limit(FLAGGED_MAX).toArrow().to_pylist()
    found = joined(rows, step_minutes)[:ANOMALIES_MAX]
    if found:
        _add_messages(found, messages)
    return found


# --- steps ------------------------------------------------------------------------------------------------------------


def series(minutes: DataFrame, until: datetime, step_minutes: int) -> DataFrame:
    """Every step of every queue and group, also those in which nothing happened: `what`, `at` (seconds), `value`, and
    `begun`, the first step."""
    width = 60 * step_minutes
    failures = F.col("failed") + F.col("dead") + F.col("dropped") + F.col("expired")
    at = (F.floor(F.unix_seconds("minute") / width) * width).alias("at")
    summed = (
        minutes.where(F.col("minute") < F.lit(until))
        .groupBy(*_KEY, at)
        .agg(
            F.sum("enqueued").alias("enqueued"),
            F.sum("acked").alias("acked"),
            F.sum(failures).alias("failures"),
            F.max("depth").alias("depth"),
            F.max(F.struct("minute", "depth")).getField("depth").alias("left"),
            F.max("wait_p95_ms").alias("wait_p95_ms"),
            F.max("processing_p95_ms").alias("processing_p95_ms"),
        )
    )
    last = int((until - timedelta(seconds=1)).timestamp()) // width * width
    every = summed.groupBy(*_KEY).agg(F.min("at").alias("begun"))
    steps = F.explode(F.sequence("begun", F.lit(last).cast("bigint"), F.lit(width).cast("bigint")))
    grid = every.select(*_KEY, "begun", steps.alias("at")).alias("grid")
    same = [F.col(f"grid.{name}").eqNullSafe(F.col(f"known.{name}")) for name in (*_KEY, "at")]
    so_far = Window.partitionBy(*_KEY).orderBy("at")
    columns = [F.coalesce(f"known.{name}", F.lit(0)).cast("double").alias(name) for name in _COUNTS]
    columns += [F.col(f"known.{name}").cast("double").alias(name) for name in ("depth", "left", *_TIMES)]
    filled = grid.join(summed.alias("known"), same, "left").select("grid.*", *columns)
    depth = F.coalesce("depth", F.last("left", ignorenulls=True).over(so_far))
    filled = filled.withColumn("depth", depth)
    names = ("enqueued", "acked", "failures", "depth", *_TIMES)
    pairs = F.explode(F.create_map(*[part for name in names for part in (F.lit(name), F.col(name))]))
    long = filled.select(*_KEY, "begun", "at", pairs.alias("what", "value"))
    of_queue = F.col("what").isin(*_OF_QUEUE)
    return long.where(F.col("value").isNotNull() & (of_queue == F.col("group").isNull()))


def far(steps: DataFrame, step_minutes: int) -> DataFrame:
    """The steps that are far from what is usual, with `usual` and `deviations`."""
    width = 60 * step_minutes
    age = F.max("at").over(Window.partitionBy(*_KEY)) - F.col("begun")
    period = F.when(age >= 2 * WEEK, WEEK).when(age >= 3 * DAY, DAY).otherwise(width)
    steps = steps.withColumn("period", period).withColumn("slot", F.floor(F.col("at") % F.col("period") / width))
    places = (*_KEY, "what", "slot")
    offsets = F.array([F.lit(offset) for offset in range(-NEIGHBOURS, NEIGHBOURS + 1)])
    around = F.when(F.col("period") == width, F.array(F.lit(0))).otherwise(offsets)
    near = steps.withColumn("offset", F.explode(around)).withColumn(
        "slot", F.pmod(F.col("slot") + F.col("offset"), F.floor(F.col("period") / width))
    )
    usual = near.groupBy(*places).agg(F.median("value").alias("usual"), F.count("*").alias("steps"))
    apart = (
        _with(near, usual, places).groupBy(*places).agg(F.median(F.abs(F.col("value") - F.col("usual"))).alias("apart"))
    )
    judged = _with(_with(steps, usual, places), apart, places)
    count, time = F.col("what").isin(*_COUNTS), F.col("what").isin(*_TIMES)
    of_usual = F.when(count, F.sqrt("usual")).otherwise(F.col("usual") * SHARE_USUAL)
    least = F.when(count, 1.0).when(time, LEAST_MS).otherwise(LEAST_DEPTH)
    scale = F.greatest(F.col("apart") * NORMAL, of_usual, least)
    judged = judged.withColumn("deviations", (F.col("value") - F.col("usual")) / scale)
    far_up = F.col("deviations") >= DEVIATIONS
    far_down = F.col("what").isin(*_BOTH_WAYS) & (F.col("deviations") <= -DEVIATIONS)
    return judged.where((F.col("steps") >= STEPS_NEEDED) & (far_up | far_down)).select(
        *_KEY, "what", "at", "value", "usual", "deviations"
    )


def _with(rows: DataFrame, more: DataFrame, names: Sequence[str]) -> DataFrame:
    """A join in which null equals null."""
    same = [F.col(f"rows.{name}").eqNullSafe(F.col(f"more.{name}")) for name in names]
    added = [f"more.{name}" for name in more.columns if name not in names]
    return rows.alias("rows").join(more.alias("more"), same).select("rows.*", *added)


def joined(rows: list[dict[str, Any]], step_minutes: int) -> list[Anomaly]:
    """Steps that follow each other as one anomaly each, the farthest first."""
    found: list[Anomaly] = []
    width = 60 * step_minutes

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return (*(row[name] or "" for name in _KEY), row["what"], row["deviations"] > 0)

    for _, steps in groupby(sorted(rows, key=lambda row: (*key(row), row["at"])), key):
        last = None
        for row in steps:
            at = datetime.fromtimestamp(row["at"], UTC)
            fields = {name: row[name] for name in (*_KEY, "what", "value", "usual", "deviations")}
            if last is not None and last.until == at:
                last.until = at + timedelta(seconds=width)
                if abs(row["deviations"]) > abs(last.deviations):
                    last.value, last.usual, last.deviations = row["value"], row["usual"], row["deviations"]
                continue
            last = Anomaly(**fields, since=at, until=at + timedelta(seconds=width))
            found.append(last)
    return sorted(found, key=lambda one: -abs(one.deviations))


# --- the messages behind them -----------------------------------------------------------------------------------------


def _add_messages(found: list[Anomaly], messages: DataFrame) -> None:
    spark = messages.sparkSession
    places = _places(spark, found)
    instants: dict[str, tuple[Column, Column]] = {  # when a message counts, and which is the worst
        "enqueued": (F.col("enqueued_at"), F.col("size_bytes")),
        "depth": (F.col("enqueued_at"), F.coalesce("total_ms", F.lit(float("inf")))),
        "acked": (F.when(F.col("outcome") == "acked", F.col("ended_at")), F.col("total_ms")),
        "failures": (
            F.coalesce("last_failed_at", F.when(F.col("outcome") != "acked", F.col("ended_at"))),
            F.col("failures"),
        ),
        "wait_p95_ms": (F.col("first_leased_at"), F.col("wait_ms")),
        "processing_p95_ms": (F.when(F.col("outcome") == "acked", F.col("ended_at")), F.col("processing_ms")),
    }
    entries = [
        F.struct(F.lit(name).alias("what"), at.alias("at"), worst.cast("double").alias("worst"))
        for name, (at, worst) in instants.items()
    ]
    wanted = messages.select(*_KEY, "message_id", "error", "consumer", F.explode(F.array(*entries)).alias("one"))
    wanted = wanted.select(*_KEY, "message_id", "error", "consumer", "one.*").where(F.col("at").isNotNull()).alias("m")
    same = [F.col(f"m.{name}") == F.col(f"a.{name}") for name in ("namespace", "queue", "what")]
    same += [F.col("a.group").isNull() | F.col("m.group").eqNullSafe(F.col("a.group"))]
    same += [(F.col("m.at") >= F.col("a.since")) & (F.col("m.at") < F.col("a.until"))]
    rows = wanted.join(F.broadcast(places.alias("a")), same).select(
        "a.number", "m.message_id", "error", "consumer", "worst"
    )
    rows = rows.dropDuplicates(["number", "message_id"])
    worst_first = Window.partitionBy("number").orderBy(F.desc_nulls_last("worst"), "message_id")
    ranked = rows.withColumn("rank", F.row_number().over(worst_first))
    example = F.when(F.col("rank") <= EXAMPLES, F.struct("rank", "message_id"))
    summed = ranked.groupBy("number").agg(
        F.count("*").alias("messages"),
        F.sort_array(F.collect_list(example)).alias("examples"),
        F.mode("error").alias("error"),
        F.mode("consumer").alias("consumer"),
    )
    for row in summed.toArrow().to_pylist():
        found[row["number"]].behind = Behind(
            messages=row["messages"],
            examples=[one["message_id"] for one in row["examples"]],
            error=row["error"],
            consumer=row["consumer"],
        )


def _places(spark: SparkSession, found: list[Anomaly]) -> DataFrame:
    rows = [
        (number, one.namespace, one.queue, one.group, one.what, one.since, one.until)
        for number, one in enumerate(found)
    ]
    columns = (
        "number int, namespace string, queue string, `group` string, what string, since timestamp, until timestamp"
    )
    return spark.createDataFrame(rows, columns)
