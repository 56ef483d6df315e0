"""All records of a store, page by page: to copy a store into one of another kind, and to back up one without files.

Records of every kind of store are the same, so that what one gives another takes. What is internal to a store (its
packs) is not among them: a store makes its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from holdfast.core.effects import DeleteUntil, Op, Read
from holdfast.core.records import Table
from holdfast.store.contract import Reader, Rows, Store

PAGE_BYTES = 4 << 20
PAGE_ROWS_MAX = 4_096
_FIRST_ROWS = 64
"""Of a page whose records may be the largest: 64 MiB."""
_END = b"\xff" * 16  # no key begins so
_INTERNAL = frozenset({Table.RUNS, Table.MESSAGE_RUNS, Table.READY_RUNS})
TABLES = tuple(table for table in Table if table not in _INTERNAL)


class RecordPage(NamedTuple):
    """Some records of a table, in the order of their keys."""

    table: Table
    rows: Rows

    @property
    def size_bytes(self) -> int:
        return sum(len(key) + len(value) for key, value in self.rows)


def pages_of(reader: Reader) -> Iterator[RecordPage]:
    """All records, of about `PAGE_BYTES` each time."""
    for table in TABLES:
        start, limit = b"", _FIRST_ROWS
        while rows := reader.scan(table, start, _END, limit):
            page = RecordPage(table, rows)
            yield page
            start = rows[-1][0] + b"\0"
            mean = max(page.size_bytes // len(rows), 1)
            limit = min(max(PAGE_BYTES // mean, 1), 2 * limit, PAGE_ROWS_MAX)


def is_empty(reader: Reader) -> bool:
    """Whether a store has no record."""
    return not any(reader.read([Read(table, b"", _END, 1) for table in TABLES]))


def clear(store: Store, epoch: int) -> None:
    """Delete all records, durably."""
    ops: list[Op] = [(table, b"", DeleteUntil(_END)) for table in TABLES]
    store.write(epoch, ops)
    store.sync()


def load(store: Store, epoch: int, pages: Iterable[RecordPage]) -> Iterator[RecordPage]:
    """Write pages, each durable before it is given back."""
    for page in pages:
        store.write(epoch, [(page.table, key, value) for key, value in page.rows])
        store.sync()
        yield page


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, list[tuple[bytes, bytes]]]).decode


def write_page(page: RecordPage) -> bytes:
    """A page as bytes, compressed."""
    return zlib.compress(_encode((int(page.table), page.rows)), 1)


def read_page(data: bytes) -> RecordPage:
    """ValueError: it is none."""
    try:
        table, rows = _decode(zlib.decompress(data))
        return RecordPage(Table(table), rows)
    except (zlib.error, msgspec.DecodeError) as error:
        raise ValueError(f"it is no page of records: {error}") from error
