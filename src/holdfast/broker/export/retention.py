"""Removes old segments (`journal.retention`), on the exporter's thread.

    file       what is left of them is written beside the segments, and synced (groups_left.py)
    manifest   an entry appended and synced: from here on they are no part of the journal
    files      removed, with what was left of those before

A crash before the entry leaves a file that no entry names; one after it leaves files that the journal no longer has.
`sweep` removes both. What is needed stays, unless `retention_force` is set: segments that the tables lack, and those
from the oldest live message on, whose end is yet to be proved against its beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import structlog

from holdfast.broker.export.conversion import Converter, OldSegments
from holdfast.core.codecs import read_message
from holdfast.core.effects import Read
from holdfast.core.records import Table, message_key
from holdfast.files import make_directory, sync_path
from holdfast.journal.built import built_to
from holdfast.journal.manifest import (
    Change,
    SegmentEntry,
    groups_path,
    last_lsn_of,
    manifest_path,
    parse,
    segment_files,
)
from holdfast.journal.present import PresentSegments
from holdfast.store.contract import Reader
from holdfast.units import parse_instant

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

REMOVED_MAX = 16  # segments in one pass: they are read, to compare their hashes, and an export waits meanwhile
SHARDS_A_READ = 16  # the oldest message of each, with its payload

STEPS = ("groups written", "groups placed", "entry synced", "files removed")
"""The steps of a removal, in order; a test crashes after each."""


class RetentionPolicy(NamedTuple):
    """What of a journal is kept. 0: there is no such bound."""

    age: int
    size_bytes: int
    force: bool

    def __bool__(self) -> bool:
        return bool(self.age or self.size_bytes)


KEEP_ALL = RetentionPolicy(0, 0, False)


class Removed(NamedTuple):
    """What a pass removed, and why it did not remove more that is old enough."""

    segments: int = 0
    size_bytes: int = 0
    waits_for: str = ""
    more: bool = False


def oldest_live(reader: Reader, shards: list[int]) -> int | None:
    """The id of the oldest message in these partitions that some group has not settled; None: there is none."""
    oldest: int | None = None
    for first in range(0, len(shards), SHARDS_A_READ):
        reads = [
            Read(Table.MESSAGES, message_key(shard, 0), message_key(shard + 1, 0))
            for shard in shards[first : first + SHARDS_A_READ]
        ]
        for rows in reader.read(reads):
            assert isinstance(rows, list)  # each asks for a range
            ids = [read_message(0, value).id for _, value in rows]
            oldest = min([*ids, oldest] if oldest is not None else ids, default=None)
    return oldest


class LakeRetention:
    """The present segments of one node's journal. Every call comes from the exporter's thread."""

    def __init__(
        self,
        lake: Path,
        node: int,
        policy: RetentionPolicy,
        converter: Converter,
        append: Callable[[Change], SegmentEntry],
        reached: Callable[[str], None],
    ) -> None:
        """`append` writes an entry into the manifest, durably."""
        self._lake, self._journal, self._node = lake, lake / "journal", node
        self._policy = policy
        self._converter = converter
        self._append = append
        self._reached = reached
        self._present = PresentSegments()
        self._read_to = 0
        self._needs_sweep = True

    def follow(self) -> None:
        """Read what was appended to the manifest. ValueError: it has a line that is no entry."""
        with manifest_path(self._journal, self._node).open("rb") as file:
            file.seek(self._read_to)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._present.add(parse(line[:-1]))
                self._read_to += len(line)
        if not self._policy:
            self._present.entries.clear()  # only their size is asked for

    @property
    def size_bytes(self) -> int:
        """Of the segments that are there."""
        return self._present.size_bytes

    def remove(self, now: int, oldest: Callable[[], int | None]) -> Removed:
        """Remove segments that are too old, or too many. `oldest` finds the oldest live message."""
        if self._needs_sweep:
            self._sweep()
        wanted = self._wanted(now)
        if not wanted:
            return Removed()
        force, waits_for = self._policy.force, ""
        built = None if force else built_to(self._lake, self._node)
        complete = [entry for entry in wanted if built is None or entry.last_lsn <= built]
        if len(complete) < len(wanted):
            waits_for = "the tables lack it: run holdfast pipeline build"
        if not complete:
            return Removed(waits_for=waits_for)
        chosen = complete[:REMOVED_MAX]
        below_id = None if force else oldest()
        tmp = self._journal / "_tmp" / f"{self._node:04d}-groups.parquet"
        tmp.parent.mkdir(exist_ok=True)
        before = self._present.removed
        left = self._converter.collect_groups(
            OldSegments(
                path=str(tmp),
                groups=str(self._journal / before.segment) if before is not None else None,
                segments=[(str(self._journal / entry.segment), entry.sha256) for entry in chosen],
                below_id=below_id,
                keep_flawed=not force,
            )
        )
        if left.count < len(chosen):
            waits_for = left.flawed or f"message {below_id} is live"
        if not left.count:
            return Removed(waits_for=waits_for)
        more = left.count == len(chosen) < len(complete)
        chosen = chosen[: left.count]
        size_bytes = sum(entry.size_bytes for entry in chosen)
        self._reached("groups written")
        place = groups_path(self._journal, self._node, chosen[-1].last_lsn)
        make_directory(place.parent)
        tmp.replace(place)
        sync_path(place.parent)
        self._reached("groups placed")
        self._needs_sweep = True
        self._append(
            Change(
                removed_to=chosen[-1].last_lsn,
                first_id=max(left.first_id, before.first_id if before is not None else 0),
                removed_bytes=size_bytes,
                segment=str(place.relative_to(self._journal)),
                rows=left.rows,
                size_bytes=place.stat().st_size,
                sha256=left.sha256,
            )
        )
        self._reached("entry synced")
        self.follow()
        self._sweep()
        self._reached("files removed")
        log.info("old segments were removed", segments=len(chosen), bytes=size_bytes, to_lsn=chosen[-1].last_lsn)
        return Removed(len(chosen), size_bytes, waits_for, more)

    def _wanted(self, now: int) -> list[SegmentEntry]:
        """The segments at the beginning that the bounds leave no place for."""
        policy, surplus = self._policy, 0
        if policy.size_bytes:
            surplus = self._present.size_bytes - policy.size_bytes
        found: list[SegmentEntry] = []
        for entry in self._present.entries:
            old = policy.age and parse_instant(entry.written_at) < now - policy.age
            if not old and surplus <= 0:
                break
            found.append(entry)
            surplus -= entry.size_bytes
        return found

    def _sweep(self) -> None:
        """Delete the files of segments that were removed, and what a crash left."""
        there = self._present.removed
        kept = self._journal / there.segment if there is not None else None
        directories: set[Path] = set()
        gone = [path for path in self._journal.glob(f"_groups/{self._node:04d}-*.parquet") if path != kept]
        for _, path in segment_files(self._journal, self._node):
            if last_lsn_of(path) <= self._present.removed_to:
                gone.append(path)
        for path in gone:
            path.unlink(missing_ok=True)
            directories.add(path.parent)
        for directory in sorted(directories):
            sync_path(directory)
            with suppress(OSError):  # it has others
                directory.rmdir()
        self._needs_sweep = False
