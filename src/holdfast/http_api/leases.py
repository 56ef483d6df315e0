"""Leasing and settling."""

from __future__ import annotations

import msgspec

from holdfast import wire
from holdfast.broker.dispatch import releases
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
from holdfast.http_api.answers import Answer, answer, item_error
from holdfast.http_api.call import Call, duration
from holdfast.http_api.routes import Right, Routes
from holdfast.http_api.shapes import read_consumer, read_settlement, show_delivery
from holdfast.units import format_instant

ROUTES = Routes("Deliveries")
PROTOCOL = "http"

_lease = msgspec.json.Decoder(wire.Lease)
_settle = msgspec.json.Decoder(wire.Settle)


@ROUTES(
    "POST",
    "/api/v1/queues/{name}/leases",
    Right.CONSUME,
    body=wire.Lease,
    gives=wire.Leased,
    errors=(QueueNotFound, GroupNotFound, WrongGroupKind, LimitExceeded),
    waits=True,
)
async def lease(call: Call) -> Answer:
    """Lease up to 1,000 deliveries; wait for the first if there is none.

    A client that goes away while it waits gives back what was leased for it. No deliveries in the answer means that
    nothing became ready within `wait`.
    """
    wish = await call.json(_lease, b"{}")
    name = call.queue
    wait = duration(wish.wait, "wait")
    timeout = -1 if wish.timeout is None else duration(wish.timeout, "timeout")
    if wish.max_bytes < 0:
        raise InvalidArgument(field="max_bytes", problem="cannot be negative")
    work = call.node.lease(
        name,
        wish.group,
        wish.limit,
        timeout=timeout,
        wait=wait,
        consumer=read_consumer(wish.consumer),
        protocol=PROTOCOL,
        max_bytes=wish.max_bytes,
    )

    async def release(found: list[Leased]) -> None:
        if found:
            await call.node.settle(name, wish.group, releases(found))

    found = await call.api.while_there(call, work, release) if wait else await work
    return answer(wire.Leased([show_delivery(leased, name[1], wish.encoding) for leased in found]))


@ROUTES(
    "POST",
    "/api/v1/queues/{name}/settle",
    Right.CONSUME,
    body=wire.Settle,
    gives=wire.Settled,
    errors=(QueueNotFound, GroupNotFound, LeaseLost, LimitExceeded),
)
async def settle(call: Call) -> Answer:
    """Settle up to 10,000 deliveries: ack, nack, reject, release or extend.

    All of them are one commit. One that is refused is reported by its index and does not stop the others. If all are
    refused, the answer is the first one's problem.
    """
    wish = await call.json(_settle)
    if not wish.settlements:
        raise InvalidArgument(field="settlements", problem="is empty; send at least one")
    errors: dict[int, HoldfastError] = {}
    settlements: list[Settlement] = []
    places: list[int] = []
    for index, item in enumerate(wish.settlements):
        try:
            settlements.append(read_settlement(item))
            places.append(index)
        except HoldfastError as error:
            errors[index] = error
    results = await call.node.settle(call.queue, wish.group, settlements)
    deadlines: dict[str, str] = {}
    for place, result in zip(places, results, strict=True):
        if isinstance(result, HoldfastError):
            errors[place] = result
        elif result is not None:
            deadlines[wish.settlements[place].id] = format_instant(result)
    if len(errors) == len(wish.settlements):
        raise call.refused(errors)
    shown = [item_error(place, errors[place]) for place in sorted(errors)]
    return answer(wire.Settled(settled=len(wish.settlements) - len(errors), errors=shown, deadlines=deadlines))
