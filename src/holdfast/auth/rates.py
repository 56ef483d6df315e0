"""How fast namespaces may send: a token bucket for messages and one for bytes, for each namespace.

A request is taken whole while neither bucket is empty, and may take more than is left: the rest is owed, and the next
request waits until it is paid. So a batch larger than the burst is not refused for ever, and the long-run rate holds.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from holdfast.config import RateSettings
from holdfast.errors import RateLimited
from holdfast.quotas import Quota, Quotas
from holdfast.units import MILLISECOND, SECOND


class Bucket:
    """Fills at a rate up to its capacity; amounts are in units × microseconds, so that all of it is whole numbers."""

    __slots__ = ("capacity", "level", "rate", "seen")

    def __init__(self, rate: int, burst: int, now: int) -> None:
        self.rate = rate
        self.capacity = max(rate * burst, SECOND)
        self.level = self.capacity
        self.seen = now

    def wait(self, now: int) -> int:
        """Microseconds until something can be taken; 0 is now. A clock that went back neither fills nor empties."""
        self.level = min(self.level + self.rate * max(now - self.seen, 0), self.capacity)
        self.seen = now
        return 0 if self.level > 0 else -self.level // self.rate + 1

    def take(self, amount: int) -> None:
        self.level -= amount * SECOND


class RequestRates:
    """The buckets of namespaces for requests (HTTP's, and reads with MQTT's PUBLISHes) and for their bytes, by quotas.

    Bytes are counted as they arrive, when it is too late to refuse them; the next request then waits until they are
    paid for.
    """

    def __init__(self, quotas: Quotas, tracked: int) -> None:
        self._quotas = quotas
        self._tracked = tracked
        self._buckets: OrderedDict[str, _RequestBuckets] = OrderedDict()

    def take(self, namespace: str, now: int) -> None:
        """Take one request, or raise RateLimited."""
        found = self._of(namespace, now)
        for quota, bucket in ((Quota.REQUESTS_PER_SECOND, found.requests), (Quota.BYTES_PER_SECOND, found.size_bytes)):
            wait = bucket.wait(now) if bucket is not None else 0
            if wait:
                self._quotas.refused[quota] = self._quotas.refused.get(quota, 0) + 1
                limit = self._quotas.limit(namespace, quota)
                raise RateLimited(
                    namespace=namespace, retry_after_ms=-(-wait // MILLISECOND), quota=quota.value, limit=limit
                )
        if found.requests is not None:
            found.requests.take(1)

    def add_bytes(self, namespace: str, size_bytes: int, now: int) -> None:
        bucket = self._of(namespace, now).size_bytes
        if bucket is not None:
            bucket.take(size_bytes)

    def _of(self, namespace: str, now: int) -> _RequestBuckets:
        limits = (
            self._quotas.limit(namespace, Quota.REQUESTS_PER_SECOND),
            self._quotas.limit(namespace, Quota.BYTES_PER_SECOND),
        )
        found = self._buckets.get(namespace)
        if found is None or found.limits != limits:
            if found is None and len(self._buckets) >= self._tracked:
                self._buckets.popitem(last=False)
            requests, size_bytes = (Bucket(limit, SECOND, now) if limit else None for limit in limits)
            found = self._buckets[namespace] = _RequestBuckets(limits, requests, size_bytes)
        self._buckets.move_to_end(namespace)
        return found


class _RequestBuckets(NamedTuple):
    limits: tuple[int, int]
    requests: Bucket | None
    size_bytes: Bucket | None


class RateLimiter:
    """The buckets of all namespaces."""

    def __init__(self, settings: RateSettings) -> None:
        self._settings = settings
        self._own = {rate.namespace: (rate.messages_per_second, rate.bytes_per_second) for rate in settings.namespaces}
        self._default = (settings.messages_per_second, settings.bytes_per_second)
        self._buckets: OrderedDict[str, tuple[Bucket | None, Bucket | None]] = OrderedDict()
        self.limited = any(self._default) or any(any(rates) for rates in self._own.values())
        """False: no namespace has a rate."""

    def take(self, namespace: str, messages: int, size_bytes: int, now: int) -> None:
        """Takes both amounts, or raises RateLimited and takes nothing."""
        pair = self._buckets.get(namespace)
        if pair is None:
            pair = self._open(namespace, now)
        else:
            self._buckets.move_to_end(namespace)
        of_messages, of_bytes = pair
        wait = of_messages.wait(now) if of_messages else 0
        if of_bytes:
            wait = max(wait, of_bytes.wait(now))
        if wait:
            raise RateLimited(namespace=namespace, retry_after_ms=-(-wait // MILLISECOND))
        if of_messages:
            of_messages.take(messages)
        if of_bytes:
            of_bytes.take(size_bytes)

    def _open(self, namespace: str, now: int) -> tuple[Bucket | None, Bucket | None]:
        if len(self._buckets) >= self._settings.namespaces_tracked:
            self._buckets.popitem(last=False)
        burst = self._settings.burst
        messages, size = (
            Bucket(rate, burst, now) if rate else None for rate in self._own.get(namespace, self._default)
        )
        self._buckets[namespace] = (messages, size)
        return messages, size
