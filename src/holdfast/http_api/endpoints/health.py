"""Alive, ready, healthy, and a node at a glance."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from holdfast import __version__, wire
from holdfast.auth.principal import Action
from holdfast.broker.lookout.unattended import UNATTENDED_AFTER
from holdfast.broker.parts.transactions import StagedTotals
from holdfast.core.queue import GroupKind
from holdfast.engine.stats import QueueStats
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import Response, response
from holdfast.http_api.server.routes import Right, Routes
from holdfast.units import SECOND, format_instant

ROUTES = Routes("Health and stats")
UNATTENDED_MAX = 100  # groups in an overview
QUEUES_PER_SLICE = 500  # queues that are looked at before other requests have a turn


@ROUTES("GET", "/livez", Right.ANONYMOUS, gives=wire.Status, always_served=True)
async def live(request: Request) -> Response:
    """Report whether the process works: it does unless it must be restarted (503)."""
    broken = request.node.cell.broken
    problems = ["the log says why"] if broken is not None and broken.done() else []
    return _status(wire.Status(ok=not problems, problems=problems))


@ROUTES("GET", "/readyz", Right.ANONYMOUS, gives=wire.Readiness, always_served=True)
async def ready(request: Request) -> Response:
    """Report whether the node can take work now: the store syncs, the disk has room, the loop keeps up (else 503).

    Syncs the store, at most once a second for all callers. Names the parts that are not ready; `/api/v1/health` says
    what is wrong with them. Also says how large the lake is, and when its disk will be full.
    """
    parts = await request.node.health.components()
    problems = [part.name for part in parts if not part.ready]
    if request.api.closing:
        problems.insert(0, "shutting down")
    size = await request.node.lake_meter.read(wait_seconds=0)
    full_seconds = request.node.cell.export_scheduler.lake.full_seconds
    return _status(
        wire.Readiness(
            ok=not problems,
            problems=problems,
            lake_bytes=size.size_bytes if size is not None else None,
            lake_full_in_seconds=round(full_seconds) if full_seconds < math.inf else None,
        )
    )


def _status(status: wire.Status) -> Response:
    return response(status, 200 if status.ok else 503)


@ROUTES("GET", "/api/v1/health", Right.NODE, gives=wire.Health)
async def health(request: Request) -> Response:
    """Show the health of each part of the node."""
    parts = [*await request.node.health.components(), *request.api.gate.health()]
    result = [
        wire.PartHealth(name=part.name, ok=not part.problem, problem=part.problem, facts=part.facts) for part in parts
    ]
    return response(wire.Health(ok=all(part.ready for part in parts), parts=result))


async def visible_stats(request: Request, namespace: str | None) -> list[QueueStats]:
    """The stats of the queues of a namespace that the caller may do something with; None: of all queues."""
    found = await request.node.inspection.all_stats(namespace)
    if namespace is None:
        return found
    visible: list[QueueStats] = []
    for start in range(0, len(found), QUEUES_PER_SLICE):
        part = found[start : start + QUEUES_PER_SLICE]
        visible += [queue for queue in part if request.principal.can_see(queue.name)]
        await asyncio.sleep(0)
    return visible


def _unattended(stats: list[QueueStats]) -> list[wire.UnattendedGroup]:
    return [
        wire.UnattendedGroup(queue=queue.name, group=group.name, seconds=group.unattended / SECOND)
        for queue in stats
        for group in queue.groups
        if group.unattended >= UNATTENDED_AFTER
    ][:UNATTENDED_MAX]


def visible_staged(request: Request, namespace: str | None) -> StagedTotals:
    """What is staged in a namespace, or in all: by everybody for who administers all of it, or may see the server;
    otherwise by the caller itself."""
    principal = request.principal
    of_everybody = principal.may_node or principal.may_filter(Action.ADMIN, "#")
    return request.node.transactions.staged(namespace, None if of_everybody else principal.owner)


@ROUTES("GET", "/api/v1/overview", Right.AUTHENTICATED, gives=wire.Overview)
async def overview(request: Request) -> Response:
    """Show a node at a glance. Of queues, those of the caller's namespace that it may do something with."""
    node = request.node
    stats = await visible_stats(request, request.namespace)
    waiting = dead = 0
    for start in range(0, len(stats), QUEUES_PER_SLICE):
        for queue in stats[start : start + QUEUES_PER_SLICE]:
            name = queue.namespace, queue.name
            waiting += node.inspection.waiting(name)
            dead += queue.depth if node.queues.is_automatic(name) else 0
        await asyncio.sleep(0)
    parts = await node.health.components()
    sums = await request.api.on_thread(lambda: _sums(stats))
    return response(
        wire.Overview(
            version=__version__,
            node=node.config.node.node_id,
            namespace=request.namespace,
            started_at=format_instant(node.started_at),
            now=format_instant(node.clock()),
            staged=visible_staged(request, request.namespace).messages,
            waiting=waiting,
            dead=dead,
            ok=all(part.ready for part in parts),
            **sums,
        )
    )


def _sums(stats: list[QueueStats]) -> dict[str, Any]:
    """The fields of an overview that are sums over queues."""
    groups = [group for queue in stats for group in queue.groups if group.kind is GroupKind.LEASE]
    return {
        "queues": len(stats),
        "depth": sum(queue.depth for queue in stats),
        "size_bytes": sum(queue.size_bytes for queue in stats),
        "ready": sum(queue.ready for queue in stats),
        "scheduled": sum(queue.scheduled for queue in stats),
        "enqueued": sum(queue.enqueued for queue in stats),
        "leased": sum(group.leased for group in groups),
        "acked": sum(group.acked for group in groups),
        "failed": sum(sum(group.failures.values()) for group in groups),
        "consumers": sum(group.consumers for group in groups),
        "rates": {name: sum(queue.rates[name] for queue in stats) for name in stats[0].rates} if stats else {},
        "oldest_message_age_seconds": max((queue.oldest_age for queue in stats), default=0) / SECOND,
        "unattended": _unattended(stats),
    }
