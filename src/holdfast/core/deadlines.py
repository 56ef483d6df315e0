"""When leases of a group end.

Leases of one call end together, so they are one entry of the heap, and the end of most of them never comes: they are
settled before. Entries are not looked for then; what is no longer current falls off when it has come to the front, or
when there is too much of it.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from holdfast.core.deliveries import Deliveries

STALE_MAX = 1_000  # leases that ended or were extended, beside as many as there are current ones


class Deadlines:
    """A heap of leases by deadline. `deliveries` are those of the group, by id."""

    __slots__ = ("_deliveries", "_heap", "size")

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries
        # (deadline, a token, ids, tokens), the first lease last, so that it can be popped. Tokens are unique, so no two
        # entries are compared beyond them, but for a lease that was extended to the same time again.
        self._heap: list[tuple[int, int, list[int], list[int]]] = []
        self.size = 0

    def add(self, deadline: int, ids: list[int], tokens: list[int]) -> None:
        """These leases, at least one, end at `deadline`."""
        heappush(self._heap, (deadline, tokens[0], ids[::-1], tokens[::-1]))
        self.size += len(ids)

    def first(self) -> int | None:
        """The next deadline of a lease that is current, None if there is none."""
        heap = self._heap
        while heap:
            deadline, _, ids, tokens = heap[0]
            if ids and self._deliveries.is_leased(ids[-1], tokens[-1], deadline):
                return deadline
            if self._deliveries.has_none(ids):  # all were settled, as most are: 0.03 instead of 0.3 us each
                self.size -= len(ids)
                heappop(heap)
            else:
                ids.pop()
                tokens.pop()
                self.size -= 1
        return None

    def take(self, now: int, limit: int) -> list[int]:
        """Ids of at most `limit` leases that have ended by `now`. They are forgotten here."""
        taken: list[int] = []
        while len(taken) < limit and (first := self.first()) is not None and first <= now:
            _, _, ids, tokens = self._heap[0]
            taken.append(ids.pop())
            tokens.pop()
            self.size -= 1
        return taken

    def tidy(self, leased: int) -> None:
        """Forget what is stale, if that is the most. `leased` leases are current."""
        if self.size <= 2 * leased + STALE_MAX:
            return
        heap: list[tuple[int, int, list[int], list[int]]] = []
        for deadline, token, ids, tokens in self._heap:
            kept = [pair for pair in zip(ids, tokens, strict=True) if self._deliveries.is_leased(*pair, deadline)]
            if kept:
                heap.append((deadline, token, [pair[0] for pair in kept], [pair[1] for pair in kept]))
        heapify(heap)
        self._heap = heap
        self.size = sum(len(entry[2]) for entry in heap)
