"""The trace context of a request goes with its messages: those that bring none of their own."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.broker.carried_context import carrying
from holdfast.core.commands import Draft
from holdfast.http_api.server.request import Request


def traced(request: Request, drafts: Sequence[Draft]) -> Sequence[Draft]:
    """The same messages, with the trace context of the request."""
    return carrying(drafts, request.trace_context) if request.is_traced else drafts
