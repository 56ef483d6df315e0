"""Runs of records are stored in packs: a run of consecutive keys is a few records of RocksDB, not hundreds.

A batch of messages has two records each, under keys that count up by one. RocksDB takes a microsecond for each record,
and so does the Python code around it. `RecordRun`s are cut into *packs* of up to 256 records:

    RUNS                       table, last key of a pack   its number of records, and bits of those that have left it
    MESSAGE_RUNS, READY_RUNS   last key of a pack          their values (store/packs.py)

A record is in a pack or single, never both: writing or deleting it sets its bit in its pack. A pack that all records
have left is deleted. One in which few are left is resolved into single records, so that a message that stays does not
keep the bytes of others for long.

Only the store's writer uses the cache of `PackIndex`; readers, also on other threads, have a `PackReader` each and read
what is stored. They read the packs first and the single records afterwards, so that they miss no record that leaves its
pack meanwhile. Everything here is for any store that is an ordered map of single records: it takes `scan` and `get` of
that, and gives plain operations.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from struct import Struct as Layout
from typing import Final

from holdfast.core.effects import DeleteUntil, Op
from holdfast.core.records import Table
from holdfast.core.runs import RecordRun, key_after
from holdfast.errors import StoreCorrupt
from holdfast.store.contract import Rows
from holdfast.store.packs import read_pack, write_packs

Scan = Callable[[Table, bytes, bytes, int], Rows]
Get = Callable[[Table, bytes], "bytes | None"]

PACK_MAX: Final = 256  # records: one bit each in a record that is written again when some leave
PACK_BYTES: Final = 64 * 1024  # to read one record, all of its pack are read
PACK_MIN: Final = 4  # fewer than this, because they are large, are stored singly
RESOLVED_AT: Final = 16  # a pack is resolved when only one in so many records is left
REMEMBERED_MAX: Final = 4_096  # packs
DECODED_MAX: Final = 8  # packs whose values are cached for sequential reads: at most 64 KiB each
PAGE: Final = 8  # packs read at a time

VALUES: Final = {Table.MESSAGES: Table.MESSAGE_RUNS, Table.READY: Table.READY_RUNS}

_U64 = Layout(">Q")
_COUNT = Layout(">H")
END: Final = b"\xff" * 32  # after every key


class Pack:
    """Consecutive records. `gone` has the bits of those that have left."""

    __slots__ = ("count", "first", "first_key", "fresh", "gone", "last_key")

    def __init__(self, last_key: bytes, count: int, gone: int = 0, *, fresh: bool = False) -> None:
        self.last_key = last_key
        self.count = count
        self.first = int.from_bytes(last_key[-8:], "big") - count + 1
        self.first_key = last_key[:-8] + _U64.pack(self.first)
        self.gone = gone
        self.fresh = fresh  # it is not stored yet

    @property
    def left(self) -> int:
        return self.count - self.gone.bit_count()

    def index_from(self, key: bytes) -> int:
        """The index of the first record whose key is not before `key`."""
        if key <= self.first_key:
            return 0
        if key > self.last_key:
            return self.count
        # It is between two keys that differ in their last eight bytes only, so it begins as they do.
        digits = key[len(self.last_key) - 8 :]
        number = int.from_bytes(digits[:8].ljust(8, b"\0"), "big")
        return number - self.first + (len(digits) > _U64.size)

    def key(self, index: int) -> bytes:
        return self.last_key[:-8] + _U64.pack(self.first + index)

    def record(self) -> bytes:
        gone = self.gone
        return _COUNT.pack(self.count) + gone.to_bytes((gone.bit_length() + 7) // 8, "little")


def read_entry(last_key: bytes, record: bytes) -> Pack:
    return Pack(last_key, _COUNT.unpack_from(record)[0], int.from_bytes(record[2:], "little"))


class _PackCache:
    """The writer's cache of one table's packs."""

    __slots__ = ("free_from", "free_to", "last_keys", "packs")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.packs: dict[bytes, Pack] = {}
        self.last_keys: list[bytes] = []
        self.free_from = self.free_to = b""  # no pack has a key in this range, its end not included

    def add(self, one: Pack) -> None:
        if one.last_key not in self.packs:
            insort(self.last_keys, one.last_key)
        self.packs[one.last_key] = one

    def remove(self, one: Pack) -> None:
        del self.packs[one.last_key]
        del self.last_keys[bisect_left(self.last_keys, one.last_key)]


class PackReader:
    """Reads packs, for one thread. `scan` and `get` are those of single records."""

    def __init__(self, scan: Scan, get: Get) -> None:
        self._scan = scan
        self._get = get
        self._decoded: dict[tuple[Table, bytes], RecordRun] = {}

    def get(self, table: Table, key: bytes) -> bytes | None:
        """The value of a record in a pack; None: it is in no pack."""
        one = next(self._stored(table, key, 1), None)
        if one is None or one.first_key > key or len(one.last_key) != len(key):
            return None
        index = int.from_bytes(key[-8:], "big") - one.first
        if one.gone >> index & 1:
            return None
        values = self._values(table, one)
        return None if values is None else values[index : index + 1][0]

    def rows(self, table: Table, start: bytes, end: bytes, limit: int, reverse: bool) -> Rows:
        """The first records of a range, or the last ones, that are in packs."""
        if reverse:  # this is rare
            return self.rows(table, start, end, 1 << 62, reverse=False)[::-1][:limit]
        rows: Rows = []
        for one in self._stored(table, start):
            if one.first_key >= end or len(rows) >= limit:
                break
            low, high = one.index_from(start), one.index_from(end)
            if (one.gone >> low).bit_count() == one.count - low:
                continue
            values = self._values(table, one)
            if values is not None:  # else it was resolved meanwhile: its records are single now
                rows += members(one, values, low, high)
        return rows[:limit]

    def whole(self, table: Table, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes, RecordRun]]:
        """Complete packs that overlap a range: first and last key in it, and the records in it."""
        for one in self._stored(table, start):
            if one.first_key >= end:
                return
            values = None if one.gone else self._values(table, one)
            if values is not None:
                low, high = one.index_from(start), one.index_from(end)
                yield one.key(low), one.key(high - 1), values.part(low, high)

    def _stored(self, table: Table, key: bytes, page: int = PAGE) -> Iterator[Pack]:
        """Packs that are stored, from the first on whose last key is not before `key`."""
        number = bytes([table])
        start, end = number + key, bytes([table + 1])
        while True:
            found = self._scan(Table.RUNS, start, end, page)
            for entry, record in found:
                yield read_entry(entry[1:], record)
            if len(found) < page:
                return
            start = found[-1][0] + b"\0"

    def _values(self, table: Table, one: Pack) -> RecordRun | None:
        known = self._decoded.get((table, one.last_key))
        if known is not None:
            return known
        data = self._get(VALUES[table], one.last_key)
        if data is None:
            return None
        values = read_pack(data, one.count)
        if len(self._decoded) >= DECODED_MAX:
            del self._decoded[next(iter(self._decoded))]
        self._decoded[table, one.last_key] = values
        return values


class PackIndex(PackReader):
    """The packs of a store's writer: see the module."""

    def __init__(self, scan: Scan, get: Get) -> None:
        super().__init__(scan, get)
        self._known = {table: _PackCache() for table in VALUES}
        # Tables whose records may be in packs, so that changes of them must be reported here.
        self.packed = {table for table in VALUES if scan(Table.RUNS, bytes([table]), bytes([table + 1]), 1)}
        self.changed: dict[tuple[Table, bytes], Pack] = {}  # by the current batch
        self._ended: list[tuple[bytes, bytes]] = []  # ranges of RUNS that this batch has deleted

    # --- writing: all of it for one batch, in order -----------------------------------------------------------------

    def begin(self) -> None:
        """Begin a batch: the changes of the last one are stored."""
        if not self.packed:
            return
        for one in self.changed.values():
            one.fresh = False
        self.changed.clear()
        self._ended.clear()
        if sum([len(known.packs) for known in self._known.values()]) > REMEMBERED_MAX:
            self.forget()

    def forget(self) -> None:
        """Clear the cache: it may differ from what is stored."""
        for known in self._known.values():
            known.forget()
        self.changed.clear()
        self._ended.clear()
        self._decoded.clear()

    def join(self, table: Table, first_key: bytes, run: RecordRun) -> Iterator[Op]:
        """The operations that put new records under consecutive keys."""
        known = self._known[table]
        self.packed.add(table)
        head, first = first_key[:-8], int.from_bytes(first_key[-8:], "big")
        for start, end, content in write_packs(run, PACK_MAX, PACK_BYTES):
            if end - start < PACK_MIN:
                for number, value in enumerate(run[start:end], first + start):
                    yield table, head + _U64.pack(number), value
                continue
            one = Pack(head + _U64.pack(first + end - 1), end - start, fresh=True)
            known.add(one)
            if one.first_key < known.free_to and known.free_from <= one.last_key:
                known.free_from = one.last_key + b"\0"
            self.changed[table, one.last_key] = one
            self._decoded.pop((table, one.last_key), None)
            yield VALUES[table], one.last_key, content

    def leave(self, table: Table, key: bytes) -> bool:
        """A record is written or deleted. True: it was in a pack, and has left it."""
        known = self._known[table]
        if known.free_from <= key < known.free_to:
            return False
        one = self._first(table, known, key)
        if one is None or one.first_key > key or len(one.last_key) != len(key):
            return False
        bit = 1 << (int.from_bytes(key[-8:], "big") - one.first)
        if one.gone & bit:
            return False
        one.gone |= bit
        self.changed[table, one.last_key] = one
        return True

    def leave_range(self, table: Table, start: bytes, end: bytes) -> Iterator[Op]:
        """Records from `start` up to, not including, `end` are deleted: the operations that this takes on packs."""
        known = self._known[table]
        for seen in range(PAGE):
            one = self._first(table, known, start)
            if one is None or one.first_key >= end:
                return
            if seen == PAGE - 1 and start <= one.first_key and one.last_key < end:
                break
            low, high = one.index_from(start), one.index_from(end)
            one.gone |= (1 << high) - (1 << low)
            self.changed[table, one.last_key] = one
            if key_after(one.last_key, 1) >= end:
                return  # most ranges end with a pack
            start = one.last_key + b"\0"
        # Many: packs that are wholly inside are deleted as a range, and one across the end loses a part.
        for last_key in known.last_keys[bisect_left(known.last_keys, start) : bisect_left(known.last_keys, end)]:
            one = known.packs[last_key]
            one.gone = (1 << one.count) - 1
            self.changed[table, last_key] = one
        across = self._first(table, known, end)
        if across is not None and across.first_key < end:
            across.gone |= (1 << across.index_from(end)) - 1
            self.changed[table, across.last_key] = across
        number = bytes([table])
        self._ended.append((number + start, number + end))
        yield Table.RUNS, number + start, DeleteUntil(number + end)
        yield VALUES[table], start, DeleteUntil(end)

    def settle(self) -> Iterator[Op]:
        """End a batch: the operations on the packs it has changed."""
        for (table, last_key), one in list(self.changed.items()):
            left = one.left
            entry = bytes([table]) + last_key
            if left and (one.fresh or left * RESOLVED_AT > one.count):
                yield Table.RUNS, entry, one.record()
                continue
            if left:
                values = self._values(table, one)
                if values is None:
                    raise StoreCorrupt(
                        path=f"the table {table.name}", problem=f"the values of {entry.hex()} are missing"
                    )
                for key, value in members(one, values, 0, one.count):
                    yield table, key, value
            yield Table.RUNS, entry, None
            yield VALUES[table], last_key, None
            self._known[table].remove(one)
            del self.changed[table, last_key]
            self._decoded.pop((table, last_key), None)

    def _first(self, table: Table, known: _PackCache, key: bytes) -> Pack | None:
        """The first pack whose last key is not before `key`."""
        if known.free_from <= key < known.free_to:
            if known.free_to == END:
                return None
            key = known.free_to
        at = bisect_left(known.last_keys, key)
        near = known.packs[known.last_keys[at]] if at < len(known.last_keys) else None
        if near is not None and near.first_key <= key:
            return near
        for one in self._stored(table, key):
            entry = bytes([table]) + one.last_key
            if one.last_key not in known.packs and any(start <= entry < end for start, end in self._ended):
                continue
            if near is None or one.last_key < near.last_key:
                near = one
                known.add(one)
            break
        known.free_from, known.free_to = key, END if near is None else max(key, near.first_key)
        return near


def members(one: Pack, values: RecordRun, low: int, high: int) -> Rows:
    """The records from an index up to, not including, another that have not left a pack."""
    head, first, gone, key = one.last_key[:-8], one.first, one.gone, _U64.pack
    found = enumerate(values[low:high], first + low)
    if not gone:
        return [(head + key(number), value) for number, value in found]
    return [(head + key(number), value) for number, value in found if not gone >> (number - first) & 1]


def merged(packed: Rows, single: Rows, limit: int, reverse: bool) -> Rows:
    """Two lists of rows in order as one; single records win."""
    if not packed:
        return single
    if not single:
        return packed
    combined = dict(packed)
    combined.update(single)
    return sorted(combined.items(), reverse=reverse)[:limit]
