"""The reader of RocksDB for another thread than the writer's."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from holdfast.core.records import Table
from holdfast.store.contract import Rows
from holdfast.store.packed_reads import PackedReads
from holdfast.store.runs import PackReader


class SingleRecords(Protocol):
    """What a reader uses of its store: reads of single records, which are safe on any thread. `packed` are the tables
    that may have packs; `opening` changes when the database is opened again, which may bring back other packs."""

    @property
    def opening(self) -> object: ...
    @property
    def packed(self) -> Collection[Table]: ...
    def get_single(self, table: Table, key: bytes) -> bytes | None: ...
    def get_many_single(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]: ...
    def scan_single(
        self, table: Table, start: bytes, end: bytes, limit: int, reverse: bool = False, *, once: bool = False
    ) -> Rows: ...


class RocksReader(PackedReads):
    """Reads what is stored when it is asked."""

    def __init__(self, store: SingleRecords) -> None:
        self._store = store
        self._opening: object = None
        self._packs: PackReader

    def _get(self, table: Table, key: bytes) -> bytes | None:
        return self._store.get_single(table, key)

    def _get_many(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._store.get_many_single(table, keys)

    def _scan(self, table: Table, start: bytes, end: bytes, limit: int, reverse: bool = False) -> Rows:
        return self._store.scan_single(table, start, end, limit, reverse)

    def _scan_once(self, table: Table, start: bytes, end: bytes, limit: int) -> Rows:
        return self._store.scan_single(table, start, end, limit, once=True)

    def _packs_of(self, table: Table) -> PackReader | None:
        if self._opening is not self._store.opening:
            self._opening = self._store.opening
            self._packs = PackReader(self._store.scan_single, self._store.get_single)
        return self._packs if table in self._store.packed else None
