"""What a cell stores about itself: how far its ids, its journal and its shard numbers have come.

A cell is one engine, one keyspace in a store, one epoch and one journal. The number of the cell is the 10 bits of its
ids between the time and the sequence. A node on embedded storage runs one cell, whose number is the node's id; users
see the number in the column `node` of the journal.
"""

from __future__ import annotations

import msgspec

from holdfast.core.records import Table

CELL_KEY = b"node"  # in the table META; the name is from when a node was all there was, and stays: it is on disk

UNFINISHED_KEY = b"unfinished"
"""In the same table, while a copy or a restore fills the store: nothing may be done with it before that has ended."""


class CellRecord(msgspec.Struct, array_like=True):
    """Changes with every batch and is part of it. To add a field, add it last and give it a default."""

    cell: int
    ids_reserved: int = 0
    next_lsn: int = 1
    next_block: int = 1
    next_shard: int = 1
    exported_block: int = 0
    exported_lsn: int = 0
    transactions_remembered: int = 0  # not used since format 3, which counts them for each owner
    groups_journalled: bool = False  # whether the journal has every group: those of before it had them are recorded
    chain_hash: str = ""  # of the lake's manifest up to `exported_lsn`: SHA-256 of its last line
    chain_length: int = 0  # its lines

    def new_shards(self, count: int) -> tuple[int, ...]:
        """Shard numbers that were never used in this cell."""
        first = self.next_shard
        self.next_shard += count
        return tuple(range(first, first + count))


_encode = msgspec.msgpack.Encoder().encode


def read_cell_record(value: bytes) -> CellRecord:
    return msgspec.msgpack.decode(value, type=CellRecord)


def put_cell_record(record: CellRecord) -> tuple[Table, bytes, bytes]:
    """The operation that stores a cell's record."""
    return (Table.META, CELL_KEY, _encode(record))
