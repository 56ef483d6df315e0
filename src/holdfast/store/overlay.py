"""The store as it will be when the turn's batch is written: its records, with the changes of the batch over them.

A turn writes once, at its end, so that what belongs together is stored as a whole or not at all. Until then reads of
what the turn has changed go through here. Most turns read nothing that they have changed, so the operations are indexed
when the first read of their table comes, and no earlier.

Four things decide what is under a key, in this order: a single operation of the batch, a run of new records that the
batch puts, a range that it deletes, the store.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from holdfast.core.effects import DeleteRun, DeleteUntil, Op, Read
from holdfast.core.records import Table
from holdfast.core.runs import RecordRun, key_after
from holdfast.store.sorted_keys import SortedKeys

Rows = list[tuple[bytes, bytes]]

PAGE_MAX = 256
"""Records that a scan reads at a time where the batch has deleted all that it found before."""


class Reader(Protocol):
    """What a store offers to those that read. Scans ascend."""

    def get(self, table: Table, key: bytes) -> bytes | None: ...
    def get_many(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]: ...
    def scan(self, table: Table, start: bytes, end: bytes, limit: int) -> Rows: ...


def fetch(reader: Reader, reads: list[Read]) -> list[bytes | Rows | None]:
    """What a shard asked for, in that order."""
    if len(reads) > 1 and all(read.end is None and read.table is reads[0].table for read in reads):
        return list(reader.get_many(reads[0].table, [read.key for read in reads]))
    results: list[bytes | Rows | None] = []
    for read in reads:
        if read.end is None:
            results.append(reader.get(read.table, read.key))
        else:
            results.append(reader.scan(read.table, read.key, read.end, read.limit))
    return results


class _Ranges:
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

    def end_from(self, key: bytes) -> bytes | None:
        """The end of the range that a key is in."""
        at = bisect_right(self._starts, key) - 1
        return self._ends[at] if at >= 0 and key < self._ends[at] else None


class _Changes:
    """What a batch changes in one table."""

    __slots__ = ("_firsts", "_runs", "_sorted", "_unsorted", "deleted", "indexed", "single")

    def __init__(self) -> None:
        self.indexed = 0  # operations of the batch, of any table
        self.single: dict[bytes, bytes | None] = {}
        self.deleted = _Ranges()
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


class Overlay:
    """See the module. `ops` are the batch's, which grow; the store is not written meanwhile."""

    __slots__ = ("_changes", "_ops", "_store")

    def __init__(self, store: Reader, ops: list[Op]) -> None:
        self._store = store
        self._ops = ops
        self._changes: dict[Table, _Changes] = {}

    def _index(self, table: Table) -> _Changes:
        changes = self._changes.get(table)
        if changes is None:
            changes = self._changes[table] = _Changes()
        if changes.indexed < len(self._ops):
            for one, key, value in islice(self._ops, changes.indexed, None):
                if one is table:
                    changes.apply(key, value)
            changes.indexed = len(self._ops)
        return changes

    def get(self, table: Table, key: bytes) -> bytes | None:
        """The record under a key, or None."""
        return self.get_many(table, [key])[0]

    def get_many(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        """The records under these keys, in their order."""
        changes = self._index(table)
        found: dict[bytes, bytes | None] = {}
        for key in keys:
            if key in changes.single:
                found[key] = changes.single[key]
            elif (value := changes.in_run(key)) is not None or changes.deleted.end_from(key) is not None:
                found[key] = value
        lacking = [key for key in keys if key not in found]
        if lacking:
            found.update(zip(lacking, self._store.get_many(table, lacking), strict=True))
        return [found[key] for key in keys]

    def scan(self, table: Table, start: bytes, end: bytes, limit: int) -> Rows:
        """At most `limit` records with start <= key < end, ascending."""
        changes = self._index(table)
        if not changes.any:
            return self._store.scan(table, start, end, limit)
        rows = changes.rows(start, end, limit)
        left = page_size = limit
        at = start
        while at < end and left > 0:
            behind = changes.deleted.end_from(at)
            if behind is not None:
                at = behind
                continue
            page = self._store.scan(table, at, end, page_size)
            kept = [row for row in page if row[0] not in changes.single and changes.deleted.end_from(row[0]) is None]
            rows += kept
            left -= len(kept)
            behind = page[-1][0] + b"\0" if len(page) == page_size else end
            if kept:
                page_size = left
            else:
                changes.hide(at, behind)  # so that no other read of this turn looks here
                page_size = max(page_size, min(2 * page_size, PAGE_MAX))
            at = behind
        rows.sort()
        return rows[:limit]
