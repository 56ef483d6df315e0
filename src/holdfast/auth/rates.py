"""How fast namespaces may send: a token bucket for messages and one for bytes, for each namespace.

A request is taken whole while neither bucket is empty, and may take more than is left: the rest is owed, and the next
request waits until it is paid. So a batch larger than the burst is not refused for ever, and the long-run rate holds.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

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


RATES: Final = (Quota.REQUESTS_PER_SECOND, Quota.PUBLISHES_PER_SECOND, Quota.BYTES_PER_SECOND)
PRINCIPALS_PER_NAMESPACE: Final = 8
"""Principals whose buckets are kept, for each namespace whose are. One that is forgotten begins with full ones; what
its namespace owes stays."""


class RequestRates:
    """The buckets of namespaces, and of principals for their share, by quotas: for requests (HTTP's, and reads with
    MQTT's PUBLISHes), for PUBLISHes and for the bytes of both.

    Bytes are counted as they arrive, when it is too late to refuse them; the next request then waits until they are
    paid for.
    """

    def __init__(self, quotas: Quotas, tracked: int) -> None:
        self._quotas = quotas
        self._namespaces = _Tracked(quotas, tracked)
        self._principals = _Tracked(quotas, tracked * PRINCIPALS_PER_NAMESPACE)

    def take(self, namespace: str, principal: str, now: int, requests: int = 1, publishes: int = 0) -> None:
        """Take requests and PUBLISHes of a principal, or raise RateLimited and take nothing."""
        found = self._of(namespace, principal, now)
        for buckets in found:
            for quota, bucket, amount in zip(RATES, buckets.buckets, (requests, publishes, 1), strict=True):
                wait = bucket.wait(now) if bucket is not None and amount else 0
                if wait:
                    raise self._refused(namespace, buckets, quota, wait)
        for buckets in found:
            buckets.take(0, requests)
            buckets.take(1, publishes)

    def add_bytes(self, namespace: str, principal: str, size_bytes: int, now: int) -> None:
        """Count bytes that have arrived."""
        for buckets in self._of(namespace, principal, now):
            buckets.take(2, size_bytes)

    def _of(self, namespace: str, principal: str, now: int) -> list[_Buckets]:
        found = [self._namespaces.get(namespace, "" if principal else OPEN, now)]
        if principal and self._quotas.principal_percent < 100:
            found.append(self._principals.get(namespace, principal, now))
        return found

    def _refused(self, namespace: str, buckets: _Buckets, quota: Quota, wait: int) -> RateLimited:
        self._quotas.refused[quota] = self._quotas.refused.get(quota, 0) + 1
        return RateLimited(
            owner=self._quotas.owner(namespace, buckets.principal),
            namespace=namespace,
            quota=quota.value,
            limit=buckets.limits[RATES.index(quota)],
            retry_after_ms=-(-wait // MILLISECOND),
        )


OPEN: Final = "\0"
"""Stands for everybody, where no credentials are configured: only limits that were set for the namespace hold."""


class _Buckets:
    """Of a namespace, or of a principal in it: one for each of `RATES` that has a limit."""

    __slots__ = ("buckets", "limits", "principal")

    def __init__(self, principal: str, limits: tuple[int, ...], now: int) -> None:
        self.principal = principal
        self.limits = limits
        self.buckets = [Bucket(limit, SECOND, now) if limit else None for limit in limits]

    def take(self, index: int, amount: int) -> None:
        bucket = self.buckets[index]
        if bucket is not None:
            bucket.take(amount)


class _Tracked:
    """So many buckets; those that were not used for longest are forgotten."""

    __slots__ = ("_found", "_quotas", "_tracked")

    def __init__(self, quotas: Quotas, tracked: int) -> None:
        self._quotas = quotas
        self._tracked = tracked
        self._found: OrderedDict[tuple[str, str], _Buckets] = OrderedDict()

    def get(self, namespace: str, principal: str, now: int) -> _Buckets:
        limits = tuple([self._limit(namespace, principal, quota) for quota in RATES])
        key = (namespace, principal)
        found = self._found.get(key)
        if found is None or found.limits != limits:
            if found is None and len(self._found) >= self._tracked:
                self._found.popitem(last=False)
            found = self._found[key] = _Buckets(principal if principal != OPEN else "", limits, now)
        self._found.move_to_end(key)
        return found

    def _limit(self, namespace: str, principal: str, quota: Quota) -> int:
        if principal == OPEN:
            return self._quotas.open_limit(namespace, quota)
        return self._quotas.share(namespace, quota) if principal else self._quotas.limit(namespace, quota)


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
            slow, quota = of_messages, "rates.messages_per_second"
            if of_bytes and of_bytes.level <= 0:
                slow, quota = of_bytes, "rates.bytes_per_second"
            raise RateLimited(
                owner=f"Namespace {namespace!r}",
                namespace=namespace,
                quota=quota,
                limit=slow.rate if slow else 0,
                retry_after_ms=-(-wait // MILLISECOND),
            )
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
