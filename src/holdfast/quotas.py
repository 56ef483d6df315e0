"""Quotas: how much of each thing one namespace may have, so that no tenant can take what others need.

Here are the names, the limits and the counting, and nothing that acts. Limits are the defaults of the configuration
(`quotas`), or a namespace's own, which are stored. What exists (queues, sessions) is counted by its owner, who asks
`check` before it makes one more. What is held for a while (connections, long polls) is counted here, by namespace and
by principal: one principal gets a part of what its namespace has, so that others of the namespace are not kept out.

A limit of 0 is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeVar

from holdfast.errors import InvalidArgument, QuotaExceeded

LIMIT_MAX: Final = 1 << 50
OWN_NAMESPACES_MAX: Final = 10_000
"""Namespaces with limits of their own: they are kept in memory."""


class Quota(StrEnum):
    """What is limited."""

    QUEUES = "queues"
    PARTITIONS = "partitions"
    GROUPS = "groups"
    STORED_BYTES = "stored_bytes"
    STAGED_BYTES = "staged_bytes"
    OPEN_TRANSACTIONS = "open_transactions"
    REMEMBERED_TRANSACTIONS = "remembered_transactions"
    REDRIVES = "redrives"
    WEBHOOKS = "webhooks"
    SCHEDULES = "schedules"
    LONG_POLLS = "long_polls"
    CONNECTIONS = "connections"
    SESSIONS = "sessions"
    SUBSCRIPTIONS = "subscriptions"
    RETAINED_MESSAGES = "retained_messages"
    RETAINED_BYTES = "retained_bytes"
    REQUESTS_PER_SECOND = "requests_per_second"
    PUBLISHES_PER_SECOND = "publishes_per_second"
    BYTES_PER_SECOND = "bytes_per_second"


ADVICE: Final = {
    Quota.QUEUES: "Delete queues that are not needed",
    Quota.PARTITIONS: "Delete queues, or create them with fewer partitions",
    Quota.GROUPS: "Delete groups that nobody consumes",
    Quota.STORED_BYTES: "Consume or purge messages",
    Quota.STAGED_BYTES: "Publish or abort transactions",
    Quota.OPEN_TRANSACTIONS: "Publish or abort some",
    Quota.REMEMBERED_TRANSACTIONS: "The oldest is forgotten for a new one",
    Quota.REDRIVES: "Wait for one to end, or cancel it",
    Quota.WEBHOOKS: "Remove dlq.alert_webhook from a queue",
    Quota.SCHEDULES: "Delete schedules that are not needed",
    Quota.LONG_POLLS: "Close some, or ask for more messages at a time",
    Quota.CONNECTIONS: "Close some, or share connections",
    Quota.SESSIONS: "Connect with a shorter session expiry, or end sessions that are not needed",
    Quota.SUBSCRIPTIONS: "Subscribe to fewer, wider filters",
    Quota.RETAINED_MESSAGES: "Delete retained messages by empty ones",
    Quota.RETAINED_BYTES: "Delete retained messages by empty ones",
    Quota.REQUESTS_PER_SECOND: "Send several messages in one request",
    Quota.PUBLISHES_PER_SECOND: "Send more slowly",
    Quota.BYTES_PER_SECOND: "Send more slowly",
}

HELD: Final = (Quota.CONNECTIONS, Quota.LONG_POLLS)
"""What is counted here."""

Limits = Mapping[Quota, int]
_Key = TypeVar("_Key")


class Quotas:
    """The limits of all namespaces, and what they hold."""

    def __init__(self, defaults: Limits | None = None, principal_percent: int = 100) -> None:
        self.defaults: dict[Quota, int] = dict(defaults or {})
        self.refused: dict[Quota, int] = {}
        """How often each was exceeded, for the metrics."""
        self.principal_percent = principal_percent
        self._own: dict[str, dict[Quota, int]] = {}
        self._held: dict[tuple[Quota, str], int] = {}
        self._by_principal: dict[tuple[Quota, str, str], int] = {}

    # --- limits -----------------------------------------------------------------------------------------------------

    def limit(self, namespace: str, quota: Quota) -> int:
        """The limit of a namespace; 0: none."""
        own = self._own.get(namespace)
        found = None if own is None else own.get(quota)
        return self.defaults.get(quota, 0) if found is None else found

    def share(self, namespace: str, quota: Quota) -> int:
        """How much of that one principal may have; 0: no limit."""
        return -(-self.limit(namespace, quota) * self.principal_percent // 100)

    def open_limit(self, namespace: str, quota: Quota) -> int:
        """The limit of what is held, and of rates, where no credentials are configured. All callers are one then, and
        there are no others to be protected from them: the defaults do not hold, what was set for the namespace does."""
        return self._own.get(namespace, {}).get(quota, 0)

    @property
    def any_own(self) -> bool:
        """Whether a namespace has limits of its own."""
        return bool(self._own)

    def own(self, namespace: str) -> dict[Quota, int]:
        """The limits that were set for this namespace."""
        return dict(self._own.get(namespace, {}))

    def set_own(self, namespace: str, limits: Limits) -> None:
        """Replace the limits of a namespace; those that are not named are the defaults."""
        if limits:
            self._own[namespace] = dict(limits)
        else:
            self._own.pop(namespace, None)

    @property
    def own_namespaces(self) -> list[str]:
        """Those that have limits of their own."""
        return list(self._own)

    def check(self, namespace: str, quota: Quota, used: int, more: int = 1) -> None:
        """Raises QuotaExceeded if a namespace that has `used` may not have `more`."""
        limit = self.limit(namespace, quota)
        if limit and used + more > limit:
            raise self.exceeded(namespace, quota, limit)

    def check_share(self, namespace: str, quota: Quota, principal: str, used: int, more: int = 1) -> None:
        """The same for the share of a principal. No principal stands for everybody, and has no share."""
        share = self.share(namespace, quota) if principal else 0
        if share and used + more > share:
            raise self.exceeded(namespace, quota, share, principal)

    def exceeded(self, namespace: str, quota: Quota, limit: int, principal: str = "") -> QuotaExceeded:
        """Counts a refusal, and says what to do."""
        self.refused[quota] = self.refused.get(quota, 0) + 1
        owner = self.owner(namespace, principal)
        return QuotaExceeded(owner=owner, namespace=namespace, quota=quota.value, limit=limit, advice=ADVICE[quota])

    @staticmethod
    def owner(namespace: str, principal: str = "") -> str:
        """Whose a limit is, as errors say it."""
        return f"Principal {principal!r} in namespace {namespace!r}" if principal else f"Namespace {namespace!r}"

    # --- what is held -----------------------------------------------------------------------------------------------

    def check_held(self, quota: Quota, namespace: str, principal: str) -> None:
        """Raises QuotaExceeded if the principal may not hold one more. No principal stands for everybody, where no
        credentials are configured."""
        limit = self.limit(namespace, quota) if principal else self.open_limit(namespace, quota)
        if limit and self.held(quota, namespace) >= limit:
            raise self.exceeded(namespace, quota, limit)
        self.check_share(namespace, quota, principal, self._by_principal.get((quota, namespace, principal), 0))

    def hold(self, quota: Quota, namespace: str, principal: str) -> None:
        """Hold one more, which was checked before."""
        place, person = (quota, namespace), (quota, namespace, principal)
        self._held[place] = self._held.get(place, 0) + 1
        self._by_principal[person] = self._by_principal.get(person, 0) + 1

    def acquire(self, quota: Quota, namespace: str, principal: str) -> None:
        """Check, and hold one more."""
        self.check_held(quota, namespace, principal)
        self.hold(quota, namespace, principal)

    def release(self, quota: Quota, namespace: str, principal: str) -> None:
        """Hold one less."""
        _decrement(self._held, (quota, namespace))
        _decrement(self._by_principal, (quota, namespace, principal))

    def held(self, quota: Quota, namespace: str) -> int:
        return self._held.get((quota, namespace), 0)


def read_limits(given: Mapping[str, int]) -> dict[Quota, int]:
    """Limits as a request has them, or InvalidArgument."""
    found: dict[Quota, int] = {}
    for name, limit in given.items():
        if name not in ADVICE:
            raise InvalidArgument(field="quota", problem=f"is one of {', '.join(Quota)}")
        if not 0 <= limit <= LIMIT_MAX:
            raise InvalidArgument(field=name, problem=f"is 0 (no limit) to {LIMIT_MAX}")
        found[Quota(name)] = limit
    return found


def _decrement(counts: dict[_Key, int], key: _Key) -> None:
    left = counts[key] - 1
    if left:
        counts[key] = left
    else:
        del counts[key]
