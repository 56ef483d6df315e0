"""Records under consecutive keys that are put together, and byte strings that are stored one after the other.

A batch makes thousands of records that a store may keep together, and most of them differ only in a number that counts
up and in a payload. A `HomogeneousRun` describes all of those together, and leaves the payloads where they arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import sub
from struct import Struct as Layout
from struct import pack

_U64 = Layout(">Q")


def key_after(key: bytes, count: int) -> bytes:
    """The key that is so many after another one: the last eight bytes count up."""
    return key[:-8] + _U64.pack(int.from_bytes(key[-8:], "big") + count)


class BytesColumn:
    """Byte strings one after the other: `data`, and `bounds`, where each begins and where the last one ends."""

    __slots__ = ("_packed_sizes", "_sizes", "bounds", "data")

    def __init__(self, data: bytes | memoryview, bounds: Sequence[int], packed_sizes: bytes = b"") -> None:
        self.data = data
        self.bounds = bounds
        self._sizes: list[int] | None = None
        self._packed_sizes = packed_sizes

    @classmethod
    def of(cls, values: list[bytes]) -> BytesColumn:
        return cls(b"".join(values), list(accumulate(map(len, values), initial=0)))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, part: slice) -> list[bytes]:
        """Some of them, one by one."""
        start, end, _ = part.indices(len(self))
        content, low = self.content(start, end), self.bounds[start]
        return [content[here - low : there - low] for here, there in pairwise(self.bounds[start : end + 1])]

    def part(self, start: int, end: int) -> BytesColumn:
        """Those from one index up to, not including, another; nothing is copied."""
        return BytesColumn(self.data, self.bounds[start : end + 1], self._packed_sizes[4 * start : 4 * end])

    def content(self, start: int, end: int) -> bytes:
        """Those from one index up to, not including, another, joined."""
        return bytes(self.data[self.bounds[start] : self.bounds[end]])

    @property
    def size_bytes(self) -> int:
        """The size of all of them."""
        return self.bounds[-1] - self.bounds[0]

    def sizes(self) -> list[int]:
        """The size of each of them."""
        if self._sizes is None:
            self._sizes = list(map(sub, self.bounds[1:], self.bounds))
        return self._sizes

    def packed_sizes(self) -> bytes:
        """The size of each of them, as four bytes."""
        if not self._packed_sizes:
            self._packed_sizes = pack(f">{len(self)}I", *self.sizes())
        return self._packed_sizes


class RecordRun:
    """The value of an operation that puts records under consecutive keys: the last eight bytes of its key count up by
    one. The keys are new: nothing was ever stored under any of them. Only MESSAGES and READY have runs.

    A store can keep them together, which costs a fraction of as many single records.
    """

    __slots__ = ("_column", "_values")

    def __init__(self, column: BytesColumn | None = None, values: list[bytes] | None = None) -> None:
        self._column = column
        self._values = values

    @classmethod
    def of(cls, values: list[bytes]) -> RecordRun:
        return RecordRun(values=values)

    @property
    def column(self) -> BytesColumn:
        """The values one after the other, joined when they are first asked for."""
        if self._column is None:
            self._column = BytesColumn.of(self._values or [])
        return self._column

    def __len__(self) -> int:
        return len(self.column if self._values is None else self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordRun) and other[:] == self[:]

    def __hash__(self) -> int:
        return hash(tuple(self[:]))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)})"

    def __getitem__(self, part: slice) -> list[bytes]:
        """Some of the values."""
        return self.column[part] if self._values is None else self._values[part]

    @property
    def size_bytes(self) -> int:
        """The size of all values."""
        return self.column.size_bytes

    def part(self, start: int, end: int) -> RecordRun:
        """Those from one index up to, not including, another."""
        return RecordRun(self.column.part(start, end))

    def rows(self, key: bytes) -> list[tuple[bytes, bytes]]:
        """The records one by one, the first of which has this key."""
        head, first, last = key[:-8], int.from_bytes(key[-8:], "big"), _U64.pack
        return [(head + last(number), value) for number, value in enumerate(self[:], first)]


class HomogeneousRun(RecordRun):
    """A run of values that differ in little: each is `begin`, a number of eight bytes that counts up by one, `middle`,
    and its own part of the column."""

    __slots__ = ("begin", "middle", "number")

    def __init__(self, begin: bytes, number: int, middle: bytes, column: BytesColumn) -> None:
        super().__init__(column)
        self.begin = begin
        self.number = number
        self.middle = middle

    def __getitem__(self, part: slice) -> list[bytes]:
        begin, middle, number = self.begin, self.middle, _U64.pack
        start, _, _ = part.indices(len(self))
        return [begin + number(at) + middle + own for at, own in enumerate(self.column[part], self.number + start)]

    @property
    def size_bytes(self) -> int:
        return self.column.size_bytes + len(self) * (len(self.begin) + _U64.size + len(self.middle))

    def part(self, start: int, end: int) -> HomogeneousRun:
        return HomogeneousRun(self.begin, self.number + start, self.middle, self.column.part(start, end))
