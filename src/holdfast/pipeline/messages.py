"""`messages`: what became of each message in each group, from its events.

Of one message and group the events of one node are in the order of their lsn, and later batches hold later ones, so a
fact of the batch stands over the same fact of an older row. An end stands until the delivery is leased again by the
same node (that happens when a group is removed and made anew); one that another node leased before is no such thing.

`changes` gives the rows as they are now with a few further columns that say how they were before (fold.BEFORE). Those
are written into the files too, where readers of the table do not see them: `queue_minutes` and `dead_letters` are made
from the difference.
"""

from __future__ import annotations

from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast.pipeline import fold, tables
from holdfast.pipeline.tables import EVENTS, MESSAGES

# Executors of a cluster have pyarrow and NumPy but not Holdfast: what a task needs of it travels with the task.
for module in (fold, tables):
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]

NARROW = [name for name in EVENTS.names if name not in ("payload", "properties")]
"""The columns of `events` that the life of a message is made from."""

CHANGES = ", ".join([MESSAGES.ddl, *(f"{name} {kind}" for name, kind in fold.BEFORE)])


def messages(events: DataFrame) -> DataFrame:
    """The table, from all events at once."""
    return changes(events, None).select(*[f"`{name}`" for name in MESSAGES.names])


def changes(events: DataFrame, old: DataFrame | None, partitions: int = 0) -> DataFrame:
    """The rows of every message that `events` or `old` tell of, as they are now, with the columns of fold.BEFORE."""
    rows = events.select(*[f"`{name}`" for name in NARROW], F.lit(None).cast("string").alias("was"))
    if old is not None:
        rows = rows.unionByName(old.select(*_as_event(), _was().alias("was")))
    spread = rows.repartition(partitions, "message_id") if partitions else rows.repartition("message_id")
    return spread.mapInArrow(fold.fold, CHANGES)


_OF_OLD = {
    "lsn": "enqueued_lsn",
    "at": "enqueued_at",
    "attempt": "attempts",
}


def _as_event() -> list[Column]:
    """A row of `messages` in the columns of an event."""
    kinds = {column.name: column.kind for column in EVENTS.columns}
    columns: list[Column] = []
    for name in NARROW:
        if name == "event":
            columns.append(F.lit(fold.OLD).alias(name))
        else:
            columns.append(F.col(f"`{_OF_OLD.get(name, name)}`").cast(kinds[name]).alias(name))
    return columns


def _was() -> Column:
    """What a row of `messages` has beside that, as numbers with commas between them."""
    kinds = {column.name: column.kind for column in MESSAGES.columns}
    values: list[Column] = []
    for name in fold.NUMBERS:
        if kinds[name] == "timestamp":
            value = F.unix_micros(name)
        elif kinds[name] == "string":
            value = F.array_position(F.array(*map(F.lit, fold.STATES)), F.col(name)) - 1
        else:
            value = F.col(name)
        values.append(F.coalesce(value.cast("string"), F.lit("")))
    return F.concat_ws(",", *values)
