"""`reconcile`: proves from the journal that nothing was lost, and names every message that breaks the proof.

Three things together are the proof:

    chain      every segment exists once and is unchanged; each manifest line seals the one before; no lsn is missing,
               from 1 or the one at which the exporter was switched on; the line that the store remembers, by its
               number and hash, is the one in the manifest, so that no history was written anew
    balance    each enqueued message ended in each group that it was for, or is live
    broker     the deliveries that are open in the journal are live in the broker at the same lsn, and no others are

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
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from holdfast.errors import InvalidArgument
from holdfast.journal.manifest import manifest_path, seal
from holdfast.journal.snapshot import Snapshot
from holdfast.journal.verify import verify
from holdfast.pipeline.build import fold, recipients, shuffle
from holdfast.pipeline.build.recipients import with_changes
from holdfast.pipeline.build.shuffle import id_ranges
from holdfast.pipeline.jobs import reconcile_task
from holdfast.pipeline.lake import arrow, tables
from holdfast.pipeline.lake.arrow import GROUPS_SCHEMA
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.segments import Segment
from holdfast.pipeline.lake.tables import ENDS
from holdfast.pipeline.spark.stages import Stages
from holdfast.pipeline.spark.tasks import Task, TaskResult, frame_of, parallelism, pickle_by_value, run

pickle_by_value(arrow, fold, recipients, shuffle, reconcile_task, tables)

LEFT_SECONDS = 24 * 3600
"""Scratch files of this age are removed: they were left by a reconcile that was killed."""

LAST_LSN = (1 << 63) - 1
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
    """Neither received nor touched by a group that is older than its events: nothing says whether they were for it."""
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


def read_snapshot(directory: Path) -> Snapshot:
    """What `holdfast pipeline snapshot` wrote."""
    try:
        return msgspec.json.decode((directory / "snapshot.json").read_bytes(), type=Snapshot)
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidArgument(field="--snapshot", problem=f"{directory} holds no snapshot: {error}") from error


def reconcile(lake: Lake, spark: SparkSession, stages: Stages, snapshot_dir: Path | None = None) -> Proof:
    """See the module."""
    snapshot = read_snapshot(snapshot_dir) if snapshot_dir is not None else None
    with _scratch_dir(lake) as scratch_dir:
        return _Reconciliation(lake, spark, stages, snapshot, snapshot_dir, scratch_dir).prove()


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
    def __init__(
        self,
        lake: Lake,
        spark: SparkSession,
        stages: Stages,
        snapshot: Snapshot | None,
        snapshot_dir: Path | None,
        scratch_dir: str,
    ) -> None:
        self._lake = lake
        self._spark = spark
        self._stages = stages
        self._snapshot = snapshot
        self._snapshot_dir = snapshot_dir
        self._scratch_dir = str(Path(scratch_dir).resolve())
        self._roster: list[dict[str, Any]] = []
        self._proof = Proof(chain=[], against_broker=snapshot is not None)

    def prove(self) -> Proof:
        proof, stages = self._proof, self._stages
        with stages.stage("check segments and manifests"):
            segments = self._chain()
        with stages.stage("sort events by message"):
            shuffle_files = self._sorted(segments)
            live = self._sorted_live()
        stages.count_read("segments", proof.segments)
        stages.count_read("events", proof.events)
        with stages.stage("follow every message"):
            found = self._checked(shuffle_files, live)
        proof.broken_total = sum(count for one in found for *_, count in one["counts"])
        named = sorted((row for one in found for row in one["broken"]), key=lambda row: int(row[4]))
        proof.broken = [Broken(*row) for row in named[:NAMED_MAX]]
        proof.balances = self._balances(found)
        proof.good = not proof.chain and not proof.broken_total
        return proof

    # --- chain ------------------------------------------------------------------------------------------------------

    def _chain(self) -> list[Segment]:
        """Check files and manifests. Returns the segments that exist, each once."""
        proof, snapshot = self._proof, self._snapshot
        segments = self._lake.segments()  # before the files are checked: the exporter continues meanwhile
        proof.chain = [str(problem) for problem in verify(self._lake.path)]
        found: dict[Path, Segment] = {}
        for node, chain in segments.items():
            for segment in chain:
                if snapshot is not None and node == snapshot.node and segment.entry.first_lsn > snapshot.last_lsn:
                    continue  # it is later than the snapshot
                proof.last_lsn[node] = max(proof.last_lsn.get(node, 0), segment.entry.last_lsn)
                if segment.path.is_file():
                    found[segment.path] = segment
        if snapshot is not None:
            ends = proof.last_lsn.get(snapshot.node, 0)
            proof.chain += _differing_end(manifest_path(self._lake.path / "journal", snapshot.node), snapshot)
            if ends < snapshot.exported_lsn:
                removed = snapshot.exported_lsn
                proof.chain.append(
                    f"the store has removed rows up to lsn {removed}, the lake's manifest ends at {ends}"
                )
        return list(found.values())

    # --- tasks ------------------------------------------------------------------------------------------------------

    def _sorted(self, segments: list[Segment]) -> list[TaskResult]:
        """Shuffle files of all segments, and of the journal's rows that were in the broker's store at the snapshot.
        Rows that were exported since are read from the lake."""
        proof, snapshot = self._proof, self._snapshot
        upto = {snapshot.node: snapshot.last_lsn} if snapshot is not None else {}
        tasks: list[Task] = [
            {"segment": str(segment.path.resolve()), "after": 0, "upto": upto.get(segment.node, LAST_LSN)}
            for segment in segments
        ]
        if snapshot is not None and self._snapshot_dir is not None:
            tail = self._snapshot_dir.resolve() / "tail.parquet"
            after = max(proof.last_lsn.get(snapshot.node, 0), snapshot.exported_lsn)
            tasks.append({"segment": str(tail), "after": after, "upto": snapshot.last_lsn})
            proof.last_lsn[snapshot.node] = snapshot.last_lsn
        found = self._run("sorting events", reconcile_task.sort_events, tasks)
        for task, answer in zip(tasks, found, strict=True):
            if answer["problem"] is not None:
                proof.chain.append(f"{Path(task['segment']).name}: {answer['problem']}")
        proof.segments = len(segments)
        proof.events = sum(answer["rows"] for answer in found)
        if snapshot is not None:
            self._check_tail(found[-1]["rows"], tasks[-1])
        return [answer for answer in found if answer["rows"]]

    def _check_tail(self, rows: int, task: Task) -> None:
        wanted = max(task["upto"] - task["after"], 0)
        if rows != wanted:
            self._proof.chain.append(
                f"the broker's journal has {rows} rows after lsn {task['after']} and up to {task['upto']}, not {wanted}"
            )

    def _sorted_live(self) -> TaskResult:
        if self._snapshot_dir is None:
            return {"shuffle_file": None, "sample": []}
        live = str(self._snapshot_dir.resolve() / "live.parquet")
        return self._run("sorting live deliveries", reconcile_task.sort_live, [{"live": live}])[0]

    def _checked(self, shuffle_files: list[TaskResult], live: TaskResult) -> list[TaskResult]:
        snapshot = self._snapshot
        queues = snapshot.queues if snapshot is not None else []
        self._roster = with_changes([], [change for one in shuffle_files for change in one["groups"]])
        roster = Path(self._scratch_dir) / "groups.parquet"
        pq.write_table(pa.Table.from_pylist(self._roster, GROUPS_SCHEMA), roster)
        common: Task = {
            "shuffle_files": [one["shuffle_file"] for one in shuffle_files if one["shuffle_file"]],
            "roster": str(roster),
            "live": live["shuffle_file"],
            "against": snapshot is not None,
            "groups": [[queue.namespace, queue.name, group] for queue in queues for group in queue.groups],
            "journalled": [[queue.namespace, queue.name] for queue in queues if queue.journalled],
            "named_max": NAMED_MAX,
        }
        sample = [one for shuffle_file in [*shuffle_files, live] for one in shuffle_file["sample"]]
        tasks = [{**common, "low": low, "high": high} for low, high in id_ranges(sample, parallelism(self._spark))]
        return self._run("following messages", reconcile_task.check_range, tasks)

    def _run(self, name: str, work: Callable[[Task], TaskResult], tasks: list[Task]) -> list[TaskResult]:
        tasks = [{**task, "place": self._scratch_dir} for task in tasks]
        self._stages.explain(name, frame_of(self._spark, work, tasks))
        return run(self._spark, work, tasks)

    # --- balance ----------------------------------------------------------------------------------------------------

    def _balances(self, found: list[TaskResult]) -> list[Balance]:
        """Each queue and group: what was enqueued and what became of it."""
        rows: dict[_Place, list[int]] = {}
        lively: dict[_Place, int] = {}
        bad: dict[_Place, int] = {}
        for one in found:
            for namespace, queue, group, *totals in one["balances"]:
                place = (namespace, queue, group)
                key: _Place = place
                rows[key] = [sum(pair) for pair in zip(rows.get(key, [0] * len(totals)), totals, strict=True)]
            for counts, into in ((one["live"], lively), (one["counts"], bad)):
                for *place, count in counts:
                    key = tuple(place)
                    into[key] = into.get(key, 0) + count
        keys = sorted({*rows, *lively}, key=lambda key: tuple(part or "" for part in key))
        stored = {key[:2]: totals[0] for key, totals in rows.items() if key[2] is None}
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
            unproved=unproved,
            broken=broken,
        )


def _differing_end(path: Path, snapshot: Snapshot) -> list[str]:
    """The manifest against what the store remembers of it: the number and the hash of its last line then."""
    if not snapshot.chain_length:
        return []  # nothing was exported, or nothing since stores remember it
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    if len(lines) < snapshot.chain_length:
        return [f"{path.name}: chain: it has {len(lines)} entries, the store knows of {snapshot.chain_length}"]
    if seal(lines[snapshot.chain_length - 1]) != snapshot.chain_hash:
        problem = "is not the one that the store remembers: the history before it was written anew"
        return [f"{path.name}:{snapshot.chain_length}: chain: this entry {problem}"]
    return []
