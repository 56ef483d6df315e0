"""Request and response over HTTP."""

from __future__ import annotations

import msgspec

from holdfast import wire
from holdfast.errors import (
    InvalidArgument,
    LimitExceeded,
    MessageTooLarge,
    QueueFull,
    QueueNotFound,
    ReplyTimeout,
    RequestFailed,
    RequestTooLarge,
)
from holdfast.http_api.codecs.json_slices import check_fields, is_cheap
from holdfast.http_api.codecs.raw_body import message_bytes_max
from holdfast.http_api.codecs.shapes import message_to_wire, read_draft
from holdfast.http_api.codecs.trace_headers import traced
from holdfast.http_api.codecs.values import decode, duration
from holdfast.http_api.endpoints.messages import PAYLOADS
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import Response, response
from holdfast.http_api.server.routes import Right, Routes

ROUTES = Routes("Request and response")
PROTOCOL = "http"

_request = msgspec.json.Decoder(wire.Request).decode


@ROUTES(
    "POST",
    "/api/v1/request/{name}",
    Right.PRODUCE,
    body=wire.Request,
    gives=wire.Reply,
    errors=(QueueNotFound, QueueFull, MessageTooLarge, LimitExceeded, RequestTooLarge, ReplyTimeout, RequestFailed),
    bulk=True,
    waits=True,
)
async def request(request: Request) -> Response:
    """Enqueue a message and wait for the reply to it.

    The message carries `reply_to`, a queue, and `correlation_id`. The consumer enqueues the reply to that queue with
    the same correlation id (over MQTT: publishes to the Response Topic with the same Correlation Data). A reply that
    comes after `timeout` is dropped and counted.
    """
    raw = await request.body()
    request.check_json()
    if not is_cheap(raw):
        await request.api.in_slices(check_fields(raw, 0, PAYLOADS, message_bytes_max(request)))
    body = decode(_request, raw)
    timeout = duration(body.timeout, "timeout")
    limit = request.api.config.limits.max_wait
    if not 0 < timeout <= limit:
        raise InvalidArgument(field="timeout", problem=f"is more than 0 and at most {limit // 1_000_000} s")
    if body.reply_to is not None:
        raise InvalidArgument(field="reply_to", problem="is given by the server here; enqueue to choose it yourself")
    [draft] = traced(request, [read_draft(body, request.node.clock(), request.given_correlation_id)])
    request.api.gate.admit(request.namespace, 1, len(draft.payload))
    work = request.node.requests.request(request.queue, draft, timeout, PROTOCOL)
    found = await request.api.until_disconnect(request, work)
    return response(
        wire.Reply(str(found.request_id), found.correlation_id, message_to_wire(found.reply, 0, body.encoding))
    )
