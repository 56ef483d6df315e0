"""RocksDB's log after a crash: a torn end, which is normal, told from damage, which is not.

Opening alone does not tell them apart. RocksDB reads its log up to the first record that it cannot read, takes that for
the end, and drops what follows; and where zeros end with a block of the log, it goes on behind them as if nothing were
missing. Both are right for writes that were never synced, and would lose confirmed ones without a word.

Three things tell more, before anything is changed:

    the sequence   every change has a number; the records of a log, and of one log after the other, have no gap
    the mark       the number up to which the store was synced, written after each sync (`SyncedMark`). What a crash of
                   the machine leaves of it may be older, so that it promises too little and never too much
    the sectors    a disk writes 512 bytes whole or not at all, and a log is never overwritten. A torn record ends with
                   the file, or has a sector of zeros; a record with a wrong checksum and neither of these was damaged

Checksums are RocksDB's to compare: the caller opens the database for reading only, which changes nothing, and gives the
number of the last change that it could read.

The format, of which this needs the lengths: blocks of 32 KiB; in them fragments of checksum (4 bytes), length (2), kind
(1) and content, the last bytes of a block unused if no head fits. A record is one FULL fragment, or FIRST, MIDDLE …,
LAST. It begins with the number of its first change (8) and how many there are (4).
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from struct import Struct as Layout
from typing import NamedTuple

from holdfast.errors import StoreCorrupt
from holdfast.files import sync_path

_BLOCK_BYTES = 32 * 1024
_SECTOR_BYTES = 512
_ZEROS = 16  # so many at the end of a sector are not there by chance
_FRAGMENT = Layout("<IHB")
_BATCH = Layout("<QI")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MARK = Layout(">QI")


class Record(NamedTuple):
    """A record of a log: where it is in the file, its first change, and the one after its last."""

    start: int
    end: int
    first: int
    after: int


class Unreadable(NamedTuple):
    """A place in the file where a record should be and is none; `cut`: because the file ends in it."""

    start: int
    end: int
    cut: bool = False


class Break(NamedTuple):
    """The first place at which the log cannot be read, and why. Without `damage` it is the torn end."""

    log: Path
    offset: int
    changes: int | None
    """The number of the last change before it, None if it is the first record of all."""
    damage: str | None


def logs_of(data: Path) -> list[Path]:
    """The logs of a database that are not empty, in their order."""
    logs = (path for path in data.glob("*.log") if path.stem.isdecimal() and path.stat().st_size)
    return sorted(logs, key=lambda path: int(path.stem))


def examine(logs: Sequence[Path], readable: int, synced: int | None) -> Break | None:
    """The first break in the logs. `readable`: the last change that RocksDB can read; `synced`: the last one that the
    mark says is synced."""
    expected: int | None = None
    for number, path in enumerate(logs):
        with _content(path) as content:
            expected, bad, following = _read_on(content, expected, readable)
            if bad is None:
                continue
            if following is None and expected is not None and _first_change(logs[number + 1 :]) == expected:
                continue  # nothing is missing: it was written again after a failure
            missing = expected if expected is not None else following.first - 1 if following is not None else None
            before = expected - 1 if expected is not None else None
            if synced is not None and missing is not None and missing <= synced:
                problem = f"it cannot be read from there on, and was synced up to change {synced}"
                return Break(path, bad.start, before, problem)
            if (isinstance(bad, Unreadable) and bad.cut) or _has_unwritten_sector(content, bad):
                return Break(path, bad.start, before, None)
            return Break(path, bad.start, before, "it cannot be read from there on, and is not torn there")
    return None


def _read_on(
    content: mmap.mmap, expected: int | None, readable: int
) -> tuple[int | None, Unreadable | Record | None, Record | None]:
    """Read one log: the change that should come next, the first place that cannot be read, and the first record behind
    that place."""
    bad: Unreadable | Record | None = None
    end = 0
    for entry in _entries(content):
        if bad is not None:
            if isinstance(entry, Record):
                return expected, bad, entry
        elif isinstance(entry, Unreadable) or entry.after - 1 > readable or entry.first < (expected or 0):
            bad = entry
        elif expected is not None and entry.first > expected:
            return expected, Unreadable(end, entry.start), entry
        else:
            expected, end = entry.after, entry.end
    return expected, bad, None


def recover(logs: Sequence[Path], readable: int, synced: int | None) -> Break | None:
    """Have the logs end where they are torn, so that RocksDB cannot read on behind that place. Raises StoreCorrupt,
    and changes nothing, if they are damaged."""
    found = examine(logs, readable, synced)
    if found is None:
        if synced is not None and readable < synced:
            where = logs[-1] if logs else None
            raise StoreCorrupt(
                path=where or "the log",
                problem=f"it ends with change {readable}, and was synced up to change {synced}",
            )
        return None
    if found.damage is not None:
        raise StoreCorrupt(path=f"{found.log} at byte {found.offset}", problem=found.damage)
    cut(logs, found)
    return found


def cut(logs: Sequence[Path], found: Break) -> None:
    """End the logs before a break, durably. The last log goes first: a crash in between leaves a break again."""
    for path in reversed(logs[list(logs).index(found.log) + 1 :]):
        path.unlink()
    os.truncate(found.log, found.offset)
    sync_path(found.log)
    sync_path(found.log.parent)


@contextmanager
def _content(path: Path) -> Iterator[mmap.mmap]:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        yield content


def _first_change(logs: Sequence[Path]) -> int | None:
    """The number of the first change in the next log."""
    for path in logs:
        with _content(path) as content:
            entry = next(_entries(content))
        return entry.first if isinstance(entry, Record) else None
    return None


def _has_unwritten_sector(content: mmap.mmap, where: Unreadable | Record) -> bool:
    """Whether a sector of the disk that belongs to the place was never written, or not to its end."""
    start = where.start
    while start < where.end:
        end = min((start // _SECTOR_BYTES + 1) * _SECTOR_BYTES, len(content))
        if not any(content[max(start, end - _ZEROS) : end]):
            return True
        start = end
    return False


def _entries(content: mmap.mmap) -> Iterator[Record | Unreadable]:
    """What a log has, by the lengths of its fragments. Behind a place that cannot be read the next block is tried."""
    size = len(content)
    position = 0
    begun: int | None = None  # where a record of several fragments begins
    head = b""
    while position < size:
        left = _BLOCK_BYTES - position % _BLOCK_BYTES
        if left < _FRAGMENT.size:
            position += left
            continue
        block_end = min(position + left, size)
        start = position if begun is None else begun
        if block_end - position < _FRAGMENT.size:
            yield Unreadable(start, size, cut=True)
            return
        _, length, kind = _FRAGMENT.unpack_from(content, position)
        content_start = position + _FRAGMENT.size
        end = content_start + length
        if end > block_end or kind == 0 or (begun is None) == (kind in (_MIDDLE, _LAST)):
            yield Unreadable(start, block_end, cut=end > size == block_end)
            begun, position = None, block_end
            continue
        if kind in (_FULL, _FIRST):
            head = b""
        if len(head) < _BATCH.size:
            head += content[content_start : min(end, content_start + _BATCH.size - len(head))]
        position = end
        if kind == _FIRST:
            begun = start
        elif kind in (_FULL, _LAST):
            begun = None
            if len(head) < _BATCH.size:
                yield Unreadable(start, end)
                continue
            first, count = _BATCH.unpack(head)
            yield Record(start, end, first, first + count)
    if begun is not None:
        yield Unreadable(begun, size, cut=True)


class SyncedMark:
    """A file with the number of the last change that is known to be synced. It is not synced itself: it says what was
    true when it was written, and an older one is true as well."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def write(self, change: int) -> None:
        """Everything up to this change is synced."""
        packed = change.to_bytes(8, "big")
        os.pwrite(self._file, packed + zlib.crc32(packed).to_bytes(4, "big"), 0)

    def close(self) -> None:
        os.close(self._file)


def read_mark(path: Path) -> int | None:
    """What the mark says; None if there is none, or a torn one."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(content) != _MARK.size:
        return None
    change, checksum = _MARK.unpack(content)
    return change if zlib.crc32(content[:8]) == checksum else None
