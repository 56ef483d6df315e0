"""The plain MQTT broker, pure: events in, effects out.

The shell (a listener) opens a connection, authenticates its CONNECT, passes the packets of each read as one list, and
reports lost connections and deadlines. State changes immediately; effects are collected in `outbox`, which the shell
takes once in each turn:

    hub.receive(connection, decoder.feed(data), now)     # as often as data arrived
    batch = hub.outbox.take()
    store.write(epoch, batch.ops); send each of batch.now; sync; send each of hub.outbox.mark_synced(batch)

`now` is epoch microseconds. If the store fails the hub is ahead of it and must be thrown away, and a new one loaded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.mqtt.codec import (
    PINGRESP,
    V5,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Unsubscribe,
    reasons,
)
from holdfast.mqtt.rules import ProtocolError
from holdfast.mqtt.sessions.connection import Connection
from holdfast.mqtt.sessions.incoming import Receiver
from holdfast.mqtt.sessions.lifecycle import Lifecycle
from holdfast.mqtt.sessions.messages import Message
from holdfast.mqtt.sessions.outbox import Outbox
from holdfast.mqtt.sessions.ports import Access, AllowAll, Bridge, PublishBatch
from holdfast.mqtt.sessions.recovery import Scan, load
from holdfast.mqtt.sessions.retained import Deadline, Retainer
from holdfast.mqtt.sessions.router import Router
from holdfast.mqtt.sessions.sender import Sender
from holdfast.mqtt.sessions.session import RetainedSend, Session
from holdfast.mqtt.sessions.session_store import SessionStore
from holdfast.mqtt.sessions.settings import HubLimits
from holdfast.mqtt.sessions.subscriptions import Subscriptions
from holdfast.mqtt.sessions.system_topics import SystemTopics
from holdfast.timers import Timers


class Hub:
    """Owns every session, subscription, retained message and will of one node, by namespace."""

    def __init__(
        self,
        settings: HubLimits | None = None,
        access: Access | None = None,
        bridge: Bridge | None = None,
        system: SystemTopics | None = None,
    ) -> None:
        self.settings = settings or HubLimits()
        access = access or AllowAll()
        self._bridge = bridge
        self._system = system
        self.outbox = Outbox()
        self._timers: Timers[Deadline] = Timers()
        self._session_store = SessionStore(self.outbox)
        self._sender = Sender(self.settings, self.outbox, self._session_store)
        self._retainer = Retainer(self.settings, self.outbox, self._session_store, self._sender, self._timers, system)
        self._router = Router(self._session_store, self._sender, self._retainer)
        self._lifecycle = Lifecycle(
            self.settings, self.outbox, self._timers, self._session_store, self._sender, self._router, access, bridge
        )
        self._receiver = Receiver(
            self.settings,
            self.outbox,
            self._session_store,
            self._router,
            self._lifecycle,
            access,
            bridge,
            self.dropped,
        )
        self._subscriptions = Subscriptions(
            self.settings, self.outbox, self._session_store, self._retainer, self._lifecycle, access, bridge
        )
        self.namespaces = self._lifecycle.namespaces
        self.connections = self._lifecycle.connections

    @property
    def due(self) -> int | None:
        """When `tick` must be called."""
        return self._timers.due

    @property
    def dropped(self) -> Counter[str]:
        """Messages that a session did not get, by reason: `full`, `expired`, `large`, `slow`, `rate`."""
        return self._sender.dropped

    # --- events -----------------------------------------------------------------------------------------------------

    def load(self, scan: Scan, now: int) -> None:
        """Read what is stored, before anything else happens."""
        load(scan, now, self._lifecycle, self._session_store, self._retainer)

    def open(self, tag: object, now: int) -> Connection:
        """A network connection was accepted; `tag` is the shell's own."""
        return self._lifecycle.open(tag, now)

    def connect(
        self, connection: Connection, packet: Connect, namespace: str, assigned_id: str, now: int, owner: str = ""
    ) -> None:
        """The CONNECT of a client that may come in; `assigned_id` is its identifier if it brought none, `owner` is whom
        its session belongs to."""
        self._lifecycle.connect(connection, packet, namespace, assigned_id, now, owner)

    def refuse(self, connection: Connection, version: int, reason_code: int, reason: str) -> None:
        """The CONNECT of a client that may not."""
        connection.version = version
        self._lifecycle.refuse(connection, reason_code, reason)

    def receive(  # noqa: C901, PLR0912 - one loop over the packets
        self, connection: Connection, packets: Sequence[Packet], now: int
    ) -> None:
        """The packets of one read, after CONNECT.

        Publishing to queues is nearly all that some connections do. PUBLISHes of QoS 1 that follow one another on the
        same topic of a bridge's are claimed together: the first has shown that the client may, and a run of 100 costs
        0.3 µs each instead of 2.4.
        """
        session = connection.session
        if session is None:
            return  # it was closed while the packets were under way
        connection.last_seen = now
        claimed: list[PublishBatch] = []
        publishes: list[Publish] = []
        room = 0
        settled: list[tuple[PubAck, object]] = []
        leases = session.leases
        freed = False
        for packet in packets:
            kind = type(packet)
            if kind is Publish:
                if settled:  # the bridge sees both in the order in which they came
                    self._forward_to_bridge(connection, claimed, settled, now)
                    claimed, settled, freed = [], [], True
                if (
                    packet.topic is connection.clear  # type: ignore[union-attr]  # the decoder gives the same text again
                    and packet.qos == 1  # type: ignore[union-attr]
                    and packet.properties.topic_alias is None  # type: ignore[union-attr]
                    and not packet.retain  # type: ignore[union-attr]
                ):
                    if not publishes:
                        room = self._receiver.room(connection)
                    if len(publishes) < room:
                        publishes.append(packet)  # type: ignore[arg-type]
                        continue
                if publishes:
                    claimed.append(self._receiver.claim(connection, publishes))
                    publishes = []
                self._receiver.publish(connection, session, packet, now, claimed)  # type: ignore[arg-type]
            elif kind is PubAck and packet.packet_id in leases:  # type: ignore[union-attr]
                if publishes:
                    claimed.append(self._receiver.claim(connection, publishes))
                    publishes = []
                settled.append((packet, leases.pop(packet.packet_id)))  # type: ignore[arg-type, union-attr]
            elif kind is PubAck and self._sender.acknowledged(session, connection, packet.packet_id):  # type: ignore[union-attr]
                freed = True
            else:
                freed = True
                if publishes:
                    claimed.append(self._receiver.claim(connection, publishes))
                    publishes = []
                if claimed or settled:  # what came before must have happened before: a DISCONNECT releases leases
                    self._forward_to_bridge(connection, claimed, settled, now)
                    claimed, settled = [], []
                self._other(connection, session, packet, now)
            if connection.closing:
                break
        if publishes:
            claimed.append(self._receiver.claim(connection, publishes))
        if claimed or settled:
            freed = freed or bool(settled)
            self._forward_to_bridge(connection, claimed, settled, now)
        if freed and not connection.closing:
            self._pump(session, connection, now)

    def _forward_to_bridge(
        self,
        connection: Connection,
        claimed: list[PublishBatch],
        settled: list[tuple[PubAck, object]],
        now: int,
    ) -> None:
        """PUBLISHes of the bridge's, and PUBACKs that came after them."""
        assert self._bridge is not None
        if claimed:
            self._bridge.publish(connection, claimed, now)
        if settled:
            connection.quota = min(connection.quota + len(settled), connection.receive_maximum)
            self._bridge.acknowledged(settled)

    def _pump(self, session: Session, connection: Connection, now: int) -> None:
        if session.queue or session.resend:
            self._sender.pump(session, connection, now)
        if connection.showing:
            self._retainer.send_more(self._lifecycle.ns(session.namespace), connection, now)
        if connection.feed is not None:
            connection.feed.pump(now)

    def _other(self, connection: Connection, session: Session, packet: Packet, now: int) -> None:
        match packet:
            case PubAck():
                self._wrong_kind(connection, packet, now)
            case PubRec():
                if not self._sender.received(session, connection, packet.packet_id, packet.reason_code):
                    self._wrong_kind(connection, packet, now)
            case PubComp():
                if not self._sender.completed(session, connection, packet.packet_id):
                    self._wrong_kind(connection, packet, now)
            case PubRel():
                self._receiver.released(connection, session, packet.packet_id)
            case Subscribe():
                self._subscriptions.subscribe(connection, session, packet, now)
            case Unsubscribe():
                self._subscriptions.unsubscribe(connection, session, packet, now)
            case PingReq():
                self.outbox.send(connection, PINGRESP)
            case Disconnect():
                self._disconnect(connection, session, packet, now)
            case _:  # AUTH, which nobody agreed on; the decoder lets nothing else through
                self._lifecycle.close(connection, now, reasons.PROTOCOL_ERROR, "no authentication is under way")

    def _wrong_kind(self, connection: Connection, packet: Packet, now: int) -> None:
        """The client acknowledged what is in flight as a message of another QoS, or too early: what the two sides know
        of it differs."""
        kind = type(packet).__name__.upper()
        self._lifecycle.close(connection, now, reasons.PROTOCOL_ERROR, f"a {kind} is not what this message waits for")

    def _disconnect(self, connection: Connection, session: Session, packet: Disconnect, now: int) -> None:
        expiry_s = packet.properties.session_expiry_s
        if expiry_s is not None and expiry_s and not session.persistent:
            self._lifecycle.close(connection, now, reasons.PROTOCOL_ERROR, "a session that ends cannot be prolonged")
            return
        if expiry_s is not None:
            if not expiry_s:
                self._session_store.delete_session(session)
            session.expiry_s = min(expiry_s, self.settings.session_expiry_max_s)
        self._lifecycle.ended(connection, now, graceful=True, with_will=packet.reason_code != reasons.SUCCESS)

    def broken(self, connection: Connection, error: ProtocolError, version: int | None, now: int) -> None:
        """The decoder found a violation; the packets before it were handed in by `receive`. `version` is the
        decoder's."""
        if connection.closing:
            return
        if connection.session is None:
            self.refuse(connection, version or V5, error.reason_code, error.message)
        else:
            self._lifecycle.close(connection, now, error.reason_code, error.message)

    def lost(self, connection: Connection, now: int) -> None:
        """The network connection is gone. Nothing happens if the hub closed it itself."""
        if not connection.closing:
            self._lifecycle.ended(connection, now, graceful=False)

    def close(self, connection: Connection, reason_code: int, reason: str, now: int) -> None:
        """Close from our side: at shutdown, or by an administrator."""
        if not connection.closing:
            self._lifecycle.close(connection, now, reason_code, reason)

    def pause(self, connection: Connection) -> None:
        """The transport is full: QoS 0 is dropped for this client, the rest waits in its session."""
        connection.paused = True

    def resume(self, connection: Connection, now: int) -> None:
        """The transport has room again."""
        connection.paused = False
        if connection.session is not None:
            self._pump(connection.session, connection, now)

    def pump_unfinished(self, now: int) -> None:
        """Go on with the connections for which more waits than they may buffer."""
        connections, self.outbox.unfinished = self.outbox.unfinished, {}
        for connection in connections:
            if connection.session is not None:
                self._pump(connection.session, connection, now)

    def tick(self, now: int) -> None:
        """Act on the deadlines that have passed."""
        while (key := self._timers.pop(now)) is not None:
            match key:
                case Connection():
                    self._lifecycle.silent(key, now)
                case Session():
                    self._lifecycle.due(key, now)
                case RetainedSend():
                    self._send_retained(key, now)
                case _:
                    self._retainer.remove(self._lifecycle.ns(key.namespace), key.topic)

    def _send_retained(self, show: RetainedSend, now: int) -> None:
        session = show.subscriber.session
        if session.connection is not None:
            self._retainer.send_more(self._lifecycle.ns(session.namespace), session.connection, now)

    def publish(self, namespace: str, message: Message, now: int) -> int:
        """A message of the broker's own. Returns the reason code a client would be given."""
        return self._router.publish(self._lifecycle.ns(namespace), message, None, now)

    def publish_system(self, now: int) -> None:
        """Send what has changed of the broker's own topics to who has subscribed to them."""
        listening = [ns for ns in self.namespaces.values() if ns.system_subscriptions]
        if self._system is not None and listening:
            for message in self._system.changed(now):
                for ns in listening:
                    self._router.publish(ns, message, None, now)

    # --- for a bridge -----------------------------------------------------------------------------------------------

    def reject_publishes(self, connection: Connection, publishes: PublishBatch, now: int) -> None:
        """Refuse what has a refusal, within the turn in which it came. Nothing happens if the client has left."""
        self._receiver.reject_publishes(connection, publishes, now)

    def revoke_subscription(self, connection: Connection, topic_filter: str, reason: str, now: int) -> None:
        """An administrator ended a subscription of the bridge: the client is disconnected, the only notification that
        MQTT has, and its session no longer has the subscription when it reconnects."""
        session = connection.session
        if session is not None and not connection.closing:
            self._subscriptions.remove(session, topic_filter)
            self._lifecycle.close(connection, now, reasons.ADMINISTRATIVE_ACTION, reason)
