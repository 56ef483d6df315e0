"""`messages`: the state of each message in each group, computed from its events.

For one message and group the events of one node are ordered by lsn, and later batches hold later events, so a fact of
the batch overrides the same fact of an older row. An end is final unless the same node leases the delivery again, which
happens when a group is deleted and created again; a lease by another node does not count.

The build folds files (fold_task.py); here is the same for any DataFrame of events. Its events of groups are read when
the function is called: they are few, and every message needs those of its partition.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast.pipeline.build import facts, fold, fold_task, recipients, shuffle, timeline
from holdfast.pipeline.build.fold import NARROW
from holdfast.pipeline.lake import arrow, tables
from holdfast.pipeline.lake.tables import MESSAGES
from holdfast.pipeline.spark.tasks import pickle_by_value

pickle_by_value(arrow, fold, facts, fold_task, recipients, shuffle, tables, timeline)

FACTS = "namespace string, queue string, `group` string, minute timestamp, what string, value bigint"
CHANGES = ", ".join([MESSAGES.ddl, *(f"{name} {kind}" for name, kind in fold.BEFORE)])
BATCH_ROWS = 32_768


def messages(events: DataFrame) -> DataFrame:
    """The table, from all events at once."""
    return changes(events).select(*[f"`{name}`" for name in MESSAGES.names])


def changes(events: DataFrame) -> DataFrame:
    """The table with the columns of fold.BEFORE, from which `dead_letters` is computed."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = list(batches)
        if found:
            yield from fold.fold(_whole(found, groups)).cast(fold.SCHEMA).to_batches(BATCH_ROWS)

    groups = _groups(events)
    return _by_message(events).mapInArrow(rows, CHANGES)


def minute_facts(events: DataFrame) -> DataFrame:
    """Facts of the events, and of the rows folded from them, by queue, group and minute."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = list(batches)
        if found:
            batch = _whole(found, groups)
            yield from facts.facts(batch, fold.fold(batch)).to_batches(BATCH_ROWS)

    groups = _groups(events)
    return _by_message(events).mapInArrow(rows, FACTS)


def _by_message(events: DataFrame) -> DataFrame:
    return events.where("message_id != 0").select(*[f"`{name}`" for name in NARROW]).repartition("message_id")


def _groups(events: DataFrame) -> pa.Table:
    """All groups that these events tell of."""
    columns = [f"`{name}`" for name in recipients.CHANGES.names]
    changes = events.where("message_id = 0").select(*columns).toArrow().to_pylist()
    return pa.Table.from_pylist(recipients.with_changes([], changes), arrow.GROUPS_SCHEMA)


def _whole(batches: list[pa.RecordBatch], groups: pa.Table) -> pa.Table:
    """Events in the order of their lsn, with those that follow from them."""
    events = pa.Table.from_batches(batches).sort_by("lsn")
    return fold_task.with_received(events, recipients.received(events, arrow.MESSAGES_SCHEMA.empty_table(), groups, {}))
