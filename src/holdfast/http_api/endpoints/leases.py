"""Leasing and settling."""

from __future__ import annotations

from typing import TypedDict

import msgspec

from holdfast import wire
from holdfast.broker.dispatch.dispatcher import releases
from holdfast.core.commands import Leased, Settlement
from holdfast.core.queue import Durability
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
from holdfast.http_api.codecs.json_batch import show_lot
from holdfast.http_api.codecs.shapes import read_consumer, read_settlement
from holdfast.http_api.openapi.routes import Right, Routes
from holdfast.http_api.server.request import Call, duration
from holdfast.http_api.server.response import Answer, Pledge, answer, item_error
from holdfast.units import format_instant

ROUTES = Routes("Deliveries")
PROTOCOL = "http"

_lease = msgspec.json.Decoder(wire.Lease)
_settle = msgspec.json.Decoder(wire.Settle)


def begin_lease(call: Call, body: bytes) -> Pledge | None:
    """Lease what is ready; None if there is nothing and somebody will wait for it."""
    wish = call.decoded(_lease, body, b"{}")
    name, group = call.queue, wish.group
    found = call.node.lease_soon(name, group, wish.limit, **_terms(wish))
    if found is None:
        return None

    def release() -> None:
        call.node.release_soon(name, group, found)

    shown = Answer(show_lot(found, name[1], wish.encoding))
    return Pledge(shown, None, undo=release if found else None)


class _Terms(TypedDict):
    timeout: int
    wait: int
    consumer: str
    protocol: str
    max_bytes: int


def _terms(wish: wire.Lease) -> _Terms:
    if wish.max_bytes < 0:
        raise InvalidArgument(field="max_bytes", problem="cannot be negative")
    return {
        "timeout": -1 if wish.timeout is None else duration(wish.timeout, "timeout"),
        "wait": duration(wish.wait, "wait"),
        "consumer": read_consumer(wish.consumer),
        "protocol": PROTOCOL,
        "max_bytes": wish.max_bytes,
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
async def lease(call: Call) -> Answer:
    """Lease up to 1,000 deliveries; wait for the first if there is none.

    A client that goes away while it waits gives back what was leased for it. No deliveries in the answer means that
    nothing became ready within `wait`.
    """
    wish = await call.json(_lease, b"{}")
    name = call.queue
    terms = _terms(wish)
    work = call.node.lease(name, wish.group, wish.limit, **terms)

    async def release(found: list[Leased]) -> None:
        if found:
            await call.node.settle(name, wish.group, releases(found))

    found = await call.api.while_there(call, work, release) if terms["wait"] else await work
    return Answer(show_lot(found, name[1], wish.encoding))


def begin_settle(call: Call, body: bytes) -> Pledge:
    acks = read_acks(body) if call.is_json else None
    if acks is not None:
        results, durability = call.node.ack_soon(call.queue, acks.group, acks.ids, acks.tokens, acks.partition)
        errors: dict[int, HoldfastError] = {}
        if results.count(None) != len(results):
            errors = {place: result for place, result in enumerate(results) if isinstance(result, HoldfastError)}
        return _settled(call, errors, len(results), {}, durability, len(results))
    wish = call.decoded(_settle, body)
    if not wish.settlements:
        raise InvalidArgument(field="settlements", problem="is empty; send at least one")
    errors = {}
    settlements: list[Settlement] = []
    places: list[int] = []
    for index, item in enumerate(wish.settlements):
        try:
            settlements.append(read_settlement(item))
            places.append(index)
        except HoldfastError as error:
            errors[index] = error
    results, durability = call.node.settle_soon(call.queue, wish.group, settlements)
    deadlines: dict[str, str] = {}
    for place, result in zip(places, results, strict=True):
        if isinstance(result, HoldfastError):
            errors[place] = result
        elif result is not None:
            deadlines[wish.settlements[place].id] = format_instant(result)
    return _settled(call, errors, len(wish.settlements), deadlines, durability, len(settlements))


def _settled(
    call: Call,
    errors: dict[int, HoldfastError],
    asked: int,
    deadlines: dict[str, str],
    durability: Durability,
    messages: int,
) -> Pledge:
    if len(errors) == asked:
        raise call.refused(errors)
    shown = [item_error(place, errors[place]) for place in sorted(errors)]
    settled = wire.Settled(settled=asked - len(errors), errors=shown, deadlines=deadlines)
    return Pledge(answer(settled), durability, messages)


@ROUTES(
    "POST",
    "/api/v1/queues/{name}/settle",
    Right.CONSUME,
    body=wire.Settle,
    gives=wire.Settled,
    errors=(QueueNotFound, GroupNotFound, LeaseLost, LimitExceeded),
    begin=begin_settle,
)
async def settle(call: Call) -> Answer:
    """Settle up to 10,000 deliveries: ack, nack, reject, release or extend.

    All of them are one commit. One that is refused is reported by its index and does not stop the others. If all are
    refused, the answer is the first one's problem.
    """
    return await call.kept(begin_settle(call, await call.body()))
