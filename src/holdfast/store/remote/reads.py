"""Reads of records that are single or in packs, of a remote table: mostly in one round trip.

A pack is two records under its last key (store/runs.py). To find the pack that a record may be in, both are read from
the record's key on, beside the record itself: so what is found needs no second look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from holdfast.core.effects import Read
from holdfast.core.records import Table
from holdfast.core.runs import RecordRun, key_after
from holdfast.store.changes import Reading
from holdfast.store.contract import Found, Rows
from holdfast.store.packs import read_pack
from holdfast.store.runs import END, PACK_MAX, VALUES, Pack, members, merged, read_entry

GAP_MAX = 16
"""Keys no further apart than this are looked up by one range of packs: few packs lie between them."""

PAGE_PACKS_MAX = 64
"""Packs that a scan reads at a time: at most 4 MiB."""

_NUMBER_BYTES = 8


def drive(reading: Reading, ask: Callable[[list[Read]], list[Found]]) -> list[Found]:
    """Do a read in rounds; `ask` answers each."""
    try:
        asked = next(reading)
        while True:
            asked = reading.send(ask(asked))
    except StopIteration as end:
        found: list[Found] = end.value
        return found


def clusters(keys: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    """The first and last keys of groups of keys that are near each other."""
    found: list[tuple[bytes, bytes]] = []
    for key in sorted(set(keys)):
        if found:
            first, last = found[-1]
            if len(last) == len(key) >= _NUMBER_BYTES and last[:-8] == key[:-8]:
                gap = int.from_bytes(key[-8:], "big") - int.from_bytes(last[-8:], "big")
                if gap <= GAP_MAX:
                    found[-1] = (first, key)
                    continue
        found.append((key, key))
    return found


def entry_reads(table: Table, first: bytes, last: bytes) -> list[Read]:
    """Reads of the entries of all packs that a key from `first` to `last` can be in."""
    return _around(Table.RUNS, bytes([table]), bytes([table + 1]), first, last)


def _around(table: Table, prefix: bytes, end: bytes, first: bytes, last: bytes) -> list[Read]:
    beyond = Read(table, prefix + last, end, 1)
    return [beyond] if first == last else [Read(table, prefix + first, prefix + last, 1 << 30), beyond]


def read_packed(reads: Sequence[Read]) -> Reading:
    """What each of these asks for, of a table with packs."""
    plain = [at for at, read in enumerate(reads) if read.table not in VALUES]
    scans = {
        at: _Scan(read, read.end) for at, read in enumerate(reads) if read.table in VALUES and read.end is not None
    }
    lookups = {
        table: _Lookup(table, [read.key for read in reads if read.table is table and read.end is None])
        for table in VALUES
    }
    asked = [reads[at] for at in plain]
    for lookup in lookups.values():
        asked += lookup.reads
    going = [scan for scan in scans.values() if not scan.done]
    found: list[Found] = [None] * len(reads)
    results = iter((yield asked + [read for scan in going for read in scan.next_reads()]))
    for at in plain:
        found[at] = next(results)
    for lookup in lookups.values():
        lookup.take([next(results) for _ in lookup.reads])
    while going:
        for scan in going:
            scan.take([_rows(next(results)) for _ in range(3)])
        going = [scan for scan in going if not scan.done]
        if going:
            results = iter((yield [read for scan in going for read in scan.next_reads()]))
    for at, read in enumerate(reads):
        if at in scans:
            found[at] = scans[at].rows[: read.limit]
        elif read.table in VALUES:
            found[at] = lookups[read.table].found[read.key]
    return found


def read_runs(table: Table, key: bytes, count: int, ask: Callable[[list[Read]], list[Found]]) -> list[RecordRun]:
    """The records of consecutive keys; packs from which nothing has left stay whole."""
    if not count:
        return []
    end, last = key_after(key, count), key_after(key, count - 1)
    entries = entry_reads(table, key, last)
    contents = _around(VALUES[table], b"", END, key, last)
    results = [_rows(one) for one in ask([Read(table, key, end, count), *entries, *contents])]
    packs = _packs(
        [row for rows in results[1 : 1 + len(entries)] for row in rows],
        [row for rows in results[1 + len(entries) :] for row in rows],
    )
    rows = results[0]
    runs: list[RecordRun] = []
    for one, values in packs:
        if one.first_key >= end:
            break
        low, high = one.index_from(key), one.index_from(end)
        if one.gone:
            rows = merged(members(one, values, low, high), rows, 1 << 62, reverse=False)
            continue
        before = [value for at, value in rows if at < one.first_key]
        rows = [row for row in rows if row[0] > one.last_key]
        runs += [RecordRun.of(before)] if before else []
        runs.append(values.part(low, high))
    return runs + ([RecordRun.of([value for _, value in rows])] if rows else [])


def _rows(found: Found) -> Rows:
    assert isinstance(found, list)
    return found


def _packs(entries: Rows, contents: Rows) -> list[tuple[Pack, RecordRun]]:
    """Packs by their entries and values; one without values was resolved, and its records are single."""
    values = dict(contents)
    return [
        (one, read_pack(values[one.last_key], one.count))
        for one in (read_entry(key[1:], record) for key, record in entries)
        if one.last_key in values
    ]


class _Lookup:
    """Records of one table by their keys."""

    def __init__(self, table: Table, keys: list[bytes]) -> None:
        self.table = table
        self.found: dict[bytes, bytes | None] = {}
        self._keys = list(dict.fromkeys(keys))
        near = clusters(key for key in self._keys if len(key) >= _NUMBER_BYTES)
        self._entries = [read for first, last in near for read in entry_reads(table, first, last)]
        contents = [read for first, last in near for read in _around(VALUES[table], b"", END, first, last)]
        self.reads = [*[Read(table, key) for key in self._keys], *self._entries, *contents]

    def take(self, results: list[Found]) -> None:
        single = results[: len(self._keys)]
        ranges = [_rows(one) for one in results[len(self._keys) :]]
        entries = dict(row for rows in ranges[: len(self._entries)] for row in rows)
        packs = _packs(sorted(entries.items()), [row for rows in ranges[len(self._entries) :] for row in rows])
        for key, value in zip(self._keys, single, strict=True):
            assert value is None or isinstance(value, bytes)
            self.found[key] = value if value is not None else _in_packs(packs, key)


def _in_packs(packs: list[tuple[Pack, RecordRun]], key: bytes) -> bytes | None:
    for one, values in packs:
        if one.first_key <= key <= one.last_key and len(key) == len(one.last_key):
            index = one.index_from(key)
            return None if one.gone >> index & 1 else values[index : index + 1][0]
    return None


class _Scan:
    """A range, page by page."""

    def __init__(self, read: Read, end: bytes) -> None:
        self._table = read.table
        self._at = read.key
        self._end = end
        self._limit = read.limit
        self._packs_max = 0
        self.rows: Rows = []

    @property
    def done(self) -> bool:
        return self._at >= self._end or len(self.rows) >= self._limit

    def next_reads(self) -> list[Read]:
        """Three reads: single records, entries of packs, their values."""
        left = self._limit - len(self.rows)
        self._packs_max = min(left // PACK_MAX + 2, PAGE_PACKS_MAX)
        number = bytes([self._table])
        return [
            Read(self._table, self._at, self._end, left),
            Read(Table.RUNS, number + self._at, bytes([self._table + 1]), self._packs_max),
            Read(VALUES[self._table], self._at, END, self._packs_max),
        ]

    def take(self, results: list[Rows]) -> None:
        single, entries, contents = results
        left = self._limit - len(self.rows)
        upto = self._end
        if len(single) >= left:
            upto = min(upto, single[-1][0] + b"\0")
        if len(entries) >= self._packs_max:
            upto = min(upto, entries[-1][0][1:] + b"\0")
        packed: Rows = []
        for one, values in _packs(entries, contents):
            if one.first_key >= upto:
                break
            packed += members(one, values, one.index_from(self._at), one.index_from(upto))
        self.rows += merged(packed, [row for row in single if row[0] < upto], 1 << 62, reverse=False)
        self._at = upto
