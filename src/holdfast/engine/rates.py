"""Rates of a queue over the last minute, from samples of its counters that are taken when something happens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from holdfast.units import MINUTE, SECOND

SAMPLE_EVERY = SECOND
RATE_WINDOW = MINUTE

Totals = dict[str, int]


class RateWindow:
    """See the module."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[int, Totals]] = deque(maxlen=RATE_WINDOW // SAMPLE_EVERY + 2)

    def sample(self, totals: Callable[[], Totals], now: int) -> None:
        """Record the counters, at most once a second."""
        if not self._samples or now - self._samples[-1][0] >= SAMPLE_EVERY:
            self._samples.append((now, totals()))

    def per_second(self, current: Totals, now: int) -> dict[str, float]:
        """How fast each counter has grown since the first sample of the last minute."""
        start = next(((at, counts) for at, counts in self._samples if now - at <= RATE_WINDOW), None)
        if start is None or now <= start[0]:
            return dict.fromkeys(current, 0.0)
        seconds = max((now - start[0]) / SECOND, 1.0)
        return {name: (count - start[1][name]) / seconds for name, count in current.items()}
