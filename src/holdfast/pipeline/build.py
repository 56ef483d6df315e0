"""`build`: from the journal's segments to the tables, a batch at a time, each batch exactly once.

A batch is a run of segments. It is committed to the tables one after another, each commit with the journal's position
as its cursor: `messages` last, because the others are made from the difference to what it said before. So whenever the
build is killed, the tables stand at one of two positions, and the next build finishes the batch for those that lack it
before it goes on.

    events          the segments themselves, linked into the table once their hash is right
    queue_minutes   what the batch counts and changes, added to the minutes it touches
    dead_letters    deaths appended; rows whose letter has ended rewritten, with their file
    messages        rows of the batch's messages; files that hold older rows of them are rewritten, no others
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast.broker.export_segment import digest
from holdfast.errors import SegmentUnusable, TablesDamaged
from holdfast.pipeline import deaths, messages, minutes
from holdfast.pipeline.delta import Bound, DataFile, LakeTable, spark_path
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.segments import Cursor, Segment, after, end_of, first_rows, up_to
from holdfast.pipeline.stages import Stages

BATCH_ROWS = 4_000_000
"""Events in one batch: a few hundred MB in memory, and a few seconds of work to lose when killed."""

TASK_ROWS = 400_000
"""Rows that one task folds: about 150 MB in its Python process."""

ID_SECOND_SHIFT = 32
"""Message ids shifted by this are time in steps of about a second: fine enough to tell which files a batch touches."""


class Built(msgspec.Struct, kw_only=True):
    """What a build did."""

    batches: int = 0
    segments: int = 0
    events: int = 0
    rows: dict[str, int] = {}
    rewritten: dict[str, int] = {}
    """Files that were replaced because a batch told something new of rows in them."""
    cursor: Cursor = {}


Sorted = np.ndarray[Any, Any]
Reached = Callable[[str], None]


def _go_on(_step: str) -> None:
    """Tests die here."""


class Build:
    """One run over what the journal holds now."""

    def __init__(
        self,
        lake: Lake,
        spark: SparkSession,
        stages: Stages,
        *,
        batch_rows: int = BATCH_ROWS,
        reached: Reached = _go_on,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._lake = lake
        self._spark = spark
        self._stages = stages
        self._batch_rows = batch_rows
        self._reached = reached
        self._progress = progress
        self.built = Built(rows={}, rewritten={})

    def run(self) -> Built:
        """Take in everything that the manifests name now. The lake must be locked."""
        segments = self._lake.segments()
        self._lake.prepare()
        nodes = list(segments)
        todo = 0
        while True:
            cursors = self._lake.cursors(nodes)
            batch = self._next(segments, cursors)
            self.built.cursor = cursors["messages"]
            if not batch:
                return self.built
            todo = todo or sum(segment.rows for segment in after(segments, cursors["messages"]))
            self._batch(batch, cursors)
            self.built.batches += 1
            self.built.segments += len(batch)
            self.built.events += sum(segment.rows for segment in batch)
            if self._progress is not None:
                self._progress(self.built.events, todo)

    def _next(self, segments: dict[int, list[Segment]], cursors: dict[str, Cursor]) -> list[Segment]:
        """The next batch: the one that was interrupted, or the next segments."""
        behind = cursors["messages"]
        ahead = [cursor for cursor in cursors.values() if cursor != behind]
        if not ahead:
            return first_rows(after(segments, behind), self._batch_rows)
        target = ahead[0]
        batch = up_to(after(segments, behind), target)
        if any(cursor != target for cursor in ahead) or end_of(batch, behind) != target:
            raise TablesDamaged(path=self._lake.tables_dir, problem=f"they stand at different positions: {cursors}")
        return batch

    def _batch(self, batch: list[Segment], cursors: dict[str, Cursor]) -> None:
        cursor = end_of(batch, cursors["messages"])
        lake, spark = self._lake, self._spark
        lacking = [table for table in lake.tables if cursors[table.spec.name] != cursor]
        if lake.events in lacking:
            with self._stages.stage("verify and link segments"):
                self._events(batch, cursor)
        events = _segment_events(spark, lake, batch)
        with self._stages.stage("fold messages"):
            touched = self._touched(events)
            changes, added = self._messages(events, touched, sum(segment.rows for segment in batch))
        self._reached("messages written")
        if lake.queue_minutes in lacking:
            with self._stages.stage("count minutes"):
                self._minutes(events, changes, cursor)
        if lake.dead_letters in lacking:
            with self._stages.stage("collect dead letters"):
                self._deaths(events, changes, cursor)
        with self._stages.stage("commit"):
            self._commit(lake.messages, added, touched, cursor)

    def _commit(self, table: LakeTable, added: list[Path], removed: list[DataFile], cursor: Cursor) -> None:
        name = table.spec.name
        self._reached(f"{name} written")
        before = sum(file.rows for file in table.files())
        table.commit(added, removed, cursor, note={"job": "build"})
        rows = sum(file.rows for file in table.files()) - before + sum(file.rows for file in removed)
        self._stages.note_wrote(name, rows)
        self.built.rows[name] = self.built.rows.get(name, 0) + rows
        self.built.rewritten[name] = self.built.rewritten.get(name, 0) + len(removed)
        self._reached(f"{name} committed")

    # --- events -----------------------------------------------------------------------------------------------------

    def _events(self, batch: list[Segment], cursor: Cursor) -> None:
        """The segments become files of the table, by a hard link where the file system can, else by a copy."""
        place = self._lake.events.place()
        place.mkdir(parents=True)
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            added = list(threads.map(lambda segment: _link(segment, place), batch))
        self._stages.note_read("segments", len(batch))
        self._stages.note_read("events", sum(segment.rows for segment in batch))
        self._stages.note_read("bytes", sum(segment.entry.size_bytes for segment in batch))
        self._commit(self._lake.events, added, [], cursor)

    # --- messages ---------------------------------------------------------------------------------------------------

    def _touched(self, events: DataFrame) -> list[DataFile]:
        """The files of `messages` that may hold older rows of the batch's messages."""
        files = self._lake.messages.files()
        if not files:
            return []
        moved = (
            events.where("event != 'enqueued'")
            .select(F.shiftright("message_id", ID_SECOND_SHIFT).alias("second"))
            .distinct()
        )
        seconds = np.sort(moved.toArrow()["second"].to_numpy())
        return [file for file in files if _holds(file, seconds)]

    def _messages(self, events: DataFrame, touched: list[DataFile], rows: int) -> tuple[DataFrame, list[Path]]:
        """Write the batch's messages, uncommitted. Returns them with what only the build reads, and their files."""
        table = self._lake.messages
        old = table.read(self._spark, touched) if touched else None
        rows += sum(file.rows for file in touched)
        frame = messages.changes(events, old, partitions=rows // TASK_ROWS + 1)
        self._explain("messages", frame)
        place = table.place()
        frame.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").mode("overwrite").parquet(
            spark_path(place)
        )
        added = sorted(place.glob("*.parquet"))
        return self._spark.read.schema(messages.CHANGES).parquet(spark_path(place)), added

    # --- what follows from the difference ---------------------------------------------------------------------------

    def _minutes(self, events: DataFrame, changes: DataFrame, cursor: Cursor) -> None:
        table = self._lake.queue_minutes
        told = minutes.facts_of_events(events).unionByName(minutes.facts_of_messages(changes))
        found = minutes.added(told).toArrow()  # small: queues × groups × minutes
        if not found.num_rows:
            self._commit(table, [], [], cursor)
            return
        first = min(found["minute"].to_pylist())
        files = table.files()
        touched = [file for file in files if file.may_hold("minute", first, None)]
        facts = self._spark.createDataFrame(found, minutes.FACTS)
        if touched:
            rows = table.read(self._spark, touched)
            facts = facts.unionByName(minutes.facts_of_rows(rows)).unionByName(minutes.begun(rows))
        earlier = [file for file in files if file not in touched]
        if earlier:
            facts = facts.unionByName(minutes.carried(table.read(self._spark, earlier)))
        self._commit(table, table.write(minutes.rows_of_facts(minutes.added(facts)).coalesce(1)), touched, cursor)

    def _deaths(self, events: DataFrame, changes: DataFrame, cursor: Cursor) -> None:
        table = self._lake.dead_letters
        dead = deaths.died(events, changes)
        ends = deaths.ended(changes)
        back = deaths.returned(events)
        touched: list[DataFile] = []
        if table.files():
            ended = ends.toArrow()
            letters = np.sort(np.concatenate([ended["letter_id"].to_numpy(), np.array(list(back), np.int64)]))
            touched = [
                file for file in table.files() if _between(letters, file.low["letter_id"], file.high["letter_id"])
            ]
        if touched:
            dead = dead.unionByName(table.read(self._spark, touched))
        self._explain("dead_letters", dead)
        self._commit(table, table.write(deaths.updated(dead, ends, back).coalesce(1)), touched, cursor)

    def _explain(self, name: str, frame: DataFrame) -> None:
        if self._stages.explaining:
            self._stages.plans.append(f"{name}:\n{plan_of(frame)}")


def plan_of(frame: DataFrame) -> str:
    """Spark's plan for a frame, as text."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        frame.explain("formatted")
    return said.getvalue()


def _holds(file: DataFile, seconds: Sorted) -> bool:
    low, high = file.low["message_id"], file.high["message_id"]
    assert isinstance(low, int)
    assert isinstance(high, int)
    return _between(seconds, low >> ID_SECOND_SHIFT, high >> ID_SECOND_SHIFT)


def _between(values: Sorted, low: Bound, high: Bound) -> bool:
    """Whether one of the sorted values lies from `low` to `high`."""
    if not isinstance(low, int) or not isinstance(high, int):
        return len(values) > 0
    return bool(np.searchsorted(values, high, "right") > np.searchsorted(values, low, "left"))


def _link(segment: Segment, place: Path) -> Path:
    """The segment as a file of the table. It is what the manifest says, or it is not taken."""
    name, target = segment.entry.segment, place / segment.path.name
    if not segment.path.is_file():
        raise SegmentUnusable(segment=name, problem="the file is not there")
    try:
        os.link(segment.path, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(segment.path, target)
    if target.stat().st_size != segment.entry.size_bytes or digest(target) != segment.entry.sha256:
        raise SegmentUnusable(segment=name, problem="it is not as it was written: its hash is another")
    return target


def _segment_events(spark: SparkSession, lake: Lake, batch: list[Segment]) -> DataFrame:
    """The batch's events, from the table: what was verified is what is read."""
    names = {segment.path.name for segment in batch}
    files = [file for file in lake.events.files() if Path(file.path).name in names]
    if len(files) != len(names):
        raise TablesDamaged(path=lake.events.root, problem=f"{len(names) - len(files)} segments of it are not there")
    return lake.events.read(spark, files)
