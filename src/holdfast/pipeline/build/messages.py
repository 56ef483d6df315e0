"""`messages`: what became of each message in each group, from its events.

Of one message and group the events of one node are in the order of their lsn, and later batches hold later ones, so a
fact of the batch stands over the same fact of an older row. An end stands until the delivery is leased again by the
same node (that happens when a group is removed and made anew); one that another node leased before is no such thing.

The build folds from files (portion.py); here is the same for any DataFrame of events.
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
    """The table with the columns of fold.BEFORE, from which `dead_letters` is made."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = list(batches)
        if found:
            yield from fold.fold(pa.Table.from_batches(found)).cast(fold.SCHEMA).to_batches(BATCH_ROWS)

    return _by_message(events).mapInArrow(rows, CHANGES)


def minute_facts(events: DataFrame) -> DataFrame:
    """What the events, and the rows folded from them, tell of each queue, group and minute."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = list(batches)
        if found:
            batch = pa.Table.from_batches(found)
            yield from facts.facts(batch, fold.fold(batch)).to_batches(BATCH_ROWS)

    return _by_message(events).mapInArrow(rows, FACTS)


def _by_message(events: DataFrame) -> DataFrame:
    return events.select(*[f"`{name}`" for name in NARROW]).repartition("message_id")
