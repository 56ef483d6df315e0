"""What a pack of records looks like in RocksDB (see store/rocks_runs.py): values under consecutive keys, in one of two
layouts.

    listed   size of each, values
    series   MARK, number of the first, sizes of `begin` and `middle`, size of each tail, `begin`, `middle`, tails

Values of a series are alike but for a number that counts up and their tails (core/runs.py). It is written as it came:
nothing is done for each of them. Sizes are four bytes; no value is so large that the mark could be one of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from struct import Struct as Layout
from struct import pack, unpack_from
from typing import Protocol

from holdfast.core.runs import Run, Series, spelled

MARK = 0xFFFF_FFFF
_MARK = Layout(">I")
_SERIES = Layout(">IQII")


class Values(Protocol):
    """The values of a pack, to be cut out."""

    def cut(self, low: int, high: int) -> list[bytes]:
        """Those from an index up to, not including, another."""
        ...


class Listed:
    """A run of values that have nothing in common."""

    __slots__ = ("_data", "_ends")

    def __init__(self, data: bytes, count: int) -> None:
        self._data = data
        self._ends = list(accumulate(unpack_from(f">{count}I", data), initial=4 * count))

    def cut(self, low: int, high: int) -> list[bytes]:
        data, ends = self._data, self._ends
        return [data[ends[index] : ends[index + 1]] for index in range(low, high)]


class Spelled:
    """A series, of which only what is asked for is spelled out."""

    __slots__ = ("_begin", "_data", "_ends", "_middle", "_number")

    def __init__(self, data: bytes, count: int) -> None:
        _, self._number, begin, middle = _SERIES.unpack_from(data)
        at = _SERIES.size + 4 * count
        self._begin = data[at : at + begin]
        self._middle = data[at + begin : at + begin + middle]
        self._data = data
        self._ends = list(accumulate(unpack_from(f">{count}I", data, _SERIES.size), initial=at + begin + middle))

    def cut(self, low: int, high: int) -> list[bytes]:
        data, ends = self._data, self._ends
        tails = [data[ends[index] : ends[index + 1]] for index in range(low, high)]
        return spelled(self._begin, self._number + low, self._middle, tails)


def read_values(data: bytes, count: int) -> Values:
    return Spelled(data, count) if _MARK.unpack_from(data)[0] == MARK else Listed(data, count)


def packs(run: Run, most: int, most_bytes: int) -> Iterator[tuple[int, int, bytes]]:
    """A run in packs that are no larger than this, unless a value is: where each begins and ends, and its content."""
    if isinstance(run, Series):
        tails = run.tails
        sizes, fixed = tails.packed_sizes(), run.begin + run.middle
        for start, end in _cut(tails.bounds, most, most_bytes):
            head = _SERIES.pack(MARK, run.number + start, len(run.begin), len(run.middle))
            content = tails.data[tails.bounds[start] : tails.bounds[end]]
            yield start, end, b"".join((head, sizes[4 * start : 4 * end], fixed, content))
        return
    lengths = run.sizes()
    for start, end in _cut([0, *accumulate(lengths)], most, most_bytes):
        yield start, end, pack(f">{end - start}I", *lengths[start:end]) + run.joined(start, end)


def _cut(bounds: Sequence[int], most: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Where packs begin and end, of values of which each begins at a bound and ends at the next one."""
    start, last = 0, len(bounds) - 1
    while start < last:
        end = min(start + most, last)
        if bounds[end] - bounds[start] > most_bytes:
            end = max(start + 1, bisect_right(bounds, bounds[start] + most_bytes, start, end) - 1)
        yield start, end
        start = end
