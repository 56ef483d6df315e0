"""Queues: create, list, look at, change, delete."""

from __future__ import annotations

from itertools import islice

import msgspec

from holdfast import wire
from holdfast.auth.principal import Action
from holdfast.errors import (
    ConsumerNotFound,
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
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import Response, response
from holdfast.http_api.server.routes import Right, Routes

ROUTES = Routes("Queues")
PAGE_MAX = 1_000

_create = msgspec.json.Decoder(wire.QueueCreate)
_fields = msgspec.json.Decoder(wire.ConfigFields)
_end_consumer = msgspec.json.Decoder(wire.ConsumerEnd)

ENDED = "an administrator has ended it"


class ListQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which queues to list."""

    prefix: str = ""
    cursor: str = ""
    """Where the page before ended."""
    limit: int = 100


def _queue_response(request: Request, name: tuple[str, str]) -> wire.Queue:
    return queue_to_wire(request.node.queues.get(name), request.node.queues.depth(name))


@ROUTES(
    "POST",
    "/api/v1/queues",
    Right.ADMIN_SOMEWHERE,
    body=wire.QueueCreate,
    gives=wire.Queue,
    status=201,
    errors=(QueueExists, InvalidName, InvalidConfig, DeadQueueInvalid, LimitExceeded),
    act="queue.create",
)
async def create(request: Request) -> Response:
    """Create a queue."""
    body = await request.json(_create)
    request.audit_details.update(queue=body.name, config=body.config)
    request.principal.require(Action.ADMIN, body.name)
    request.principal.require_config(body.config)
    name = (request.namespace, body.name)
    await request.node.queues.create(name, body.config)
    return response(_queue_response(request, name), 201)


@ROUTES("GET", "/api/v1/queues", Right.AUTHENTICATED, query=ListQuery, gives=wire.QueueList)
async def list_all(request: Request) -> Response:
    """List queues by name. Those that the caller may do nothing with are left out."""
    query = request.query(ListQuery)
    if not 1 <= query.limit <= PAGE_MAX:
        raise InvalidArgument(field="limit", problem=f"is 1 to {PAGE_MAX}, not {query.limit}")
    records = request.node.queues.in_namespace(request.namespace, query.prefix, query.cursor)
    seen = list(islice((record for record in records if request.principal.can_see(record.name)), query.limit))
    result = [_queue_response(request, (record.namespace, record.name)) for record in seen]
    return response(wire.QueueList(result, seen[-1].name if len(seen) == query.limit else ""))


@ROUTES("GET", "/api/v1/queues/{name}", Right.ANY, gives=wire.Queue, errors=(QueueNotFound,))
async def get(request: Request) -> Response:
    """Show a queue: its configuration, groups and depth."""
    return response(_queue_response(request, request.queue))


@ROUTES(
    "PUT",
    "/api/v1/queues/{name}/config",
    Right.ADMIN,
    body=wire.QueueConfig,
    gives=wire.Queue,
    errors=(QueueNotFound, InvalidConfig, DeadQueueInvalid),
    act="queue.update",
)
async def update(request: Request) -> Response:
    """Change a queue's configuration. What is not named stays as it is."""
    fields = await request.json(_fields)
    request.audit_details["config"] = fields
    request.principal.require_config(fields)
    await request.node.queues.update(request.queue, fields)
    await request.node.queues.grown(request.queue)
    return response(_queue_response(request, request.queue))


@ROUTES(
    "DELETE",
    "/api/v1/queues/{name}",
    Right.ADMIN,
    gives=wire.QueueDeleted,
    errors=(QueueNotFound, QueueInUse),
    act="queue.delete",
)
async def delete(request: Request) -> Response:
    """Delete a queue with all it holds. The deletion goes on to its end, also if the client does not wait for it."""
    try:
        messages = await request.node.queues.delete(request.queue)
    except QueueInUse:
        raise _in_use(request) from None
    request.audit_details["messages"] = messages
    return response(wire.QueueDeleted(messages))


def _in_use(request: Request) -> QueueInUse:
    """The refusal to delete a dead queue, which names the queues that the caller can see."""
    users = request.node.queues.dead_queue_users(request.queue)
    seen = [repr(user) for user in users if request.principal.can_see(user)]
    hidden = [] if len(seen) == len(users) else ["queues that you may not see"]
    return QueueInUse(queue=request.queue[1], users=", ".join(seen + hidden))


@ROUTES("GET", "/api/v1/queues/{name}/stats", Right.ADMIN, gives=wire.QueueStats, errors=(QueueNotFound,))
async def stats(request: Request) -> Response:
    """Show the stats of a queue and its groups. Asking costs the same at any depth."""
    return response(stats_to_wire(await request.node.inspection.stats(request.queue)))


@ROUTES("GET", "/api/v1/queues/{name}/consumers", Right.ADMIN, gives=wire.ConsumerList, errors=(QueueNotFound,))
async def consumers(request: Request) -> Response:
    """List the push consumers of a queue, with their partitions and what they have in flight."""
    members = request.node.inspection.consumers(request.queue)
    result = [
        wire.Consumer(
            member.name, member.group[1], member.protocol, member.partitions, len(member.in_flight), member.credit
        )
        for member in members
    ]
    return response(wire.ConsumerList(result, request.node.inspection.waiting(request.queue)))


@ROUTES(
    "POST",
    "/api/v1/queues/{name}/consumers/disconnect",
    Right.ADMIN,
    body=wire.ConsumerEnd,
    gives=wire.ConsumersEnded,
    errors=(QueueNotFound, ConsumerNotFound),
    act="consumer.disconnect",
)
async def disconnect(request: Request) -> Response:
    """End a push consumer's connection: a stream over HTTP or gRPC, or an MQTT client with all its subscriptions.

    What it holds is released, or fails, as it asked for. It may connect again: take away its credential, or pause the
    queue, to keep it away.
    """
    body = await request.json(_end_consumer)
    request.node.queues.get(request.queue)
    request.audit_details.update(consumer=body.consumer, group=body.group)
    ended = request.node.subscriptions.disconnect(request.queue, body.consumer, body.group, ENDED)
    if not ended:
        raise ConsumerNotFound(consumer=body.consumer, queue=request.queue[1])
    return response(wire.ConsumersEnded(ended))


@ROUTES(
    "POST", "/api/v1/queues/{name}/purge", Right.ADMIN, gives=wire.Purged, errors=(QueueNotFound,), act="queue.purge"
)
async def purge(request: Request) -> Response:
    """Remove every message that waits now, also what waits for a cursor group only. What is leased stays until it is
    settled."""
    messages = await request.node.queues.purge(request.queue)
    request.audit_details["messages"] = messages
    return response(wire.Purged(messages))


@ROUTES(
    "POST", "/api/v1/queues/{name}/pause", Right.ADMIN, gives=wire.Queue, errors=(QueueNotFound,), act="queue.pause"
)
async def pause(request: Request) -> Response:
    """Pause a queue: it takes messages and gives none out."""
    await request.node.queues.update(request.queue, {"paused": True})
    return response(_queue_response(request, request.queue))


@ROUTES(
    "POST", "/api/v1/queues/{name}/resume", Right.ADMIN, gives=wire.Queue, errors=(QueueNotFound,), act="queue.resume"
)
async def resume(request: Request) -> Response:
    """Resume a queue that was paused."""
    await request.node.queues.update(request.queue, {"paused": False})
    return response(_queue_response(request, request.queue))
