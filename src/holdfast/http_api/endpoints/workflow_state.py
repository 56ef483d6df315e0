"""Workflow state beside a delivery: opaque bytes with an ETag."""

from __future__ import annotations

import msgspec

from holdfast.core.records import WorkflowState
from holdfast.errors import (
    GroupNotFound,
    InvalidArgument,
    LeaseLost,
    LimitExceeded,
    MessageNotFound,
    QueueNotFound,
    StateChanged,
    WrongGroupKind,
)
from holdfast.http_api.codecs.values import read_id
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import Response
from holdfast.http_api.server.routes import Right, Routes

ROUTES = Routes("Workflow state")
BYTES = "application/octet-stream"
NOTHING = WorkflowState(0, b"")
PATH = "/api/v1/queues/{name}/messages/{id}/state"


class StateQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which delivery of the message."""

    group: str = "default"
    lease_token: str = ""
    """The token of the lease. To put and to delete it is needed; to get it is not, but if it is given it must be the
    current one."""


@ROUTES(
    "GET",
    PATH,
    Right.CONSUME,
    query=StateQuery,
    response_types=(BYTES,),
    errors=(QueueNotFound, GroupNotFound, WrongGroupKind, MessageNotFound, LeaseLost),
)
async def get(request: Request) -> Response:
    """Get the workflow state of a delivery, as it was put.

    The header `ETag` has a number that grows with every change. Where nothing was put yet, or it was deleted, the body
    is empty and the ETag is `"0"`.
    """
    query = request.query(StateQuery)
    token = read_id(query.lease_token, "lease_token") if query.lease_token else 0
    state = await request.node.workflow_state.get(request.queue, query.group, request.message_id(), token) or NOTHING
    return Response(state.data or b"", content_type=BYTES.encode(), headers=_headers(state))


@ROUTES(
    "PUT",
    PATH,
    Right.CONSUME,
    bulk=True,
    query=StateQuery,
    body=msgspec.Raw,
    request_types=(BYTES, "text/plain"),
    status=204,
    headers=("If-Match", "If-None-Match"),
    errors=(QueueNotFound, GroupNotFound, WrongGroupKind, LeaseLost, StateChanged, LimitExceeded),
)
async def put(request: Request) -> Response:
    """Put the workflow state of a delivery, under its lease. The body is kept as it is, whatever its type.

    With `If-Match` only over the state that has this ETag, `"0"` for none; `If-None-Match: *` means the same as that.
    The response's `ETag` is the new one. A state lives through retries, goes with the dead letter and comes back with a
    redrive, and is gone when the delivery is settled.
    """
    query = request.query(StateQuery)
    token = read_id(query.lease_token, "lease_token")
    if_match = _if_match(request)
    data = await request.body()
    state = await request.node.workflow_state.put(
        request.queue, query.group, request.message_id(), token, data, if_match
    )
    return Response(status=204, headers=_headers(state))


@ROUTES(
    "DELETE",
    PATH,
    Right.CONSUME,
    query=StateQuery,
    status=204,
    headers=("If-Match",),
    errors=(QueueNotFound, GroupNotFound, WrongGroupKind, LeaseLost, StateChanged),
)
async def delete(request: Request) -> Response:
    """Delete the workflow state of a delivery, under its lease: as if nothing had been put. Without one it is well too.

    With `If-Match` only the state that has this ETag. A dead letter then carries none, and a redriven message's own
    is gone as well. ETags of what is put later continue from those before, so that no two states have the same.
    """
    query = request.query(StateQuery)
    token = read_id(query.lease_token, "lease_token")
    await request.node.workflow_state.drop(
        request.queue, query.group, request.message_id(), token, _must_match(request)
    )
    return Response(status=204, headers=_headers(NOTHING))


def _if_match(request: Request) -> int | None:
    """The ETag that the state must have, 0 for none; None: whatever it has."""
    none_match = request.header(b"if-none-match")
    if none_match is None:
        return _must_match(request)
    if none_match.strip() != "*" or request.header(b"if-match") is not None:
        raise InvalidArgument(field="If-None-Match", problem="is * for a state that must not be there yet")
    return 0


def _must_match(request: Request) -> int | None:
    match = request.header(b"if-match")
    if match is None or match.strip() == "*":
        return None
    text = match.strip().removeprefix('"').removesuffix('"')
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise InvalidArgument(field="If-Match", problem="is one ETag that this server gave, or *")
    return int(text)


def _headers(state: WorkflowState) -> list[tuple[bytes, bytes]]:
    return [(b"etag", b'"%d"' % state.etag)]
