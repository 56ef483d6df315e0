"""Request and response: a message that waits for its reply."""

from __future__ import annotations

import msgspec

from holdfast.wire.deliveries import Encoding
from holdfast.wire.messages import Draft, Message
from holdfast.wire.times import Duration


class Request(Draft, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A message to enqueue, whose consumer enqueues a reply to its `reply_to`, with its correlation id."""

    timeout: Duration = "30s"
    """How long to wait for the reply."""
    encoding: Encoding = "auto"


class Reply(msgspec.Struct, frozen=True):
    """The reply, and the request's id and correlation id."""

    request_id: str
    correlation_id: str
    reply: Message
