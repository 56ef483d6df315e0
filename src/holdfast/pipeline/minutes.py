"""`queue_minutes`: each queue and group, minute by minute.

Everything is brought into one long form first: namespace, queue, group, minute, what, value. What a batch tells
(`facts_of_events`, `facts_of_messages`) and what rows say that are there already (`facts_of_rows`) are then added up,
and `rows_of_facts` makes the table's rows of the sums: totals, depths and percentiles run along the minutes of a queue.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast.pipeline import timeline
from holdfast.pipeline.tables import ENDS, MINUTE_COUNTS, QUEUE_MINUTES
from holdfast.pipeline.timeline import BEGUN, BUCKETS_A_DOUBLING, CARRIED

cloudpickle.register_pickle_by_value(timeline)  # type: ignore[no-untyped-call]

FACTS = "namespace string, queue string, `group` string, minute timestamp, what string, value bigint"
_PLACE = ("namespace", "queue", "group", "minute")


def queue_minutes(events: DataFrame, changes: DataFrame) -> DataFrame:
    """The table, from all events and all rows of `messages.changes` at once."""
    facts = facts_of_events(events).unionByName(facts_of_messages(changes))
    return rows_of_facts(added(facts))


def _number(instant: Column) -> Column:
    """The number of an instant's minute: grouping by a number is faster than by a time or text, so that comes after."""
    return F.floor(F.unix_micros(instant) / 60_000_000)


def _minute(number: Column) -> Column:
    return F.timestamp_seconds(number * 60)


def facts_of_events(events: DataFrame) -> DataFrame:
    """How often each kind of event happened, and the bytes that were stored."""
    counted = events.groupBy("namespace", "queue", "group", _number(F.col("at")).alias("number"), "event").agg(
        F.count("*").alias("value"), F.sum("size_bytes").alias("size_bytes")
    )
    counted = counted.withColumn("minute", _minute(F.col("number")))
    what = F.when(F.col("event") == "duplicate", "duplicates").otherwise(F.col("event"))
    stored = counted.where("event = 'enqueued'").select(
        *_place(), F.lit("enqueued_bytes").alias("what"), F.col("size_bytes").alias("value")
    )
    return counted.select(*_place(), what.alias("what"), "value").unionByName(stored)


def _place() -> list[Column]:
    return [F.col(f"`{name}`") for name in _PLACE]


def facts_of_messages(changes: DataFrame) -> DataFrame:
    """How long deliveries waited and took, and when messages were gone for good."""
    waited = changes.where("told AND was_leased_at IS NULL AND wait_ms IS NOT NULL")
    worked = changes.where("told AND was_outcome IS NULL AND processing_ms IS NOT NULL")
    moved = changes.where("leads AND NOT (was_gone_at <=> gone_at)")
    return (
        _times("wait", waited, "first_leased_at", "wait_ms")
        .unionByName(_times("processing", worked, "ended_at", "processing_ms"))
        .unionByName(_gone(moved, "gone_at", 1))
        .unionByName(_gone(moved, "was_gone_at", -1))
    )


def _times(name: str, rows: DataFrame, instant: str, milliseconds: str) -> DataFrame:
    """How many took how long, by the minute of an instant."""
    bucket = F.floor(F.log2(F.greatest(F.col(milliseconds), F.lit(0.0)) + 1) * BUCKETS_A_DOUBLING)
    counted = rows.groupBy(
        "namespace", "queue", "group", _number(F.col(instant)).alias("number"), bucket.alias("bucket")
    ).agg(F.count("*").alias("value"))
    what = F.concat(F.lit(f"{name}:"), F.col("bucket").cast("string"))
    return counted.withColumn("minute", _minute(F.col("number"))).select(*_place(), what.alias("what"), "value")


def _gone(rows: DataFrame, instant: str, sign: int) -> DataFrame:
    counted = (
        rows.where(F.col(instant).isNotNull())
        .groupBy("namespace", "queue", _number(F.col(instant)).alias("number"))
        .agg((F.count("*") * sign).alias("value"))
    )
    placed = counted.withColumns({"minute": _minute(F.col("number")), "group": F.lit(None).cast("string")})
    return placed.select(*_place(), F.lit("gone").alias("what"), "value")


def facts_of_rows(rows: DataFrame) -> DataFrame:
    """What the table says already."""
    counts = rows.unpivot([*_place()], [*MINUTE_COUNTS, "gone"], "what", "value").where("value != 0")
    for name, prefix in (("waits", "wait"), ("processings", "processing")):
        buckets = rows.select(*_place(), F.explode(name).alias("bucket", "value"))
        what = F.concat(F.lit(f"{prefix}:"), F.col("bucket").cast("string"))
        counts = counts.unionByName(buckets.select(*_place(), what.alias("what"), "value"))
    return counts


def carried(earlier: DataFrame) -> DataFrame:
    """Where each queue and group stood at the last of `earlier`: what the next minutes go on from."""
    return _standing(earlier, F.max, CARRIED, F.lit(0), F.lit(0))


def begun(rows: DataFrame) -> DataFrame:
    """Where each queue and group stood before the first of `rows`. Retention may have taken what came before."""
    ended = reduce(lambda one, other: one + other, [F.col(end) for end in ENDS])
    return _standing(
        rows, F.min, BEGUN, F.col("enqueued"), F.when(F.col("group").isNull(), F.col("gone")).otherwise(ended)
    )


def _standing(
    rows: DataFrame, choose: Callable[[Column], Column], names: dict[str, str], enqueued: Column, ended: Column
) -> DataFrame:
    totals = rows.select(
        *_place(),
        (F.col("enqueued_total") - enqueued).alias("enqueued_total"),
        (F.col("ended_total") - ended).alias("ended_total"),
        "skipped",
    )
    chosen = totals.groupBy("namespace", "queue", "group").agg(
        choose(F.struct("minute", *names.values())).alias("chosen"),
    )
    parts = [
        F.struct(F.lit(what).alias("what"), F.col(f"chosen.{column}").alias("value")) for what, column in names.items()
    ]
    facts = chosen.select(
        "namespace", "queue", "group", F.col("chosen.minute"), F.explode(F.array(*parts)).alias("fact")
    )
    return facts.select(*_place(), "fact.what", "fact.value")


def added(facts: DataFrame) -> DataFrame:
    """One value for each place and thing."""
    return facts.groupBy(*_place(), "what").agg(F.sum("value").alias("value"))


def rows_of_facts(facts: DataFrame) -> DataFrame:
    """The table's rows. All of a queue must be there, from the first minute that changes."""
    return facts.repartition("namespace", "queue").mapInArrow(timeline.rows, QUEUE_MINUTES.ddl)
