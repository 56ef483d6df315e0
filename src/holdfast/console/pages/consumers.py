"""Who consumes: streams, MQTT clients and long polls, what they hold, and how to end their connections."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.auth.principal import Action
from holdfast.broker.dispatch.members import Member
from holdfast.console.caller import Caller
from holdfast.console.live import live
from holdfast.console.page import Pages
from holdfast.console.refusals import PageRefused
from holdfast.errors import StreamEnded
from holdfast.http_api.server.response import Response

PAGES = Pages()
SHOWN_MAX: Final = 500
HELD_SHOWN: Final = 5
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
    rows: list[ConsumerRow]
    polls: list[Poll]
    hidden: int


def _consumers(caller: Caller) -> Consumers:
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
    return Consumers(rows, polls, max(len(members) - SHOWN_MAX, 0))


def _may(caller: Caller, namespace: str, queue: str) -> bool:
    return namespace == caller.namespace and caller.may("admin", queue)


def _way_to_end(caller: Caller, member: Member) -> str | None:
    """`stream` or `mqtt`; None: there is none here."""
    if (member.group, member.name) in caller.request.api.streams:
        return "stream"
    return "mqtt" if member.protocol.startswith("mqtt") and caller.console.mqtt is not None else None


@PAGES.get("/consumers")
async def show(caller: Caller) -> Response:
    return caller.page("consumers.html", found=_consumers(caller))


@PAGES.get("/live/consumers", waits=True)
async def updates(caller: Caller) -> Response:
    async def parts() -> dict[str, str]:
        return {"consumers": caller.part("_consumers.html", found=_consumers(caller))}

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
