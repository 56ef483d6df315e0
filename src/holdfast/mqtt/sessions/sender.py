"""Towards the clients: PUBLISH at every QoS, the window, acknowledgements, and everything again after a reconnect.

Nothing that a crash must not undo is sent before it is durable. Towards a persistent session a QoS 2 PUBLISH waits for
the record of its packet identifier, or the message could come again under another one; a PUBREL waits for the record
that the message was received, or the message could come again after the client has forgotten the identifier. A QoS 1
PUBLISH is sent immediately: if its record is lost, its publisher has no acknowledgement and sends it again.
"""

from __future__ import annotations

from collections import Counter, deque

from msgspec.structs import replace

from holdfast.mqtt.codec import V5, Publish, PubRel, encode_publish, reasons
from holdfast.mqtt.sessions.connection import Connection
from holdfast.mqtt.sessions.messages import FanOut, Message
from holdfast.mqtt.sessions.outbox import Outbox
from holdfast.mqtt.sessions.session import Outgoing, Session
from holdfast.mqtt.sessions.session_store import SessionStore
from holdfast.mqtt.sessions.settings import HubLimits

# An alias takes three bytes as a property; for a topic no longer than that it saves nothing.
_ALIAS_BYTES = 3


class Sender:
    """`dropped` counts messages that did not reach a session, by reason: `full`, `expired`, `large`, `slow`."""

    __slots__ = ("_outbox", "_session_store", "_settings", "dropped")

    def __init__(self, settings: HubLimits, outbox: Outbox, session_store: SessionStore) -> None:
        self._settings = settings
        self._outbox = outbox
        self._session_store = session_store
        self.dropped: Counter[str] = Counter()

    # --- new messages -----------------------------------------------------------------------------------------------

    def send_plain(self, connection: Connection, fan_out: FanOut, retain: bool, ids: tuple[int, ...]) -> None:
        """QoS 0: now or never."""
        if connection.paused:
            self.dropped["slow"] += 1
            return
        if connection.alias_max:
            data = self._aliased(connection, fan_out, Publish("", b"", 0, 0, retain), ids)
        else:
            data = fan_out.plain(connection.version, ids, retain)
        if len(data) > connection.packet_bytes_max:
            self.dropped["large"] += 1
        else:
            self._outbox.send(connection, data)

    def deliver(self, session: Session, fan_out: FanOut, entry: Outgoing, message: Message) -> bool:
        """QoS 1 or 2: send, or queue until it can be sent. False if there is no room."""
        connection = session.connection
        if (
            connection is not None
            and connection.quota > 0
            and session.inflight_bytes < self._settings.queued_bytes_max
            and not session.queue
            and not session.resend
            and not connection.paused
        ):
            data = self._encode(session, connection, fan_out, entry)
            if data is not None:
                self._session_store.add(session, entry, message)
                self._send(session, connection, entry, data)
            return True
        if not self.has_room(session, message, fan_out.now):
            self.dropped["full"] += 1
            return False
        entry.order = session.next_order()
        session.push(entry, message)
        self._session_store.add(session, entry, message)
        return True

    def has_room(self, session: Session, message: Message, now: int) -> bool:
        """Whether the message can be queued; what has expired makes room before that is denied."""
        if self._fits(session, message):
            return True
        for expired in session.drop_expired(now):
            self._drop(session, expired, "expired")
        return self._fits(session, message)

    def _fits(self, session: Session, message: Message) -> bool:
        settings = self._settings
        return (
            len(session.queue) < settings.queued_messages_max
            and session.queued_bytes + message.size_bytes <= settings.queued_bytes_max
        )

    def pump(self, session: Session, connection: Connection, now: int) -> None:
        """Send what waits, as far as the window allows. Beyond what one connection may buffer it goes on when that has
        been sent."""
        left_bytes = self._settings.buffer_bytes
        while connection.quota > 0 and not connection.paused:
            if session.resend:
                entry = session.resend.popleft()
                if session.inflight.get(entry.packet_id) is entry:
                    self._send_again(session, connection, entry, now)
            elif session.queue and session.inflight_bytes < self._settings.queued_bytes_max:
                entry = session.queue.popleft()
                self._send_next(session, connection, entry, now)
            else:
                return
            left_bytes -= entry.size_bytes
            if left_bytes <= 0:
                self._outbox.unfinished[connection] = None
                return

    def _send_next(self, session: Session, connection: Connection, entry: Outgoing, now: int) -> None:
        message = entry.message
        assert message is not None
        session.queued_bytes -= message.size_bytes
        if message.expired(now):
            self._drop(session, entry, "expired")
            return
        data = self._encode(session, connection, FanOut(message, now), entry)
        if data is None:
            self._session_store.remove(session, entry)
            return
        self._session_store.put(session, entry)
        self._send(session, connection, entry, data)

    def _encode(self, session: Session, connection: Connection, fan_out: FanOut, entry: Outgoing) -> bytes | None:
        """Gives the entry its place and identifier. None if it is too large for the client: it is then treated as if
        it had been sent [MQTT-3.1.2-25]."""
        entry.packet_id = session.next_packet_id()
        if not entry.order:
            entry.order = session.next_order()
        if connection.alias_max:
            form = Publish("", b"", entry.qos, entry.packet_id, entry.retain)
            data = self._aliased(connection, fan_out, form, entry.ids)
        else:
            prepared = fan_out.prepared(connection.version, entry.ids)
            data = prepared.encode(entry.qos, entry.packet_id, retain=entry.retain)
        if len(data) > connection.packet_bytes_max:
            self.dropped["large"] += 1
            return None
        return data

    def _send(self, session: Session, connection: Connection, entry: Outgoing, data: bytes) -> None:
        session.inflight[entry.packet_id] = entry
        session.inflight_bytes += entry.size_bytes
        connection.quota -= 1
        if entry.qos == 2 and session.persistent:
            self._outbox.hold(connection)
        self._outbox.send(connection, data)

    def _aliased(self, connection: Connection, fan_out: FanOut, form: Publish, ids: tuple[int, ...]) -> bytes:
        """The PUBLISH with an alias, set or used. One that is not sent for its size sets none."""
        message = fan_out.message
        topic = message.topic
        properties = replace(message.properties, subscription_ids=ids)
        if message.expires_at:
            properties = replace(properties, message_expiry_s=message.left_s(fan_out.now))
        aliases = connection.aliases_out
        alias = aliases.get(topic)
        known = alias is not None
        if alias is None and len(aliases) < connection.alias_max and len(topic) > _ALIAS_BYTES:
            alias = len(aliases) + 1
        properties = replace(properties, topic_alias=alias)
        packet = replace(form, topic="" if known else topic, payload=message.payload, properties=properties)
        data = encode_publish(packet, V5)
        if alias is not None and len(data) <= connection.packet_bytes_max:
            aliases[topic] = alias
        return data

    def _drop(self, session: Session, entry: Outgoing, why: str) -> None:
        self.dropped[why] += 1
        self._session_store.remove(session, entry)

    # --- after a reconnect ------------------------------------------------------------------------------------------

    def resume(self, session: Session, connection: Connection, now: int) -> None:
        """Send again what is in flight, with the identifiers it had [MQTT-4.4.0-1], then what waited."""
        if session.persistent and any(entry.qos == 2 for entry in session.inflight.values()):
            self._outbox.hold(connection)  # it may have been written a moment ago
        for entry in session.inflight.values():
            if entry.message is None:
                self._outbox.send_packet(connection, PubRel(entry.packet_id))
        session.resend = deque(entry for entry in session.inflight.values() if entry.message is not None)
        self.pump(session, connection, now)

    def _send_again(self, session: Session, connection: Connection, entry: Outgoing, now: int) -> None:
        message = entry.message
        assert message is not None
        prepared = message.prepare(connection.version, entry.ids, now)
        data = prepared.encode(entry.qos, entry.packet_id, retain=entry.retain, dup=True)
        if len(data) > connection.packet_bytes_max:  # the client takes less than on the connection before
            del session.inflight[entry.packet_id]
            session.inflight_bytes -= entry.size_bytes
            self._drop(session, entry, "large")
            return
        connection.quota -= 1
        self._outbox.send(connection, data)

    # --- what the client answers ------------------------------------------------------------------------------------

    # Each returns whether the acknowledgement is of the kind that what is in flight under the identifier waits for.

    def acknowledged(self, session: Session, connection: Connection, packet_id: int) -> bool:
        """PUBACK for what is not a bridge's. An identifier that is not in flight is passed over: the standard gives no
        answer to it."""
        entry = session.inflight.get(packet_id)
        if entry is not None:
            if entry.qos != 1:
                return False
            self._finish(session, connection, entry)
        return True

    def received(self, session: Session, connection: Connection, packet_id: int, reason_code: int) -> bool:
        """PUBREC. The message is the client's now; if it refused, that ends it too [MQTT-4.3.3-4]."""
        entry = session.inflight.get(packet_id)
        refused = reason_code >= reasons.UNSPECIFIED_ERROR
        if entry is None:
            if packet_id in session.leases:
                return False
            if not refused:  # else there is nothing that a PUBREL could release
                self._outbox.send_packet(connection, PubRel(packet_id, reasons.PACKET_ID_NOT_FOUND))
        elif entry.qos != 2:
            return False
        elif refused:
            self._finish(session, connection, entry)
        else:
            if entry.message is not None:
                session.inflight_bytes -= entry.size_bytes
                self._session_store.release(session, entry)
                session.inflight[packet_id] = session.inflight.pop(packet_id)  # PUBRELs go in this order [4.6.0-4]
            if session.persistent:
                self._outbox.hold(connection)
            self._outbox.send_packet(connection, PubRel(packet_id))
        return True

    def completed(self, session: Session, connection: Connection, packet_id: int) -> bool:
        """PUBCOMP. An identifier that is not in flight is passed over."""
        entry = session.inflight.get(packet_id)
        if entry is None:
            return packet_id not in session.leases
        if entry.message is not None:
            return False
        self._finish(session, connection, entry)
        return True

    def _finish(self, session: Session, connection: Connection, entry: Outgoing) -> None:
        del session.inflight[entry.packet_id]
        session.inflight_bytes -= entry.size_bytes
        self._session_store.remove(session, entry)
        connection.quota = min(connection.quota + 1, connection.receive_maximum)
