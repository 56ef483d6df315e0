"""Backoff: how long a failed delivery waits before it is ready again."""

from __future__ import annotations

from holdfast.core.queue import RetryPolicy

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def backoff(policy: RetryPolicy, failure: int, seed: int) -> int:
    """Microseconds before retry `failure` (1-based): min(initial * multiplier**(n-1), max), then plus or minus jitter.

    The jitter is drawn from `seed` (the message's id), so that the same failure always waits the same time: a
    simulation repeats, and two messages that failed together are still ready at different times.
    """
    # The exponent is bounded by where the cap is reached, because multiplier**n overflows a float long before n does.
    wait = float(policy.initial_backoff)
    steps = failure - 1
    if policy.multiplier > 1.0 and wait > 0:
        while steps > 0 and wait < policy.max_backoff:
            wait *= policy.multiplier
            steps -= 1
    wait = min(wait, float(policy.max_backoff))
    if policy.jitter:
        wait *= 1.0 + policy.jitter * (2.0 * _unit(seed, failure) - 1.0)
    return int(wait)


def _unit(seed: int, failure: int) -> float:
    """A number in [0, 1) that looks random (splitmix64)."""
    z = (seed + failure * _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((z ^ (z >> 31)) >> 11) / (1 << 53)
