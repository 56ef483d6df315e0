"""`messages`: the state of each message in each group, computed from its events.

For one message and group the events of one node are ordered by lsn, and later batches hold later events, so a fact of
the batch overrides the same fact of an older row. An end is final unless the same node leases the delivery again, which
happens when a group is deleted and created again; a lease by another node does not count.

The build folds files (fold_task.py); here is the same for any DataFrame of events. The functions run nothing
themselves. Every message needs the events of its partition's groups: these are few, and every task gets all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast.pipeline.build import facts, fold, fold_task, recipients, shuffle, timeline
from holdfast.pipeline.build.fold import NARROW
from holdfast.pipeline.lake import arrow, tables
from holdfast.pipeline.lake.tables import MESSAGES
from holdfast.pipeline.spark.tasks import pickle_by_value

pickle_by_value(arrow, fold, facts, fold_task, recipients, shuffle, tables, timeline)

FACTS = "namespace string, queue string, `group` string, minute timestamp, what string, value bigint"
CHANGES = ", ".join([MESSAGES.ddl, *(f"{name} {kind}" for name, kind in fold.BEFORE)])
BATCH_ROWS = 32_768
ABOUT_GROUPS = ("group_kind", "start_after")
"""Columns that only events of groups have."""


def messages(events: DataFrame) -> DataFrame:
    """The table, from all events at once."""
    return changes(events).select(*[f"`{name}`" for name in MESSAGES.names])


def changes(events: DataFrame) -> DataFrame:
    """The table with the columns of fold.BEFORE, from which `dead_letters` is computed."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        batch = _whole(list(batches))
        if batch.num_rows:
            yield from fold.fold(batch).cast(fold.SCHEMA).to_batches(BATCH_ROWS)

    return _by_message(events).mapInArrow(rows, CHANGES)


def minute_facts(events: DataFrame) -> DataFrame:
    """Facts of the events, and of the rows folded from them, by queue, group and minute."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        batch = _whole(list(batches))
        if batch.num_rows:
            yield from facts.facts(batch, fold.fold(batch)).to_batches(BATCH_ROWS)

    return _by_message(events).mapInArrow(rows, FACTS)


def _by_message(events: DataFrame) -> DataFrame:
    """Each task gets all events of its messages, and all events of groups."""
    tasks = int(events.sparkSession.conf.get("spark.sql.shuffle.partitions", "1") or "1")
    chosen = events.select(*[f"`{name}`" for name in (*NARROW, *ABOUT_GROUPS)])
    of_group = F.col("message_id") == 0
    one = F.array(F.pmod(F.hash("message_id"), F.lit(tasks)))
    every = F.array(*[F.lit(task) for task in range(tasks)])
    placed = chosen.withColumn("_task", F.explode(F.when(of_group, every).otherwise(one)))
    return placed.repartitionById(tasks, "_task").drop("_task")


def _whole(batches: list[pa.RecordBatch]) -> pa.Table:
    """The events of messages, in the order of their lsn, with those that follow from them."""
    if not batches:
        return arrow.EVENTS_SCHEMA.empty_table()
    rows = pa.Table.from_batches(batches).sort_by("lsn")
    of_group = pc.equal(rows["message_id"], 0)
    changes = rows.filter(of_group).select(recipients.CHANGES.names).to_pylist()
    events = rows.filter(pc.invert(of_group)).select(NARROW)
    if not events.num_rows:
        return events
    groups = pa.Table.from_pylist(recipients.with_changes([], changes), arrow.GROUPS_SCHEMA)
    return fold_task.with_received(events, recipients.received(events, arrow.MESSAGES_SCHEMA.empty_table(), groups, {}))
