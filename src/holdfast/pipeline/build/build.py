"""`build`: from the journal's segments to the tables, a batch at a time, each batch exactly once.

A batch is a series of consecutive segments. It is committed to one table after another, each commit with the journal's
position as its cursor: `messages` last, because the other tables are computed from the difference to its old rows. So
whenever the build is killed, each table is at one of two positions, and the next build finishes the batch for the
tables that lack it before it continues.

    events          the segments themselves, linked into the table once their hash is right and every row is as expected
    groups          with the groups that were created or deleted
    queue_minutes   the batch's counts and changes, added to the rows of their minutes
    dead_letters    new dead letters appended; files with rows whose dead letter has ended are rewritten
    messages        rows of the batch's messages; files that hold older rows of them are rewritten, and those with
                    live messages of queues whose groups have changed

Spark's tasks do the work in columnar form (tasks.py): one for each pack of segments sorts its events by message into a
shuffle file (shuffle.py), one for each range of message ids folds them and writes their rows (fold_task.py). The
intermediate files are in `_scratch`, beside the tables, until the batch is done.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from holdfast.core.audits import UNDONE_PROPERTY
from holdfast.errors import SegmentUnusable, TablesDamaged
from holdfast.journal.built import write_built
from holdfast.pipeline.build import (
    dead_letter_task,
    dead_letters,
    expectations,
    fold_task,
    queue_minute_task,
    queue_minutes,
    recipients,
    shuffle,
)
from holdfast.pipeline.build.fold_task import ID_SECOND_SHIFT
from holdfast.pipeline.build.recipients import with_changes
from holdfast.pipeline.build.shuffle import PACK_ROWS, SAMPLE_STEP, id_ranges
from holdfast.pipeline.lake import arrow
from holdfast.pipeline.lake.arrow import GROUPS_SCHEMA, schema_of
from holdfast.pipeline.lake.delta import Bound, DataFile, LakeTable, spark_path
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.segments import Cursor, Segment, after, end_of, first_rows, packed, up_to
from holdfast.pipeline.lake.tables import DEAD_LETTERS, QUARANTINE
from holdfast.pipeline.spark.stages import Stages
from holdfast.pipeline.spark.tasks import Task, TaskResult, frame_of, parallelism, pickle_by_value, run

pickle_by_value(arrow, dead_letter_task, expectations, queue_minute_task, recipients, shuffle, fold_task)

BATCH_ROWS = 4_000_000
"""Events in one batch: a few hundred MB in memory, and a few seconds of work to lose when killed."""


class Built(msgspec.Struct, kw_only=True):
    """What a build did."""

    batches: int = 0
    segments: int = 0
    events: int = 0
    rows: dict[str, int] = {}
    rewritten: dict[str, int] = {}
    """Files that were replaced because a batch changed rows in them."""
    cursor: Cursor = {}


_PLACE_DDL = "namespace string, queue string, `group` string"
SortedArray = np.ndarray[Any, Any]
_Files = tuple[list[Path], list[DataFile]]
"""Files to add to a table, and the files that they replace."""
StepHook = Callable[[str], None]


def _no_hook(_step: str) -> None:
    """Tests pass a hook that interrupts the build."""


class Build:
    """One pass over what the journal holds now."""

    def __init__(
        self,
        lake: Lake,
        spark: SparkSession,
        stages: Stages,
        *,
        batch_rows: int = BATCH_ROWS,
        on_step: StepHook = _no_hook,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._lake = lake
        self._spark = spark
        self._stages = stages
        self._batch_rows = batch_rows
        self._on_step = on_step
        self._progress = progress
        self._scratch_dir = lake.tables_dir.resolve() / "_scratch"
        self.built = Built(rows={}, rewritten={})

    def run(self) -> Built:
        """Build everything that the manifests list now. The lake must be locked."""
        segments = self._lake.segments()
        self._lake.prepare()
        try:
            return self._run(segments)
        finally:
            shutil.rmtree(self._scratch_dir, ignore_errors=True)

    def _run(self, segments: dict[int, list[Segment]]) -> Built:
        segments = self._buildable(segments)
        nodes = list(segments)
        todo = 0
        while True:
            cursors = self._lake.cursors(nodes)
            batch = self._next(segments, cursors)
            self.built.cursor = cursors["messages"]
            if not batch:
                write_built(self._lake.tables_dir, cursors["messages"])
                return self.built
            todo = todo or sum(segment.rows for segment in after(segments, cursors["messages"]))
            self._batch(batch, cursors)
            self.built.batches += 1
            self.built.segments += len(batch)
            self.built.events += sum(segment.rows for segment in batch)
            if self._progress is not None:
                self._progress(self.built.events, todo)

    def _buildable(self, segments: dict[int, list[Segment]]) -> dict[int, list[Segment]]:
        """The segments to build from. What is left of removed ones is built into new tables only: others have it."""
        cursor = self._lake.cursors(list(segments))["messages"]
        found: dict[int, list[Segment]] = {}
        for node, chain in segments.items():
            at, removed = cursor.get(node, 0), chain[0].removed if chain else None
            if removed is not None and 0 < at < removed.removed_to:
                problem = f"they have node {node} up to lsn {at}, and segments up to {removed.removed_to} were removed"
                raise TablesDamaged(path=self._lake.tables_dir, problem=f"{problem}: build --rebuild --incomplete")
            found[node] = [segment for segment in chain if segment.removed is None or (segment.rows and not at)]
        return found

    def _next(self, segments: dict[int, list[Segment]], cursors: dict[str, Cursor]) -> list[Segment]:
        """The next batch: the one that was interrupted, or the next segments."""
        behind = cursors["messages"]
        ahead = [cursor for cursor in cursors.values() if cursor != behind]
        if not ahead:
            return first_rows(after(segments, behind), self._batch_rows)
        target = ahead[0]
        batch = up_to(after(segments, behind), target)
        if any(cursor != target for cursor in ahead) or end_of(batch, behind) != target:
            raise TablesDamaged(path=self._lake.tables_dir, problem=f"they are at different positions: {cursors}")
        return batch

    def _batch(self, batch: list[Segment], cursors: dict[str, Cursor]) -> None:
        cursor = end_of(batch, cursors["messages"])
        lake = self._lake
        shutil.rmtree(self._scratch_dir, ignore_errors=True)  # left by a build that was killed, or by the batch before
        self._scratch_dir.mkdir()
        lacking = [table for table in lake.tables if cursors[table.spec.name] != cursor]
        linked: list[Path] = []
        if lake.events in lacking:
            with self._stages.stage("link segments"):
                linked = self._linked(batch)
        with self._stages.stage("verify and sort events"):
            shuffle_files = self._sorted(batch, linked, with_dead_letters=lake.dead_letters in lacking)
            self._expect(batch, shuffle_files)
        if linked:
            self._commit(lake.events, linked, [], cursor)
        with self._stages.stage("fold messages"):
            changes = [change for one in shuffle_files for change in one["groups"]]
            groups = self._groups(changes, cursors["messages"])
            stale_files = self._stale_files(shuffle_files, changes)
            added, made = self._messages(shuffle_files, stale_files, groups, cursors["messages"])
        self._on_step("messages written")
        with self._stages.stage("count minutes, collect dead letters"), ThreadPoolExecutor(2) as threads:
            follow: list[tuple[LakeTable, Future[_Files]]] = []
            if lake.groups in lacking:
                follow.append((lake.groups, threads.submit(self._group_files, groups, bool(changes))))
            if lake.queue_minutes in lacking:
                fact_files = [one["facts"] for one in made if one["facts"]]
                follow.append((lake.queue_minutes, threads.submit(self._minutes, fact_files)))
            if lake.dead_letters in lacking:
                follow.append((lake.dead_letters, threads.submit(self._dead_letters, shuffle_files, made)))
            for table, files in follow:
                self._commit(table, *files.result(), cursor)
        with self._stages.stage("commit"):
            self._commit(lake.messages, added, stale_files, cursor)

    def _commit(self, table: LakeTable, added: list[Path], removed: list[DataFile], cursor: Cursor) -> None:
        name = table.spec.name
        self._on_step(f"{name} written")
        before = sum(file.rows for file in table.files())
        table.commit(added, removed, cursor, commit_info={"job": "build"})
        rows = sum(file.rows for file in table.files()) - before + sum(file.rows for file in removed)
        self._stages.count_written(name, rows)
        self.built.rows[name] = self.built.rows.get(name, 0) + rows
        self.built.rewritten[name] = self.built.rewritten.get(name, 0) + len(removed)
        self._on_step(f"{name} committed")

    # --- events -----------------------------------------------------------------------------------------------------

    def _linked(self, batch: list[Segment]) -> list[Path]:
        """The segments as files of the table, not committed: hard links where the file system has them, otherwise
        copies."""
        place = self._lake.events.place()
        place.mkdir(parents=True)
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            added = list(threads.map(lambda segment: _link(segment, place), batch))
        self._stages.count_read("segments", len(batch))
        self._stages.count_read("events", sum(segment.rows for segment in batch))
        self._stages.count_read("bytes", sum(segment.entry.size_bytes for segment in batch))
        return added

    def _expect(self, batch: list[Segment], found: list[TaskResult]) -> None:
        """Refuse a batch with a segment that is not as it was written, or with rows that fail an expectation, before
        any table has it. Rows go into quarantine, where they stay until the batch is built."""
        changed = [name for result in found for name in result["changed"]]
        if changed:
            raise SegmentUnusable(
                segment=changed[0], problem="it was changed after it was written: its hash differs from the manifest's"
            )
        failed = [one for result in found for one in result["failing"]]
        nodes = {segment.entry.segment: segment.node for segment in batch}
        now = datetime.now(UTC)
        rows = [
            dict(zip(QUARANTINE.names, (nodes[one["segment"]], one["segment"], *row, now), strict=True))
            for one in failed
            for row in one["rows"]
        ]
        self._lake.quarantine.replace(set(nodes), pa.Table.from_pylist(rows, schema_of(QUARANTINE.columns)))
        if failed:
            counts = ", ".join(f"{count} fail `{name}`" for name, count in failed[0]["counts"].items())
            others = f", and {len(failed) - 1} more segments" if len(failed) > 1 else ""
            problem = f"of its rows {counts}{others} (see the table `quarantine`)"
            raise SegmentUnusable(segment=failed[0]["segment"], problem=problem)

    # --- messages ---------------------------------------------------------------------------------------------------

    def _sorted(self, batch: list[Segment], linked: list[Path], *, with_dead_letters: bool) -> list[TaskResult]:
        """Write the batch's shuffle files (shuffle.py). Returns them, with what else the tasks found."""
        names = {segment.path.name for segment in batch}
        root = self._lake.events.root.resolve()
        paths = {path.name: str(path.resolve()) for path in linked}
        if not linked:
            paths = {Path(file.path).name: str(root / file.path) for file in self._lake.events.files()}
        lacking = len(names - paths.keys())
        if lacking:
            raise TablesDamaged(path=self._lake.events.root, problem=f"{lacking} segments of it are missing")
        common: Task = {
            "place": str(self._scratch_dir),
            "with_dead_letters": with_dead_letters,
            "undone": UNDONE_PROPERTY,
        }
        return self._tasks(
            "sorting segments",
            fold_task.sort_segments,
            [
                {**common, "segments": [(paths[segment.path.name], *_expected(segment, linked)) for segment in pack]}
                for pack in packed(batch, PACK_ROWS)
            ],
        )

    def _groups(self, changes: list[dict[str, Any]], since: Cursor) -> pa.Table:
        """All groups after the batch. A build that was interrupted may have committed them already."""
        known = pa.concat_tables(
            [GROUPS_SCHEMA.empty_table()]
            + [pq.read_table(path, schema=GROUPS_SCHEMA) for path in self._paths(self._lake.groups)]
        )
        before = [row for row in known.to_pylist() if row["created_lsn"] <= since.get(row["node"], 0)]
        for row in before:
            if row["deleted_lsn"] is not None and row["deleted_lsn"] > since.get(row["node"], 0):
                row.update(deleted_at=None, deleted_lsn=None)
        return pa.Table.from_pylist(with_changes(before, changes), GROUPS_SCHEMA)

    def _group_files(self, groups: pa.Table, changed: bool) -> _Files:
        """The table is small and is written anew whenever it changes."""
        table = self._lake.groups
        if not changed:
            return [], []
        place = table.place()
        place.mkdir(parents=True)
        pq.write_table(groups, place / "groups.parquet", compression="zstd", version="2.6", store_schema=False)
        return [place / "groups.parquet"], table.files()

    def _paths(self, table: LakeTable) -> list[str]:
        return [str(table.root.resolve() / file.path) for file in table.files()]

    def _stale_files(self, shuffle_files: list[TaskResult], changes: list[dict[str, Any]]) -> list[DataFile]:
        """The files of `messages` that may hold older rows of the batch's messages, or live messages of queues whose
        groups have changed."""
        seconds = np.unique(
            np.concatenate([np.array(shuffle_file["seconds"], np.int64) for shuffle_file in shuffle_files])
        )
        queues = {change["queue"] for change in changes}
        return [
            file
            for file in self._lake.messages.files()
            if _holds(file, seconds)
            or (file.nulls["ended_at"] != 0 and any(file.may_hold("queue", queue, queue) for queue in queues))
        ]

    def _messages(
        self, shuffle_files: list[TaskResult], stale_files: list[DataFile], groups: pa.Table, since: Cursor
    ) -> tuple[list[Path], list[TaskResult]]:
        """Write the batch's messages, without committing them. Returns their files, and what else the tasks wrote."""
        table = self._lake.messages
        old = [str(table.root.resolve() / file.path) for file in stale_files]
        sample = [one for shuffle_file in shuffle_files for one in shuffle_file["sample"]]
        sample += [number for path in old for number in _sample_of(path)]
        place = table.place()
        place.mkdir(parents=True)
        groups_file = self._scratch_dir / "groups.parquet"
        pq.write_table(groups, groups_file)
        common = {
            "shuffle_files": [one["shuffle_file"] for one in shuffle_files if one["shuffle_file"]],
            "groups": str(groups_file),
            "since": list(since.items()),
            "old": old,
            "place": str(self._scratch_dir),
            "target": str(place.resolve()),
        }
        made = self._tasks(
            "folding messages",
            fold_task.fold_range,
            [{**common, "low": low, "high": high} for low, high in id_ranges(sample, parallelism(self._spark))],
        )
        return [place / Path(one["messages"]).name for one in made if one["messages"]], made

    def _tasks(self, name: str, work: Callable[[Task], TaskResult], tasks: list[Task]) -> list[TaskResult]:
        self._stages.explain(name, frame_of(self._spark, work, tasks))
        return run(self._spark, work, tasks)

    # --- tables made from the changes of messages ------------------------------------------------------------------

    def _minutes(self, fact_files: list[str]) -> _Files:
        table = self._lake.queue_minutes
        if not fact_files:
            return [], []
        fact_minutes = pa.concat_tables(
            pq.read_table(path, columns=[*queue_minutes.QUEUE_KEY, "minute"]) for path in fact_files
        )
        first = pc.min(fact_minutes["minute"]).as_py()
        files = table.files()
        stale_files = [file for file in files if file.may_hold("minute", first, None)]
        old = [str(table.root.resolve() / file.path) for file in stale_files]
        earlier = [file for file in files if file not in stale_files]
        if earlier:
            fact_files = [*fact_files, *self._carried(fact_minutes, old, earlier)]
        place = table.place()
        place.mkdir(parents=True)
        of = fact_minutes.num_rows // queue_minute_task.TASK_FACTS + 1
        common = {"facts": fact_files, "old": old, "first": _micros(first), "target": str(place.resolve()), "of": of}
        made = self._tasks(
            "counting minutes", queue_minute_task.count_minutes, [{**common, "number": number} for number in range(of)]
        )
        return [place / Path(one["rows"]).name for one in made if one["rows"]], stale_files

    def _carried(self, fact_minutes: pa.Table, old: list[str], earlier: list[DataFile]) -> list[str]:
        """The last totals of queues and groups that have events in the batch, but no rows in the `old` files: a file of
        facts."""
        wanted = _queue_keys(fact_minutes)
        known: set[tuple[str | None, ...]] = set()
        for path in old:
            known |= _queue_keys(pq.read_table(path, columns=list(queue_minutes.QUEUE_KEY)))
        wanted |= {(*place[:2], None) for place in wanted | known}
        if not wanted - known:
            return []
        asked = self._spark.createDataFrame(sorted(wanted - known, key=str), _PLACE_DDL)
        found = queue_minutes.carried(self._lake.queue_minutes.read(self._spark, earlier), asked)
        self._stages.explain("queues before the batch", found)
        carried = self._scratch_dir / "carried.parquet"
        pq.write_table(found.toArrow(), carried)
        return [str(carried)]

    def _dead_letters(self, shuffle_files: list[TaskResult], made: list[TaskResult]) -> _Files:
        table, spark = self._lake.dead_letters, self._spark
        new = [one["dead_letters"] for one in shuffle_files if one["dead_letters"]]
        back = dead_letters.latest({was: now for one in shuffle_files for was, now in one["returned"]})
        ended = np.sort(np.array([*back, *(message for one in made for message in one["dead_letters"])], np.int64))
        stale_files = [file for file in table.files() if _between(ended, file.low["letter_id"], file.high["letter_id"])]
        if not new and not stale_files:
            return [], []
        place = table.place()
        place.mkdir(parents=True)
        task: Task = {
            "dead_letters": new,
            "ends": [one["ends"] for one in made if one["ends"]],
            "old": [str(table.root.resolve() / file.path) for file in stale_files],
            "back": list(back.items()),
            "place": str(self._scratch_dir),
            "target": str(place.resolve()),
        }
        (found,) = self._tasks("merging dead letters", dead_letter_task.merge_dead_letters, [task])
        added = [place / Path(found["old"]).name] if found["old"] else []
        if found["new"]:
            rows = spark.read.schema(DEAD_LETTERS.ddl).parquet(spark_path(Path(found["new"])))
            rows = dead_letters.with_fingerprint(rows).coalesce(1)
            self._stages.explain("dead_letters", rows)
            added += table.write(rows, "-new")
        return added, stale_files


def _sample_of(path: str) -> list[int]:
    """About what a sample of the ids of a file of `messages` would be, from its footer: ids are even in a row group."""
    metadata = pq.read_metadata(path)
    column = next(n for n in range(metadata.num_columns) if metadata.schema.column(n).path == "message_id")
    found: list[int] = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        statistics = group.column(column).statistics
        if statistics is None or not statistics.has_min_max:
            continue  # then its ids are divided as those of others are
        low, high = statistics.min, statistics.max
        count = -(-group.num_rows // SAMPLE_STEP)
        found += [low + (high - low) * step // count for step in range(count)]
    return found


def _holds(file: DataFile, seconds: SortedArray) -> bool:
    low, high = file.low["message_id"], file.high["message_id"]
    assert isinstance(low, int)
    assert isinstance(high, int)
    return _between(seconds, low >> ID_SECOND_SHIFT, high >> ID_SECOND_SHIFT)


def _between(values: SortedArray, low: Bound, high: Bound) -> bool:
    """Whether one of the sorted values is between `low` and `high`."""
    if not isinstance(low, int) or not isinstance(high, int):
        return len(values) > 0
    return bool(np.searchsorted(values, high, "right") > np.searchsorted(values, low, "left"))


def _link(segment: Segment, place: Path) -> Path:
    """Link the segment into the table. A task checks its hash before the link counts."""
    target = place / segment.path.name
    if not segment.path.is_file():
        raise SegmentUnusable(segment=segment.entry.segment, problem="the file is missing")
    try:
        os.link(segment.path, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(segment.path, target)
    return target


def _expected(segment: Segment, linked: list[Path]) -> tuple[str, int, int, str | None]:
    """What the manifest says of a segment; of one that is in the table already, its hash was checked. What is left of
    removed segments has some rows up to the last."""
    entry = segment.entry
    first_lsn = entry.first_lsn if segment.removed is None else 0
    return entry.segment, first_lsn, entry.last_lsn, entry.sha256 if linked else None


def _queue_keys(rows: pa.Table) -> set[tuple[str | None, ...]]:
    """The queues and groups of some rows."""
    found = rows.select(queue_minutes.QUEUE_KEY).group_by(list(queue_minutes.QUEUE_KEY)).aggregate([])
    return set(zip(*(found[name].to_pylist() for name in queue_minutes.QUEUE_KEY), strict=True))


def _micros(instant: datetime) -> int:
    return (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
