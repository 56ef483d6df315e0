"""Retained messages: the last one of each topic, for those who subscribe later."""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.mqtt.sessions.connection import Connection
from holdfast.mqtt.sessions.messages import FanOut, Message
from holdfast.mqtt.sessions.namespaces import Namespace
from holdfast.mqtt.sessions.outbox import Outbox
from holdfast.mqtt.sessions.sender import Sender
from holdfast.mqtt.sessions.session import Outgoing, RetainedSend, Session, Subscriber
from holdfast.mqtt.sessions.session_store import SessionStore
from holdfast.mqtt.sessions.settings import HubLimits
from holdfast.mqtt.sessions.system_topics import SystemTopics, is_system_filter
from holdfast.mqtt.topics import NameIndex, has_wildcard
from holdfast.timers import Timers


class RetainedTopic(NamedTuple):
    """Names the deadline of a retained message that expires."""

    namespace: str
    topic: str


RETAINED_SEND_BYTES_MAX: Final = 256 * 1024
"""How much of them is sent to one client in one turn: as much as is buffered for a slow one by default."""

_LOOKUP_BYTES: Final = 256
"""Each message counts as so many bytes more: a thousand small ones in a turn take about 2 ms of the loop."""

_MATCHING_BYTES: Final = 100 * _LOOKUP_BYTES
"""Matching a filter with a wildcard counts too, and a tenth of the above for each match."""

Deadline = Connection | Session | RetainedTopic | RetainedSend


class Retainer:
    """Keeps them, and sends them to new subscriptions."""

    __slots__ = ("_outbox", "_sender", "_session_store", "_settings", "_system", "_timers")

    def __init__(
        self,
        settings: HubLimits,
        outbox: Outbox,
        session_store: SessionStore,
        sender: Sender,
        timers: Timers[Deadline],
        system: SystemTopics | None = None,
    ) -> None:
        self._settings = settings
        self._system = system
        self._outbox = outbox
        self._session_store = session_store
        self._sender = sender
        self._timers = timers

    def put(self, ns: Namespace, message: Message) -> bool:
        """Keep the message in place of the one before; an empty payload only removes that [MQTT-3.3.1-6 and -7].
        False if there is no room for another topic."""
        topic = message.topic
        if not message.payload:
            self.remove(ns, topic)
            return True
        before = ns.retained.get(topic)
        size_bytes = ns.retained_bytes + message.size_bytes - (0 if before is None else before.size_bytes)
        settings = self._settings
        if before is None and (
            len(ns.retained) >= settings.retained_messages_max
            or settings.quota(ns.name, "retained_messages", len(ns.retained))
        ):
            return False
        if size_bytes > settings.retained_bytes_max or settings.quota(ns.name, "retained_bytes", size_bytes - 1):
            return False
        self._session_store.retain(ns.name, message)
        ns.retained.put(topic, message)
        ns.retained_bytes = size_bytes
        if before is not None:
            self._session_store.unretain(ns.name, before, replaced=True)
        self.watch(ns, message)
        return True

    def watch(self, ns: Namespace, message: Message) -> None:
        """Set the deadline at which the message expires."""
        key = RetainedTopic(ns.name, message.topic)
        if message.expires_at:
            self._timers.set(key, message.expires_at)
        else:
            self._timers.cancel(key)

    def remove(self, ns: Namespace, topic: str) -> None:
        message = ns.retained.remove(topic)
        if message is not None:
            ns.retained_bytes -= message.size_bytes
            self._timers.cancel(RetainedTopic(ns.name, topic))
            self._session_store.unretain(ns.name, message, replaced=False)

    # --- showing them to new subscriptions --------------------------------------------------------------------------

    def show(self, ns: Namespace, subscriber: Subscriber, connection: Connection, now: int) -> None:
        """What a new subscription is sent, with the retain flag set [MQTT-3.3.1-8]."""
        connection.showing.append(RetainedSend(subscriber))
        if len(connection.showing) == 1:
            self.send_more(ns, connection, now)

    def send_more(self, ns: Namespace, connection: Connection, now: int) -> None:
        """Send as much as one turn may, to a client that reads: there may be gigabytes, and a client may ask for all of
        it with each of its filters. The rest follows when the client has made room, or in the next turn."""
        if connection.shown_turn != self._outbox.number:
            connection.shown_turn = self._outbox.number
            connection.shown_bytes = 0
        showing = connection.showing
        while showing and not connection.paused and not connection.closing:
            show = showing[0]
            subscriber = show.subscriber
            if subscriber.session.subscriptions.get(subscriber.filter) is not subscriber:
                showing.popleft()  # it was replaced or is gone
                continue
            if connection.shown_bytes >= RETAINED_SEND_BYTES_MAX:
                self._timers.set(show, now + 1)
                return
            retained = self._index(ns, subscriber, now)
            if show.topics is None:
                show.topics = retained.match_names(subscriber.filter)
                show.topics.reverse()
                if has_wildcard(subscriber.filter):
                    connection.shown_bytes += _MATCHING_BYTES + len(show.topics) * (_LOOKUP_BYTES // 10)
            if not show.topics:
                showing.popleft()
                continue
            message = retained.get(show.topics[-1])
            if message is not None and not message.expired(now):
                if not self._send_one(subscriber, message, connection, now):
                    return  # until the client has acknowledged something
                connection.shown_bytes += message.size_bytes
            connection.shown_bytes += _LOOKUP_BYTES
            show.topics.pop()

    def _index(self, ns: Namespace, subscriber: Subscriber, now: int) -> NameIndex[Message]:
        """What a filter can match: retained messages of the namespace, or the broker's own."""
        if self._system is not None and is_system_filter(subscriber.filter):
            return self._system.shown(now)
        return ns.retained

    def _send_one(self, subscriber: Subscriber, message: Message, connection: Connection, now: int) -> bool:
        fan_out = FanOut(message, now)
        qos = min(message.qos, subscriber.qos)
        if not qos:
            self._sender.send_plain(connection, fan_out, True, subscriber.ids)
            return True
        session = subscriber.session
        if session.inflight and not self._sender.has_room(session, message, now):
            return False
        self._sender.deliver(session, fan_out, Outgoing(message, qos, True, subscriber.ids), message)
        return True
