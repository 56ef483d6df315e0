"""The layout of a pack of records (see store/runs.py): values under consecutive keys.

    a run              size of each, values
    a homogeneous run  MARK, first number, sizes of `begin` and `middle`, size of each, `begin`, `middle`, bytes of each

core/runs.py says what a homogeneous run is. Both are written and read as a whole: nothing is done for each value. Sizes
are four bytes, and no value is as large as MARK.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from struct import Struct as Layout
from struct import unpack_from

from holdfast.core.runs import BytesColumn, HomogeneousRun, RecordRun

MARK = 0xFFFF_FFFF
_MARK = Layout(">I")
_SERIES = Layout(">IQII")


def write_packs(run: RecordRun, most: int, most_bytes: int) -> Iterator[tuple[int, int, bytes]]:
    """Cut a run into packs that are no larger than this, unless a value is: first and end index and content of each."""
    column, sizes = run.column, run.column.packed_sizes()
    head = fixed = b""
    for start, end in _cut(column.bounds, most, most_bytes):
        if isinstance(run, HomogeneousRun):
            head = _SERIES.pack(MARK, run.number + start, len(run.begin), len(run.middle))
            fixed = run.begin + run.middle
        content = column.data[column.bounds[start] : column.bounds[end]]
        yield start, end, b"".join((head, sizes[4 * start : 4 * end], fixed, content))


def read_pack(data: bytes, count: int) -> RecordRun:
    """The values of a pack of `count` records."""
    if _MARK.unpack_from(data)[0] != MARK:
        return RecordRun(_column(data, 0, count, 4 * count))
    _, number, begin_size, middle_size = _SERIES.unpack_from(data)
    begin_at = _SERIES.size + 4 * count
    middle_at = begin_at + begin_size
    end = middle_at + middle_size
    return HomogeneousRun(
        data[begin_at:middle_at], number, data[middle_at:end], _column(data, _SERIES.size, count, end)
    )


def _column(data: bytes, sizes_at: int, count: int, start: int) -> BytesColumn:
    sizes = unpack_from(f">{count}I", data, sizes_at)
    return BytesColumn(data, list(accumulate(sizes, initial=start)), data[sizes_at : sizes_at + 4 * count])


def _cut(bounds: Sequence[int], most: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    """The first and end index of each pack, for values that begin at a bound and end at the next."""
    start, last = 0, len(bounds) - 1
    while start < last:
        end = min(start + most, last)
        if bounds[end] - bounds[start] > most_bytes:
            end = max(start + 1, bisect_right(bounds, bounds[start] + most_bytes, start, end) - 1)
        yield start, end
        start = end
