"""From the clients: PUBLISH with its alias, limits and QoS, and the PUBREL that ends QoS 2."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from holdfast.mqtt.codec import (
    V5,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    encode,
    encode_puback,
    encode_pubacks,
    reasons,
)
from holdfast.mqtt.sessions import system_topics
from holdfast.mqtt.sessions.connection import Connection
from holdfast.mqtt.sessions.lifecycle import Lifecycle
from holdfast.mqtt.sessions.messages import Message, expiry_of
from holdfast.mqtt.sessions.outbox import Outbox
from holdfast.mqtt.sessions.ports import Access, Bridge, PublishBatch, Refusal
from holdfast.mqtt.sessions.router import Router
from holdfast.mqtt.sessions.session import Session
from holdfast.mqtt.sessions.session_store import SessionStore
from holdfast.mqtt.sessions.settings import HubLimits
from holdfast.mqtt.topics import is_too_deep

_NO_LIMIT = 1 << 30


class Receiver:
    """Takes PUBLISHes. An answer to one that wrote records waits until they are durable."""

    def __init__(
        self,
        settings: HubLimits,
        outbox: Outbox,
        session_store: SessionStore,
        router: Router,
        lifecycle: Lifecycle,
        access: Access,
        bridge: Bridge | None,
        dropped: Counter[str],
    ) -> None:
        self._settings = settings
        self._dropped = dropped
        self._outbox = outbox
        self._session_store = session_store
        self._router = router
        self._lifecycle = lifecycle
        self._access = access
        self._bridge = bridge
        self._prefixes = () if bridge is None else bridge.prefixes

    def publish(
        self, connection: Connection, session: Session, packet: Publish, now: int, claimed: list[PublishBatch]
    ) -> None:
        """What belongs to a bridge goes to `claimed`, its alias resolved."""
        properties = packet.properties
        if properties.topic_alias is not None:
            topic = self._resolve(connection, packet, properties.topic_alias, now)
            if topic is None:
                return
            properties = replace(properties, topic_alias=None)
            packet = replace(packet, topic=topic, properties=properties)
        if self._violates_limits(connection, packet, now):
            return
        qos = packet.qos
        if qos == 2 and packet.packet_id in session.incoming:
            connection.receiving.add(packet.packet_id)
            self._hold_if_persistent(connection, session)
            self._outbox.send_packet(connection, PubRec(packet.packet_id))
            return
        reason_code, reason = self._refusal(connection, packet.topic)
        if reason_code:
            if qos:
                self.answer(connection, packet, reason_code, reason)
            return
        if self._prefixes and packet.topic.startswith(self._prefixes):
            claimed.append(self._claim(connection, session, packet))
            connection.clear = packet.topic
        elif not self._access.limited or self._admitted(connection, packet, now):
            self._route(connection, session, packet, now)

    def _route(self, connection: Connection, session: Session, packet: Publish, now: int) -> None:
        """To the subscribers of a plain topic."""
        connection.publishes = True
        qos = packet.qos
        properties = packet.properties
        bridge = self._bridge
        captured = bridge is not None and bridge.captures(session.namespace, packet.topic)
        mark = len(self._outbox.ops)
        message = Message(packet.topic, packet.payload, qos, packet.retain, properties, expiry_of(properties, now))
        reason_code = self._router.publish(self._lifecycle.ns(session.namespace), message, session, now)
        if captured and bridge is not None:
            # A copy is stored: the answer is success, whatever subscribers there are, and waits for the sync.
            bridge.capture(connection, session.namespace, self._claim(connection, session, packet), now)
            return
        if not qos:
            return
        if qos == 2 and reason_code < reasons.UNSPECIFIED_ERROR:
            self._record_incoming(connection, session, packet.packet_id)
        if len(self._outbox.ops) > mark:
            self._outbox.hold(connection)
        self.answer(connection, packet, reason_code, "" if reason_code < 0x80 else "no subscriber has room for it")

    def _admitted(self, connection: Connection, packet: Publish, now: int) -> bool:
        """Whether the rate allows the message. If not, the publisher gets a refusal; QoS 0 has no answer, and a 3.1.1
        connection is closed: a message that was not accepted must not be acknowledged."""
        problem = self._access.admit(connection, len(packet.payload))
        if not problem:
            return True
        if not packet.qos:
            self._dropped["rate"] += 1
        elif connection.version == V5:
            self.answer(connection, packet, reasons.QUOTA_EXCEEDED, problem)
        else:
            self._lifecycle.close(connection, now, reasons.MESSAGE_RATE_TOO_HIGH, problem)
        return False

    def _claim(self, connection: Connection, session: Session, packet: Publish) -> PublishBatch:
        """Answer with success, to be sent when the turn is durable, unless the bridge refuses the message."""
        if packet.qos == 1:
            return self.claim(connection, [packet])
        if packet.qos == 2:
            packet_id = packet.packet_id
            self._record_incoming(connection, session, packet_id)
            return PublishBatch(
                [packet], self._outbox.reserve(connection, encode(PubRec(packet_id), connection.version))
            )
        return PublishBatch([packet])

    def claim(self, connection: Connection, packets: list[Publish]) -> PublishBatch:
        """The same for several of QoS 1 that are known to be a bridge's, and to be allowed."""
        answers = encode_pubacks([packet.packet_id for packet in packets])
        return PublishBatch(packets, self._outbox.reserve(connection, answers, len(packets)))

    def room(self, connection: Connection) -> int:
        """How many more messages of QoS 1 the client may send before one is answered. 3.1.1 knows no limit."""
        if connection.version != V5:
            return _NO_LIMIT
        return self._settings.receive_maximum - connection.held_acks - len(connection.receiving)

    def reject_publishes(self, connection: Connection, publishes: PublishBatch, now: int) -> None:
        """Refuse what has a refusal. 3.1.1 knows none, and a message that is not stored must not be acknowledged: there
        the connection is closed [MQTT-3.3.5-2]."""
        packets = publishes.packets
        qos = packets[0].qos
        session = connection.session
        if qos == 2 and session is not None:  # also if it is closed: the client may send it again in this session
            for index in publishes.refusals:
                if packets[index].packet_id in session.incoming:
                    self._discard_incoming(connection, session, packets[index].packet_id)
        if connection.closing or not qos or not publishes.refusals:
            return
        if connection.version != V5:
            first = min(publishes.refusals)
            accepted = encode_pubacks([packet.packet_id for packet in packets[:first]])
            connection.held = [*connection.held[: publishes.place], accepted]
            self._lifecycle.close(connection, now, *publishes.refusals[first])
            return
        answers = [
            self._refused(connection, packet, publishes.refusals.get(index)) for index, packet in enumerate(packets)
        ]
        connection.held[publishes.place] = b"".join(answers)

    def _refused(self, connection: Connection, packet: Publish, refusal: Refusal | None) -> bytes:
        if refusal is None:
            return encode_puback(packet.packet_id)
        kind = PubAck if packet.qos == 1 else PubRec
        code = reasons.as_puback(refusal.reason_code)
        return self._outbox.fit(connection, kind(packet.packet_id, code, _reason_properties(refusal.reason)))

    def _record_incoming(self, connection: Connection, session: Session, packet_id: int) -> None:
        """Until its PUBREL this identifier means this message."""
        session.incoming.add(packet_id)
        connection.receiving.add(packet_id)
        self._session_store.incoming(session, packet_id, known=True)

    def answer(self, connection: Connection, packet: Publish, reason_code: int, reason: str = "") -> None:
        """PUBACK or PUBREC. 3.1.1 has no refusals: there it is a plain one, whatever the reason [MQTT-3.3.5-2]."""
        packet_id = packet.packet_id
        if packet.qos == 1:
            if not reason_code or connection.version != V5:
                self._outbox.send(connection, encode_puback(packet_id))
            else:
                self._outbox.send_packet(connection, PubAck(packet_id, reason_code, _reason_properties(reason)))
            self._outbox.count_ack(connection)
            return
        self._outbox.send_packet(connection, PubRec(packet_id, reason_code, _reason_properties(reason)))

    def _discard_incoming(self, connection: Connection, session: Session, packet_id: int) -> None:
        session.incoming.remove(packet_id)
        connection.receiving.discard(packet_id)
        self._session_store.incoming(session, packet_id, known=False)

    def _hold_if_persistent(self, connection: Connection, session: Session) -> None:
        """Answers about QoS 2 wait for a sync even if they changed nothing: what they rest on may have been written a
        moment ago on another connection. Undone by a crash, a message would be lost, or the next one under its
        identifier be taken for a copy."""
        if session.persistent:
            self._outbox.hold(connection)

    def released(self, connection: Connection, session: Session, packet_id: int) -> None:
        """PUBREL."""
        self._hold_if_persistent(connection, session)
        if packet_id in session.incoming:
            self._discard_incoming(connection, session, packet_id)
            self._outbox.send_packet(connection, PubComp(packet_id))
        else:
            self._outbox.send_packet(connection, PubComp(packet_id, reasons.PACKET_ID_NOT_FOUND))

    def _resolve(self, connection: Connection, packet: Publish, alias: int, now: int) -> str | None:
        if alias > self._settings.topic_alias_max:
            self._lifecycle.close(
                connection, now, reasons.TOPIC_ALIAS_INVALID, f"the highest alias is {self._settings.topic_alias_max}"
            )
            return None
        if packet.topic:
            connection.aliases_in[alias] = packet.topic
            return packet.topic
        topic = connection.aliases_in.get(alias)
        if topic is None:
            self._lifecycle.close(connection, now, reasons.PROTOCOL_ERROR, f"alias {alias} was not set")
        return topic

    def _violates_limits(self, connection: Connection, packet: Publish, now: int) -> bool:
        """Whether the PUBLISH does what CONNACK said we do not take; the connection is then closed."""
        settings = self._settings
        if packet.qos > settings.qos_max:
            self._lifecycle.close(connection, now, reasons.QOS_NOT_SUPPORTED, f"the highest QoS is {settings.qos_max}")
        elif packet.retain and not settings.retain_available:
            self._lifecycle.close(connection, now, reasons.RETAIN_NOT_SUPPORTED, "messages are not retained")
        elif (
            packet.qos
            and connection.version == V5
            and connection.held_acks + len(connection.receiving) >= settings.receive_maximum
            and packet.packet_id not in connection.receiving
        ):
            self._lifecycle.close(
                connection,
                now,
                reasons.RECEIVE_MAXIMUM_EXCEEDED,
                f"more than {settings.receive_maximum} messages were sent before an answer",
            )
        else:
            return False
        return True

    def _refusal(self, connection: Connection, topic: str) -> tuple[int, str]:
        if is_too_deep(topic):
            return reasons.TOPIC_NAME_INVALID, "the topic has too many levels"
        if topic.startswith(system_topics.PREFIX):
            return reasons.NOT_AUTHORIZED, "$SYS is the broker's own"
        reason_code = self._access.may_publish(connection, topic)
        return reason_code, "not allowed to publish on this topic" if reason_code else ""


def _reason_properties(reason: str) -> Properties:
    return Properties(reason_string=reason or None)
