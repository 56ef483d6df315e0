"""When the disk will be full, if it goes on filling as it has: a straight line through the last hours. Pure."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from holdfast.units import HOUR, MINUTE, SECOND

WINDOW: Final = 6 * HOUR
EVERY: Final = MINUTE
SAMPLES_MIN: Final = 10
"""Fewer say nothing: a compaction takes and gives back gigabytes within minutes."""


class DiskForecast:
    """Samples of the room on a disk, one a minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=WINDOW // EVERY)

    def add(self, now: int, room: int) -> None:
        """The room at an instant; more than one a minute are left out."""
        if self._samples and now < self._samples[-1][0]:
            self._samples.clear()  # the clock was set back
        if not self._samples or now - self._samples[-1][0] >= EVERY:
            self._samples.append((now, room))

    def seconds_left(self, kept: int) -> float:
        """Until only `kept` bytes are left; infinity if it is not filling, or too little is known."""
        count = len(self._samples)
        if count < SAMPLES_MIN:
            return math.inf
        first, last = self._samples[0][0], self._samples[-1]
        times = [(at - first) / SECOND for at, _ in self._samples]
        mean_time = sum(times) / count
        mean_room = sum(room for _, room in self._samples) / count
        spread = sum((at - mean_time) ** 2 for at in times)
        slope = sum((at - mean_time) * (room - mean_room) for at, (_, room) in zip(times, self._samples, strict=True))
        if slope >= 0:
            return math.inf
        return max(last[1] - kept, 0) / (-slope / spread)
