"""The store as it will be when operations are stored: its records, with the changes of the operations over them.

A turn writes once, at its end, so that what belongs together is stored as a whole or not at all. Until then reads of
what the turn has changed go through here. Most turns read nothing that they have changed, so the operations are indexed
when the first read of their table comes, and no earlier. A remote store reads what it has not sent yet in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from holdfast.core.effects import Op, Read
from holdfast.core.records import Table
from holdfast.core.runs import RecordRun, key_after
from holdfast.store.changes import Changes, Reading, read_over
from holdfast.store.contract import Found, Reader, Rows


class Overlay:
    """See the module. `ops` may grow; what is below is not written meanwhile, but with what `ops` have already."""

    __slots__ = ("_changes", "_ops", "_store")

    def __init__(self, store: Reader, ops: list[Op]) -> None:
        self._store = store
        self._ops = ops
        self._changes: dict[Table, Changes] = {}

    def truncate(self, count: int) -> None:
        """All but the first `count` operations were taken out."""
        self._changes = {table: changes for table, changes in self._changes.items() if changes.indexed <= count}

    def _index(self, table: Table) -> Changes:
        changes = self._changes.get(table)
        if changes is None:
            changes = self._changes[table] = Changes()
        if changes.indexed < len(self._ops):
            for one, key, value in islice(self._ops, changes.indexed, None):
                if one is table:
                    changes.apply(key, value)
            changes.indexed = len(self._ops)
        return changes

    def reading(self, reads: Sequence[Read]) -> Reading:
        """A read in rounds, for those that ask the store below by themselves."""
        return read_over(self._index, reads)

    def read(self, reads: Sequence[Read]) -> list[Found]:
        """What each of these asks for, in their order."""
        reading = self.reading(reads)
        try:
            asked = next(reading)
            while True:
                asked = reading.send(self._store.read(asked))
        except StopIteration as end:
            found: list[Found] = end.value
            return found

    def get(self, table: Table, key: bytes) -> bytes | None:
        """The record under a key, or None."""
        return self.get_many(table, [key])[0]

    def get_many(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        """The records under these keys, in their order."""
        changes = self._index(table)
        found: dict[bytes, bytes | None] = {}
        for key in keys:
            known, value = changes.get(key)
            if known:
                found[key] = value
        lacking = [key for key in keys if key not in found]
        if lacking:
            found.update(zip(lacking, self._store.get_many(table, lacking), strict=True))
        return [found[key] for key in keys]

    def scan(self, table: Table, start: bytes, end: bytes, limit: int, reverse: bool = False) -> Rows:
        """At most `limit` records with start <= key < end, in order. Nothing reads much in reverse."""
        if limit <= 0 or start >= end:
            return []
        found = self.read([Read(table, start, end, 1 << 62 if reverse else limit)])[0]
        assert isinstance(found, list)
        return found[::-1][:limit] if reverse else found

    def scan_runs(self, table: Table, key: bytes, count: int) -> list[RecordRun]:
        """Records of consecutive keys. Where the operations change one of them, they are no run any more."""
        end = key_after(key, count)
        if not self._index(table).changes_in(key, end):
            return self._store.scan_runs(table, key, count)
        rows = self.scan(table, key, end, count)
        return [RecordRun.of([value for _, value in rows])] if rows else []
