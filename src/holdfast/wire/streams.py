"""Streams: deliveries as they become ready."""

from __future__ import annotations

import msgspec

from holdfast.wire.deliveries import Delivery
from holdfast.wire.problems import Problem


class StreamLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line of a stream: a delivery, a heartbeat, or its end with the reason."""

    delivery: Delivery | None = None
    heartbeat: str | None = None
    end: Problem | None = None
