"""Queues: create, list, look at, change, delete."""

from __future__ import annotations

from itertools import islice

import msgspec

from holdfast import wire
from holdfast.auth.principal import Action
from holdfast.errors import (
    DeadQueueInvalid,
    InvalidArgument,
    InvalidConfig,
    InvalidName,
    LimitExceeded,
    QueueExists,
    QueueInUse,
    QueueNotFound,
)
from holdfast.http_api.codecs.shapes import queue_to_wire, stats_to_wire
from holdfast.http_api.openapi.routes import Right, Routes
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import Response, response

ROUTES = Routes("Queues")
PAGE_MAX = 1_000

_create = msgspec.json.Decoder(wire.QueueCreate)
_fields = msgspec.json.Decoder(wire.ConfigFields)


class ListQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which queues to list."""

    prefix: str = ""
    cursor: str = ""
    """Where the page before ended."""
    limit: int = 100


def _queue_response(call: Request, name: tuple[str, str]) -> wire.Queue:
    return queue_to_wire(call.node.cell.engine.queue(name, call.node.clock()))


@ROUTES(
    "POST",
    "/api/v1/queues",
    Right.AUTHENTICATED,
    body=wire.QueueCreate,
    gives=wire.Queue,
    status=201,
    errors=(QueueExists, InvalidName, InvalidConfig, DeadQueueInvalid, LimitExceeded),
    act="queue.create",
)
async def create(call: Request) -> Response:
    """Create a queue."""
    request = await call.json(_create)
    call.audit_details["queue"] = request.name
    call.principal.require(Action.ADMIN, request.name)
    call.principal.require_config(request.config)
    name = (call.namespace, request.name)
    await call.node.queues.create(name, request.config)
    return response(_queue_response(call, name), 201)


@ROUTES("GET", "/api/v1/queues", Right.AUTHENTICATED, query=ListQuery, gives=wire.QueueList)
async def list_all(call: Request) -> Response:
    """List queues by name. Those that the caller may do nothing with are left out."""
    query = call.query(ListQuery)
    if not 1 <= query.limit <= PAGE_MAX:
        raise InvalidArgument(field="limit", problem=f"is 1 to {PAGE_MAX}, not {query.limit}")
    records = call.node.queues.in_namespace(call.namespace, query.prefix, query.cursor)
    seen = list(islice((record for record in records if call.principal.can_see(record.name)), query.limit))
    result = [_queue_response(call, (record.namespace, record.name)) for record in seen]
    return response(wire.QueueList(result, seen[-1].name if len(seen) == query.limit else ""))


@ROUTES("GET", "/api/v1/queues/{name}", Right.ANY, gives=wire.Queue, errors=(QueueNotFound,))
async def get(call: Request) -> Response:
    """Show a queue: its configuration, groups and depth."""
    return response(_queue_response(call, call.queue))


@ROUTES(
    "PUT",
    "/api/v1/queues/{name}/config",
    Right.ADMIN,
    body=wire.QueueConfig,
    gives=wire.Queue,
    errors=(QueueNotFound, InvalidConfig, DeadQueueInvalid),
    act="queue.update",
)
async def update(call: Request) -> Response:
    """Change a queue's configuration. What is not named stays as it is."""
    fields = await call.json(_fields)
    call.audit_details.update(fields)
    call.principal.require_config(fields)
    await call.node.queues.update(call.queue, fields)
    return response(_queue_response(call, call.queue))


@ROUTES(
    "DELETE",
    "/api/v1/queues/{name}",
    Right.ADMIN,
    gives=wire.QueueDeleted,
    errors=(QueueNotFound, QueueInUse),
    act="queue.delete",
)
async def delete(call: Request) -> Response:
    """Delete a queue with all it holds."""
    messages = await call.node.queues.delete(call.queue)
    call.audit_details["messages"] = messages
    return response(wire.QueueDeleted(messages))


@ROUTES("GET", "/api/v1/queues/{name}/stats", Right.ADMIN, gives=wire.QueueStats, errors=(QueueNotFound,))
async def stats(call: Request) -> Response:
    """Show the stats of a queue and its groups. Asking costs the same at any depth."""
    return response(stats_to_wire(await call.node.inspection.stats(call.queue)))


@ROUTES("GET", "/api/v1/queues/{name}/consumers", Right.ADMIN, gives=wire.ConsumerList, errors=(QueueNotFound,))
async def consumers(call: Request) -> Response:
    """List the push consumers of a queue, with their partitions and what they have in flight."""
    members = call.node.inspection.consumers(call.queue)
    result = [
        wire.Consumer(
            member.name, member.group[1], member.protocol, member.partitions, len(member.in_flight), member.credit
        )
        for member in members
    ]
    return response(wire.ConsumerList(result, call.node.inspection.waiting(call.queue)))


@ROUTES(
    "POST", "/api/v1/queues/{name}/purge", Right.ADMIN, gives=wire.Purged, errors=(QueueNotFound,), act="queue.purge"
)
async def purge(call: Request) -> Response:
    """Remove every message that waits now. What is leased stays until it is settled."""
    messages = await call.node.queues.purge(call.queue)
    call.audit_details["messages"] = messages
    return response(wire.Purged(messages))


@ROUTES(
    "POST", "/api/v1/queues/{name}/pause", Right.ADMIN, gives=wire.Queue, errors=(QueueNotFound,), act="queue.pause"
)
async def pause(call: Request) -> Response:
    """Pause a queue: it takes messages and gives none out."""
    await call.node.queues.update(call.queue, {"paused": True})
    return response(_queue_response(call, call.queue))


@ROUTES(
    "POST", "/api/v1/queues/{name}/resume", Right.ADMIN, gives=wire.Queue, errors=(QueueNotFound,), act="queue.resume"
)
async def resume(call: Request) -> Response:
    """Resume a queue that was paused."""
    await call.node.queues.update(call.queue, {"paused": False})
    return response(_queue_response(call, call.queue))
