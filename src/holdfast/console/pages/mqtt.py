"""MQTT: sessions with their subscriptions, retained messages, and a page to publish and subscribe from."""

from __future__ import annotations

from typing import Final

from holdfast.auth.principal import Action
from holdfast.console.caller import Caller
from holdfast.console.page import Pages
from holdfast.console.payloads import show as show_payload
from holdfast.console.refusals import PageRefused
from holdfast.http_api.server.response import Response
from holdfast.mqtt.net.administration import MqttAdministration

PAGES = Pages()
SHOWN_MAX: Final = 200


def _administration(caller: Caller) -> MqttAdministration:
    if caller.console.mqtt is None:
        raise PageRefused(404, "No MQTT here", "The server has MQTT switched off (mqtt.enabled).")
    return caller.console.mqtt.administration


@PAGES.get("/mqtt-sessions")
async def sessions(caller: Caller) -> Response:
    """Sessions belong to no queue: they are shown to who administers the whole namespace."""
    caller.principal.require_filter(Action.ADMIN, "#")
    find = caller.query("find").casefold()
    found = [
        session
        for session in _administration(caller).sessions(caller.namespace)
        if find in session.client_id.casefold() or find in session.owner.casefold()
    ]
    found.sort(key=lambda session: (not session.connected, session.client_id))
    return caller.page("mqtt_sessions.html", sessions=found[:SHOWN_MAX], total=len(found), find=caller.query("find"))


@PAGES.post("/mqtt-sessions/disconnect")
async def disconnect(caller: Caller) -> Response:
    form = await caller.form()
    owner, client_id = form.get("owner", ""), form.get("client", "")
    audit = caller.console.gate.audit
    administration = _administration(caller)
    act = audit.act(caller.principal, "mqtt.disconnect", client_id, front="http", peer=caller.request.peer)
    with act as details:
        details["owner"] = owner
        caller.principal.require_filter(Action.ADMIN, "#")
        details["connected"] = connected = administration.disconnect(caller.namespace, owner, client_id)
    await audit.synced()
    if not connected:
        raise PageRefused(404, "No such client", "It is not connected any more. Nothing was changed.")
    return caller.redirect("/mqtt-sessions", "disconnected")


@PAGES.get("/mqtt-retained")
async def retained(caller: Caller) -> Response:
    """Of topics that the caller may subscribe to."""
    find = caller.query("find").casefold()
    found = [
        message
        for message in _administration(caller).retained(caller.namespace)
        if find in message.topic.casefold() and caller.may("consume", message.topic)
    ]
    found.sort(key=lambda message: message.topic)
    shown = [(message, show_payload(message.payload[:1_000], None)) for message in found[:SHOWN_MAX]]
    return caller.page("mqtt_retained.html", messages=shown, total=len(found), find=caller.query("find"))


@PAGES.post("/mqtt-retained/delete")
async def delete_retained(caller: Caller) -> Response:
    """Needs the right to publish on the topic: that is how clients remove one."""
    topic = (await caller.form()).get("topic", "")
    audit = caller.console.gate.audit
    administration = _administration(caller)
    act = audit.act(caller.principal, "mqtt.retained.delete", topic, front="http", peer=caller.request.peer)
    with act as details:
        caller.principal.require(Action.PRODUCE, topic)
        details["retained"] = found = await administration.delete_retained(caller.namespace, topic)
    await audit.synced()
    if not found:
        raise PageRefused(404, "No such message", "The topic has no retained message any more. Nothing was changed.")
    return caller.redirect("/mqtt-retained", "retained-deleted")


@PAGES.get("/mqtt-try")
async def try_out(caller: Caller) -> Response:
    """The page connects to the server by WebSocket, as any client: rights are those of the credential it brings."""
    _administration(caller)
    return caller.page("mqtt_try.html")
