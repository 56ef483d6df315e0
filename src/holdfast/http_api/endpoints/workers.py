"""Workers announce themselves, and are listed.

What a process says of itself is believed: it is shown to people, and nothing is decided by it.
"""

from __future__ import annotations

import msgspec

from holdfast import wire
from holdfast.auth.principal import Action
from holdfast.broker.parts.workers import AnnouncedProcess, AnnouncedWorker, ProcessName
from holdfast.core.queue import check_name
from holdfast.errors import InvalidArgument, InvalidName, LimitExceeded, RequestTooLarge
from holdfast.http_api.codecs.shapes import read_consumer
from holdfast.http_api.codecs.values import decode, instant, read_id
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import Response, response
from holdfast.http_api.server.routes import Right, Routes
from holdfast.units import format_instant

ROUTES = Routes("Workers")
ANNOUNCEMENT_BYTES_MAX = 16 << 10
"""A process with 50 workers that have 5 jobs each needs as much."""

TEXT_MAX = 255  # characters of a host, a version, a worker's name

_announcement = msgspec.json.Decoder(wire.WorkerAnnouncement)


@ROUTES(
    "PUT",
    "/api/v1/workers/{consumer}",
    Right.CONSUME_SOMEWHERE,
    body=wire.WorkerAnnouncement,
    status=204,
    errors=(InvalidName, LimitExceeded, RequestTooLarge),
)
async def announce(request: Request) -> Response:
    """Announce a process of workers, as clients do every 15 seconds. Needs the right to consume each of the queues.

    `consumer` is the name under which it holds its leases. The announcement is shown to people, and has no effect.
    """
    raw = await request.body()
    request.check_json()
    body = decode(_announcement.decode, raw)
    if len(raw) > ANNOUNCEMENT_BYTES_MAX:
        limit = f"{ANNOUNCEMENT_BYTES_MAX} bytes"
        raise LimitExceeded(what="One announcement", limit=limit, advice="Announce fewer jobs")
    for field, text in (("host", body.host), ("version", body.version)):
        _check_text(field, text)
    workers = tuple([_read(request, worker) for worker in body.workers])
    request.node.workers.announce(_name(request), body.host, body.pid, body.version, body.draining, workers)
    return Response(status=204)


def _read(request: Request, worker: wire.WorkerStatus) -> AnnouncedWorker:
    _check_text("name", worker.name)
    queue, group = check_name(worker.queue, "queue"), check_name(worker.group, "group")
    request.principal.require(Action.CONSUME, queue)
    jobs = tuple([(read_id(job.id, "id"), instant(job.since, "since") if job.since else 0) for job in worker.jobs])
    return AnnouncedWorker(worker.name, queue, group, worker.concurrency, jobs)


def _check_text(field: str, text: str) -> None:
    if len(text) > TEXT_MAX or not text.isprintable():
        raise InvalidArgument(field=field, problem=f"is at most {TEXT_MAX} printable characters")


def _name(request: Request) -> ProcessName:
    principal = request.principal
    return (request.namespace, principal.identity, read_consumer(request.parameters[0], principal))


@ROUTES("DELETE", "/api/v1/workers/{consumer}", Right.CONSUME_SOMEWHERE, status=204)
async def withdraw(request: Request) -> Response:
    """Withdraw an announcement of one's own: the process has ended."""
    request.node.workers.withdraw(_name(request))
    return Response(status=204)


@ROUTES("GET", "/api/v1/workers", Right.ADMIN_SOMEWHERE, gives=wire.WorkerList)
async def list_all(request: Request) -> Response:
    """List the processes of workers that have announced themselves: those with workers of queues that the caller may
    administer, and of these processes only such workers."""
    found = [_to_wire(request, announced) for announced in request.node.workers.in_namespace(request.namespace)]
    return response(wire.WorkerList([process for process in found if process.workers]))


def _to_wire(request: Request, announced: AnnouncedProcess) -> wire.WorkerProcess:
    return wire.WorkerProcess(
        consumer=announced.name[2],
        by=announced.name[1],
        host=announced.host,
        pid=announced.pid,
        version=announced.version,
        draining=announced.draining,
        started_at=format_instant(announced.since),
        seen_at=format_instant(announced.at),
        workers=[
            wire.WorkerStatus(
                name=worker.name,
                queue=worker.queue,
                group=worker.group,
                concurrency=worker.concurrency,
                jobs=[
                    wire.WorkerJob(id=str(job), since=format_instant(since) if since else "")
                    for job, since in worker.jobs
                ],
            )
            for worker in announced.workers
            if request.principal.may(Action.ADMIN, worker.queue)
        ],
    )
