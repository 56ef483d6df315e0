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
"""Errors that guarantee that nothing was done: even a call that is not repeatable may be retried."""


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """How a client retries calls.

    The backoff doubles from `first_seconds` up to `longest_seconds`; half of it is random, so that clients that failed
    together do not retry together. It is never shorter than a server's Retry-After. `attempts=1` never retries.
    """

    attempts: int | None = None
    """How often a call is tried at most; None: as often as fits into the budget."""
    first_seconds: float = 0.1
    longest_seconds: float = 5.0
    budget_seconds: float = 30.0
    """No further attempt starts after this time, counted from the first attempt."""
    full_seconds: float = 0.0
    """The same for a queue that is full. By default `QueueFull` is raised immediately: whether to wait, to slow down or
    to drop messages is the caller's decision."""

    def pause(self, attempt: int, retry_after: float, chance: float) -> float:
        """Seconds between `attempt` (from 1) and the next. `chance` is random, from 0 to 1."""
        longest = min(self.first_seconds * 2.0 ** min(attempt - 1, 62), self.longest_seconds)
        return max(retry_after, longest * (0.5 + chance / 2))

    def another(self, error: HoldfastError, attempt: int, elapsed: float, pause: float) -> bool:
        """Whether a further attempt fits after `attempt` has failed with this error."""
        budget = self.full_seconds if isinstance(error, QueueFull) else self.budget_seconds
        return (self.attempts is None or attempt < self.attempts) and elapsed + pause <= budget


NEVER = Retries(attempts=1)


def may_repeat(error: HoldfastError, repeatable: bool) -> bool:
    """Whether a call that failed with this error may be retried."""
    return error.retryable and (repeatable or isinstance(error, NOTHING_WAS_DONE))


LAST_RETRIES = Retries(attempts=2, budget_seconds=2.0)
"""A client that is closing does not wait long for a server that is unavailable: leases expire by themselves."""
CONSUMER_RETRIES = Retries(budget_seconds=3.0)
"""A consumer repeats its requests itself, for ever, and logs that it does: it should not take long to."""
