"""Message move tasks: redrives of dead letters. A task is a job of the node, and survives a restart."""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from typing import Final

import msgspec

from holdfast.auth.principal import Action
from holdfast.broker.parts.redrive_jobs import JobState, RedriveRequest, RunningRedrive
from holdfast.core.queue import QueueRecord
from holdfast.engine.redrive import Destination
from holdfast.errors import QueueNotFound, RedriveNotFound
from holdfast.http_api.dialects.sqs import shapes
from holdfast.http_api.dialects.sqs.caller import Caller
from holdfast.http_api.dialects.sqs.identifiers import queue_in_arn
from holdfast.http_api.dialects.sqs.queues import name_of
from holdfast.http_api.dialects.sqs.refusals import Refusal, invalid
from holdfast.units import MILLISECOND

RATE_MAX: Final = 500
LISTED_MAX: Final = 10

_STATUS: Final = {
    JobState.RUNNING: "RUNNING",
    JobState.DONE: "COMPLETED",
    JobState.CANCELLED: "CANCELLED",
    JobState.FAILED: "FAILED",
}


class _Handle(msgspec.Struct, frozen=True, rename="camel"):
    """What a task handle says, in base64, as at AWS."""

    task_id: str
    source_arn: str


_handle = msgspec.json.Decoder(_Handle).decode


def _source(caller: Caller, arn: str) -> QueueRecord:
    """The dead-letter queue of an ARN. Raises Forbidden, or Refusal if there is none."""
    name = caller.name(queue_in_arn(arn, "SourceArn"))
    caller.principal.require_sight(name[1])
    try:
        return caller.node.queues.get(name)
    except QueueNotFound:
        raise Refusal(
            "ResourceNotFoundException", "The resource that you specified for the SourceArn parameter doesn't exist."
        ) from None


async def start_message_move_task(caller: Caller, given: shapes.StartMessageMoveTask) -> shapes.TaskHandle:
    source = _source(caller, given.source_arn)
    if given.rate is not None and not 1 <= given.rate <= RATE_MAX:
        raise invalid("MaxNumberOfMessagesPerSecond", given.rate, f"It must be 1 to {RATE_MAX}.")
    target = queue_in_arn(given.destination_arn, "DestinationArn") if given.destination_arn else ""
    async with caller.act("dlq.redrive", source.name) as details:
        details["to"] = target
        caller.principal.require(Action.ADMIN, source.name)
        if target:
            caller.principal.require(Action.ADMIN, target)
        if not caller.node.queues.dead_queue_users(name_of(source)):
            raise invalid("SourceArn", given.source_arn, "Source queue must be configured as a Dead Letter Queue.")
        if target and not caller.node.queues.exists(caller.name(target)):
            raise Refusal(
                "ResourceNotFoundException",
                "The resource that you specified for the DestinationArn parameter doesn't exist.",
            )
        name = name_of(source)
        if any(job.progress.state is JobState.RUNNING for job in caller.node.redrive_jobs.of(name)):
            raise Refusal("UnsupportedOperation", "There is already a task running for this source queue.")
        job = await caller.node.redrive_jobs.start(
            RedriveRequest(
                queue=source.name,
                dead_queue=name,
                to=Destination(queue=target),
                rate=float(given.rate or 0),
                allowed=caller.principal.put_filters,
            )
        )
    return shapes.TaskHandle(task_handle=_handle_of(caller, job))


async def cancel_message_move_task(caller: Caller, given: shapes.CancelMessageMoveTask) -> shapes.Moved:
    try:
        handle = _handle(b64decode(given.task_handle, validate=True))
    except (binascii.Error, msgspec.DecodeError, UnicodeDecodeError):
        raise invalid("TaskHandle", repr(given.task_handle[:200]), "It is not a task handle.") from None
    source = _source(caller, handle.source_arn)
    async with caller.act("dlq.cancel", source.name):
        caller.principal.require(Action.ADMIN, source.name)
        job = caller.node.redrive_jobs.get(name_of(source), handle.task_id)
        if job.progress.state is not JobState.RUNNING:
            raise RedriveNotFound(redrive=job.id)
        job.cancel()
        await job.ended.wait()
    return shapes.Moved(moved=job.progress.moved)


async def list_message_move_tasks(caller: Caller, given: shapes.ListMessageMoveTasks) -> shapes.MoveTasks:
    source = _source(caller, given.source_arn)
    caller.principal.require(Action.ADMIN, source.name)
    limit = 1 if given.max_results is None else given.max_results
    if not 1 <= limit <= LISTED_MAX:
        raise invalid("MaxResults", limit, f"It must be 1 to {LISTED_MAX}.")
    jobs = caller.node.redrive_jobs.of(name_of(source))[:limit]
    return shapes.MoveTasks(results=[_task(caller, source, job) for job in jobs])


def _task(caller: Caller, source: QueueRecord, job: RunningRedrive) -> shapes.MoveTask:
    request, progress = job.request, job.progress
    running = progress.state is JobState.RUNNING
    return shapes.MoveTask(
        task_handle=_handle_of(caller, job) if running else None,
        status="CANCELLING" if running and job.cancelled else _STATUS[progress.state],
        source_arn=caller.arn(source.name),
        destination_arn=caller.arn(request.to.queue) if request.to.queue else None,
        rate=int(request.rate) or None,
        moved=progress.moved,
        to_move=progress.moved + caller.node.queues.depth(name_of(source)) if running else None,
        failure_reason=progress.problem or None,
        started_timestamp=request.started_at // MILLISECOND,
    )


def _handle_of(caller: Caller, job: RunningRedrive) -> str:
    handle = _Handle(job.id, caller.arn(job.request.dead_queue[1]))
    return b64encode(msgspec.json.encode(handle)).decode()
