"""When to try again, and after how long."""

from __future__ import annotations

import msgspec

from holdfast.errors import (
    HoldfastError,
    LoginThrottled,
    Overloaded,
    QueueFull,
    RateLimited,
    RequestTimeout,
    ShuttingDown,
)

NOTHING_WAS_DONE = (Overloaded, RateLimited, QueueFull, ShuttingDown, LoginThrottled, RequestTimeout)
"""Refusals that say for certain that nothing was done: even what may not be done twice can be tried again."""


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """How a client repeats calls that failed but may succeed later.

    The pause doubles from `first_seconds` up to `longest_seconds`, half of it at random, so that clients that failed
    together do not come back together. A server's Retry-After is the least it will be. `attempts=1` never repeats.
    """

    attempts: int = 6
    first_seconds: float = 0.1
    longest_seconds: float = 5.0
    budget_seconds: float = 30.0
    """After so long, counted from the first attempt, no further one is begun."""

    def pause(self, attempt: int, retry_after: float, chance: float) -> float:
        """Seconds between `attempt` (from 1) and the next. `chance` is random, from 0 to 1."""
        longest = min(self.first_seconds * 2.0 ** min(attempt - 1, 62), self.longest_seconds)
        return max(retry_after, longest * (0.5 + chance / 2))

    def another(self, attempt: int, elapsed: float, pause: float) -> bool:
        """Whether a further attempt fits."""
        return attempt < self.attempts and elapsed + pause <= self.budget_seconds


NEVER = Retries(attempts=1)


def may_repeat(error: HoldfastError, repeatable: bool) -> bool:
    """Whether the call that failed so may be made again."""
    return error.retryable and (repeatable or isinstance(error, NOTHING_WAS_DONE))
