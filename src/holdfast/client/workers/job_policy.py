"""How a worker's jobs are bounded and repeated: time, retries, pauses between them, starts in a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from holdfast.client.times import Duration, seconds
from holdfast.errors import InvalidArgument

Backoff = Duration | Sequence[Duration]
"""The pause before the first retry, twice as long each time, or the pauses one after another; the last one repeats."""

BACKOFF_MAX_SECONDS = 3_600.0
DOUBLINGS_MAX = 32  # beyond it every pause is BACKOFF_MAX_SECONDS
TRACEBACK_LENGTH = 3_000  # characters; the server keeps 4,096 of an error


class Timeout(Exception):
    """A job took longer than its worker's `timeout`."""


class RetryRule:
    """How often a failed job is repeated, and after which pauses; None: as the queue's retry policy says."""

    def __init__(self, retries: int | None, backoff: Backoff | None) -> None:
        if retries is not None and retries < 0:
            raise InvalidArgument(field="retries", problem=f"is at least 0, not {retries}")
        self.retries = retries
        self._pauses: list[float] | None = None
        self._doubling = not isinstance(backoff, (list, tuple))
        if isinstance(backoff, (list, tuple)):
            self._pauses = [seconds(each, "backoff") for each in backoff]
        elif backoff is not None:
            self._pauses = [seconds(backoff, "backoff")]  # type: ignore[arg-type]
        if self._pauses == []:
            raise InvalidArgument(field="backoff", problem="has no pause")

    def is_last(self, attempt: int) -> bool:
        """Whether a job that failed in this attempt is not to be tried again."""
        return self.retries is not None and attempt > self.retries

    def pause(self, attempt: int) -> float | None:
        """Seconds before the next attempt; None: as the queue says."""
        if self._pauses is None:
            return None
        if self._doubling:
            doubled: float = self._pauses[0] * 2 ** min(attempt - 1, DOUBLINGS_MAX)
            return min(doubled, max(BACKOFF_MAX_SECONDS, self._pauses[0]))
        return self._pauses[min(attempt, len(self._pauses)) - 1]


class StartRate:
    """Lets so many jobs start in a time, in this process: a bucket that holds as many as the time may have."""

    def __init__(self, rate: str) -> None:
        count, _, length = rate.partition("/")
        try:
            self._bucket = float(count)
            self._per_second = self._bucket / seconds(length if length[:1].isdigit() else f"1{length}", "rate")
        except (ValueError, ZeroDivisionError, InvalidArgument):
            self._bucket = 0.0
        if self._bucket < 1:
            raise InvalidArgument(field="rate", problem=f"is written as 100/s, 5/m or 10/30s, not {rate!r}")
        self._left = self._bucket
        self._at = time.monotonic()

    async def take(self, stopped: asyncio.Event) -> None:
        """Wait until the next job may start, or until the worker is stopped."""
        while not stopped.is_set() and (pause := self._pause(time.monotonic())) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await stopped.wait()

    def _pause(self, now: float) -> float:
        self._left = min(self._bucket, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) / self._per_second
