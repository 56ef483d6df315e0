"""Log lines that unauthenticated peers can cause: a limited number each second, so that they cannot fill the disk."""

from __future__ import annotations

from typing import Final

import structlog

from holdfast.units import SECOND

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

LINES_PER_SECOND: Final = 10


class RateLimitedLog:
    """One for each kind of line."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._second = 0
        self._lines = 0
        self._suppressed = 0

    def emit(self, now: int, **details: object) -> None:
        """Write the line, or count it; the next that is written says how many were only counted."""
        second = now // SECOND
        if second != self._second:
            self._second, self._lines = second, 0
        if self._lines >= LINES_PER_SECOND:
            self._suppressed += 1
            return
        self._lines += 1
        if self._suppressed:
            details["others_not_shown"] = self._suppressed
            self._suppressed = 0
        log.info(self._event, **details)
