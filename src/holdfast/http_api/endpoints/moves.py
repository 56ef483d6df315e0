"""Moving the messages of a queue to another one: jobs of the same kind as redrives, with rights at both ends."""

from __future__ import annotations

import msgspec

from holdfast import wire
from holdfast.auth.fronts import redrive_rights
from holdfast.auth.principal import Action
from holdfast.broker.parts.redrive_jobs import RedriveRequest, RunningRedrive
from holdfast.engine.dead_letters import DeadLetterFilter
from holdfast.engine.redrive import Destination
from holdfast.errors import InvalidArgument, LimitExceeded, QueueNotFound, RedriveNotFound
from holdfast.http_api.codecs.values import duration, read_id
from holdfast.http_api.endpoints.dead_letters import start_job
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import Response, response
from holdfast.http_api.server.routes import Right, Routes
from holdfast.units import format_instant

ROUTES = Routes("Moves")

_move = msgspec.json.Decoder(wire.Move)


@ROUTES(
    "POST",
    "/api/v1/queues/{name}/moves",
    Right.ADMIN,
    body=wire.Move,
    gives=wire.MoveJob,
    status=202,
    errors=(QueueNotFound, LimitExceeded),
    act="queue.move",
    waits=True,
)
async def start(request: Request) -> Response:
    """Move messages to another queue: all that wait, or those that match; at a rate.

    Each is stored there and removed here in one step, so that none is lost or duplicated, in the order in which they
    were enqueued. It keeps its payload, key, priority, properties, delivery time and what is left of its time to live,
    and is for all groups of the other queue. What a consumer holds stays. Needs `admin` on both queues, and `consume`
    here if the caller may consume there.

    The response is a job whose progress can be shown and which can be cancelled; it survives a restart, and waits while
    the other queue is full. With `dry_run` the response is sent when all messages have been read, with the number of
    matches in `matched`.
    """
    body = await request.json(_move)
    request.audit_details["to"] = body.to
    request.node.queues.get(request.queue)
    if not body.to or body.to == request.queue[1]:
        raise InvalidArgument(field="to", problem="is another queue")
    redrive_rights.check_destination(request.node, request.principal, body.to)
    if request.principal.may(Action.CONSUME, body.to):  # what it may not read must not come to where it may
        request.principal.require(Action.CONSUME, request.queue[1])
    wanted = RedriveRequest(
        queue=request.queue[1],
        dead_queue=request.queue,
        letters=_matching(request, body.filter),
        to=Destination(queue=body.to, moving=True),
        rate=body.rate,
        limit=body.limit,
        dry_run=body.dry_run,
        allowed=request.principal.put_filters,
    )
    return response(_to_wire(await start_job(request, wanted)), 202)


def _matching(request: Request, chosen: wire.MoveFilter) -> DeadLetterFilter:
    now = request.node.clock()
    return DeadLetterFilter(
        ids=frozenset(read_id(text, "ids") for text in chosen.ids),
        before=0 if chosen.older_than is None else max(now - duration(chosen.older_than, "older_than"), 1),
        after=0 if chosen.newer_than is None else now - duration(chosen.newer_than, "newer_than"),
        properties=tuple(chosen.properties.items()),
    )


@ROUTES("GET", "/api/v1/queues/{name}/moves", Right.ADMIN, gives=wire.MoveList, errors=(QueueNotFound,))
async def list_all(request: Request) -> Response:
    """List the moves of a queue's messages to other queues, newest first."""
    request.node.queues.get(request.queue)
    return response(wire.MoveList([_to_wire(job) for job in request.node.redrive_jobs.of(request.queue, moving=True)]))


@ROUTES("GET", "/api/v1/queues/{name}/moves/{move}", Right.ADMIN, gives=wire.MoveJob, errors=(RedriveNotFound,))
async def progress(request: Request) -> Response:
    """Show how far a move has come."""
    return response(_to_wire(_job(request)))


@ROUTES(
    "DELETE",
    "/api/v1/queues/{name}/moves/{move}",
    Right.ADMIN,
    gives=wire.MoveJob,
    errors=(RedriveNotFound,),
    act="queue.move_cancel",
)
async def cancel(request: Request) -> Response:
    """Cancel a move. What it has moved stays moved, the rest stays here."""
    job = _job(request)
    job.cancel()
    await job.ended.wait()
    return response(_to_wire(job))


def _job(request: Request) -> RunningRedrive:
    return request.node.redrive_jobs.get(request.queue, request.parameters[1], moving=True)


def _to_wire(job: RunningRedrive) -> wire.MoveJob:
    request, progress = job.request, job.progress
    return wire.MoveJob(
        id=job.id,
        queue=request.queue,
        to=request.to.queue,
        dry_run=request.dry_run,
        state=progress.state.value,
        looked_at=progress.looked_at,
        matched=progress.moved + progress.skipped,
        moved=0 if request.dry_run else progress.moved,
        skipped=progress.skipped,
        problem=progress.problem,
        started_at=format_instant(request.started_at),
        ended_at=format_instant(progress.ended_at) if progress.ended_at else None,
    )
