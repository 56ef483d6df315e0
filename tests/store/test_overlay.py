"""The overlay reads as the store will, once the batch is written."""

from __future__ import annotations

from random import Random

import pytest

from holdfast.core.effects import DeleteRun, DeleteUntil, Op, Read
from holdfast.core.records import Table
from holdfast.core.runs import BytesColumn, HomogeneousRun, RecordRun, key_after
from holdfast.store import MemoryStore, changes
from holdfast.store.overlay import Overlay

KEYS = 60
"""Numbers of records: few, so that changes meet."""


def key(number: int) -> bytes:
    return b"k" + number.to_bytes(8, "big")


class Both:
    """A store, and a batch over it that is compared with a store to which it is written."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.store, self.expected = MemoryStore(), MemoryStore()
        self.ops: list[Op] = []
        self.overlay = Overlay(self.store, self.ops)
        self.used = {number for number in range(KEYS) if random.random() < 0.5}
        for store in (self.store, self.expected):
            store.write(store.acquire(), [(Table.READY, key(number), b"old %d" % number) for number in self.used])

    def change(self) -> None:
        random = self.random
        number = random.randrange(KEYS)
        end = min(number + random.choice((1, 2, 5, 20)), KEYS)
        live = [one for one in range(number, end) if self.expected.get(Table.READY, key(one)) is not None]
        choices: list[Op] = [
            (Table.READY, key(number), b"new %d" % len(self.ops)),
            (Table.READY, key(number), None),
            (Table.READY, key(number), DeleteUntil(key(end))),
            (Table.READY, key(end), DeleteUntil(key(number))),
            (Table.GROUPS, key(number), b"another table"),
        ]
        if live:
            choices.append((Table.READY, key(live[0]), DeleteRun(live)))
        if not self.used & set(range(number, end)):
            values = [b"run %d" % one for one in range(number, end)]
            run = HomogeneousRun(b"run ", number, b"", BytesColumn.of(values))
            choices += [(Table.READY, key(number), random.choice((RecordRun.of(values), run)))] * 5
        table, at, value = random.choice(choices)
        if (value is None or isinstance(value, bytes)) and table is Table.READY:
            self.used.add(number)
        elif isinstance(value, RecordRun):
            self.used |= set(range(number, end))
        self.ops.append((table, at, value))
        self.expected.write(self.expected.disk.epoch, [(table, at, value)])

    def compare(self) -> None:
        random = self.random
        asked = [self._key() for _ in range(random.randint(1, 8))]
        assert self.overlay.get_many(Table.READY, asked) == self.expected.get_many(Table.READY, asked)
        assert self.overlay.get(Table.READY, asked[0]) == self.expected.get(Table.READY, asked[0])
        start, end, limit = self._key(), self._key(), random.choice((0, 1, 3, 1000))
        found = self.overlay.scan(Table.READY, start, end, limit)
        assert found == self.expected.scan(Table.READY, start, end, limit)
        found = self.overlay.scan(Table.READY, start, end, limit, reverse=True)
        assert found == self.expected.scan(Table.READY, start, end, limit, reverse=True)
        reads = [Read(Table.READY, asked[0]), Read(Table.READY, start, end, limit), Read(Table.META, b"none")]
        assert self.overlay.read(reads) == self.expected.read(reads)
        first, count = key(random.randrange(KEYS)), random.randint(1, 9)
        values = [value for run in self.overlay.scan_runs(Table.READY, first, count) for value in run[:]]
        assert values == [value for run in self.expected.scan_runs(Table.READY, first, count) for value in run[:]]

    def _key(self) -> bytes:
        """One that may be there, or one between or beside those."""
        at = key(self.random.randrange(KEYS))
        return self.random.choice((at, at, at, at[:-1], at + b"\0", b"", b"z"))


@pytest.mark.parametrize("seed", range(60))
def test_what_is_read_is_what_will_be_stored(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    monkeypatch.setattr(changes, "PAGE_MAX", random.choice((1, 4, 256)))
    both = Both(random)
    for _ in range(40):
        for _ in range(random.choice((0, 1, 3))):
            both.change()
        both.compare()


class CountingStore(MemoryStore):
    """Counts the records that scans have returned."""

    scanned = 0

    def scan(
        self, table: Table, start: bytes, end: bytes, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        found = super().scan(table, start, end, limit, reverse)
        self.scanned += len(found)
        return found


@pytest.mark.parametrize("single", [True, False])
def test_what_the_turn_has_deleted_is_not_read_again_and_again(single: bool) -> None:
    """A turn that removes the first records of a table, and reads on, takes time in proportion to what it removes."""
    count, step = 3_000, 10
    store = CountingStore()
    store.write(store.acquire(), [(Table.READY, key(number), b"") for number in range(count)])
    ops: list[Op] = []
    reader = Overlay(store, ops)
    while rows := reader.scan(Table.READY, key(0), key(count), step):
        if single:
            ops += [(Table.READY, one, None) for one, _ in rows]
        else:
            ops.append((Table.READY, rows[0][0], DeleteUntil(key_after(rows[-1][0], 1))))
    assert store.scanned <= 3 * count


def test_a_table_that_the_batch_does_not_change_is_read_from_the_store() -> None:
    store = CountingStore()
    store.write(store.acquire(), [(Table.READY, key(number), b"%d" % number) for number in range(3)])
    reader = Overlay(store, [(Table.GROUPS, key(0), b"x")])
    assert reader.scan(Table.READY, key(0), key(9), 2) == [(key(0), b"0"), (key(1), b"1")]
    assert store.scanned == 2
