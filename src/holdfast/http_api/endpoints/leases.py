"""Leasing and settling."""

from __future__ import annotations

from typing import TypedDict

import msgspec

from holdfast import wire
from holdfast.auth.principal import Principal
from holdfast.broker.dispatch.dispatcher import releases
from holdfast.broker.submission import Submission
from holdfast.core.commands import Leased, Settlement
from holdfast.errors import (
    GroupNotFound,
    HoldfastError,
    InvalidArgument,
    LeaseLost,
    LimitExceeded,
    QueueNotFound,
    WrongGroupKind,
)
from holdfast.http_api.codecs.json_acks import read_acks
from holdfast.http_api.codecs.json_batch import encode_batch
from holdfast.http_api.codecs.json_slices import BulkArray, is_cheap, read_bulk
from holdfast.http_api.codecs.shapes import read_consumer, read_settlement
from holdfast.http_api.codecs.values import decode, duration
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import (
    DeferredResponse,
    EndpointResult,
    Response,
    TaskResponse,
    item_error,
    response,
)
from holdfast.http_api.server.routes import Right, Routes
from holdfast.units import format_instant

ROUTES = Routes("Deliveries")
PROTOCOL = "http"

_lease = msgspec.json.Decoder(wire.Lease)
_settle = msgspec.json.Decoder(wire.Settle)
_settlements = msgspec.json.Decoder(list[wire.Settlement]).decode

SETTLEMENTS = BulkArray(b"settlements", (), "One settle", "settlements")


class _LeaseOptions(TypedDict):
    timeout: int
    wait: int
    consumer: str
    protocol: str
    max_bytes: int
    create: bool


def _lease_options(body: wire.Lease, principal: Principal) -> _LeaseOptions:
    if body.max_bytes < 0:
        raise InvalidArgument(field="max_bytes", problem="cannot be negative")
    return {
        "timeout": -1 if body.timeout is None else duration(body.timeout, "timeout"),
        "wait": duration(body.wait, "wait"),
        "consumer": read_consumer(body.consumer, principal),
        "protocol": PROTOCOL,
        "max_bytes": body.max_bytes,
        "create": body.create,
    }


@ROUTES(
    "POST",
    "/api/v1/queues/{name}/leases",
    Right.CONSUME,
    body=wire.Lease,
    gives=wire.Leased,
    errors=(QueueNotFound, GroupNotFound, WrongGroupKind, LimitExceeded),
    waits=True,
)
def lease(request: Request) -> EndpointResult:
    """Lease up to 1,000 deliveries; wait for the first if there is none.

    What was leased for a client that disconnects while it waits is released. No deliveries in the response means that
    nothing became ready within `wait`.
    """
    body = request.decoded(_lease, request.content, b"{}")
    name, options = request.queue, _lease_options(body, request.principal)
    submission = request.node.messages.lease_ready(name, body.group, body.limit, **options)
    if submission is None:
        return TaskResponse(_wait(request, body, options))
    result = Response(encode_batch(submission.result, name[1], body.encoding))
    return DeferredResponse(result, submission, submission.release)


async def _wait(request: Request, body: wire.Lease, options: _LeaseOptions) -> Response:
    """Lease what becomes ready."""
    name = request.queue
    work = request.node.messages.lease(name, body.group, body.limit, **options)

    async def release(found: list[Leased]) -> None:
        if found:
            await request.node.messages.settle(name, body.group, releases(found))

    found = await request.api.until_disconnect(request, work, release)
    return Response(encode_batch(found, name[1], body.encoding))


def _settle_any(request: Request, body: wire.Settle) -> DeferredResponse:
    if not body.settlements:
        raise InvalidArgument(field="settlements", problem="is empty; send at least one")
    errors: dict[int, HoldfastError] = {}
    settlements: list[Settlement] = []
    places: list[int] = []
    for index, item in enumerate(body.settlements):
        try:
            settlements.append(read_settlement(item, request.principal))
            places.append(index)
        except HoldfastError as error:
            errors[index] = error
    submission = request.node.messages.settle(request.queue, body.group, settlements)
    deadlines: dict[str, str] = {}
    for place, result in zip(places, submission.result, strict=True):
        if isinstance(result, HoldfastError):
            errors[place] = result
        elif result is not None:
            deadlines[body.settlements[place].id] = format_instant(result)
    return _settled(request, errors, len(body.settlements), deadlines, submission)


async def _settle_in_slices(request: Request) -> Response:
    """Settle what a body has that holds, or may hold, very many values."""
    request.check_json()
    settlements: list[wire.Settlement] = []
    limit = request.api.config.limits.settle_max
    work = read_bulk(
        request.content, SETTLEMENTS, limit, 0, lambda chunk: settlements.extend(decode(_settlements, chunk))
    )
    rest = await request.api.in_slices(work)
    body = msgspec.structs.replace(decode(_settle.decode, rest), settlements=settlements)
    return await _settle_any(request, body).ready()


def _settled(
    request: Request,
    errors: dict[int, HoldfastError],
    asked: int,
    deadlines: dict[str, str],
    submission: Submission[object],
) -> DeferredResponse:
    if len(errors) == asked:
        raise request.refused(errors)
    result = [item_error(place, errors[place]) for place in sorted(errors)]
    settled = wire.Settled(settled=asked - len(errors), errors=result, deadlines=deadlines)
    return DeferredResponse(response(settled), submission)


@ROUTES(
    "POST",
    "/api/v1/queues/{name}/settle",
    Right.CONSUME,
    body=wire.Settle,
    gives=wire.Settled,
    errors=(QueueNotFound, GroupNotFound, LeaseLost, LimitExceeded),
    bulk=True,
)
def settle(request: Request) -> EndpointResult:
    """Settle up to 10,000 deliveries: ack, nack, reject, release or extend.

    All of them are one commit. One that is refused is reported by its index and does not stop the others. If all are
    refused, the response is the first one's problem.
    """
    if not is_cheap(request.content):
        return TaskResponse(_settle_in_slices(request))
    acks = read_acks(request.content) if request.is_json else None
    if acks is not None:
        submission = request.node.messages.ack(request.queue, acks.group, acks.ids, acks.tokens, acks.partition)
        results = submission.result
        errors: dict[int, HoldfastError] = {}
        if results.count(None) != len(results):
            errors = {place: result for place, result in enumerate(results) if isinstance(result, HoldfastError)}
        return _settled(request, errors, len(results), {}, submission)
    return _settle_any(request, request.decoded(_settle, request.content))
