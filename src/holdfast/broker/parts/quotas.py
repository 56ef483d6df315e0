"""Quotas of namespaces: shown, changed and stored, and the bytes that a namespace may store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from holdfast.broker.cell import Cell
from holdfast.broker.parts.redrive_jobs import RedriveJobs
from holdfast.broker.parts.transactions import Transactions
from holdfast.core.queue import check_name
from holdfast.core.records import Table
from holdfast.errors import LimitExceeded
from holdfast.quotas import HELD, OWN_NAMESPACES_MAX, Quota, read_limits

PREFIX: Final = b"quota\0"
"""Of keys in META; the namespace follows. The value maps names of quotas to limits."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, int]).decode

UsageSource = Callable[[str], Mapping[Quota, int]]
"""What a front counts of a namespace."""


class QuotaUse(msgspec.Struct, frozen=True):
    """One quota of a namespace. `own`: the limit was set for it; else it is the default."""

    limit: int
    used: int | None
    own: bool


class NamespaceQuotas:
    """See the module."""

    def __init__(self, cell: Cell, transactions: Transactions, redrive_jobs: RedriveJobs) -> None:
        self._cell = cell
        self._transactions = transactions
        self._redrive_jobs = redrive_jobs
        self.sources: list[UsageSource] = []

    def load(self) -> None:
        """Read the limits that were set."""
        quotas = self._cell.quotas
        for key, value in self._cell.store.scan(Table.META, PREFIX, PREFIX[:-1] + b"\1", 1 << 30):
            known = {name: limit for name, limit in _decode(value).items() if name in set(Quota)}
            quotas.set_own(key[len(PREFIX) :].decode(), read_limits(known))

    async def change(self, namespace: str, changes: Mapping[str, int | None]) -> None:
        """Set limits of a namespace; None: the default again. Returns when they are durable; they hold from then."""
        quotas = self._cell.quotas
        check_name(namespace, "namespace")
        kept = {quota: limit for quota, limit in quotas.own(namespace).items() if quota.value not in changes}
        read_limits({name: limit or 0 for name, limit in changes.items()})
        limits = kept | read_limits({name: limit for name, limit in changes.items() if limit is not None})
        if limits and namespace not in quotas.own_namespaces and len(quotas.own_namespaces) >= OWN_NAMESPACES_MAX:
            raise LimitExceeded(
                what="The number of namespaces with quotas of their own",
                limit=OWN_NAMESPACES_MAX,
                advice="Raise the defaults (quotas) instead",
            )
        value = _encode({quota.value: limit for quota, limit in limits.items()}) if limits else None
        await self._cell.write_records([(Table.META, PREFIX + namespace.encode(), value)])
        quotas.set_own(namespace, limits)

    def namespaces(self) -> list[str]:
        """Those that have queues, or quotas of their own."""
        return sorted({name for name, _ in self._cell.engine.queues} | set(self._cell.quotas.own_namespaces))

    def show(self, namespace: str) -> dict[str, QuotaUse]:
        """All quotas of a namespace by name. Rates have no use that could be shown."""
        quotas = self._cell.quotas
        used = self.used(namespace)
        own = quotas.own(namespace)
        return {quota.value: QuotaUse(quotas.limit(namespace, quota), used.get(quota), quota in own) for quota in Quota}

    def used(self, namespace: str) -> dict[Quota, int]:
        """How much of each a namespace has now."""
        engine, quotas = self._cell.engine, self._cell.quotas
        staged = self._transactions.staged(namespace)
        totals = engine.catalog.totals(namespace)
        used = {
            Quota.QUEUES: totals.queues,
            Quota.PARTITIONS: totals.partitions,
            Quota.GROUPS: totals.groups,
            Quota.WEBHOOKS: totals.webhooks,
            Quota.SCHEDULES: engine.schedules.count(namespace),
            Quota.STORED_BYTES: self._cell.stored_bytes.of(namespace),
            Quota.STAGED_BYTES: staged.size_bytes,
            Quota.OPEN_TRANSACTIONS: staged.transactions,
            Quota.REMEMBERED_TRANSACTIONS: engine.transactions.remembered(namespace),
            Quota.REDRIVES: self._redrive_jobs.running(namespace),
        }
        used |= {quota: quotas.held(quota, namespace) for quota in HELD}
        for source in self.sources:
            used.update(source(namespace))
        return used
