"""Says in the log when the store begins to be slow, and when it is fast again.

Every answer "stored" waits for a sync, so callers notice a slow one before anybody looks at a plot. One line for each
time, however many syncs it is about; a sync that hangs is noticed too, before it ends.
"""

from __future__ import annotations

from typing import Final

import structlog

log = structlog.get_logger()

FAST_AGAIN_SECONDS: Final = 60.0
"""So long no sync may be slow before the store counts as fast again: a disk that is busy comes and goes."""


class SlowSyncs:
    """Times are seconds of one monotonic clock."""

    __slots__ = ("_logged", "_slow", "_slow_at", "_store", "_threshold", "_worst")

    def __init__(self, store: str, threshold_seconds: float) -> None:
        self._store = store
        self._threshold = threshold_seconds
        self._logged = False  # that it is slow
        self._slow = 0
        self._slow_at = 0.0
        self._worst = 0.0

    def ended(self, seconds: float, now: float) -> None:
        """A sync took so long."""
        if seconds > self._threshold:
            self._slow += 1
            self._is_slow(seconds, now)

    def look(self, oldest_start: float | None, now: float) -> None:
        """Time passes; `oldest_start` is when the sync began that has run the longest, if one runs."""
        if oldest_start is not None and now - oldest_start > self._threshold:
            self._is_slow(now - oldest_start, now)
        elif self._logged and now - self._slow_at >= FAST_AGAIN_SECONDS:
            log.info(
                "the store is fast again",
                store=self._store,
                slow_syncs=self._slow,
                longest_seconds=round(self._worst, 3),
            )
            self._logged = False
            self._slow, self._worst = 0, 0.0

    def _is_slow(self, seconds: float, now: float) -> None:
        self._slow_at = now
        self._worst = max(self._worst, seconds)
        if not self._logged:
            self._logged = True
            log.warning(
                "the store is slow: answers wait for it",
                store=self._store,
                sync_seconds=round(seconds, 3),
                slow_sync=self._threshold,
            )
