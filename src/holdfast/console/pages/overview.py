"""The overview: whether the server is well, what needs attention first, and how much goes in and out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from heapq import nsmallest

import msgspec

from holdfast import wire
from holdfast.auth.principal import Action
from holdfast.broker.health import ComponentHealth
from holdfast.console import attention
from holdfast.console.attention import Concern
from holdfast.console.caller import Caller
from holdfast.console.live import live
from holdfast.console.page import Pages
from holdfast.console.refusals import PageRefused
from holdfast.console.samples import RANGES, SeriesName
from holdfast.core.queue import QueueRecord
from holdfast.engine.catalog import QueueName
from holdfast.engine.stats import QueueStats
from holdfast.errors import QueueNotFound
from holdfast.http_api.endpoints.health import visible_stats
from holdfast.http_api.server.response import Response, response

PAGES = Pages()
BUSIEST = 8


class Glance(msgspec.Struct, frozen=True):
    """What the overview shows."""

    overview: wire.Overview
    parts: list[ComponentHealth]
    """Only for who may see the server itself."""
    concerns: list[Concern]
    busiest: list[QueueStats]
    dead_today: int
    """Messages that died in the last 24 hours, as the samples tell."""


async def glance(caller: Caller) -> Glance:
    overview = await caller.get(wire.Overview, "/api/v1/overview")
    stats = await visible_stats(caller.request, caller.namespace)
    parts = await caller.node.health.components() if caller.principal.may_node else []
    now, samples = caller.node.clock(), caller.console.sampler.samples
    concerns = [*attention.node_concerns(parts)]
    concerns += await attention.queue_concerns(stats, partial(_record, caller), samples, now)
    if not overview.ok and not parts:
        text = "It cannot take all work now. Ask who administers it."
        concerns.insert(0, Concern("bad", "The server has a problem", text, "/"))
    busiest = await caller.request.api.on_thread(lambda: nsmallest(BUSIEST, stats, key=_idleness))
    shown = [queue for queue in busiest if caller.may("admin", queue.name)]
    return Glance(overview, parts, concerns, shown, samples.count(_visible(caller), "dead", "24h", now))


def _idleness(queue: QueueStats) -> tuple[float, int, str]:
    return -sum(queue.rates.values()), -queue.depth, queue.name


def _record(caller: Caller, name: QueueName) -> QueueRecord | None:
    try:
        return caller.node.queues.get(name)
    except QueueNotFound:  # deleted meanwhile
        return None


@PAGES.get("/")
async def show(caller: Caller) -> Response:
    return caller.page("overview.html", glance=await glance(caller), ranges=list(RANGES))


@PAGES.get("/live/overview", waits=True)
async def updates(caller: Caller) -> Response:
    async def parts() -> dict[str, str]:
        found = await glance(caller)
        return {name: caller.part(f"_overview_{name}.html", glance=found) for name in ("attention", "tiles", "busiest")}

    return live(caller, parts)


@PAGES.get("/health")
async def health(caller: Caller) -> Response:
    """The parts of the server."""
    found = await caller.get(wire.Health, "/api/v1/health")
    return caller.page("health.html", health=found)


@PAGES.get("/plots")
async def plots(caller: Caller) -> Response:
    """The samples of all queues that the caller may see."""
    return response(caller.console.sampler.samples.plot(_visible(caller), chosen_range(caller), caller.node.clock()))


def _visible(caller: Caller) -> Iterator[SeriesName]:
    namespace, principal, samples = caller.namespace, caller.principal, caller.console.sampler.samples
    if any(principal.may_filter(action, "#") for action in Action):
        yield (namespace, "")
        return
    yield from (name for name in samples.queues() if name[0] == namespace and principal.can_see(name[1]))


def chosen_range(caller: Caller) -> str:
    chosen = caller.query("range", "1h")
    if chosen not in RANGES:
        raise PageRefused(400, "No such range", f"It is one of {', '.join(RANGES)}.")
    return chosen
