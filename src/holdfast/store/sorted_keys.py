"""Keys in order, for the memory store: a list cut into blocks, so that adding or removing a key moves a few hundred
others and not all of them.

`sortedcontainers` does the same and more, but carries no types and had its last release in 2021; these few lines are
less than the stubs and the dependency.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

_BLOCK_MAX = 1024


class SortedKeys:
    """A sorted set of bytes. The caller adds a key only when it is absent and removes it only when it is there."""

    __slots__ = ("_blocks", "_lasts")

    def __init__(self) -> None:
        self._blocks: list[list[bytes]] = []
        self._lasts: list[bytes] = []  # the last key of each block

    def add(self, key: bytes) -> None:
        """Insert `key`."""
        blocks, lasts = self._blocks, self._lasts
        place = bisect_left(lasts, key)
        if place == len(blocks):
            # Past the end, where queues grow: appending keeps blocks full, splitting would leave them half empty.
            if not blocks or len(blocks[-1]) >= _BLOCK_MAX:
                blocks.append([key])
                lasts.append(key)
            else:
                blocks[-1].append(key)
                lasts[-1] = key
            return
        block = blocks[place]
        insort(block, key)
        if len(block) > _BLOCK_MAX:
            half = len(block) // 2
            blocks[place : place + 1] = [block[:half], block[half:]]
            lasts.insert(place, block[half - 1])

    def remove(self, key: bytes) -> None:
        """Take `key` out."""
        place = bisect_left(self._lasts, key)
        block = self._blocks[place]
        del block[bisect_left(block, key)]
        if not block:
            del self._blocks[place], self._lasts[place]
        else:
            self._lasts[place] = block[-1]

    def ascending(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """Keys with start <= key < end."""
        for place in range(bisect_left(self._lasts, start), len(self._blocks)):
            block = self._blocks[place]
            first = bisect_left(block, start) if block[0] < start else 0
            if block[-1] >= end:
                yield from block[first : bisect_left(block, end)]
                return
            yield from block[first:]

    def descending(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """The same keys, last first."""
        for place in range(min(bisect_left(self._lasts, end), len(self._blocks) - 1), -1, -1):
            block = self._blocks[place]
            stop = bisect_left(block, end) if block[-1] >= end else len(block)
            first = bisect_left(block, start) if block[0] < start else 0
            yield from reversed(block[first:stop])
            if first:
                return
