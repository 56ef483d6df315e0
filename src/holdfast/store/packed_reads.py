"""Reads of records that are single or in packs, over a store that has both as records of its own.

A class that inherits from `PackedReads` says how single records are read; it gets the reads of the contract.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from holdfast.core.effects import Read
from holdfast.core.records import Table
from holdfast.core.runs import RecordRun, key_after
from holdfast.store.contract import Found, Rows, read_each
from holdfast.store.runs import PackReader, merged


class PackedReads(ABC):
    """See the module. A record that leaves its pack meanwhile is not missed: packs are read before single records."""

    @abstractmethod
    def _packs_of(self, table: Table) -> PackReader | None:
        """The reader of packs, None if no record of this table is in one. Raises an error if the store is closed."""

    @abstractmethod
    def _get(self, table: Table, key: bytes) -> bytes | None:
        """A single record."""

    @abstractmethod
    def _get_many(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        """Single records."""

    @abstractmethod
    def _scan(self, table: Table, start: bytes, end: bytes, limit: int, reverse: bool = False) -> Rows:
        """Single records of a range that is not empty."""

    def _scan_once(self, table: Table, start: bytes, end: bytes, limit: int) -> Rows:
        """The same, of records that will not be read again: a store with a cache does not put them there."""
        return self._scan(table, start, end, limit)

    def read(self, reads: Sequence[Read]) -> list[Found]:
        """What each of these asks for, one after the other."""
        return read_each(self, reads)

    def get(self, table: Table, key: bytes) -> bytes | None:
        """The record under `key`, or None."""
        packs = self._packs_of(table)
        found = packs.get(table, key) if packs is not None else None
        return self._get(table, key) if found is None else found

    def get_many(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        """The records under `keys`, in their order; neighbours share the work of finding their block."""
        if self._packs_of(table) is None:
            return self._get_many(table, keys)
        return [self.get(table, key) for key in keys]

    def scan(self, table: Table, start: bytes, end: bytes, limit: int, reverse: bool = False) -> Rows:
        """At most `limit` records with start <= key < end, in order."""
        packs = self._packs_of(table)
        if limit <= 0 or start >= end:
            return []
        if packs is None:
            return self._scan(table, start, end, limit, reverse)
        packed = packs.rows(table, start, end, limit, reverse)
        return merged(packed, self._scan(table, start, end, limit, reverse), limit, reverse)

    def scan_runs(self, table: Table, key: bytes, count: int) -> list[RecordRun]:
        """Records of consecutive keys; packs stay whole."""
        packs = self._packs_of(table)
        runs: list[RecordRun] = []
        start, end = key, key_after(key, count)
        for first, last, run in packs.whole(table, key, end) if packs is not None else ():
            runs += self._single(table, start, first)
            runs.append(run)
            start = key_after(last, 1)
        return runs + self._single(table, start, end)

    def _single(self, table: Table, start: bytes, end: bytes) -> list[RecordRun]:
        if start >= end:
            return []
        packs, limit = self._packs_of(table), int.from_bytes(end[-8:], "big") - int.from_bytes(start[-8:], "big")
        packed = packs.rows(table, start, end, limit, False) if packs is not None else []
        rows = merged(packed, self._scan_once(table, start, end, limit), limit, reverse=False)
        return [RecordRun.of([value for _, value in rows])] if rows else []
