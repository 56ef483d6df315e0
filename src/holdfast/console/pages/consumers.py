"""Who consumes: workers, streams, MQTT clients and long polls, what they hold, and how to take it from them or end
their connections."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast import wire
from holdfast.auth.principal import Action
from holdfast.broker.dispatch.members import Member
from holdfast.console.caller import Caller, link, whole_number
from holdfast.console.live import live
from holdfast.console.page import Pages
from holdfast.console.refusals import PageRefused
from holdfast.core.commands import Settlement, Verb
from holdfast.engine.catalog import QueueName
from holdfast.errors import HoldfastError, StreamEnded
from holdfast.http_api.server.response import Response

PAGES = Pages()
SHOWN_MAX: Final = 500
HELD_SHOWN: Final = 5
PROTOCOLS: Final = ("http", "mqtt", "grpc", "sqs", "lockd", "mqueue")
"""Leases are a consumer's under one of these."""

PER_RELEASE: Final = 1_000
ENDED: Final = "an administrator has ended it"


class ConsumerRow(msgspec.Struct, frozen=True):
    """A consumer that is pushed to; `held` are the ids of a few messages that it holds."""

    member: Member
    held: list[int]
    can_be_ended: bool


class Poll(msgspec.Struct, frozen=True):
    """Long polls of one consumer in one group."""

    queue: str
    group: str
    consumer: str
    count: int


class Consumers(msgspec.Struct, frozen=True):
    processes: list[wire.WorkerProcess]
    rows: list[ConsumerRow]
    polls: list[Poll]
    hidden: int


async def _consumers(caller: Caller) -> Consumers:
    """Those of queues that the caller administers, by queue."""
    inspection = caller.node.inspection
    members = [member for member in inspection.consumers() if _may(caller, *member.group[0])]
    members.sort(key=lambda member: (member.group[0][1], member.group[1], member.name))
    rows = [
        ConsumerRow(member, list(member.in_flight)[:HELD_SHOWN], _way_to_end(caller, member) is not None)
        for member in members[:SHOWN_MAX]
    ]
    counted: dict[tuple[str, str, str], int] = {}
    for ((namespace, queue), group), consumer in inspection.polls():
        if _may(caller, namespace, queue):
            counted[queue, group, consumer] = counted.get((queue, group, consumer), 0) + 1
    polls = [Poll(*which, count) for which, count in sorted(counted.items())[:SHOWN_MAX]]
    processes: list[wire.WorkerProcess] = []
    if caller.may_administer:
        processes = (await caller.get(wire.WorkerList, "/api/v1/workers")).processes
    return Consumers(processes, rows, polls, max(len(members) - SHOWN_MAX, 0))


def _may(caller: Caller, namespace: str, queue: str) -> bool:
    return namespace == caller.namespace and caller.may("admin", queue)


def _way_to_end(caller: Caller, member: Member) -> str | None:
    """`stream` or `mqtt`; None: there is none here."""
    if (member.group, member.name) in caller.request.api.streams:
        return "stream"
    return "mqtt" if member.protocol.startswith("mqtt") and caller.console.mqtt is not None else None


@PAGES.get("/consumers")
async def show(caller: Caller) -> Response:
    return caller.page("consumers.html", found=await _consumers(caller))


@PAGES.get("/live/consumers", waits=True)
async def updates(caller: Caller) -> Response:
    async def parts() -> dict[str, str]:
        return {"consumers": caller.part("_consumers.html", found=await _consumers(caller))}

    return live(caller, parts)


@PAGES.post("/consumers/disconnect")
async def disconnect(caller: Caller) -> Response:
    """End a consumer's connection. What it holds is released, or fails, as it asked for; it may come again."""
    form = await caller.form()
    queue, group, name = form.get("queue", ""), form.get("group", ""), form.get("consumer", "")
    audit = caller.console.gate.audit
    act = audit.act(caller.principal, "consumer.disconnect", queue, front="http", peer=caller.request.peer)
    with act as details:
        details.update(group=group, consumer=name)
        caller.principal.require(Action.ADMIN, queue)
        details["connected"] = connected = _end(caller, ((caller.namespace, queue), group), name)
    await audit.synced()
    if not connected:
        raise PageRefused(404, "No such consumer", "It is not connected any more. Nothing was changed.")
    return caller.redirect("/consumers", "disconnected")


@PAGES.post("/consumers/release")
async def release(caller: Caller) -> Response:
    """Release what a consumer holds in a group, or one message of that: others may have it immediately, and no attempt
    is counted. The consumer can no longer settle it."""
    form = await caller.form()
    queue, group, name = form.get("queue", ""), form.get("group", ""), form.get("consumer", "")
    only = whole_number(form.get("id", ""))
    audit = caller.console.gate.audit
    act = audit.act(caller.principal, "consumer.release", queue, front="http", peer=caller.request.peer)
    with act as details:
        details.update(group=group, consumer=name)
        caller.principal.require(Action.ADMIN, queue)
        details["messages"] = released = await _release(caller, (caller.namespace, queue), group, name, only)
    await audit.synced()
    if not released:
        raise PageRefused(404, "Nothing to release", "The consumer holds nothing of it any more. Nothing was changed.")
    back = link("queues", queue, "messages", str(only)) if only is not None else "/consumers"
    return caller.redirect(back, "released", released)


async def _release(caller: Caller, queue: QueueName, group: str, name: str, only: int | None) -> int:
    """How many were released."""
    node, released = caller.node, 0
    for protocol in PROTOCOLS:
        held = node.subscriptions.leases_of(queue, group, name, protocol)
        chosen = [leased for leased in held if only is None or leased.message.id == only]
        for start in range(0, len(chosen), PER_RELEASE):
            settlements = [
                Settlement(leased.message.id, leased.token, Verb.RELEASE, partition=leased.partition)
                for leased in chosen[start : start + PER_RELEASE]
            ]
            results = await node.messages.settle(queue, group, settlements)
            released += sum(not isinstance(result, HoldfastError) for result in results)
    return released


def _end(caller: Caller, group: tuple[tuple[str, str], str], name: str) -> bool:
    stream = caller.request.api.streams.get((group, name))
    if stream is not None:
        stream.end(StreamEnded(reason=ENDED))
        return True
    mqtt = caller.console.mqtt
    if mqtt is None:
        return False
    for session in mqtt.administration.sessions(caller.namespace):
        if session.consumer == name:
            return mqtt.administration.disconnect(caller.namespace, session.owner, session.client_id)
    return False
