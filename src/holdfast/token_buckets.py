"""Token buckets: how many deliveries a group may be given now, and when it may be given more.

A bucket is in memory only. After a restart it is full, as it is for a group that has been given nothing for long.
"""

from __future__ import annotations

import math

from holdfast.units import SECOND

# Buckets of keys that a group has in one shard, 200 bytes each. Past it those that are full are forgotten, which
# changes nothing, and of the others the older half: such a key may have its burst once more.
KEY_BUCKETS_MAX = 10_000

# A group that was refused is asked again when the bucket has what this time brings, not for every delivery.
REFILL_PAUSE = 10_000


class TokenBucket:
    """What is missing in a bucket, as of an instant. Rate and size are arguments: they may change at any time."""

    __slots__ = ("_at", "_missing")

    def __init__(self, now: int) -> None:
        self._at = now
        self._missing = 0.0

    def _refill(self, rate: float, now: int) -> None:
        if now > self._at:
            self._missing = max(self._missing - (now - self._at) * rate / SECOND, 0.0)
        self._at = now  # also if the clock went back: what it brought before is not brought again

    def room(self, rate: float, size: int, now: int) -> int:
        """How many tokens it has now."""
        self._refill(rate, now)
        return max(math.floor(size - self._missing + _ROUNDING), 0)

    def take(self, count: int) -> None:
        """Tokens that it has are taken out."""
        self._missing += count

    def next_at(self, rate: float, size: int, pause: int = 0) -> int:
        """When it has one more token than none, or as many as `pause` brings."""
        wanted = min(max(math.floor(rate * pause / SECOND), 1), size)
        return self._at + max(math.ceil((self._missing + wanted - size) * SECOND / rate), 1)


_ROUNDING = 1e-6  # of a token: sums of fractions may lack that much of a whole one


class KeyBuckets:
    """The buckets of the keys of one group in one shard."""

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        self._buckets: dict[bytes, TokenBucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: bytes, rate: float, size: int, now: int) -> int:
        """Take a token of a key. 0: it is taken; else when there will be one."""
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= KEY_BUCKETS_MAX:
                self._trim(rate, size, now)
            bucket = self._buckets[key] = TokenBucket(now)
        if bucket.room(rate, size, now):
            bucket.take(1)
            return 0
        return bucket.next_at(rate, size)

    def _trim(self, rate: float, size: int, now: int) -> None:
        kept = {key: bucket for key, bucket in self._buckets.items() if bucket.room(rate, size, now) < size}
        if len(kept) > KEY_BUCKETS_MAX // 2:
            kept = dict(list(kept.items())[-(KEY_BUCKETS_MAX // 2) :])
        self._buckets = kept
