"""One deadline for each key. A key's deadline may be moved; outdated heap entries are skipped."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    """A heap with at most twice as many entries as there are deadlines, however often they are moved."""

    __slots__ = ("_count", "_due", "_heap", "due")

    def __init__(self) -> None:
        self._due: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []  # the number in the middle keeps keys from being compared
        self._count = 0
        self.due: int | None = None
        """The next deadline."""

    def __len__(self) -> int:
        """Entries in memory, outdated ones too."""
        return len(self._heap)

    def set(self, key: K, due: int) -> None:
        if self._due.get(key) == due:
            return
        self._due[key] = due
        self._count += 1
        heappush(self._heap, (due, self._count, key))
        if len(self._heap) > 2 * len(self._due) + 64:
            self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
            heapify(self._heap)
        self._skip_outdated()

    def cancel(self, key: K) -> None:
        if self._due.pop(key, None) is not None:
            self._skip_outdated()

    def _skip_outdated(self) -> None:
        heap = self._heap
        while heap and self._due.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        self.due = heap[0][0] if heap else None

    def pop(self, now: int) -> K | None:
        """One key that is due, which then has no deadline any more."""
        if self.due is None or self.due > now:
            return None
        key = heappop(self._heap)[2]
        del self._due[key]
        self._skip_outdated()
        return key
