"""`reconcile`: proves from the journal that nothing was lost, and names every message that breaks the proof.

Three things together are the proof:

    chain      every segment exists once and is unchanged; each manifest line seals the one before; no lsn is missing,
               from 1 or the one at which the exporter was switched on; the line that the store remembers, by its
               number and hash, is the one in the manifest, so that no history was written anew
    balance    each enqueued message ended in each group that it was for, or is live
    broker     the deliveries that are open in the journal are live in the broker at the same lsn, and no others are

Segments are proved in steps of STEP_ROWS events, so that no step grows with the journal: the events of messages that
are open after a step are carried into the next, all others only as sums. With a key, what is proved after each step is
sealed (checkpoint.py), and the next proof continues from there: it reads neither the segments before nor their hashes,
but the manifest's chain from its first line.

Where `journal.retention` has removed segments the proof begins after them: with the groups that existed then, and with
the first message that was enqueued since. What happens to older messages is not looked at: when the segments went they
had ended, or they are counted as `unproved` (`retention_force`).

Without a snapshot of the broker the third part is omitted, and what the store remembers is not compared: the result
says so.

For which groups a message is follows from the events of groups (build/recipients.py): one that a group received is
open until it ends in that group, whether the group has begun with it or not. When a group is deleted, what it had not
ended goes with it: that is counted separately and breaks nothing. Of groups that are older than their events nothing
says where they began: what they never did anything with is counted as `unproved`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace
from pyspark.sql import SparkSession

from holdfast.errors import InvalidArgument
from holdfast.journal.generations import ends_generation
from holdfast.journal.manifest import manifest_path, seal
from holdfast.journal.snapshot import Snapshot
from holdfast.journal.verify import verify
from holdfast.pipeline.build import fold, recipients, shuffle
from holdfast.pipeline.build.recipients import with_changes
from holdfast.pipeline.build.shuffle import PACK_ROWS, id_ranges, sample_of
from holdfast.pipeline.jobs import reconcile_task
from holdfast.pipeline.jobs.checkpoint import Checkpoint, CheckpointFile, ProvedPosition
from holdfast.pipeline.lake import arrow, tables
from holdfast.pipeline.lake.arrow import GROUPS_SCHEMA
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.segments import Segment, after, packed
from holdfast.pipeline.lake.tables import ENDS
from holdfast.pipeline.spark.stages import Stages
from holdfast.pipeline.spark.tasks import Task, TaskResult, frame_of, parallelism, pickle_by_value, run

pickle_by_value(arrow, fold, recipients, shuffle, reconcile_task, tables)

LEFT_SECONDS = 24 * 3600
"""Scratch files of this age are removed: they were left by a reconcile that was killed."""

LAST_LSN = (1 << 63) - 1
LOOK_BACK = 256
"""Segments that one task reads for the ends of named messages."""

STEP_ROWS = 16_000_000
"""Events of a step: about 64 tasks."""

_Place = tuple[str, str, str | None]
"""Namespace, queue, group."""

NAMED_MAX = 10_000
"""Broken messages that are named. Further ones are only counted."""


class Broken(msgspec.Struct, frozen=True):
    """A message that breaks the proof."""

    problem: str
    namespace: str
    queue: str
    group: str | None
    message_id: int
    detail: str


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """A queue, or one of its groups: how many messages were enqueued, and how they ended."""

    namespace: str
    queue: str
    group: str | None
    enqueued: int
    acked: int = 0
    dead: int = 0
    dropped: int = 0
    expired: int = 0
    purged: int = 0
    live: int = 0
    group_removed: int = 0
    """Not ended when their group was deleted."""
    before: int = 0
    """Not for the group, as the event of its creation proves: they were gone before, or it began after them."""
    unproved: int = 0
    """Neither received nor touched by a group that is older than its events: nothing says whether they were for it. And
    live ones that are older than what `journal.retention` left."""
    broken: int = 0


class Proof(msgspec.Struct, kw_only=True):
    good: bool = False
    last_lsn: dict[int, int] = {}
    segments: int = 0
    events: int = 0
    chain: list[str] = []
    """Problems of files and manifests."""
    balances: list[Balance] = []
    broken: list[Broken] = []
    broken_total: int = 0
    against_broker: bool = False
    continued_from: dict[int, int] = {}
    """By node, the lsn of the checkpoint: what is before it was proved earlier."""
    removed_to: dict[int, int] = {}
    """By node, the lsn up to which `journal.retention` removed segments."""
    sealed: bool = False
    """Whether the next proof can continue after this one's segments."""


def read_snapshot(directory: Path) -> Snapshot:
    """What `holdfast pipeline snapshot` wrote."""
    try:
        return msgspec.json.decode((directory / "snapshot.json").read_bytes(), type=Snapshot)
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidArgument(field="--snapshot", problem=f"{directory} holds no snapshot: {error}") from error


def reconcile(
    lake: Lake,
    spark: SparkSession,
    stages: Stages,
    snapshot_dir: Path | None = None,
    *,
    key: bytes | None = None,
    full: bool = False,
    step_rows: int = STEP_ROWS,
) -> Proof:
    """See the module. With `full`, from the first segment also if there is a checkpoint."""
    snapshot = read_snapshot(snapshot_dir) if snapshot_dir is not None else None
    checkpoints = CheckpointFile(lake.path, key) if key is not None else None
    since = checkpoints.read() if checkpoints is not None and not full else None
    if since is not None and snapshot is not None and _is_older(snapshot, since):
        since, checkpoints = None, None  # of a moment before the checkpoint: it needs what was summed up since
    with _scratch_dir(lake) as scratch_dir:
        work = _Reconciliation(lake, spark, stages, scratch_dir, step_rows)
        work.compare_with(snapshot, snapshot_dir)
        return work.prove(checkpoints, since)


def _is_older(snapshot: Snapshot, checkpoint: Checkpoint) -> bool:
    position = checkpoint.positions.get(snapshot.node)
    return position is not None and snapshot.last_lsn < position.last_lsn


@contextmanager
def _scratch_dir(lake: Lake) -> Iterator[str]:
    """A directory that all executors see: in the lake, or, if that is read-only, a temporary directory."""
    for left in lake.path.glob("_proof-*"):
        if time.time() - left.stat().st_mtime > LEFT_SECONDS:
            shutil.rmtree(left, ignore_errors=True)
    home = lake.path if os.access(lake.path, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="_proof-", dir=home) as scratch_dir:
        yield scratch_dir


class _Reconciliation:
    def __init__(self, lake: Lake, spark: SparkSession, stages: Stages, scratch_dir: str, step_rows: int) -> None:
        self._lake = lake
        self._spark = spark
        self._stages = stages
        self._step_rows = step_rows
        self._snapshot: Snapshot | None = None
        self._snapshot_dir: Path | None = None
        self._scratch_dir = str(Path(scratch_dir).resolve())
        self._roster: list[dict[str, Any]] = []
        self._totals: dict[_Place, list[int]] = {}  # of messages that were no longer open after a step
        self._bad: dict[_Place, int] = {}
        self._carried: list[TaskResult] = []  # shuffle files with the events of open messages
        self._flagged: list[str] = []  # files of messages that are named already
        self._proved: dict[int, tuple[int, int]] = {}  # by node, entries of the manifest and the last lsn
        self._highest: dict[int, int] = {}  # by node, the highest id that was enqueued
        self._first_ids: dict[int, int] = {}  # by node, the lowest id that is not older than the journal
        self._older: dict[_Place, int] = {}  # live deliveries of messages that are older than the journal
        self._cut: list[Segment] = []  # a segment that the snapshot is in the middle of
        self._proof = Proof(chain=[])

    def compare_with(self, snapshot: Snapshot | None, directory: Path | None) -> None:
        self._snapshot, self._snapshot_dir = snapshot, directory
        self._proof.against_broker = snapshot is not None

    def prove(self, checkpoints: CheckpointFile | None, since: Checkpoint | None) -> Proof:
        proof, stages = self._proof, self._stages
        if checkpoints is not None and since is not None and not self._removed_since(since):
            self._continue(checkpoints, since)
        with stages.stage("check manifests"):
            segments = self._chain()
        for step in packed(segments, self._step_rows):
            self._step(step)
            if checkpoints is not None and not proof.chain and not proof.broken_total:
                with stages.stage("seal"):
                    self._seal(checkpoints)
        stages.count_read("segments", proof.segments)
        stages.count_read("events", proof.events)
        self._end()
        proof.good = not proof.chain and not proof.broken_total
        return proof

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def _continue(self, checkpoints: CheckpointFile, since: Checkpoint) -> None:
        proof = self._proof
        self._proved = {node: (position.entries, position.last_lsn) for node, position in since.positions.items()}
        self._totals = {(namespace, queue, group): totals for namespace, queue, group, totals in since.totals}
        self._roster = since.groups
        self._highest = dict(since.highest)
        self._carried = [{"shuffle_file": path, "sample": sample_of(path)} for path in checkpoints.open_files(since)]
        proof.segments, proof.events = since.segments, since.events
        proof.last_lsn = {node: position.last_lsn for node, position in since.positions.items()}
        proof.continued_from = dict(proof.last_lsn)
        for node, position in since.positions.items():
            path = manifest_path(self._lake.path / "journal", node)
            proof.chain += _differing(path, position.entries, position.head, "the checkpoint")

    def _removed_since(self, since: Checkpoint) -> bool:
        """Whether segments were removed that are after the checkpoint: then it does not reach what is left."""
        return any(
            chain[0].removed is not None
            and node in since.positions
            and since.positions[node].last_lsn < chain[0].removed.removed_to
            for node, chain in self._lake.segments().items()
            if chain
        )

    def _seal(self, checkpoints: CheckpointFile) -> None:
        proof = self._proof
        checkpoints.write(
            Checkpoint(
                proved_at=datetime.now(UTC).isoformat(timespec="seconds"),
                positions={node: self._position(node) for node in self._proved},
                segments=proof.segments,
                events=proof.events,
                totals=[(*place, totals) for place, totals in self._totals.items()],
                groups=self._roster,
                highest=self._highest,
                open=checkpoints.store_open([one["shuffle_file"] for one in self._carried]),
            )
        )
        proof.sealed = True

    def _position(self, node: int) -> ProvedPosition:
        entries, last_lsn = self._proved[node]
        lines = manifest_path(self._lake.path / "journal", node).read_bytes().split(b"\n", entries)
        return ProvedPosition(entries, seal(lines[entries - 1]), last_lsn)

    # --- chain ------------------------------------------------------------------------------------------------------

    def _chain(self) -> list[Segment]:
        """Check the manifests. Returns the segments that are to be proved and exist, each once, in their order."""
        proof, snapshot = self._proof, self._snapshot
        segments = self._lake.segments()  # before the files are checked: the exporter continues meanwhile
        journal = self._lake.path / "journal"
        proved = {manifest_path(journal, node).name: entries for node, (entries, _) in self._proved.items()}
        proof.chain += [str(problem) for problem in verify(self._lake.path, hashes=False, proved=proved)]
        found: dict[Path, Segment] = {}
        for node, chain in segments.items():
            gone = chain[0].removed if chain else None
            if gone is None:
                continue
            if snapshot is not None and node == snapshot.node and snapshot.last_lsn < gone.removed_to:
                problem = "is of a moment whose segments journal.retention has removed: take another"
                raise InvalidArgument(field="--snapshot", problem=problem)
            self._first_ids[node] = gone.first_id
            proof.removed_to[node] = gone.removed_to
        for segment in after(segments, proof.last_lsn):
            limit = snapshot.last_lsn if snapshot is not None and segment.node == snapshot.node else LAST_LSN
            if segment.entry.first_lsn > limit:
                continue  # it is later than the snapshot
            if segment.path.is_file() and segment.entry.last_lsn > limit:
                self._cut = [segment]
            elif segment.path.is_file():
                found[segment.path] = segment
            proof.last_lsn[segment.node] = max(proof.last_lsn.get(segment.node, 0), segment.entry.last_lsn)
        if snapshot is not None:
            ends = proof.last_lsn.get(snapshot.node, 0)
            path = manifest_path(journal, snapshot.node)
            if snapshot.chain_length:  # else nothing was exported, or nothing since stores remember it
                proof.chain += _differing(path, snapshot.chain_length, snapshot.chain_hash, "the store")
            if ends < snapshot.exported_lsn and not ends_generation(snapshot.exported_lsn):
                removed = snapshot.exported_lsn
                proof.chain.append(
                    f"the store has removed rows up to lsn {removed}, the lake's manifest ends at {ends}"
                )
        return list(found.values())

    # --- steps ------------------------------------------------------------------------------------------------------

    def _step(self, segments: list[Segment]) -> None:
        proof, stages = self._proof, self._stages
        with stages.stage("sort events by message"):
            shuffle_files = self._sorted(segments)
        with stages.stage("follow every message"):
            found = self._checked(shuffle_files, last=False)
        self._add(found)
        self._check_suspects(shuffle_files, {node: lsn for node, (_, lsn) in self._proved.items()})
        add_up(self._totals, found)
        self._carried = [one["open"] for one in found if one["open"] is not None]
        self._flagged += [one["flagged"] for one in found if one["flagged"] is not None]
        proof.segments += len(segments)
        proof.events += sum(one["rows"] for one in shuffle_files)
        for segment in segments:
            self._proved[segment.node] = segment.entry.number, segment.entry.last_lsn

    def _end(self) -> None:
        """What is open after the last segment against the broker, with the rows of the journal that were in its store.
        Rows that were exported since are read from the lake."""
        proof, snapshot = self._proof, self._snapshot
        tails: list[TaskResult] = []
        live: TaskResult = {"shuffle_file": None, "sample": []}
        with self._stages.stage("compare with the broker"):
            if snapshot is not None and self._cut:
                tails += self._sorted(self._cut, snapshot.last_lsn)
                proof.segments += 1
                proof.events += tails[0]["rows"]
            if snapshot is not None and self._snapshot_dir is not None:
                directory = self._snapshot_dir.resolve()
                since = max(proof.last_lsn.get(snapshot.node, 0), snapshot.exported_lsn)
                tail = {"path": str(directory / "tail.parquet"), "name": "tail.parquet", "sha256": None}
                task: Task = {"segments": [tail], "after": since, "upto": snapshot.last_lsn, **self._bounds()}
                (rest,) = self._run("sorting the broker's events", reconcile_task.sort_events, [task])
                self._check_tail(rest, task)
                tails.append(rest)
                proof.last_lsn[snapshot.node] = snapshot.last_lsn
                task = {"live": str(directory / "live.parquet"), "first_id": self._first_ids.get(snapshot.node, 0)}
                live = self._run("sorting live deliveries", reconcile_task.sort_live, [task])[0]
                self._older = {(namespace, queue, group): count for namespace, queue, group, count in live["older"]}
            found = self._checked(tails, live, last=True)
            self._add(found)
            self._check_suspects(tails, {node: lsn for node, (_, lsn) in self._proved.items()})
            proof.balances = self._balances(found)
            self._look_back()

    def _sorted(self, segments: list[Segment], upto: int = LAST_LSN) -> list[TaskResult]:
        """Shuffle files of some segments."""
        tasks: list[Task] = [
            {"segments": [_named(segment) for segment in pack], "after": 0, "upto": upto, **self._bounds()}
            for pack in packed(segments, PACK_ROWS)
        ]
        found = self._run("sorting events", reconcile_task.sort_events, tasks)
        self._proof.chain += [problem for one in found for problem in one["problems"]]
        return found

    def _bounds(self) -> Task:
        first_ids = list(self._first_ids.items())
        return {"highest": list(self._highest.items()), "first_ids": first_ids, "named_max": NAMED_MAX}

    def _check_tail(self, tail: TaskResult, task: Task) -> None:
        proof = self._proof
        wanted = max(task["upto"] - task["after"], 0)
        proof.events += tail["rows"]
        proof.chain += tail["problems"]
        if tail["rows"] != wanted:
            place = f"after lsn {task['after']} and up to {task['upto']}"
            proof.chain.append(f"the broker's journal has {tail['rows']} rows {place}, not {wanted}")

    def _checked(
        self, shuffle_files: list[TaskResult], live: TaskResult | None = None, *, last: bool
    ) -> list[TaskResult]:
        snapshot = self._snapshot
        queues = snapshot.queues if snapshot is not None else []
        self._roster = with_changes(self._roster, [change for one in shuffle_files for change in one["groups"]])
        roster = Path(self._scratch_dir) / "groups.parquet"
        pq.write_table(pa.Table.from_pylist(self._roster, GROUPS_SCHEMA), roster)
        files = [one for one in [*self._carried, *shuffle_files] if one["shuffle_file"]]
        common: Task = {
            "shuffle_files": [one["shuffle_file"] for one in files],
            "roster": str(roster),
            "flagged": self._flagged,
            "last": last,
            "live": live["shuffle_file"] if live is not None else None,
            "against": last and snapshot is not None,
            "groups": [[queue.namespace, queue.name, group] for queue in queues for group in queue.groups],
            "journalled": [[queue.namespace, queue.name] for queue in queues if queue.journalled],
            "named_max": NAMED_MAX,
        }
        sample = [one for file in [*files, live or {"sample": []}] for one in file["sample"]]
        tasks = [{**common, "low": low, "high": high} for low, high in id_ranges(sample, parallelism(self._spark))]
        return self._run("following messages", reconcile_task.check_range, tasks)

    def _run(self, name: str, work: Callable[[Task], TaskResult], tasks: list[Task]) -> list[TaskResult]:
        tasks = [{**task, "place": self._scratch_dir} for task in tasks]
        self._stages.explain(name, frame_of(self._spark, work, tasks))
        return run(self._spark, work, tasks)

    # --- what breaks the proof --------------------------------------------------------------------------------------

    def _add(self, found: list[TaskResult]) -> None:
        """Name what a step has found, up to a limit."""
        proof = self._proof
        for one in found:
            for *place, count in one["counts"]:
                namespace, queue, group = place
                key: _Place = (namespace, queue, group)
                self._bad[key] = self._bad.get(key, 0) + count
                proof.broken_total += count
        named = [*proof.broken, *(Broken(*row) for one in found for row in one["broken"])]
        proof.broken = sorted(named, key=lambda row: row.message_id)[:NAMED_MAX]

    def _check_suspects(self, found: list[TaskResult], proved: dict[int, int]) -> None:
        """Messages that were enqueued with ids that are not new: whether they were enqueued before, in segments that
        are summed up already. What is still open is compared with them in the step itself."""
        self._highest = {
            node: max(number for one in found for at, number in one["highest"] if at == node)
            for node in {at for one in found for at, _ in one["highest"]}
        } or self._highest
        suspects = {number for one in found for number in one["suspects"]}
        twice = {
            message: Broken("enqueued twice", namespace, queue, None, message, f"first at lsn {lsn}")
            for message, _, lsn, namespace, queue in self._found_before(suspects, ["enqueued"], proved)
        }
        named = {one.message_id for one in self._proof.broken}
        rows = [one for number, one in sorted(twice.items()) if number not in named]
        counts = [[one.namespace, one.queue, None, 1] for one in rows]
        self._add([{"counts": counts, "broken": [list(msgspec.structs.astuple(one)) for one in rows]}])

    def _found_before(self, ids: set[int], events: list[str], proved: dict[int, int] | int) -> list[list[Any]]:
        """Events of messages in segments up to an lsn of each node."""
        if not ids:
            return []
        files: list[str] = []
        for node, chain in self._lake.segments().items():
            upto = proved if isinstance(proved, int) else proved.get(node, 0)
            some = [segment.path for segment in chain if segment.entry.last_lsn <= upto]
            files += [str(path.resolve()) for path in some if path.is_file()]
        tasks: list[Task] = [
            {"ids": sorted(ids), "events": events, "segments": files[first : first + LOOK_BACK]}
            for first in range(0, len(files), LOOK_BACK)
        ]
        found = self._run("looking back", reconcile_task.find_events, tasks)
        return [row for one in found for row in one["found"]]

    def _look_back(self) -> None:
        """Deliveries that are live in the broker and not open in the journal: which of them did end, in a segment of an
        earlier step?"""
        proof = self._proof
        unknown = {one.message_id for one in proof.broken if one.problem == reconcile_task.UNKNOWN}
        ended: dict[tuple[int, str | None], int] = {}
        for message, group, lsn, *_ in self._found_before(unknown, list(ENDS), LAST_LSN):
            ended[message, group] = max(ended.get((message, group), 0), lsn)
        proof.broken = [
            replace(one, problem="live after its end", detail=f"ended at lsn {lsn}, yet live in the broker")
            if one.problem == reconcile_task.UNKNOWN and (lsn := ended.get((one.message_id, one.group)))
            else one
            for one in proof.broken
        ]

    # --- balance ----------------------------------------------------------------------------------------------------

    def _balances(self, found: list[TaskResult]) -> list[Balance]:
        """Each queue and group: what was enqueued and what became of it."""
        rows = {place: list(totals) for place, totals in self._totals.items()}
        add_up(rows, found)
        lively: dict[_Place, int] = {}
        for one in found:
            for namespace, queue, group, count in one["live"]:
                lively[namespace, queue, group] = lively.get((namespace, queue, group), 0) + count
        keys = sorted({*rows, *lively, *self._older}, key=lambda key: tuple(part or "" for part in key))
        stored = {key[:2]: totals[0] for key, totals in rows.items() if key[2] is None}
        bad = self._bad
        return [
            self._balance(key, rows.get(key, [0] * 8), stored.get(key[:2], 0), lively.get(key, 0), bad.get(key, 0))
            for key in keys
        ]

    def _exists(self, key: _Place) -> bool:
        """Whether the broker has a group."""
        queues = self._snapshot.queues if self._snapshot is not None else []
        return any((one.namespace, one.name) == key[:2] and key[2] in one.groups for one in queues)

    def _balance(self, key: _Place, totals: list[int], enqueued: int, live: int, broken: int) -> Balance:
        namespace, queue, group = key
        snapshot = self._snapshot
        received, *ends, opened, removed = totals
        ended = dict(zip(ENDS, ends, strict=True))
        before = unproved = 0
        if group is not None:
            own = [row for row in self._roster if (row["namespace"], row["queue"], row["group"]) == key]
            if not own and snapshot is not None and not self._exists(key):
                removed, opened = removed + opened, 0
            if own and not any(row["recorded"] for row in own):
                before = max(enqueued - received, 0)
            else:
                unproved = max(enqueued - received, 0)
        alive = live if snapshot is not None else opened
        return Balance(
            namespace=namespace,
            queue=queue,
            group=group,
            enqueued=enqueued,
            **ended,
            live=alive,
            group_removed=removed,
            before=before,
            unproved=unproved + self._older.get(key, 0),
            broken=broken,
        )


def add_up(totals: dict[_Place, list[int]], found: list[TaskResult]) -> None:
    """Add the balances that tasks have found."""
    for one in found:
        for namespace, queue, group, *counts in one["balances"]:
            key: _Place = (namespace, queue, group)
            totals[key] = [sum(pair) for pair in zip(totals.get(key, [0] * len(counts)), counts, strict=True)]


def _named(segment: Segment) -> dict[str, str]:
    """A segment as a task reads it."""
    return {"path": str(segment.path.resolve()), "name": segment.entry.segment, "sha256": segment.entry.sha256}


def _differing(path: Path, entries: int, head: str, by: str) -> list[str]:
    """The manifest against what is remembered of it: the hash of the last of so many entries."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    if len(lines) < entries:
        return [f"{path.name}: chain: it has {len(lines)} entries, {by} knows of {entries}"]
    if seal(lines[entries - 1]) != head:
        problem = f"is not the one that {by} remembers: the history before it was written anew"
        return [f"{path.name}:{entries}: chain: this entry {problem}"]
    return []
