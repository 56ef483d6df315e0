"""When each shard has something to do by itself. The engine reads no clock: `now` is an argument."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from holdfast.core.shard import Shard
from holdfast.units import NEVER

Clock = Callable[[], int]
"""Now, in epoch microseconds: for work of many steps, each of which has its own."""


STALE_MAX = 1_000
"""Entries of the heap that are not their shard's newest, beside as many as there are shards: some 150 KiB."""


class WakeUps:
    """A heap of instants, with one valid entry for each shard: one that is not the shard's newest is ignored.

    Shards that are due stand in a line, in the order in which they became so. One that has more to do than one step
    does goes to the end of it: no shard waits for all the work of another.
    """

    __slots__ = ("_at", "_heap", "_line", "_not_before")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._at: dict[int, int] = {}
        self._line: dict[int, None] = {}
        self._not_before: dict[int, int] = {}  # shards whose work failed

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, shard: Shard) -> None:
        """Take over when the shard wants to be stepped next."""
        at = shard.wake_at()
        if self._not_before:
            at = max(at, self._not_before.get(shard.number, 0))
        if at != self._at.get(shard.number, NEVER):
            if at == NEVER:
                self.cancel(shard)
            else:
                self._at[shard.number] = at
                heappush(self._heap, (at, shard.number))
                if len(self._heap) > 2 * len(self._at) + STALE_MAX:
                    self._heap = [(instant, number) for number, instant in self._at.items() if number not in self._line]
                    heapify(self._heap)

    def postpone(self, shard: Shard, until: int) -> None:
        """The work of a shard failed: whatever happens in it, it is not due before."""
        self._not_before[shard.number] = until
        self.schedule(shard)

    def cancel(self, shard: Shard) -> None:
        self._at.pop(shard.number, None)
        self._not_before.pop(shard.number, None)

    def due_among(self, shards: list[Shard], now: int) -> Iterator[Shard]:
        """Those of these shards that have something to do by now, one that is scheduled meanwhile included. One whose
        work failed is not among them: that is tried again where it fails nobody else (`due`)."""
        at, failed = self._at, self._not_before
        return (shard for shard in shards if at.get(shard.number, NEVER) <= now and shard.number not in failed)

    def due(self, now: int) -> Iterator[int]:
        """The numbers of shards that have something to do by now, each removed as it is given. A shard that is
        scheduled again meanwhile is given again if it is due again, after the others."""
        while True:
            while self._heap and self._heap[0][0] <= now:
                at, number = heappop(self._heap)
                if self._at.get(number) == at:
                    self._line[number] = None
            if not self._line:
                return
            number = next(iter(self._line))
            del self._line[number]
            if self._at.get(number, NEVER) <= now:  # else it was scheduled for later since, or cancelled
                del self._at[number]
                if self._not_before:
                    self._not_before.pop(number, None)
                yield number

    def next_at(self) -> int:
        """The first instant of all, 0 if some are in the line; NEVER if nothing is scheduled."""
        if self._line:
            return 0
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else NEVER
