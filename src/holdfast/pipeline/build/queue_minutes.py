"""`queue_minutes`: each queue and group, minute by minute.

Events and changes become facts first (facts.py): namespace, queue, group, minute, what, value. Facts of the same key
are added up, and the table's rows are computed from the sums (timeline.py): totals and depths continue from minute to
minute."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast.pipeline.build import timeline
from holdfast.pipeline.build.messages import minute_facts
from holdfast.pipeline.build.timeline import CARRIED
from holdfast.pipeline.lake.tables import QUEUE_MINUTES

QUEUE_KEY = ("namespace", "queue", "group")


def queue_minutes(events: DataFrame) -> DataFrame:
    """The table, from all events at once."""
    return minute_facts(events).repartition("namespace", "queue").mapInArrow(timeline.rows, QUEUE_MINUTES.ddl)


def every_minute(rows: DataFrame) -> DataFrame:
    """The depth of each queue and group in every minute, from its first row to the last row of all: minutes in which
    nothing happened, which have no row, continue the one before."""
    ends = rows.agg(F.max("minute").alias("_last"))
    each = rows.groupBy(*QUEUE_KEY).agg(F.min("minute").alias("_first")).crossJoin(F.broadcast(ends))
    minutes = each.select(*QUEUE_KEY, F.explode(F.expr("sequence(_first, _last, interval 1 minute)")).alias("minute"))
    known = rows.select(*[F.col(name).alias(f"_{name}") for name in (*QUEUE_KEY, "minute", "depth")])
    same = [F.col(name).eqNullSafe(F.col(f"_{name}")) for name in (*QUEUE_KEY, "minute")]
    so_far = Window.partitionBy(*QUEUE_KEY).orderBy("minute")
    depth = F.last("_depth", ignorenulls=True).over(so_far).alias("depth")
    return minutes.join(known, same, "left").select(*QUEUE_KEY, "minute", depth)


def carried(rows: DataFrame, wanted: DataFrame) -> DataFrame:
    """The totals of some queues and groups (`wanted`: their QUEUE_KEY) in the last of `rows`, as facts: the next
    minutes continue from them."""
    same = [rows[name].eqNullSafe(wanted[name]) for name in QUEUE_KEY]
    chosen = (
        rows.join(F.broadcast(wanted), same, "left_semi")
        .groupBy(*QUEUE_KEY)
        .agg(F.max(F.struct("minute", *CARRIED.values())).alias("last"))
    )
    parts = [
        F.struct(F.lit(what).alias("what"), F.col(f"last.{name}").alias("value")) for what, name in CARRIED.items()
    ]
    facts = chosen.select(*QUEUE_KEY, F.col("last.minute"), F.explode(F.array(*parts)).alias("fact"))
    return facts.select(*QUEUE_KEY, "minute", "fact.what", "fact.value")
