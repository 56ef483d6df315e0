"""A group's window on the messages it has not touched yet, one lane for each priority.

The READY records of a shard serve all groups. A lane remembers how far its group has come (`frontier`) and holds the
next few places in memory; what lies beyond is read when the lane runs low. Fresh messages go straight into a lane that
has reached the end of the store, so that a consumer that keeps up never causes a read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from operator import attrgetter

from holdfast.core.records import Place

WINDOW = 512  # places read at a time: 512 * ~150 bytes, 0.5 ms to read
WINDOW_MAX = 4 * WINDOW  # places a lane holds: bounds memory where many messages of one key lie between others


_stamp = attrgetter("stamp")


class PriorityWindow:
    """Places of one priority beyond `frontier`, oldest first."""

    __slots__ = ("complete", "frontier", "loaded", "reached")

    def __init__(self, frontier: int, complete: bool) -> None:
        self.frontier = frontier  # everything up to this stamp was taken, or put aside under its key
        self.reached = frontier  # everything up to this stamp is in `loaded`
        self.loaded: deque[Place] = deque()
        self.complete = complete  # nothing in the store lies beyond `reached`

    @property
    def room(self) -> int:
        """How many of those that arrive now would be taken in."""
        return max(WINDOW_MAX - len(self.loaded), 0) if self.complete else 0

    def arrive(self, places: list[Place]) -> None:
        """Fresh messages: later than everything in the lane. Beyond the bound they stay in the store only."""
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
        """What was read beyond `reached`, up to the new one; `more`: there may be others beyond that."""
        self.loaded.extend(places)
        self.reached = reached
        self.complete = not more

    def drop(self, stamp: int) -> None:
        """A message beyond the frontier that was removed. It is not here if it lies beyond `reached`."""
        if stamp <= self.reached:
            index = bisect_left(self.loaded, stamp, key=_stamp)
            assert self.loaded[index].stamp == stamp
            del self.loaded[index]

    def insert(self, place: Place) -> None:
        """A message that came here by an edit or fell due, between others perhaps."""
        if place.stamp <= self.reached or self.complete:
            self.loaded.insert(bisect_left(self.loaded, place.stamp, key=_stamp), place)
            self.reached = max(self.reached, place.stamp)
