"""`queue_minutes`: each queue and group, minute by minute.

Events and changes become facts first (facts.py): namespace, queue, group, minute, what, value. Facts of the same key
are added up, and the table's rows are computed from the sums (timeline.py): totals and depths continue from minute to
minute."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast.pipeline.build import timeline
from holdfast.pipeline.build.messages import minute_facts
from holdfast.pipeline.build.timeline import CARRIED
from holdfast.pipeline.lake.tables import QUEUE_MINUTES

QUEUE_KEY = ("namespace", "queue", "group")


def queue_minutes(events: DataFrame) -> DataFrame:
    """The table, from all events at once."""
    return minute_facts(events).repartition("namespace", "queue").mapInArrow(timeline.rows, QUEUE_MINUTES.ddl)


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
