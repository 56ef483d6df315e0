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
from holdfast.http_api.server.request import Request, duration
from holdfast.http_api.server.response import DeferredResponse, Outcome, Response, TaskResponse, item_error, response
from holdfast.units import format_instant

ROUTES = Routes("Deliveries")
PROTOCOL = "http"

_lease = msgspec.json.Decoder(wire.Lease)
_settle = msgspec.json.Decoder(wire.Settle)


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
)
def lease(call: Request) -> Outcome:
    """Lease up to 1,000 deliveries; wait for the first if there is none.

    What was leased for a client that disconnects while it waits is released. No deliveries in the answer means that
    nothing became ready within `wait`.
    """
    request = call.decoded(_lease, call.content, b"{}")
    name, options = call.queue, _lease_options(request)
    submission = call.node.messages.lease_ready(name, request.group, request.limit, **options)
    if submission is None:
        return TaskResponse(_wait(call, request, options))
    result = Response(encode_batch(submission.result, name[1], request.encoding))
    return DeferredResponse(result, submission, submission.release)


async def _wait(call: Request, request: wire.Lease, options: _LeaseOptions) -> Response:
    """Lease what becomes ready."""
    name = call.queue
    work = call.node.messages.lease(name, request.group, request.limit, **options)

    async def release(found: list[Leased]) -> None:
        if found:
            await call.node.messages.settle(name, request.group, releases(found))

    found = await call.api.until_disconnect(call, work, release) if options["wait"] else await work
    return Response(encode_batch(found, name[1], request.encoding))


def _settle_any(call: Request, request: wire.Settle) -> DeferredResponse:
    if not request.settlements:
        raise InvalidArgument(field="settlements", problem="is empty; send at least one")
    errors: dict[int, HoldfastError] = {}
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
    call: Request,
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
)
def settle(call: Request) -> Outcome:
    """Settle up to 10,000 deliveries: ack, nack, reject, release or extend.

    All of them are one commit. One that is refused is reported by its index and does not stop the others. If all are
    refused, the answer is the first one's problem.
    """
    acks = read_acks(call.content) if call.is_json else None
    if acks is not None:
        submission = call.node.messages.ack(call.queue, acks.group, acks.ids, acks.tokens, acks.partition)
        results = submission.result
        errors: dict[int, HoldfastError] = {}
        if results.count(None) != len(results):
            errors = {place: result for place, result in enumerate(results) if isinstance(result, HoldfastError)}
        return _settled(call, errors, len(results), {}, submission)
    return _settle_any(call, call.decoded(_settle, call.content))
