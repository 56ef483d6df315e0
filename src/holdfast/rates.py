"""Rates of a queue over the last minute, from samples of its counters."""

from __future__ import annotations

from collections import deque

from holdfast.units import MINUTE, SECOND

SAMPLE_EVERY = SECOND
RATE_WINDOW = MINUTE

Totals = dict[str, int]


class RateWindow:
    """See the module. A sample is taken when the queue is opened, and then at the end of each second in which something
    happened: between two samples nothing is unaccounted for."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[int, Totals]] = deque(maxlen=RATE_WINDOW // SAMPLE_EVERY + 2)

    def sample(self, totals: Totals, now: int) -> None:
        """Record the counters."""
        self._samples.append((now, totals))

    def per_second(self, current: Totals, now: int) -> dict[str, float]:
        """How much each counter has grown in the last minute, or since the first sample, by the second."""
        if not self._samples:
            return dict.fromkeys(current, 0.0)
        before = [sample for sample in self._samples if sample[0] <= now - RATE_WINDOW]
        at, counts = before[-1] if before else self._samples[0]
        seconds = min(max(now - at, SECOND), RATE_WINDOW) / SECOND
        return {name: (count - counts[name]) / seconds for name, count in current.items()}
