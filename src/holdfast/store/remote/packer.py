"""Makes the `Change` of a batch: one state for each key, and runs of records in packs.

To write or delete a record one must know whether a pack holds it. A writer knows the packs that it made or met a short
while ago; for others it asks (`lookups`), and where few records are left in a pack it needs their values to store them
singly (`values_lacking`). Both are rare: a queue whose consumers keep up asks for nothing.

Batches are made one after the other, while those before them may still be under way. What is read then may lack what
these change: so packs that they have changed stay known, and packs that they have deleted are not learnt again, until
they are confirmed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from holdfast.core.effects import Op, Read
from holdfast.core.records import Table
from holdfast.core.runs import RecordRun, key_after
from holdfast.errors import StoreCorrupt
from holdfast.store import runs
from holdfast.store.changes import Changes, Ranges
from holdfast.store.contract import Found
from holdfast.store.packs import read_pack, write_packs
from holdfast.store.remote.reads import clusters, entry_reads
from holdfast.store.remote.table import Change
from holdfast.store.runs import END, VALUES, Pack, members, read_entry

RUN_MIN: Final = 8  # a run of fewer records than this is stored singly
_NUMBER_BYTES: Final = 8


class UnknownPack(Exception):
    """It is not known whether a pack holds a key."""


class _KnownPacks:
    """The packs of one table that the writer knows. `settled` are keys of which it is known whether a pack holds
    them."""

    def __init__(self) -> None:
        self.packs: dict[bytes, Pack] = {}
        self.last_keys: list[bytes] = []
        self.settled = Ranges()

    def add(self, one: Pack) -> None:
        if one.last_key not in self.packs:
            insort(self.last_keys, one.last_key)
        self.packs[one.last_key] = one

    def remove(self, one: Pack) -> None:
        del self.packs[one.last_key]
        del self.last_keys[bisect_left(self.last_keys, one.last_key)]

    def holding(self, key: bytes) -> Pack | None:
        """The pack whose first key is not behind `key`, nor its last before it. Raises UnknownPack."""
        at = bisect_left(self.last_keys, key)
        near = self.packs[self.last_keys[at]] if at < len(self.last_keys) else None
        if near is not None and near.first_key <= key:
            return near
        if key < END and self.settled.end_from(key) is None:
            raise UnknownPack
        return None

    def between(self, start: bytes, end: bytes) -> list[Pack]:
        """Packs whose last keys are in a range."""
        keys = self.last_keys[bisect_left(self.last_keys, start) : bisect_left(self.last_keys, end)]
        return [self.packs[key] for key in keys]

    def keep(self, kept: Iterable[Pack]) -> None:
        """Forget all but these."""
        self.packs = {one.last_key: one for one in kept}
        self.last_keys = sorted(self.packs)
        self.settled = Ranges()


def coalesce(batches: Iterable[Sequence[Op]]) -> dict[Table, Changes]:
    """What operations change, table by table: a record written ten times is there once."""
    tables: dict[Table, Changes] = {}
    for ops in batches:
        for table, key, value in ops:
            changes = tables.get(table)
            if changes is None:
                changes = tables[table] = Changes()
            changes.apply(key, value)
    return tables


class Packer:
    """See the module. For each batch, in order: `begin`, `lookups`, `learn` what they found, `pack`, `values_lacking`,
    `finish`."""

    def __init__(self) -> None:
        self._known = {table: _KnownPacks() for table in VALUES}
        self._changed_in: dict[tuple[Table, bytes], int] = {}  # packs of batches that are not confirmed
        self._contents: dict[tuple[Table, bytes], tuple[int, bytes]] = {}  # of packs of such batches
        self._deleted_in: dict[tuple[Table, bytes], int] = {}
        self._cleared: list[tuple[Table, bytes, bytes, int]] = []  # ranges of last keys whose packs are deleted
        self._batch = 0
        self._fresh: set[tuple[Table, bytes]] = set()
        self._changed: dict[tuple[Table, bytes], Pack] = {}
        self._resolved: list[tuple[Table, Pack]] = []
        self._ranges: list[tuple[Table, bytes, bytes]] = []
        self._records: dict[tuple[Table, bytes], bytes | None] = {}

    def begin(self, batch: int, confirmed: int) -> None:
        """Begin a batch of this number. Those up to `confirmed` can be read."""
        self._batch = batch
        self._changed_in = {place: number for place, number in self._changed_in.items() if number > confirmed}
        self._contents = {place: held for place, held in self._contents.items() if held[0] > confirmed}
        self._deleted_in = {place: number for place, number in self._deleted_in.items() if number > confirmed}
        self._cleared = [one for one in self._cleared if one[3] > confirmed]
        if sum([len(known.packs) for known in self._known.values()]) > runs.REMEMBERED_MAX:
            for table, known in self._known.items():
                known.keep([one for key, one in known.packs.items() if (table, key) in self._changed_in])
        self._fresh.clear()
        self._changed.clear()
        self._resolved.clear()
        self._ranges = []
        self._records = {}

    # --- what is stored already -------------------------------------------------------------------------------------

    def lookups(self, tables: dict[Table, Changes]) -> list[Read]:
        """Reads of the entries of packs that must be known to make this batch."""
        reads: list[Read] = []
        for table, known in self._known.items():
            changes = tables.get(table)
            if changes is not None:
                unknown = [key for key in _keys_to_know(changes) if not _knows(known, key)]
                reads += [read for first, last in clusters(unknown) for read in entry_reads(table, first, last)]
        return reads

    def learn(self, reads: Sequence[Read], results: Sequence[Found]) -> None:
        """Remember what was found by `lookups`."""
        for read, rows in zip(reads, results, strict=True):
            assert isinstance(rows, list)
            assert read.end is not None
            table = Table(read.key[0])
            known = self._known[table]
            for key, record in rows:
                if key[1:] not in known.packs and not self._is_deleted(table, key[1:]):
                    known.add(read_entry(key[1:], record))
            end = rows[-1][0][1:] + b"\0" if len(rows) >= read.limit else read.end[1:] or END
            if read.key[1:] < end:
                known.settled.add(read.key[1:], end)

    def _is_deleted(self, table: Table, last_key: bytes) -> bool:
        return (table, last_key) in self._deleted_in or any(
            of is table and start <= last_key < end for of, start, end, _ in self._cleared
        )

    # --- the batch --------------------------------------------------------------------------------------------------

    def pack(self, tables: dict[Table, Changes]) -> None:
        """Take in the changes of the batch."""
        for table, changes in tables.items():
            known = self._known.get(table)
            for start, end in changes.deleted:
                self._ranges.append((table, start, end))
                if known is not None:
                    self._leave_range(table, known, start, end)
            for first_key, run in changes.runs():
                if known is None or len(run) < RUN_MIN:
                    self._put_singly(table, known, first_key, run)
                else:
                    self._join(table, known, first_key, run)
            if known is None:
                self._records.update([((table, key), value) for key, value in changes.single.items()])
            else:
                self._put(table, known, changes)
        for place, one in self._changed.items():
            self._settle(*place, one)

    def values_lacking(self) -> list[Read]:
        """Reads of the values of packs that are to be resolved and are not at hand."""
        return [
            Read(VALUES[table], one.last_key)
            for table, one in self._resolved
            if (table, one.last_key) not in self._contents
        ]

    def finish(self, results: Sequence[Found]) -> Change:
        """The change, with what `values_lacking` found."""
        values = iter(results)
        for table, one in self._resolved:
            held = self._contents.get((table, one.last_key))
            content = held[1] if held is not None else next(values)
            if not isinstance(content, bytes):
                raise StoreCorrupt(
                    path=f"the table {table.name}", problem=f"the values of {one.last_key.hex()} are missing"
                )
            for key, value in members(one, read_pack(content, one.count), 0, one.count):
                self._records[table, key] = value
        deletes = [place for place, value in self._records.items() if value is None]
        puts = [(table, key, value) for (table, key), value in self._records.items() if value is not None]
        return Change(self._ranges, deletes, puts)

    def _leave_range(self, table: Table, known: _KnownPacks, start: bytes, end: bytes) -> None:
        left = known.holding(start)
        if left is not None:
            self._leave(table, left, left.index_from(start), left.index_from(end))
            start = left.last_key + b"\0"
            if start >= end:
                return
        right = known.holding(end)
        if right is not None and right.first_key < end:
            self._leave(table, right, 0, right.index_from(end))
        inside = known.between(start, end)
        settled_to = known.settled.end_from(start)
        if not inside and settled_to is not None and settled_to >= end:
            return
        for one in inside:
            known.remove(one)
            self._changed.pop((table, one.last_key), None)
        number = bytes([table])
        self._ranges.append((Table.RUNS, number + start, number + end))
        self._ranges.append((VALUES[table], start, end))
        self._cleared.append((table, start, end, self._batch))
        known.settled.add(start, end)

    def _leave(self, table: Table, one: Pack, low: int, high: int) -> None:
        one.gone |= (1 << high) - (1 << low)
        self._changed[table, one.last_key] = one

    def _put_singly(self, table: Table, known: _KnownPacks | None, first_key: bytes, run: RecordRun) -> None:
        self._records.update([((table, key), value) for key, value in run.rows(first_key)])
        if known is not None:
            known.settled.add(first_key, key_after(first_key, len(run)))

    def _join(self, table: Table, known: _KnownPacks, first_key: bytes, run: RecordRun) -> None:
        for start, end, content in write_packs(run, runs.PACK_MAX, runs.PACK_BYTES):
            if end - start < runs.PACK_MIN:
                self._put_singly(table, known, key_after(first_key, start), run.part(start, end))
                continue
            one = Pack(key_after(first_key, end - 1), end - start)
            known.add(one)
            place = (table, one.last_key)
            self._changed[place] = one
            self._fresh.add(place)
            self._contents[place] = (self._batch, content)

    def _put(self, table: Table, known: _KnownPacks, changes: Changes) -> None:
        for key, value in changes.single.items():
            one = known.holding(key) if len(key) >= _NUMBER_BYTES else None
            if one is not None and len(one.last_key) == len(key):
                index = one.index_from(key)
                if not one.gone >> index & 1:
                    self._leave(table, one, index, index + 1)
                    if value is None:
                        continue
            self._records[table, key] = value

    def _settle(self, table: Table, last_key: bytes, one: Pack) -> None:
        place, entry = (table, last_key), (Table.RUNS, bytes([table]) + last_key)
        known = self._known[table]
        fresh = place in self._fresh
        if one.left and (fresh or one.left * runs.RESOLVED_AT > one.count):
            self._changed_in[place] = self._batch
            self._records[entry] = one.record()
            if fresh:
                self._records[VALUES[table], last_key] = self._contents[place][1]
            return
        if one.left:
            self._resolved.append((table, one))
        known.remove(one)
        known.settled.add(one.first_key, last_key + b"\0")
        self._deleted_in[place] = self._batch
        if not fresh:
            self._records[entry] = None
            self._records[VALUES[table], last_key] = None


def _keys_to_know(changes: Changes) -> Iterator[bytes]:
    """Keys of which it must be known whether a pack holds them. Those of new runs were never stored."""
    for start, end in changes.deleted:
        yield start
        yield end
    for key in changes.single:
        if len(key) >= _NUMBER_BYTES and changes.in_run(key) is None:
            yield key


def _knows(known: _KnownPacks, key: bytes) -> bool:
    try:
        known.holding(key)
    except UnknownPack:
        return False
    return True
