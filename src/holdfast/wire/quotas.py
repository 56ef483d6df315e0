"""Quotas of a namespace."""

from __future__ import annotations

import msgspec


class QuotaUse(msgspec.Struct, frozen=True, kw_only=True):
    """One quota."""

    limit: int
    """How much the namespace may have; `0`: no limit."""
    used: int | None = None
    """How much it has now; null for rates."""
    own: bool = False
    """The limit was set for this namespace; else it is the default of the configuration."""


class QuotaList(msgspec.Struct, frozen=True, kw_only=True):
    """The quotas of a namespace, by name."""

    namespace: str
    quotas: dict[str, QuotaUse]


class QuotaChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits to set, by name; null: the default again. Those that are not named stay."""

    limits: dict[str, int | None]
