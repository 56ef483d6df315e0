"""One queue: its numbers, groups, partitions and keys; and what can be done with it."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast import wire
from holdfast.auth.principal import Action
from holdfast.console.caller import ApiProblem, Caller, link
from holdfast.console.live import live
from holdfast.console.page import Pages
from holdfast.console.pages.overview import chosen_range
from holdfast.console.pages.queues import refused_form
from holdfast.console.queue_form import given, sections, shown
from holdfast.console.refusals import NOT_CONFIRMED
from holdfast.console.samples import RANGES
from holdfast.core.queue import DEAD_PREFIX
from holdfast.engine.catalog import QueueName
from holdfast.engine.stats import QueueStats
from holdfast.http_api.server.response import Response, response

PAGES = Pages()

KEYS_LOOKED_AT: Final = 500
"""Messages, the oldest, among which keys that hold others up are looked for."""

KEYS_MAX: Final = 50


class QueueView(msgspec.Struct, frozen=True):
    """What the page shows; `stats` only for who administers the queue."""

    queue: wire.Queue
    stats: QueueStats | None
    dead_queue: str


class BlockingKey(msgspec.Struct):
    """A key whose first message is out, or waits to be retried, while others wait behind it."""

    key: str
    message: wire.MessageView
    delivery: wire.DeliveryStatus
    behind: int = 0


def name_of(caller: Caller) -> QueueName:
    """The queue in the path. The API says whether it exists and may be seen."""
    return caller.namespace, caller.parameters[0]


def api_of(caller: Caller, *rest: str, **query: object) -> str:
    """The API's address of the queue in the path."""
    return link("api", "v1", "queues", caller.parameters[0], *rest, **query)


async def _view(caller: Caller) -> QueueView:
    queue = await caller.get(wire.Queue, api_of(caller))
    name = (caller.namespace, queue.name)
    stats = await caller.node.inspection.stats(name) if caller.may("admin", queue.name) else None
    dead = caller.node.dead_letters.queue_of(name)
    exists = dead is not None and caller.node.queues.exists(dead) and not queue.name.startswith(DEAD_PREFIX)
    return QueueView(queue, stats, dead[1] if dead is not None and exists else "")


@PAGES.get("/queues/{name}")
async def show(caller: Caller) -> Response:
    return caller.page("queue.html", view=await _view(caller), ranges=list(RANGES))


@PAGES.get("/queues/{name}/live", waits=True)
async def updates(caller: Caller) -> Response:
    caller.principal.require_sight(caller.parameters[0])

    async def parts() -> dict[str, str]:
        view = await _view(caller)
        return {name: caller.part(f"_queue_{name}.html", view=view) for name in ("tiles", "groups")}

    return live(caller, parts)


@PAGES.get("/queues/{name}/plots")
async def plots(caller: Caller) -> Response:
    caller.principal.require(Action.ADMIN, caller.parameters[0])
    samples = caller.console.sampler.samples
    return response(samples.plot([name_of(caller)], chosen_range(caller), caller.node.clock()))


@PAGES.get("/queues/{name}/partitions")
async def partitions(caller: Caller) -> Response:
    """A part of the page: the partitions, who serves them, and keys that hold others up."""
    caller.principal.require(Action.CONSUME, caller.parameters[0])
    inspection, name = caller.node.inspection, name_of(caller)
    bounds = await inspection.bounds(name)
    served: dict[int, list[str]] = {}
    for member in inspection.consumers(name):
        for partition in member.partitions:
            served.setdefault(partition, []).append(f"{member.name} ({member.group[1]})")
    page = await caller.get(wire.MessagePage, api_of(caller, "messages", limit=KEYS_LOOKED_AT, encoding="base64"))
    return caller.page(
        "_queue_partitions.html",
        name=name[1],
        bounds=bounds,
        served=served,
        keys=_blocking(page.messages),
        whole=not page.cursor,
        looked_at=len(page.messages),
    )


def _blocking(messages: list[wire.MessageView]) -> list[BlockingKey]:
    """Keys whose oldest message is out or waits, in a group in which others of the key are ready."""
    found: dict[tuple[str, str], BlockingKey] = {}
    for message in messages:
        if message.key is None:
            continue
        for delivery in message.deliveries:
            first = found.get((delivery.group, message.key))
            if first is not None:
                first.behind += delivery.state == "ready"
            elif delivery.state == "leased" or (delivery.state == "scheduled" and delivery.attempt):
                found[delivery.group, message.key] = BlockingKey(message.key, message, delivery)
    held_up = [one for one in found.values() if one.behind]
    return sorted(held_up, key=lambda one: -one.behind)[:KEYS_MAX]


# --- changes --------------------------------------------------------------------------------------------------------


@PAGES.get("/queues/{name}/configure")
async def configure_form(caller: Caller) -> Response:
    queue = await caller.get(wire.Queue, api_of(caller))
    caller.principal.require(Action.ADMIN, queue.name)
    return caller.page("queue_form.html", queue=queue.name, sections=sections(), values=shown(queue.config), problem="")


@PAGES.post("/queues/{name}/configure")
async def configure(caller: Caller) -> Response:
    form = await caller.form()
    queue = await caller.get(wire.Queue, api_of(caller))
    try:
        await caller.api("PUT", api_of(caller, "config"), given(form, shown(queue.config)))
    except ApiProblem as error:
        return refused_form(caller, queue.name, form, error)
    return caller.redirect(link("queues", queue.name), "changed")


@PAGES.post("/queues/{name}/pause")
async def pause(caller: Caller) -> Response:
    await caller.api("POST", api_of(caller, "pause"))
    return caller.redirect(link("queues", caller.parameters[0]), "paused")


@PAGES.post("/queues/{name}/resume")
async def resume(caller: Caller) -> Response:
    await caller.api("POST", api_of(caller, "resume"))
    return caller.redirect(link("queues", caller.parameters[0]), "resumed")


@PAGES.get("/queues/{name}/purge")
async def purge_form(caller: Caller) -> Response:
    return await _confirm(caller, "purge", "Purge", "removes every message that waits now; what is leased stays")


@PAGES.get("/queues/{name}/delete")
async def delete_form(caller: Caller) -> Response:
    return await _confirm(caller, "delete", "Delete", "deletes the queue with its messages, groups and configuration")


async def _confirm(caller: Caller, act: str, title: str, effect: str) -> Response:
    queue = await caller.get(wire.Queue, api_of(caller))
    caller.principal.require(Action.ADMIN, queue.name)
    return caller.page("queue_confirm.html", queue=queue, act=act, title=title, effect=effect)


async def _check_confirmed(caller: Caller) -> None:
    if (await caller.form()).get("confirm", "") != caller.parameters[0]:
        raise NOT_CONFIRMED


@PAGES.post("/queues/{name}/purge")
async def purge(caller: Caller) -> Response:
    await _check_confirmed(caller)
    done = msgspec.json.decode(await caller.api("POST", api_of(caller, "purge")), type=wire.Purged)
    return caller.redirect(link("queues", caller.parameters[0]), "purged", done.messages)


@PAGES.post("/queues/{name}/delete")
async def delete(caller: Caller) -> Response:
    await _check_confirmed(caller)
    done = msgspec.json.decode(await caller.api("DELETE", api_of(caller)), type=wire.QueueDeleted)
    return caller.redirect("/queues", "deleted", done.messages)


@PAGES.post("/queues/{name}/groups/{group}/delete")
async def delete_group(caller: Caller) -> Response:
    await caller.api("DELETE", api_of(caller, "groups", caller.parameters[1]))
    return caller.redirect(link("queues", caller.parameters[0]), "group-deleted")


@PAGES.get("/queues/{name}/groups/{group}/delete")
async def delete_group_form(caller: Caller) -> Response:
    queue = await caller.get(wire.Queue, api_of(caller))
    caller.principal.require(Action.ADMIN, queue.name)
    return caller.page("group_confirm.html", queue=queue, group=caller.parameters[1])
