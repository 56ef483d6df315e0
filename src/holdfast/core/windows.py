"""The messages that a group leases next, a window for each priority.

The READY records of a shard serve all groups. A window remembers how far its group has come (`frontier`) and has the
next places in memory; those beyond are read when it runs low. New messages go straight into a window that has reached
the end of the store, so that a consumer that keeps up never causes a read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from operator import attrgetter

from holdfast.core.records import Place

WINDOW = 512  # places read at a time: 512 * ~150 bytes, 0.5 ms to read
WINDOW_MAX = 4 * WINDOW  # places in a window: bounds memory where many messages of one key are between others


_stamp = attrgetter("stamp")


class PriorityWindow:
    """Places of one priority beyond `frontier`, oldest first."""

    __slots__ = ("complete", "frontier", "loaded", "reached")

    def __init__(self, frontier: int, complete: bool) -> None:
        self.frontier = frontier  # every message up to this stamp was leased, or skipped for its key
        self.reached = frontier  # every message between the frontier and this stamp is in `loaded`
        self.loaded: deque[Place] = deque()
        self.complete = complete  # the store has no message beyond `reached`

    @property
    def room(self) -> int:
        """How many new messages the window can take."""
        return max(WINDOW_MAX - len(self.loaded), 0) if self.complete else 0

    def arrive(self, places: list[Place]) -> None:
        """New messages, later than all in the window. Beyond its bound they are in the store only."""
        if not self.complete:
            return
        room = self.room
        if len(places) > room:
            self.complete = False
            places = places[:room]
        if places:
            self.loaded.extend(places)
            self.reached = places[-1].stamp

    def fill(self, places: list[Place], reached: int, more: bool) -> None:
        """Add the places that were read beyond `reached`, up to the new one; `more`: there may be others beyond it."""
        self.loaded.extend(places)
        self.reached = reached
        self.complete = not more

    def drop(self, stamp: int) -> None:
        """A message beyond the frontier was removed. It is not in the window if it is beyond `reached`."""
        if stamp <= self.reached:
            index = bisect_left(self.loaded, stamp, key=_stamp)
            assert self.loaded[index].stamp == stamp
            del self.loaded[index]

    def truncate(self, keep: int) -> int:
        """Forget all but the next `keep`: the others are read again when it is their turn. Returns how many."""
        count = max(len(self.loaded) - keep, 0)
        if count:
            for _ in range(count):
                self.loaded.pop()
            self.reached = self.loaded[-1].stamp if self.loaded else self.frontier
            self.complete = False
        return count

    def insert(self, place: Place) -> None:
        """Add a message that was edited or fell due, which may belong between others."""
        if place.stamp <= self.reached or self.complete:
            self.loaded.insert(bisect_left(self.loaded, place.stamp, key=_stamp), place)
            self.reached = max(self.reached, place.stamp)
            if len(self.loaded) > WINDOW_MAX:  # many fell due: the last are read when it is their turn
                self.loaded.pop()
                self.reached = self.loaded[-1].stamp
                self.complete = False
