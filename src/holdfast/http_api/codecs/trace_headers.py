"""The trace context of a request goes with its messages: those that bring none of their own."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.broker.carried_context import carrying
from holdfast.core.commands import Draft
from holdfast.http_api.server.request import Request
from holdfast.trace_context import TRACEPARENT, pairs_of

HEADER = TRACEPARENT.encode()
STATE_HEADER = b"tracestate"


def traced(request: Request, drafts: Sequence[Draft]) -> Sequence[Draft]:
    """The same messages, with the trace context of the request."""
    if HEADER not in request.headers:
        return drafts
    return carrying(drafts, pairs_of(request.header(HEADER) or "", request.header(STATE_HEADER) or ""))
