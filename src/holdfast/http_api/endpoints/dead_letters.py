"""Dead letters of a queue: list, redrive, purge."""

from __future__ import annotations

from contextlib import aclosing

import msgspec

from holdfast import wire
from holdfast.auth.fronts import redrive_rights
from holdfast.auth.principal import Action
from holdfast.broker.parts.redrive_jobs import RedriveRequest, RunningRedrive
from holdfast.engine.catalog import QueueName
from holdfast.engine.dead_letters import DeadLetterFilter
from holdfast.engine.redrive import Destination
from holdfast.errors import (
    GroupNotFound,
    InvalidArgument,
    LimitExceeded,
    MessageNotFound,
    MessageNotWaiting,
    NoDeadQueue,
    QueueFull,
    QueueNotFound,
    RedriveNotFound,
    ShuttingDown,
    WrongGroupKind,
)
from holdfast.http_api.codecs.shapes import view_to_wire
from holdfast.http_api.codecs.values import duration, read_id
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import Response, response
from holdfast.http_api.server.routes import Right, Routes
from holdfast.units import format_instant

ROUTES = Routes("Dead letters")
RATE_MAX = 1_000_000.0

_redrive = msgspec.json.Decoder(wire.Redrive)
_filter = msgspec.json.Decoder(wire.DeadFilter)


def dead_queue(request: Request) -> tuple[QueueName, str]:
    """The dead queue of the queue in the path, and the source queue whose dead letters are meant; empty if the path
    names the dead queue itself."""
    return redrive_rights.dead_queue(request.node, request.queue)


def _matching(request: Request, chosen: wire.DeadFilter, source: str) -> DeadLetterFilter:
    now = request.node.clock()
    return DeadLetterFilter(
        ids=frozenset(read_id(text, "ids") for text in chosen.ids),
        source_queue=source,
        source_group=chosen.group,
        reasons=frozenset({chosen.reason} if chosen.reason else ()),
        error=chosen.error,
        before=0 if chosen.older_than is None else max(now - duration(chosen.older_than, "older_than"), 1),
        after=0 if chosen.newer_than is None else now - duration(chosen.newer_than, "newer_than"),
        properties=tuple(chosen.properties.items()),
    )


class DeadQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which dead letters to list."""

    cursor: str = ""
    """Where the page before ended."""
    limit: int = 100
    reason: str = ""
    error: str = ""
    """A part of the last error."""
    group: str = ""
    older_than: wire.Duration | None = None
    """It died at least this long ago."""
    newer_than: wire.Duration | None = None
    """It died at most this long ago."""
    encoding: wire.Encoding = "auto"


@ROUTES(
    "GET",
    "/api/v1/queues/{name}/dlq",
    Right.ANY,
    query=DeadQuery,
    gives=wire.MessagePage,
    errors=(QueueNotFound, NoDeadQueue),
)
async def list_all(request: Request) -> Response:
    """List the dead letters of a queue, oldest first. Nothing is leased or changed.

    A page may hold fewer dead letters than `limit`, even none, and still have a `cursor`: continue until it is
    empty. Needs the right to consume the dead queue too.
    """
    query = request.query(DeadQuery)
    dead, source = dead_queue(request)
    request.principal.require(Action.CONSUME, dead[1])
    now = request.node.clock()
    chosen = DeadLetterFilter(
        source_queue=source,
        source_group=query.group,
        reasons=frozenset({query.reason} if query.reason else ()),
        error=query.error,
        before=0 if query.older_than is None else max(now - duration(query.older_than, "older_than"), 1),
        after=0 if query.newer_than is None else now - duration(query.newer_than, "newer_than"),
    )
    try:
        page = await request.node.inspection.browse(dead, query.limit, query.cursor)
    except QueueNotFound:
        if not source:
            raise
        return response(wire.MessagePage([]))  # there are no dead letters yet
    result = [
        view_to_wire(dead_letter, at, statuses, query.encoding)
        for at, dead_letter, statuses in page.messages
        if chosen.match(dead_letter)
    ]
    return response(wire.MessagePage(result, page.cursor))


class RetryQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where to."""

    to: str = ""
    """The queue to move it to, there for all its groups. Empty: its source queue, for the group that dead-lettered
    it."""
    group: str = ""
    """Move it to this group alone."""
    all_groups: bool = False
    """Move it to all groups of its source queue."""


@ROUTES(
    "POST",
    "/api/v1/queues/{name}/dlq/{id}/retry",
    Right.ADMIN,
    query=RetryQuery,
    gives=wire.Retried,
    errors=(QueueNotFound, NoDeadQueue, MessageNotFound, MessageNotWaiting, QueueFull, GroupNotFound, WrongGroupKind),
    act="dlq.retry",
)
async def retry(request: Request) -> Response:
    """Redrive one dead letter to its source queue, or to another.

    In its source queue it is for the group that dead-lettered it only. It is stored there and removed from the
    dead queue in one step, and keeps its `source_id`. Needs `produce` or `admin` on its source queue too, or `admin` on
    the other.
    """
    query = request.query(RetryQuery)
    dead, source = dead_queue(request)
    to = _destination(request, query)
    dead_letter = request.message_id()
    _, found, _ = await request.node.inspection.find(dead, dead_letter)
    home = found.extra.origin.source_queue if found.extra.origin is not None else ""
    wanted = DeadLetterFilter(ids=frozenset({dead_letter}), source_queue=source)
    require = request.principal.require_put
    async for step in request.node.dead_letters.redrive(dead, wanted, to=to, require=require):
        if step.leased:
            raise MessageNotWaiting(message_id=dead_letter, state="leased", group="of a consumer")
        for error in step.refused.values():
            raise error
        for _, message_id in step.moved:
            return response(wire.Retried(query.to or home, str(message_id)))
    raise MessageNotFound(message_id=dead_letter, queue=dead[1])


def _destination(request: Request, target: RetryQuery | wire.Redrive) -> Destination:
    return redrive_rights.destination(
        request.node, request.principal, request.queue, target.to, target.group, all_groups=target.all_groups
    )


@ROUTES(
    "POST",
    "/api/v1/queues/{name}/dlq/redrive",
    Right.ADMIN,
    body=wire.Redrive,
    gives=wire.RedriveJob,
    status=202,
    errors=(QueueNotFound, NoDeadQueue, LimitExceeded, GroupNotFound),
    act="dlq.redrive",
    waits=True,
)
async def redrive(request: Request) -> Response:
    """Redrive dead letters: all, or those that match; to their source queue or another; at a rate.

    They are moved in the order in which they were dead-lettered. In its source queue a dead letter is for the group
    that dead-lettered it only. One whose group was deleted stays, unless `group` or `all_groups` says where it is to
    go. So does one whose source queue the caller may neither produce to nor administer.

    The response is a job whose progress can be shown and which can be cancelled; it survives a restart. With `dry_run`
    the response is sent when all dead letters have been read, with the number of matches in `matched`. Each is stored
    in its destination and removed from the dead queue in one step, so that none is lost or duplicated.
    """
    body = await request.json(_redrive, b"{}")
    dead, source = dead_queue(request)
    wanted = RedriveRequest(
        queue=request.queue[1],
        dead_queue=dead,
        letters=_matching(request, body.filter, source),
        to=_destination(request, body),
        rate=body.rate,
        limit=body.limit,
        dry_run=body.dry_run,
        allowed=request.principal.put_filters,
    )
    return response(_to_wire(await start_job(request, wanted)), 202)


async def start_job(request: Request, wanted: RedriveRequest) -> RunningRedrive:
    """Start a redrive, or a move, which is one over an ordinary queue. A dry run has ended when this returns."""
    if not 0 <= wanted.rate <= RATE_MAX:
        raise InvalidArgument(field="rate", problem=f"is 0 to {RATE_MAX:g} messages a second")
    if wanted.limit < 0:
        raise InvalidArgument(field="limit", problem="cannot be negative")
    job = await request.node.redrive_jobs.start(wanted)
    if wanted.dry_run:
        try:
            await request.api.until_disconnect(request, job.ended.wait())
        finally:
            job.cancel()
    return job


@ROUTES(
    "GET",
    "/api/v1/queues/{name}/dlq/redrive",
    Right.ADMIN,
    gives=wire.RedriveList,
    errors=(QueueNotFound, NoDeadQueue),
)
async def redrives(request: Request) -> Response:
    """List the redrives of a queue's dead letters, newest first."""
    jobs = request.node.redrive_jobs.of(*dead_queue(request))
    return response(wire.RedriveList([_to_wire(job) for job in jobs]))


@ROUTES(
    "GET",
    "/api/v1/queues/{name}/dlq/redrive/{redrive}",
    Right.ADMIN,
    gives=wire.RedriveJob,
    errors=(QueueNotFound, NoDeadQueue, RedriveNotFound),
)
async def progress(request: Request) -> Response:
    """Show how far a redrive has come."""
    return response(_to_wire(_job(request)))


@ROUTES(
    "DELETE",
    "/api/v1/queues/{name}/dlq/redrive/{redrive}",
    Right.ADMIN,
    gives=wire.RedriveJob,
    errors=(QueueNotFound, NoDeadQueue, RedriveNotFound),
    act="dlq.cancel",
)
async def cancel(request: Request) -> Response:
    """Cancel a redrive. What it has moved stays moved, the rest stays in the dead queue."""
    job = _job(request)
    job.cancel()
    await job.ended.wait()
    return response(_to_wire(job))


@ROUTES(
    "POST",
    "/api/v1/queues/{name}/dlq/purge",
    Right.ADMIN,
    body=wire.DeadFilter,
    gives=wire.Purged,
    errors=(QueueNotFound, NoDeadQueue, LimitExceeded),
    act="dlq.purge",
    waits=True,
)
async def purge(request: Request) -> Response:
    """Purge dead letters: all of this queue, or those that match. What is leased stays.

    Once begun it is completed, even if the caller does not wait for it.
    """
    body = await request.json(_filter, b"{}")
    dead, source = dead_queue(request)
    dead_letters = _matching(request, body, source)
    purged = request.audit_details["messages"] = 0
    try:
        async with aclosing(request.node.dead_letters.redrive(dead, dead_letters, discard=True)) as steps:
            async for step in steps:
                purged += len(step.moved)
                request.audit_details["messages"] = purged
                if request.api.closing:
                    raise ShuttingDown
    except QueueNotFound:
        pass  # there are no dead letters yet
    return response(wire.Purged(purged))


def _job(request: Request) -> RunningRedrive:
    dead, source = dead_queue(request)
    return request.node.redrive_jobs.get(dead, request.parameters[1], source)


def _to_wire(job: RunningRedrive) -> wire.RedriveJob:
    request, progress = job.request, job.progress
    return wire.RedriveJob(
        id=job.id,
        queue=request.queue,
        dead_queue=request.dead_queue[1],
        to=request.to.queue,
        group=request.to.group,
        all_groups=request.to.all_groups,
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
