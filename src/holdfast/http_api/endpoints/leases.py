"""Leasing and settling."""

from __future__ import annotations

from typing import TypedDict

import msgspec

from holdfast import wire
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
from holdfast.http_api.codecs.shapes import read_consumer, read_settlement
from holdfast.http_api.openapi.routes import Right, Routes
from holdfast.http_api.server.request import Call, duration
from holdfast.http_api.server.response import DeferredResponse, Response, item_error, response
from holdfast.units import format_instant

ROUTES = Routes("Deliveries")
PROTOCOL = "http"

_lease = msgspec.json.Decoder(wire.Lease)
_settle = msgspec.json.Decoder(wire.Settle)


def begin_lease(call: Call, body: bytes) -> DeferredResponse | None:
    """Lease what is ready; None if there is nothing and somebody will wait for it."""
    request = call.decoded(_lease, body, b"{}")
    name, group = call.queue, request.group
    submission = call.node.messages.lease_ready(name, group, request.limit, **_lease_options(request))
    if submission is None:
        return None
    result = Response(encode_batch(submission.result, name[1], request.encoding))
    return DeferredResponse(result, submission, submission.release)


class _LeaseOptions(TypedDict):
    timeout: int
    wait: int
    consumer: str
    protocol: str
    max_bytes: int


def _lease_options(request: wire.Lease) -> _LeaseOptions:
    if request.max_bytes < 0:
        raise InvalidArgument(field="max_bytes", problem="cannot be negative")
    return {
        "timeout": -1 if request.timeout is None else duration(request.timeout, "timeout"),
        "wait": duration(request.wait, "wait"),
        "consumer": read_consumer(request.consumer),
        "protocol": PROTOCOL,
        "max_bytes": request.max_bytes,
    }


@ROUTES(
    "POST",
    "/api/v1/queues/{name}/leases",
    Right.CONSUME,
    body=wire.Lease,
    gives=wire.Leased,
    errors=(QueueNotFound, GroupNotFound, WrongGroupKind, LimitExceeded),
    waits=True,
    begin=begin_lease,
)
async def lease(call: Call) -> Response:
    """Lease up to 1,000 deliveries; wait for the first if there is none.

    A client that goes away while it waits gives back what was leased for it. No deliveries in the answer means that
    nothing became ready within `wait`.
    """
    request = await call.json(_lease, b"{}")
    name = call.queue
    options = _lease_options(request)
    work = call.node.messages.lease(name, request.group, request.limit, **options)

    async def release(found: list[Leased]) -> None:
        if found:
            await call.node.messages.settle(name, request.group, releases(found))

    found = await call.api.until_disconnect(call, work, release) if options["wait"] else await work
    return Response(encode_batch(found, name[1], request.encoding))


def begin_settle(call: Call, body: bytes) -> DeferredResponse:
    acks = read_acks(body) if call.is_json else None
    if acks is not None:
        submission = call.node.messages.ack(call.queue, acks.group, acks.ids, acks.tokens, acks.partition)
        results = submission.result
        errors: dict[int, HoldfastError] = {}
        if results.count(None) != len(results):
            errors = {place: result for place, result in enumerate(results) if isinstance(result, HoldfastError)}
        return _settled(call, errors, len(results), {}, submission)
    request = call.decoded(_settle, body)
    if not request.settlements:
        raise InvalidArgument(field="settlements", problem="is empty; send at least one")
    errors = {}
    settlements: list[Settlement] = []
    places: list[int] = []
    for index, item in enumerate(request.settlements):
        try:
            settlements.append(read_settlement(item))
            places.append(index)
        except HoldfastError as error:
            errors[index] = error
    submission = call.node.messages.settle(call.queue, request.group, settlements)
    deadlines: dict[str, str] = {}
    for place, result in zip(places, submission.result, strict=True):
        if isinstance(result, HoldfastError):
            errors[place] = result
        elif result is not None:
            deadlines[request.settlements[place].id] = format_instant(result)
    return _settled(call, errors, len(request.settlements), deadlines, submission)


def _settled(
    call: Call,
    errors: dict[int, HoldfastError],
    asked: int,
    deadlines: dict[str, str],
    submission: Submission[object],
) -> DeferredResponse:
    if len(errors) == asked:
        raise call.refused(errors)
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
    begin=begin_settle,
)
async def settle(call: Call) -> Response:
    """Settle up to 10,000 deliveries: ack, nack, reject, release or extend.

    All of them are one commit. One that is refused is reported by its index and does not stop the others. If all are
    refused, the answer is the first one's problem.
    """
    return await call.when_durable(begin_settle(call, await call.body()))
