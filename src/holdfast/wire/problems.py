"""Errors on the wire: RFC 9457 problems with a stable `code`."""

from __future__ import annotations

from typing import Any

import msgspec


class ItemError(msgspec.Struct, frozen=True, kw_only=True):
    """Why one item of a batch was refused. `index` is its place in the request, from 0."""

    index: int
    code: str
    detail: str
    status: int = 400
    retryable: bool = False
    details: dict[str, Any] = {}


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An RFC 9457 problem. `code` never changes its meaning; `retryable`: the same call may succeed later."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    retryable: bool = False
    details: dict[str, Any] = {}
    """The facts in `detail` by name, for programs."""
    correlation_id: str = ""
    errors: list[ItemError] = []
    """For a batch of which every item was refused: the error of each item."""
