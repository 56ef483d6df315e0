"""Wills: published when a connection ends without DISCONNECT, immediately or after a delay.

A will with a delay is published when the delay is over or the session ends, whichever is first, and not at all if the
client is back on the same session before [MQTT-3.1.3-9]. The will of a persistent session is part of its record, so it
outlives a crash: the connections that a crash cut off ended without DISCONNECT.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.mqtt.codec import Properties, Publish
from holdfast.mqtt.sessions.messages import Message, expiry_of
from holdfast.mqtt.sessions.namespaces import Namespace
from holdfast.mqtt.sessions.ports import Bridge, PublishBatch
from holdfast.mqtt.sessions.router import Router
from holdfast.mqtt.sessions.session import Session
from holdfast.units import SECOND


def will_due(session: Session, now: int) -> int:
    """When the will of a connection that ended now is due; `now` itself means immediately."""
    assert session.will is not None
    delay_s = session.will.properties.will_delay_s or 0
    return now + min(delay_s, session.expiry_s) * SECOND


class Wills:
    """Publishes them."""

    __slots__ = ("_bridge", "_router")

    def __init__(self, router: Router, bridge: Bridge | None) -> None:
        self._router = router
        self._bridge = bridge

    def publish(self, ns: Namespace, session: Session, now: int) -> None:
        """Publish the session's will, if it has one, and forget it."""
        will = session.will
        session.will = None
        session.will_at = 0
        if will is None:
            return
        if self._bridge is not None and will.topic.startswith(self._bridge.prefixes):
            self._bridge.will(ns.name, session.client_id, will, now)
            return
        properties: Properties = replace(will.properties, will_delay_s=None)
        message = Message(will.topic, will.payload, will.qos, will.retain, properties, expiry_of(properties, now))
        self._router.publish(ns, message, session, now)
        if self._bridge is not None and self._bridge.captures(ns.name, will.topic):
            packet = Publish(will.topic, will.payload, properties=properties)
            self._bridge.capture(None, ns.name, PublishBatch([packet]), now)
