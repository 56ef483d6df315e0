"""QueueAdmin: dead letters, and their redrives."""

from __future__ import annotations

from typing import Final

from holdfast.auth.fronts import redrive_rights
from holdfast.auth.principal import Action
from holdfast.broker.parts.redrive_jobs import RedriveRequest, RunningRedrive
from holdfast.engine.dead_letters import DeadLetterFilter
from holdfast.errors import InvalidArgument, QueueNotFound
from holdfast.grpc_api.admin import page_size
from holdfast.grpc_api.call import GrpcCall
from holdfast.grpc_api.codecs import duration, fill_message, to_timestamp
from holdfast.grpc_api.generated import queue_pb2 as pb
from holdfast.grpc_api.methods import Methods

METHODS = Methods("holdfast.v1.QueueAdmin")

RATE_MAX: Final = 1_000_000.0
LIMIT_MAX: Final = 1 << 40


def _filter(call: GrpcCall, chosen: pb.DeadLetterFilter, source: str) -> DeadLetterFilter:
    now = call.node.clock()
    older, newer = chosen.HasField("older_than"), chosen.HasField("newer_than")
    return DeadLetterFilter(
        ids=frozenset(chosen.ids),
        source_queue=source,
        source_group=chosen.group,
        reasons=frozenset({chosen.reason} if chosen.reason else ()),
        error=chosen.error,
        before=max(now - duration(chosen.older_than, "older_than"), 1) if older else 0,
        after=now - duration(chosen.newer_than, "newer_than") if newer else 0,
        properties=tuple([(pair.name, pair.value) for pair in chosen.properties]),
    )


@METHODS.unary("ListDeadLetters", pb.ListDeadLettersRequest, Action.CONSUME)
async def list_dead_letters(call: GrpcCall, request: pb.ListDeadLettersRequest) -> pb.ListDeadLettersResponse:
    call.principal.require_sight(request.queue)
    dead, source = redrive_rights.dead_queue(call.node, (call.principal.namespace, request.queue))
    call.principal.require(Action.CONSUME, dead[1])
    wanted = _filter(call, request.filter, source)
    response = pb.ListDeadLettersResponse()
    try:
        page = await call.node.inspection.browse(dead, page_size(request.page_size), request.page_token)
    except QueueNotFound:
        if not source:
            raise
        return response  # there are no dead letters yet
    for partition, message, _ in page.messages:
        if wanted.match(message):
            fill_message(response.dead_letters.add(), message, partition)
    response.next_page_token = page.cursor
    return response


@METHODS.unary("Redrive", pb.RedriveRequest, Action.ADMIN, act="dlq.redrive", resource="queue")
async def redrive(call: GrpcCall, request: pb.RedriveRequest) -> pb.RedriveResponse:
    name = call.queue(request.queue, Action.ADMIN)
    dead, source = redrive_rights.dead_queue(call.node, name)
    to = redrive_rights.destination(
        call.node, call.principal, name, request.to, request.group, all_groups=request.all_groups
    )
    if not 0 <= request.rate <= RATE_MAX:
        raise InvalidArgument(field="rate", problem=f"is 0 to {RATE_MAX:g} messages a second")
    if request.limit > LIMIT_MAX:
        raise InvalidArgument(field="limit", problem=f"is 0 to {LIMIT_MAX}")
    job = await call.node.redrive_jobs.start(
        RedriveRequest(
            queue=name[1],
            dead_queue=dead,
            letters=_filter(call, request.filter, source),
            to=to,
            rate=request.rate,
            limit=request.limit,
            dry_run=request.dry_run,
            allowed=call.principal.put_filters,
        )
    )
    if request.dry_run:
        try:
            with call.lasting():
                await job.ended.wait()
        finally:
            job.cancel()
    return pb.RedriveResponse(job=_job(job))


@METHODS.unary("GetRedrive", pb.GetRedriveRequest, Action.ADMIN)
async def get_redrive(call: GrpcCall, request: pb.GetRedriveRequest) -> pb.GetRedriveResponse:
    return pb.GetRedriveResponse(job=_job(_find(call, request)))


@METHODS.unary("CancelRedrive", pb.CancelRedriveRequest, Action.ADMIN, act="dlq.cancel", resource="queue")
async def cancel_redrive(call: GrpcCall, request: pb.CancelRedriveRequest) -> pb.CancelRedriveResponse:
    job = _find(call, request)
    job.cancel()
    await job.ended.wait()
    return pb.CancelRedriveResponse(job=_job(job))


def _find(call: GrpcCall, request: pb.GetRedriveRequest | pb.CancelRedriveRequest) -> RunningRedrive:
    dead, source = redrive_rights.dead_queue(call.node, call.queue(request.queue, Action.ADMIN))
    return call.node.redrive_jobs.get(dead, request.id, source)


def _job(job: RunningRedrive) -> pb.RedriveJob:
    request, progress = job.request, job.progress
    return pb.RedriveJob(
        id=job.id,
        queue=request.queue,
        dead_queue=request.dead_queue[1],
        to=request.to.queue,
        dry_run=request.dry_run,
        state=progress.state.value,
        looked_at=progress.looked_at,
        matched=progress.moved + progress.skipped,
        moved=0 if request.dry_run else progress.moved,
        skipped=progress.skipped,
        problem=progress.problem,
        started_at=to_timestamp(request.started_at),
        ended_at=to_timestamp(progress.ended_at) if progress.ended_at else None,
    )
