"""The journal's segments, as the broker's manifests list them: the input of the build.

The format is that of journal/manifest.py; a file is part of the journal when a manifest lists it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.errors import LakeNotFound, SegmentUnusable
from holdfast.journal.manifest import Change, SegmentEntry, manifests, parse
from holdfast.journal.present import present

Cursor = dict[int, int]
"""A table's position: by node, the last lsn that is in it."""


class Segment(msgspec.Struct, frozen=True):
    """A segment of the journal: its path, and its entry in the manifest. Where segments were removed by
    `journal.retention`, the first one of a node is what is left of them."""

    node: int
    path: Path
    entry: SegmentEntry

    @property
    def rows(self) -> int:
        return self.entry.rows

    @property
    def removed(self) -> Change | None:
        """What was removed, if it is what is left."""
        return self.entry.change


def journal_of(lake: Path) -> Path:
    """The journal of a lake, which must exist."""
    journal = lake / "journal"
    if not manifests(journal):
        raise LakeNotFound(path=lake)
    return journal


def read_manifests(lake: Path) -> dict[int, list[Segment]]:
    """Each node's segments, in order. A last line without a newline is still being written."""
    journal = journal_of(lake)
    found: dict[int, list[Segment]] = {}
    for path in manifests(journal):
        node = int(path.stem.rpartition("-")[2])
        there = present(_parsed(path, line) for line in path.read_bytes().split(b"\n")[:-1])
        groups = [there.groups] if there.groups is not None else []
        found[node] = [Segment(node, journal / entry.segment, entry) for entry in [*groups, *there.entries]]
    return found


def _parsed(path: Path, line: bytes) -> SegmentEntry:
    try:
        return parse(line)
    except ValueError as error:
        raise SegmentUnusable(segment=path.name, problem=f"it has a line that is not an entry: {error}") from error


def after(segments: dict[int, list[Segment]], cursor: Cursor) -> list[Segment]:
    """The segments of all nodes that hold rows after `cursor`, in the order in which they were written."""
    found = [
        segment for node, chain in segments.items() for segment in chain if segment.entry.last_lsn > cursor.get(node, 0)
    ]
    return sorted(found, key=lambda segment: (segment.entry.written_at, segment.node, segment.entry.first_lsn))


def up_to(segments: list[Segment], cursor: Cursor) -> list[Segment]:
    """The segments that end at or before `cursor`."""
    return [segment for segment in segments if segment.entry.last_lsn <= cursor.get(segment.node, 0)]


def first_rows(segments: list[Segment], rows: int) -> list[Segment]:
    """The first segments, with about `rows` rows together; at least one."""
    taken: list[Segment] = []
    total = 0
    for segment in segments:
        if taken and total + segment.rows > rows:
            break
        taken.append(segment)
        total += segment.rows
    return taken


def packed(segments: list[Segment], rows: int) -> list[list[Segment]]:
    """Consecutive segments in packs of about `rows` rows: what one task reads. A segment is never divided."""
    packs: list[list[Segment]] = []
    total = 0
    for segment in segments:
        if not packs or total + segment.rows > rows:
            packs.append([])
            total = 0
        packs[-1].append(segment)
        total += segment.rows
    return packs


def end_of(segments: list[Segment], cursor: Cursor) -> Cursor:
    """The cursor after `segments`, for a table that was at `cursor`."""
    moved = dict(cursor)
    for segment in segments:
        moved[segment.node] = max(moved.get(segment.node, 0), segment.entry.last_lsn)
    return moved
