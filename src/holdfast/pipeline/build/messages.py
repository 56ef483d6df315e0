"""`messages`: the state of each message in each group, computed from its events.

For one message and group the events of one node are ordered by lsn, and later batches hold later events, so a fact of
the batch overrides the same fact of an older row. An end is final unless the same node leases the delivery again, which
happens when a group is deleted and created again; a lease by another node does not count.

The build folds files (fold_task.py); here is the same for any DataFrame of events.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast.pipeline.build import facts, fold, timeline
from holdfast.pipeline.build.fold import NARROW
from holdfast.pipeline.lake import arrow, tables
from holdfast.pipeline.lake.tables import MESSAGES
from holdfast.pipeline.spark.tasks import pickle_by_value

pickle_by_value(arrow, fold, facts, tables, timeline)

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
            yield from fold.fold(pa.Table.from_batches(found)).cast(fold.SCHEMA).to_batches(BATCH_ROWS)

    return _by_message(events).mapInArrow(rows, CHANGES)


def minute_facts(events: DataFrame) -> DataFrame:
    """Facts of the events, and of the rows folded from them, by queue, group and minute."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = list(batches)
        if found:
            batch = pa.Table.from_batches(found)
            yield from facts.facts(batch, fold.fold(batch)).to_batches(BATCH_ROWS)

    return _by_message(events).mapInArrow(rows, FACTS)


def _by_message(events: DataFrame) -> DataFrame:
    return events.select(*[f"`{name}`" for name in NARROW]).repartition("message_id")
