"""What operations that are not stored yet change in one table, and what a read of the store finds with them over it.

Four things decide what is under a key, in this order: a single operation, a run of new records, a range that is
deleted, the store.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice

from holdfast.core.effects import DeleteRun, DeleteUntil, Read
from holdfast.core.records import Table
from holdfast.core.runs import RecordRun, key_after
from holdfast.store.contract import Found, Rows
from holdfast.store.sorted_keys import SortedKeys

PAGE_MAX = 256
"""Records that a scan reads at a time where all that it found before is deleted."""


class Ranges:
    """Ranges of keys that do not overlap, in order; the end of a range is not in it."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[bytes] = []
        self._ends: list[bytes] = []

    def add(self, start: bytes, end: bytes) -> None:
        """Add a range. It becomes one with those that it overlaps or touches."""
        low, high = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if low < high:
            start, end = min(start, self._starts[low]), max(end, self._ends[high - 1])
        self._starts[low:high], self._ends[low:high] = [start], [end]

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return zip(self._starts, self._ends, strict=True)

    def overlaps(self, start: bytes, end: bytes) -> bool:
        """Whether a range has a key in common with one of these."""
        at = bisect_right(self._ends, start)
        return at < len(self._starts) and self._starts[at] < end

    def end_from(self, key: bytes) -> bytes | None:
        """The end of the range that a key is in."""
        at = bisect_right(self._starts, key) - 1
        return self._ends[at] if at >= 0 and key < self._ends[at] else None


class Changes:
    """See the module."""

    __slots__ = ("_firsts", "_runs", "_sorted", "_unsorted", "deleted", "indexed", "single")

    def __init__(self) -> None:
        self.indexed = 0  # operations of the batch, of any table
        self.single: dict[bytes, bytes | None] = {}
        self.deleted = Ranges()
        self._sorted = SortedKeys()  # the keys of `single`, but for the unsorted ones
        self._unsorted: list[bytes] = []
        self._firsts: list[bytes] = []  # the first keys of the runs, in order
        self._runs: list[RecordRun] = []

    def apply(self, key: bytes, value: bytes | DeleteUntil | DeleteRun | RecordRun | None) -> None:
        """One operation: see `Op`."""
        if value is None or isinstance(value, bytes):
            if key not in self.single:
                self._unsorted.append(key)
            self.single[key] = value
        elif isinstance(value, RecordRun):
            if self.single:  # deletions of what was never there
                self._drop(list(self._keys().ascending(key, key_after(key, len(value)))))
            self._insert(key, value)
        else:
            self._delete(key, value.until(key).end if isinstance(value, DeleteRun) else value.end)

    def _insert(self, key: bytes, run: RecordRun) -> None:
        at = bisect_left(self._firsts, key)
        self._firsts.insert(at, key)
        self._runs.insert(at, run)

    def hide(self, start: bytes, end: bytes) -> None:
        """Nothing that the store has in this range is left. Single deletions in it need not be kept."""
        keys = self._keys().ascending(start, end)
        self._drop([key for key in keys if self.single[key] is None and self.in_run(key) is None])
        self.deleted.add(start, end)

    def _drop(self, keys: list[bytes]) -> None:
        for key in keys:
            del self.single[key]
            self._sorted.remove(key)

    def _delete(self, start: bytes, end: bytes) -> None:
        if start >= end:
            return
        self._drop(list(self._keys().ascending(start, end)))
        for first, low, high, run in list(self._overlapping(start, end)):
            at = bisect_left(self._firsts, first)
            del self._firsts[at], self._runs[at]
            if low:
                self._insert(first, run.part(0, low))
            if high < len(run):
                self._insert(key_after(first, high), run.part(high, len(run)))
        self.deleted.add(start, end)

    @property
    def any(self) -> bool:
        return bool(self.single or self._runs or self.deleted)

    def changes_in(self, start: bytes, end: bytes) -> bool:
        """Whether anything changes in a range."""
        return (
            next(self._keys().ascending(start, end), None) is not None
            or bool(self._overlapping(start, end))
            or self.deleted.overlaps(start, end)
        )

    def runs(self) -> Iterator[tuple[bytes, RecordRun]]:
        """The runs that are put, as far as they are not deleted by a range: their first keys, and they."""
        return zip(self._firsts, self._runs, strict=True)

    def _keys(self) -> SortedKeys:
        for key in self._unsorted:
            self._sorted.add(key)
        self._unsorted.clear()
        return self._sorted

    def _overlapping(self, start: bytes, end: bytes) -> list[tuple[bytes, int, int, RecordRun]]:
        """Runs with records in a range: the first key, and the indexes of these records."""
        found: list[tuple[bytes, int, int, RecordRun]] = []
        for at in range(max(bisect_right(self._firsts, start) - 1, 0), bisect_left(self._firsts, end)):
            first, run = self._firsts[at], self._runs[at]
            low, high = _index(first, start, len(run)), _index(first, end, len(run))
            if low < high:
                found.append((first, low, high, run))
        return found

    def in_run(self, key: bytes) -> bytes | None:
        """The value of a record of a run."""
        at = bisect_right(self._firsts, key) - 1
        if at < 0:
            return None
        first, run = self._firsts[at], self._runs[at]
        index = _index(first, key, len(run))
        return run[index : index + 1][0] if index < len(run) and key_after(first, index) == key else None

    def get(self, key: bytes) -> tuple[bool, bytes | None]:
        """Whether the batch decides what is under a key, and what."""
        if key in self.single:
            return True, self.single[key]
        value = self.in_run(key)
        return value is not None or self.deleted.end_from(key) is not None, value

    def decides(self, key: bytes) -> bool:
        """Whether what the store has under a key does not count. The store may have records of runs already: a remote
        one stores them before it is known that it has."""
        return (
            key in self.single
            or self.deleted.end_from(key) is not None
            or (bool(self._runs) and self.in_run(key) is not None)
        )

    def rows(self, start: bytes, end: bytes, limit: int) -> Rows:
        """The first records of a range that the batch puts."""
        single = self.single
        puts = ((key, single[key]) for key in self._keys().ascending(start, end))
        rows: Rows = list(islice(((key, value) for key, value in puts if value is not None), limit))
        for first, low, high, run in self._overlapping(start, end):
            there = run.part(low, min(high, low + limit + len(single))).rows(key_after(first, low))
            rows += [row for row in there if row[0] not in single][:limit]
        rows.sort()
        return rows[:limit]


def _index(first: bytes, key: bytes, count: int) -> int:
    """The index of the first record not before `key` among so many that begin with the key `first`."""
    if key <= first:
        return 0
    if key > key_after(first, count - 1):
        return count
    # It is between two keys that differ in their last eight bytes only, so it begins as they do.
    digits = key[len(first) - 8 :]
    number = int.from_bytes(digits[:8].ljust(8, b"\0"), "big")
    return number - int.from_bytes(first[-8:], "big") + (len(digits) > 8)


Reading = Generator[list[Read], list[Found], list[Found]]
"""A read in rounds: it yields what it asks the store below, is sent what that found, and returns what was asked."""


def read_over(changes_of: Callable[[Table], Changes], reads: Sequence[Read]) -> Reading:
    """What each of these asks for, with changes over the store: one round, unless they delete what a scan finds."""
    found: list[Found] = [None] * len(reads)
    asked: dict[int, Read] = {}
    scans: dict[int, _Scan] = {}
    for at, read in enumerate(reads):
        changes = changes_of(read.table)
        if read.end is None:
            known, found[at] = changes.get(read.key)
            if not known:
                asked[at] = read
        elif not changes.any:
            asked[at] = read
        else:
            scans[at] = _Scan(changes, read, read.end)
            if (page := scans[at].next_page()) is not None:
                asked[at] = page
    while asked:
        places = list(asked)
        results = yield list(asked.values())
        asked.clear()
        for at, result in zip(places, results, strict=True):
            if at not in scans:
                found[at] = result
                continue
            assert isinstance(result, list)
            scans[at].take(result)
            if (page := scans[at].next_page()) is not None:
                asked[at] = page
    for at, scan in scans.items():
        found[at] = scan.rows()
    return found


class _Scan:
    """A scan with changes over the store, page by page."""

    __slots__ = ("_at", "_changes", "_end", "_left", "_page_size", "_read", "_rows")

    def __init__(self, changes: Changes, read: Read, end: bytes) -> None:
        self._changes = changes
        self._read = read
        self._at = read.key
        self._end = end
        self._left = self._page_size = read.limit
        self._rows = changes.rows(read.key, end, read.limit)

    def next_page(self) -> Read | None:
        """What to ask the store, None if nothing is left."""
        while self._at < self._end and self._left > 0:
            behind = self._changes.deleted.end_from(self._at)
            if behind is None:
                return Read(self._read.table, self._at, self._end, self._page_size)
            self._at = behind
        return None

    def take(self, page: Rows) -> None:
        changes = self._changes
        kept = [row for row in page if not changes.decides(row[0])]
        self._rows += kept
        self._left -= len(kept)
        behind = page[-1][0] + b"\0" if len(page) >= self._page_size else self._end
        if kept:
            self._page_size = self._left
        else:
            changes.hide(self._at, behind)  # so that no other read looks here
            self._page_size = max(self._page_size, min(2 * self._page_size, PAGE_MAX))
        self._at = behind

    def rows(self) -> Rows:
        """What was found."""
        self._rows.sort()
        return self._rows[: self._read.limit]
