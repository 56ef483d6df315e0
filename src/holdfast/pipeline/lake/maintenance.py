"""Maintenance of the tables: compaction, retention, and deletion of files that nobody needs.

Nothing here changes the journal. All of it runs under the lake's lock, and each table's change is one commit.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast.pipeline.lake.delta import DataFile, LakeTable
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.spark.stages import Stages

FILE_ROWS = 1_000_000
"""Rows of a file that is not compacted further: 50 to 100 MB, and about a second to rewrite for a late event."""

SMALL_FILES = 16
"""Small files of a table before they are compacted: with a segment a minute, every quarter of an hour."""

_ORDER = {
    "events": ("node", "lsn"),
    "messages": ("message_id",),
    "queue_minutes": ("minute", "namespace", "queue"),
    "dead_letters": ("died_lsn",),
    "groups": ("created_lsn",),
}


def compact(lake: Lake, spark: SparkSession, stages: Stages, at_least: int = SMALL_FILES) -> dict[str, int]:
    """Compact the small files of each table that has at least so many. Returns how many files were compacted."""
    joined: dict[str, int] = {}
    for table in lake.tables:
        small = [file for file in table.files() if file.rows < FILE_ROWS // 2]
        if len(small) < max(at_least, 2):
            continue
        with stages.stage(f"compact {table.spec.name}"):
            _replace(table, small, _arranged(table, table.read(spark, small), small), data_change=False)
        joined[table.spec.name] = len(small)
    return joined


def _arranged(table: LakeTable, frame: DataFrame, files: list[DataFile]) -> DataFrame:
    """Write few files, each with a range of its own, so that a reader can skip the others."""
    order = _ORDER[table.spec.name]
    count = max(sum(file.rows for file in files) // FILE_ROWS, 1)
    ranged = frame.repartitionByRange(count, *order) if count > 1 else frame.coalesce(1)
    return ranged.sortWithinPartitions(*order)


def _replace(table: LakeTable, files: list[DataFile], frame: DataFrame, *, data_change: bool) -> None:
    table.commit(
        table.write(frame),
        files,
        data_change=data_change,
        commit_info={"job": "compact" if not data_change else "retain"},
    )


def retain(lake: Lake, spark: SparkSession, stages: Stages, before: datetime) -> dict[str, int]:
    """Remove rows that ended before an instant. Messages that are live in any group stay with all their rows, however
    old they are, and so do waiting dead letters, groups, and the last minute of each queue and group, from which its
    depth continues. Returns how many rows were removed."""
    last = Window.partitionBy("namespace", "queue", "group")
    old = F.lit(before)
    kept: dict[str, tuple[str, Callable[[DataFrame], DataFrame]]] = {
        "events": ("at", lambda frame: frame.where(F.col("at") >= old)),
        "messages": ("enqueued_at", lambda frame: _ended_since(frame, old)),
        "queue_minutes": (
            "minute",
            lambda frame: (
                frame.withColumn("last", F.max("minute").over(last))
                .where((F.col("minute") >= old) | (F.col("minute") == F.col("last")))
                .drop("last")
            ),
        ),
        "dead_letters": ("died_at", lambda frame: frame.where(F.col("outcome").isNull() | (F.col("ended_at") >= old))),
    }
    gone: dict[str, int] = {}
    for table in lake.tables:
        if table.spec.name not in kept:
            continue
        column, keep = kept[table.spec.name]
        files = [file for file in table.files() if _wholly_before(file, column, before)]
        if not files:
            continue
        with stages.stage(f"expire {table.spec.name}"):
            left = keep(table.read(spark, files))
            old_rows = sum(file.rows for file in files) - left.count()
            if old_rows:  # live rows in old files would be rewritten at every refresh
                _replace(table, files, left.coalesce(1), data_change=True)
                gone[table.spec.name] = old_rows
    return gone


def _ended_since(messages: DataFrame, instant: Column) -> DataFrame:
    """Messages of which a row is live or ended later, with all their rows, which are in one file."""
    young = F.col("outcome").isNull() | (F.col("ended_at") >= instant)
    some = F.max(young).over(Window.partitionBy("message_id"))
    return messages.withColumn("_young", some).where("_young").drop("_young")


def _wholly_before(file: DataFile, column: str, before: datetime) -> bool:
    """Whether all rows of a file are old. A file without statistics (the journal was off for all of it) is read."""
    high = file.high.get(column)
    return high is None or (isinstance(high, datetime) and high < before)


def sweep(lake: Lake, stages: Stages, keep_hours: int) -> int:
    """Delete files that only older versions of the tables need. Returns how many."""
    with stages.stage("delete unneeded files"):
        return sum(len(table.sweep(keep_hours)) for table in lake.tables)
