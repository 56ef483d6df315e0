"""Parameters of statements in PostgreSQL's binary format, packed by hand: a batch has few parameters with thousands of
values, and psycopg's own adaptation of each value would cost more than everything else that a commit takes."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct as Layout

from holdfast.store.remote.table import BatchPosition

_BYTEA = 17
_EMPTY = Layout(">iiI").pack(0, 0, _BYTEA)
_SIZE = Layout(">I")
_HEAD = Layout(">iiIii")  # dimensions, whether there are nulls, type of the elements, their number, the first index
_I64 = Layout(">q")

bigint = _I64.pack


def read_bigint(value: bytes) -> int:
    """A number as the server sends it."""
    return int.from_bytes(value, "big", signed=True)


def bytea_array(values: Sequence[bytes]) -> bytes:
    """Values of the type `bytea[]`."""
    if not values:
        return _EMPTY
    size = _SIZE.pack
    parts = [_HEAD.pack(1, 0, _BYTEA, len(values), 1)]
    append = parts.append
    for value in values:
        append(size(len(value)))
        append(value)
    return b"".join(parts)


def read_position(row: Sequence[bytes | None]) -> BatchPosition:
    """The row of the table `cell`: epoch and batch."""
    epoch, batch = row
    return BatchPosition(read_bigint(epoch or b""), read_bigint(batch or b""))
