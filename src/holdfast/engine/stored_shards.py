"""The records by which the shards of a cell are opened, read ahead in the order of their numbers.

One range after another instead of four reads for each shard: a cell with ten thousand queues has a hundred thousand.
"""

from __future__ import annotations

from holdfast.core.records import Table, shard_key
from holdfast.core.shard import Rows, ShardRecords
from holdfast.store.contract import Reader

READ_AHEAD = 200  # records of a table; those of leases may be large
_END = b"\xff" * 8
_TABLES = (Table.SHARDS, Table.GROUPS, Table.DELIVERIES, Table.LEASES)


class StoredShards:
    """See the module. Ask for shards in ascending order."""

    def __init__(self, store: Reader) -> None:
        self._tables = [_ReadAhead(store, table) for table in _TABLES]

    def of(self, number: int) -> ShardRecords:
        low, high = shard_key(number), shard_key(number + 1)
        return _records(*[table.take(low, high) for table in self._tables])


def records_of(store: Reader, number: int) -> ShardRecords:
    """The records of one shard."""
    low, high = shard_key(number), shard_key(number + 1)
    return _records(*[store.scan(table, low, high, 1 << 30) for table in _TABLES])


def _records(heads: Rows, groups: Rows, deliveries: Rows, leases: Rows) -> ShardRecords:
    return ShardRecords(heads[0][1] if heads else None, groups, deliveries, leases)


class _ReadAhead:
    """One table."""

    def __init__(self, store: Reader, table: Table) -> None:
        self._store = store
        self._table = table
        self._rows: Rows = []
        self._at = 0
        self._start = b""
        self._complete = False

    def take(self, low: bytes, high: bytes) -> Rows:
        """The records from `low` up to and without `high`; those before them are skipped."""
        found: Rows = []
        while True:
            rows, at = self._rows, self._at
            while at < len(rows) and rows[at][0] < high:
                if rows[at][0] >= low:
                    found.append(rows[at])
                at += 1
            self._at = at
            if at < len(rows) or self._complete:
                return found
            self._rows = self._store.scan(self._table, self._start, _END, READ_AHEAD)
            self._at = 0
            self._complete = len(self._rows) < READ_AHEAD
            if self._rows:
                self._start = self._rows[-1][0] + b"\0"
