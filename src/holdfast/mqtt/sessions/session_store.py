"""Writes what must survive a restart: persistent sessions and all that belongs to them, and retained messages."""

from __future__ import annotations

from holdfast.core.records import Table
from holdfast.mqtt.codec.properties import WILL, write_block
from holdfast.mqtt.sessions.messages import Message, write_message
from holdfast.mqtt.sessions.outbox import Outbox
from holdfast.mqtt.sessions.records import (
    OutgoingRecord,
    SessionRecord,
    SubscriptionRecord,
    WillRecord,
    retained_key,
    write,
)
from holdfast.mqtt.sessions.session import Outgoing, Session, Subscriber

_SESSIONS = Table.MQTT_SESSIONS
_SUBSCRIPTIONS = Table.MQTT_SUBSCRIPTIONS
_OUTGOING = Table.MQTT_OUTGOING
_INCOMING = Table.MQTT_INCOMING
_MESSAGES = Table.MQTT_MESSAGES
_RETAINED = Table.MQTT_RETAINED


class SessionStore:
    """Callers need not ask whether a session is persistent: of one that is not, nothing is written."""

    __slots__ = ("_outbox", "last_message")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.last_message = 0

    # --- messages, by reference -------------------------------------------------------------------------------------

    def add_ref(self, message: Message) -> None:
        message.refs += 1
        if message.refs == 1:
            self.last_message += 1
            message.id = self.last_message
            self._outbox.ops.append((_MESSAGES, message.id.to_bytes(8, "big"), write_message(message)))

    def drop_ref(self, message: Message) -> None:
        message.refs -= 1
        if not message.refs:
            self._outbox.ops.append((_MESSAGES, message.id.to_bytes(8, "big"), None))

    def retain(self, namespace: str, message: Message) -> None:
        self.add_ref(message)
        self._outbox.ops.append((_RETAINED, retained_key(namespace, message.topic), message.id.to_bytes(8, "big")))

    def unretain(self, namespace: str, message: Message, *, replaced: bool) -> None:
        if not replaced:
            self._outbox.ops.append((_RETAINED, retained_key(namespace, message.topic), None))
        self.drop_ref(message)

    # --- sessions ---------------------------------------------------------------------------------------------------

    def session(self, session: Session) -> None:
        if not session.persistent:
            return
        will = None
        if session.will is not None:
            packet = session.will
            will = WillRecord(
                packet.topic, packet.payload, packet.qos, packet.retain, write_block(packet.properties, WILL)
            )
        record = SessionRecord(
            session.protocol, session.expiry_s, session.ended_at, session.will_at, will, session.reserved_for
        )
        self._outbox.ops.append((_SESSIONS, session.key, write(record)))

    def put_subscription(self, one: Subscriber) -> None:
        if one.session.persistent:
            identifier = one.ids[0] if one.ids else 0
            record = SubscriptionRecord(one.qos, one.no_local, one.retain_as_published, identifier, one.terms)
            self._outbox.ops.append((_SUBSCRIPTIONS, _session_key(one.session, one.filter.encode()), write(record)))

    def unsubscribed(self, session: Session, topic_filter: str) -> None:
        if session.persistent:
            self._outbox.ops.append((_SUBSCRIPTIONS, _session_key(session, topic_filter.encode()), None))

    def incoming(self, session: Session, packet_id: int, *, known: bool) -> None:
        """A QoS 2 message of the client's has come, or was released."""
        if session.persistent:
            key = _session_key(session, packet_id.to_bytes(2, "big"))
            self._outbox.ops.append((_INCOMING, key, b"" if known else None))

    # --- towards the client -----------------------------------------------------------------------------------------

    def add(self, session: Session, entry: Outgoing, message: Message) -> None:
        """A new entry, queued or already sent."""
        if session.persistent:
            self.add_ref(message)
            self.put(session, entry)

    def put(self, session: Session, entry: Outgoing) -> None:
        """The entry was sent."""
        if session.persistent:
            message = entry.message
            record = OutgoingRecord(
                0 if message is None else message.id, entry.qos, entry.retain, entry.packet_id, entry.ids, entry.share
            )
            key = _session_key(session, entry.order.to_bytes(8, "big"))
            self._outbox.ops.append((_OUTGOING, key, write(record)))

    def remove(self, session: Session, entry: Outgoing) -> None:
        if session.persistent:
            self._outbox.ops.append((_OUTGOING, _session_key(session, entry.order.to_bytes(8, "big")), None))
            if entry.message is not None:
                self.drop_ref(entry.message)

    def release(self, session: Session, entry: Outgoing) -> None:
        """The client has received a QoS 2 message: what remains is its identifier, behind those released before."""
        self.remove(session, entry)
        entry.message = None
        entry.order = session.next_order()
        self.put(session, entry)

    def assign(self, session: Session, owner: str) -> None:
        """The session is another owner's from now on: all that belongs to it is stored under another key. The caller
        stores the session itself."""
        self.delete_session(session)
        session.assign(owner)
        session.reserved_for = ""
        for subscriber in session.subscriptions.values():
            self.put_subscription(subscriber)
        for packet_id in session.incoming:
            self.incoming(session, packet_id, known=True)
        for entry in (*session.inflight.values(), *session.queue):
            if entry.message is None:
                self.put(session, entry)
            else:
                self.add(session, entry, entry.message)

    def delete_session(self, session: Session) -> None:
        """Delete everything of a session that ends, or that is no longer to be kept."""
        for topic_filter in session.subscriptions:
            self.unsubscribed(session, topic_filter)
        for packet_id in session.incoming:
            self.incoming(session, packet_id, known=False)
        for entry in (*session.inflight.values(), *session.queue):
            self.remove(session, entry)
        if session.persistent:
            self._outbox.ops.append((_SESSIONS, session.key, None))


def _session_key(session: Session, rest: bytes) -> bytes:
    return session.key + b"\0" + rest
