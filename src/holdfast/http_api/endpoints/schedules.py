"""Schedules: store, list, look at, pause, run, delete.

A schedule sends messages as its target's producer would, when nobody is there to ask: who stores or runs one must be
allowed to administer that queue and to produce to it. Whoever administers the queue may look at it, pause and delete
it. For others it does not exist, unless they may do something with the queue.
"""

from __future__ import annotations

from itertools import islice

import msgspec

from holdfast import wire
from holdfast.auth.principal import Action
from holdfast.engine.schedules.records import CatchUp, Overlap, Rule, Run, Schedule
from holdfast.engine.schedules.schedules import Scheduled, ScheduleName
from holdfast.errors import (
    Forbidden,
    InvalidArgument,
    InvalidName,
    LimitExceeded,
    MessageTooLarge,
    QueueFull,
    QueueNotFound,
    QuotaExceeded,
    ScheduleNotFound,
)
from holdfast.http_api.codecs.shapes import payload_field, properties_to_wire, read_draft
from holdfast.http_api.codecs.values import duration, instant
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import Response, response
from holdfast.http_api.server.routes import Right, Routes
from holdfast.units import format_duration, format_instant

ROUTES = Routes("Schedules")
PAGE_MAX = 1_000
NEXT_TICKS = 10

_definition = msgspec.json.Decoder(wire.ScheduleDefinition)


class ScheduleQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which schedules to list."""

    prefix: str = ""
    cursor: str = ""
    """Where the page before ended."""
    limit: int = 100


@ROUTES(
    "PUT",
    "/api/v1/schedules/{name}",
    Right.ADMIN_SOMEWHERE,
    body=wire.ScheduleDefinition,
    gives=wire.Schedule,
    errors=(InvalidName, LimitExceeded, QuotaExceeded),
    act="schedule.put",
)
async def put(request: Request) -> Response:
    """Store a schedule, in the place of the one that has its name, if there is one.

    If its rule (`cron`, `every`, `timezone`, `starts_at`, `ends_at`, `jitter`) stays the same, its ticks go on; another
    one begins now. It enqueues until it is paused, ends or is deleted, also when its author has lost their rights.
    """
    body = await request.json(_definition)
    name = _name(request)
    request.audit_details.update(queue=body.queue, cron=body.cron, every=body.every, timezone=body.timezone)
    old = request.node.schedules.find(name)
    if old is not None and not _may_see(request, old):
        raise Forbidden(action="replace", resource=f"schedule {name[1]}", scope="admin:#")
    request.principal.require(Action.ADMIN, body.queue)
    request.principal.require(Action.PRODUCE, body.queue)
    schedule = _read(body, name, request.principal.identity, old is not None and old.schedule.paused)
    stored = await request.node.schedules.put(schedule)
    return response(_detailed(request, stored))


@ROUTES("GET", "/api/v1/schedules", Right.ADMIN_SOMEWHERE, query=ScheduleQuery, gives=wire.ScheduleList)
async def list_all(request: Request) -> Response:
    """List schedules by name: those of queues that the caller may administer."""
    query = request.query(ScheduleQuery)
    if not 1 <= query.limit <= PAGE_MAX:
        raise InvalidArgument(field="limit", problem=f"is 1 to {PAGE_MAX}, not {query.limit}")
    found = request.node.schedules.in_namespace(request.namespace, query.prefix, query.cursor)
    seen = list(islice((one for one in found if _may_see(request, one)), query.limit))
    cursor = seen[-1].schedule.name if len(seen) == query.limit else ""
    return response(wire.ScheduleList([_to_wire(one, 1) for one in seen], cursor))


@ROUTES("GET", "/api/v1/schedules/{name}", Right.ADMIN_SOMEWHERE, gives=wire.Schedule, errors=(ScheduleNotFound,))
async def get(request: Request) -> Response:
    """Show a schedule: what it enqueues, its next ten ticks, and what became of the last hundred."""
    return response(_detailed(request, _visible(request, _name(request))))


@ROUTES(
    "DELETE",
    "/api/v1/schedules/{name}",
    Right.ADMIN_SOMEWHERE,
    status=204,
    errors=(ScheduleNotFound,),
    act="schedule.delete",
)
async def delete(request: Request) -> Response:
    """Delete a schedule. Messages that it enqueued stay."""
    name = _name(request)
    _visible(request, name)
    await request.node.schedules.delete(name)
    return Response(status=204)


@ROUTES(
    "POST",
    "/api/v1/schedules/{name}/pause",
    Right.ADMIN_SOMEWHERE,
    gives=wire.Schedule,
    errors=(ScheduleNotFound,),
    act="schedule.pause",
)
async def pause(request: Request) -> Response:
    """Pause a schedule."""
    return await _paused(request, True)


@ROUTES(
    "POST",
    "/api/v1/schedules/{name}/resume",
    Right.ADMIN_SOMEWHERE,
    gives=wire.Schedule,
    errors=(ScheduleNotFound,),
    act="schedule.resume",
)
async def resume(request: Request) -> Response:
    """Resume a schedule that was paused. Ticks of the pause are not caught up with."""
    return await _paused(request, False)


async def _paused(request: Request, paused: bool) -> Response:
    name = _name(request)
    _visible(request, name)
    return response(_detailed(request, await request.node.schedules.pause(name, paused)))


@ROUTES(
    "POST",
    "/api/v1/schedules/{name}/run",
    Right.ADMIN_SOMEWHERE,
    gives=wire.ScheduleRun,
    errors=(ScheduleNotFound, QueueNotFound, QueueFull, MessageTooLarge, QuotaExceeded),
    act="schedule.run",
)
async def run(request: Request) -> Response:
    """Enqueue a schedule's message now, whether it is paused or not. Its ticks stay as they are."""
    name = _name(request)
    request.principal.require(Action.PRODUCE, _visible(request, name).schedule.queue)
    done = await request.node.schedules.run(name)
    request.audit_details["message"] = str(done.message)
    return response(_run_to_wire(done))


def _name(request: Request) -> ScheduleName:
    return (request.namespace, request.parameters[0])


def _may_see(request: Request, found: Scheduled) -> bool:
    return request.principal.may(Action.ADMIN, found.schedule.queue)


def _visible(request: Request, name: ScheduleName) -> Scheduled:
    """A schedule that the caller may administer. To those who cannot even see its queue it does not exist."""
    found = request.node.schedules.get(name)
    if not request.principal.can_see(found.schedule.queue):
        raise ScheduleNotFound(schedule=name[1], namespace=name[0])
    request.principal.require(Action.ADMIN, found.schedule.queue)
    return found


# --- between the wire's shapes and the core's -----------------------------------------------------------------------


def _read(body: wire.ScheduleDefinition, name: ScheduleName, by: str, paused: bool) -> Schedule:
    message = body.message
    for field in ("message_id", "delay", "deliver_at"):
        if getattr(message, field) is not None:
            raise InvalidArgument(field=f"message.{field}", problem="is the schedule's to say; leave it out")
    draft = read_draft(message, 0, None)
    rule = Rule(
        body.cron.strip(),
        0 if body.every is None else duration(body.every, "every"),
        body.timezone,
        0 if body.starts_at is None else instant(body.starts_at, "starts_at"),
        0 if body.ends_at is None else instant(body.ends_at, "ends_at"),
        duration(body.jitter, "jitter"),
    )
    return Schedule(
        *name,
        queue=body.queue,
        rule=rule,
        payload=draft.payload,
        priority=draft.priority,
        ttl=draft.ttl,
        extra=draft.extra,
        catch_up=CatchUp(body.catch_up),
        overlap=Overlap(body.overlap),
        paused=paused if body.paused is None else body.paused,
        by=by,
    )


def _detailed(request: Request, found: Scheduled) -> wire.Schedule:
    schedule = found.schedule
    return _to_wire(found, NEXT_TICKS, request.node.schedules.runs((schedule.namespace, schedule.name)))


def _to_wire(found: Scheduled, ticks: int, runs: list[Run] | None = None) -> wire.Schedule:
    schedule, rule = found.schedule, found.schedule.rule
    return wire.Schedule(
        name=schedule.name,
        namespace=schedule.namespace,
        queue=schedule.queue,
        message=_message_to_wire(schedule),
        cron=rule.cron,
        every=format_duration(rule.every) if rule.every else None,
        timezone=rule.zone,
        starts_at=format_instant(rule.starts_at) if rule.starts_at else None,
        ends_at=format_instant(rule.ends_at) if rule.ends_at else None,
        jitter=format_duration(rule.jitter) if rule.jitter else 0,
        catch_up=schedule.catch_up.value,
        overlap=schedule.overlap.value,
        paused=schedule.paused,
        created_at=format_instant(schedule.created_at),
        changed_at=format_instant(schedule.changed_at),
        changed_by=schedule.by,
        next=[format_instant(tick) for tick in found.next_ticks(ticks)],
        enqueued=found.state.enqueued,
        runs=[_run_to_wire(run) for run in runs or ()],
    )


def _message_to_wire(schedule: Schedule) -> wire.Draft:
    extra = schedule.extra
    field, value = payload_field(schedule.payload, extra.content_type, "auto")
    bare = wire.Draft(
        content_type=extra.content_type,
        key=extra.key,
        priority=schedule.priority,
        ttl=format_duration(schedule.ttl) if schedule.ttl >= 0 else None,
        properties=properties_to_wire(extra.properties),
        correlation_id=extra.correlation_id,
        reply_to=extra.reply_to,
    )
    return msgspec.structs.replace(bare, **{field: value})


def _run_to_wire(run: Run) -> wire.ScheduleRun:
    return wire.ScheduleRun(
        at=format_instant(run.at),
        tick=format_instant(run.tick) if run.tick else None,
        outcome=run.outcome.value,
        message=str(run.message) if run.message else None,
        error=run.error,
    )
