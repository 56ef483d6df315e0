"""The manifest: the list of the journal's segments, in order, each line sealed by the hash of the line before.

    journal/_manifest-<node>.jsonl                                  one line for each segment, append-only
    journal/_tmp/                                                   segments being written
    journal/date=YYYY-MM-DD/<node>-<first lsn>-<last lsn>.parquet   finished segments
    journal/_groups/<node>-<last lsn>.parquet                       what is left of segments that were removed

A file is part of the journal when the manifest lists it, not when it exists. A line is never changed: an entry without
rows says that segments of lines before it were removed (`Change`); present.py says which are there. Nodes that share a
lake have a manifest each. Names begin with `_` so that a reader that reads the directory as a table (Spark, pyarrow)
ignores them.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.errors import LakeDamaged
from holdfast.files import sync_path

SCHEMA = 2
"""The number of a segment's columns (segment.py), which every entry names."""

NO_ENTRY = "0" * 64
"""The hash in the first entry, which has no predecessor."""

TAIL_BYTES = 1 << 16  # more than two lines, whatever they hold


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of segments that were written before: those up to an lsn were removed by `journal.retention`.

    The entry that has it names no segment, and stands where the next row would be. Files are removed when it is
    durable, and `segment` is there before."""

    removed_to: int
    """No segment that ends at or before this lsn is there any more."""
    first_id: int
    """No message with a lower id is part of the journal any more, though events of it may be."""
    removed_bytes: int
    """Of the files."""
    segment: str
    """The file with what is left of these segments: the events of groups that exist."""
    rows: int
    size_bytes: int
    sha256: str


class SegmentFile(NamedTuple):
    """A file of the journal, relative to the manifest's directory."""

    segment: str
    size_bytes: int
    sha256: str


class SegmentEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=False):
    """A line of the manifest."""

    segment: str
    """The file, relative to the manifest's directory."""
    rows: int
    size_bytes: int
    first_lsn: int
    last_lsn: int
    first_block: int
    last_block: int
    sha256: str
    """Of the file."""
    previous: str
    """SHA-256 of the line before, without its line end."""
    schema: int
    written_at: str
    missing_from: int | None = None
    """If rows before this segment were never exported (the exporter was off): the first of them."""
    number: int = 0
    """Which line of the manifest this is, from 1; entries of before they were numbered have none."""
    change: Change | None = None
    """Instead of a segment."""

    @property
    def file(self) -> SegmentFile:
        """The file that this entry names."""
        one = self if self.change is None else self.change
        return SegmentFile(one.segment, one.size_bytes, one.sha256)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(SegmentEntry).decode

_NAME = re.compile(r"(\d+)-(\d+)-(\d+)\.parquet")


def segment_name(node: int, first_lsn: int, last_lsn: int) -> str:
    """Of fixed width, so that names sort by lsn."""
    return f"{node:04d}-{first_lsn:019d}-{last_lsn:019d}.parquet"


def groups_path(journal: Path, node: int, last_lsn: int) -> Path:
    """What is left of the segments up to this lsn."""
    return journal / "_groups" / f"{node:04d}-{last_lsn:019d}.parquet"


def manifest_path(journal: Path, node: int) -> Path:
    return journal / f"_manifest-{node:04d}.jsonl"


def manifests(journal: Path) -> list[Path]:
    """The manifests of all nodes."""
    return sorted(journal.glob("_manifest-*.jsonl"))


def last_lsn_of(path: Path) -> int:
    """Of a segment, by its name."""
    match = _NAME.fullmatch(path.name)
    return int(match[3]) if match else 0


def segment_files(journal: Path, node: int | None = None) -> Iterator[tuple[int, Path]]:
    """The finished segments of one node or of all, whether a manifest lists them or not: first lsn, file."""
    for directory in sorted(journal.glob("date=*")):
        for path in sorted(directory.iterdir()):
            match = _NAME.fullmatch(path.name)
            if match and node in (None, int(match[1])):
                yield int(match[2]), path


def seal(line: bytes) -> str:
    """The hash of this line, for the next entry."""
    return hashlib.sha256(line).hexdigest()


def parse(line: bytes) -> SegmentEntry:
    """Parse a line; ValueError says what is wrong with it."""
    try:
        return _decode(line)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error


class Manifest:
    """The end of a node's manifest, where the next entry goes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last: SegmentEntry | None = None
        self.head = NO_ENTRY
        self.length = 0  # entries
        self.torn = False  # there is a torn line after the last entry
        self._line = b""
        self._end = 0  # of the last good entry

    def read(self) -> None:
        """Find the last entry. A crash may leave a torn line after it; anything else is damage."""
        self.last, self.head, self.torn, self._line, self._end = None, NO_ENTRY, False, b"", 0
        self.length = 0
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = max(size - TAIL_BYTES, 0)
                file.seek(start)
                data = file.read()
        except FileNotFoundError:
            return
        *lines, rest = data.split(b"\n")
        if start:
            lines = lines[1:]  # begins in the middle
        end = size - len(rest)
        self.torn = bool(rest)
        if lines and not rest and not _good(lines[-1]):
            end -= len(lines.pop()) + 1  # a power cut may keep the line's length and lose what was in it
            self.torn = True
        if not lines:
            if end:
                raise LakeDamaged(path=self.path, problem="it ends with a line that is not an entry")
            return
        self._line = lines[-1]
        try:
            self.last = parse(self._line)
        except ValueError as error:
            raise LakeDamaged(path=self.path, problem=f"an entry before the last is unreadable: {error}") from error
        self.head = seal(self._line)
        self._end = end
        self.length = self.last.number or self._count_lines()

    def _count_lines(self) -> int:
        with self.path.open("rb") as file:
            return file.read(self._end).count(b"\n")

    def settle(self) -> None:
        """Cut off what follows the last entry, and make that entry durable: a failed sync may have dropped it from the
        cache, so it is written again."""
        if self.last is None and not self.torn:
            return
        with self.path.open("r+b") as file:
            file.truncate(self._end)
            if self.last is not None:
                file.seek(self._end - len(self._line) - 1)
                file.write(self._line + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.torn = False

    def append(self, entry: SegmentEntry) -> None:
        """Append an entry. It is durable when `sync` has returned."""
        line = _encode(entry)
        with self.path.open("ab") as file:
            file.write(line + b"\n")
        self.last, self._line, self.head = entry, line, seal(line)
        self.length += 1
        self._end += len(line) + 1

    def sync(self) -> None:
        """Make the last entry durable."""
        sync_path(self.path)


def _good(line: bytes) -> bool:
    try:
        parse(line)
    except ValueError:
        return False
    return True
