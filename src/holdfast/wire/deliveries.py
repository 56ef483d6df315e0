"""Deliveries: leasing and settling."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.wire.messages import Message
from holdfast.wire.numbers import Int64
from holdfast.wire.problems import ItemError
from holdfast.wire.times import Duration

Encoding = Literal["auto", "base64"]


class Lease(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request for deliveries."""

    group: str = "default"
    limit: Int64 = 1
    wait: Duration = 0
    """If nothing is ready, wait up to this long for the first."""
    timeout: Duration | None = None
    """How long the leases last. Without it: the queue's `delivery_timeout`."""
    consumer: str = ""
    """The consumer's name: others see it, after the caller's identity (`token:alice/worker-1`), and the same caller can
    settle under it without a token."""
    max_bytes: Int64 = 0
    """About how many bytes of payload to return at most; `0`: as many as the server allows."""
    encoding: Encoding = "auto"
    create: bool = True
    """Create the group, and the queue, if they do not exist: what a consumer wants, and a person who looks does not."""


class Delivery(Message, kw_only=True, omit_defaults=True):
    """A message that is leased until `lease_deadline`."""

    queue: str
    group: str
    attempt: int
    lease_token: str
    """The token that settles it. It changes with every lease; the larger of two belongs to the later lease."""
    lease_deadline: str


class Leased(msgspec.Struct, frozen=True):
    """The leased deliveries; none if nothing was ready in time."""

    deliveries: list[Delivery]


Action = Literal["ack", "nack", "reject", "release", "extend"]


class Settlement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The settlement of one delivery: with `lease_token`, or as the `consumer` that holds the lease, by the caller that
    leased it."""

    id: str
    lease_token: str = ""
    action: Action = "ack"
    delay: Duration | None = None
    """For nack and release: the time before it is ready again. Without it the retry policy decides, and a release is
    ready immediately."""
    error: str = ""
    """For nack and reject: what went wrong; stored with the message."""
    timeout: Duration | None = None
    """For extend: how long from now. Without it: the queue's `delivery_timeout`."""
    consumer: str = ""
    partition: Int64 = -1
    """The delivery's partition, if it is known: it saves a search."""


class Settle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Settlements, as one commit."""

    group: str = "default"
    settlements: list[Settlement]


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """The result of settlements: how many were done, why others were refused, and the new deadlines of extended leases.

    Everything that is not in `errors` is done, and durable.
    """

    settled: int
    errors: list[ItemError] = []
    deadlines: dict[str, str] = {}
    """Extended leases: the new deadline by message id."""
