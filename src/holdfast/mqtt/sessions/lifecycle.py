"""Connections and sessions: how they begin, are taken over, and end."""

from __future__ import annotations

from holdfast.mqtt.codec import V5, V311, ConnAck, Connect, Disconnect, Properties, reasons, return_code_311
from holdfast.mqtt.sessions.connection import Connection
from holdfast.mqtt.sessions.namespaces import Namespace
from holdfast.mqtt.sessions.outbox import Outbox
from holdfast.mqtt.sessions.ports import Access, Bridge
from holdfast.mqtt.sessions.retained import Deadline
from holdfast.mqtt.sessions.router import Router
from holdfast.mqtt.sessions.sender import Sender
from holdfast.mqtt.sessions.session import PACKET_ID_MAX, Session
from holdfast.mqtt.sessions.session_store import SessionStore
from holdfast.mqtt.sessions.settings import NEVER, HubLimits
from holdfast.mqtt.sessions.wills import Wills, will_due
from holdfast.mqtt.topics import is_too_deep
from holdfast.timers import Timers
from holdfast.units import SECOND


class Lifecycle:
    """Owns the namespaces and the connections."""

    def __init__(
        self,
        settings: HubLimits,
        outbox: Outbox,
        timers: Timers[Deadline],
        session_store: SessionStore,
        sender: Sender,
        router: Router,
        access: Access,
        bridge: Bridge | None,
    ) -> None:
        self._settings = settings
        self._outbox = outbox
        self._timers = timers
        self._session_store = session_store
        self._sender = sender
        self._router = router
        self._access = access
        self._bridge = bridge
        self._wills = Wills(router, bridge)
        self.namespaces: dict[str, Namespace] = {}
        self.connections: dict[Connection, None] = {}  # in the order they were made
        self.clients = 0  # connections whose CONNECT was accepted

    def ns(self, name: str) -> Namespace:
        found = self.namespaces.get(name)
        if found is None:
            found = self.namespaces[name] = Namespace(name)
        return found

    # --- connections ------------------------------------------------------------------------------------------------

    def open(self, tag: object, now: int) -> Connection:
        connection = Connection(tag, now)
        self.connections[connection] = None
        self._timers.set(connection, now + self._settings.connect_timeout_us)
        return connection

    def refuse(self, connection: Connection, reason_code: int, reason: str) -> None:
        """Answer a CONNECT with a refusal, where the version knows one for this reason, and close."""
        if connection.version == V5:
            self._outbox.send_packet(connection, ConnAck(False, reason_code, Properties(reason_string=reason)))
        else:
            code = return_code_311(reason_code)
            if code is not None:
                self._outbox.send_packet(connection, ConnAck(False, code))
        self._drop(connection)

    def close(self, connection: Connection, now: int, reason_code: int, reason: str) -> None:
        """We end it: with a DISCONNECT that says why if the client can read it, and with its will."""
        if connection.version == V5:
            self._outbox.send_packet(connection, Disconnect(reason_code, Properties(reason_string=reason or None)))
        self.ended(connection, now, graceful=False)

    def ended(self, connection: Connection, now: int, *, graceful: bool, with_will: bool = True) -> None:
        """The network connection is gone, or is now to be closed."""
        session = connection.session
        self._drop(connection)
        if session is None:
            return
        if self._bridge is not None:
            self._bridge.closed(connection, session, graceful, now)
        connection.session = None
        connection.showing.clear()
        session.connection = None
        self.clients -= 1
        session.resend.clear()
        if not with_will:
            session.will = None
        self.leave(session, now)

    def _drop(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        self._timers.cancel(connection)
        self._outbox.close(connection)

    def silent(self, connection: Connection, now: int) -> None:
        """The deadline of a connection has come: without a CONNECT that is the end of it, else if it has been silent
        for one and a half times its keep alive [MQTT-3.1.2-22]."""
        if connection.session is None:
            self._drop(connection)
        elif connection.paused:
            # It does not read, so the shell does not read from it: it may have sent something. The shell closes it.
            self._timers.set(connection, now + connection.keep_alive_us)
        elif now - connection.last_seen >= connection.keep_alive_us:
            self.close(connection, now, reasons.KEEP_ALIVE_TIMEOUT, "nothing was received within the keep alive")
        else:
            self._timers.set(connection, connection.last_seen + connection.keep_alive_us)

    # --- CONNECT ----------------------------------------------------------------------------------------------------

    def connect(
        self, connection: Connection, packet: Connect, namespace: str, assigned_id: str, now: int, owner: str
    ) -> None:
        connection.version = packet.version
        connection.namespace = namespace
        connection.username = packet.username
        connection.client_id = packet.client_id or assigned_id
        connection.assigned = not packet.client_id
        connection.last_seen = now
        _apply_connect_properties(connection, packet.properties, self._settings)
        found = self._find(connection, owner)
        refusal = self._refusal(connection, packet, found)
        if refusal is not None:
            self.refuse(connection, *refusal)
            return
        mark = len(self._outbox.ops)
        session, present = self._begin(connection, packet, now, owner, found)
        keep_alive_s = self._keep_alive(packet)
        connection.keep_alive_us = keep_alive_s * SECOND * 3 // 2
        if keep_alive_s:
            self._timers.set(connection, now + connection.keep_alive_us)
        else:
            self._timers.cancel(connection)
        if len(self._outbox.ops) > mark:
            self._outbox.hold(connection)
        properties = self._terms(connection, packet, session, keep_alive_s) if packet.version == V5 else Properties()
        if not self._outbox.send_packet(connection, ConnAck(present, 0, properties)):
            self.ended(connection, now, graceful=False)  # its maximum packet size does not even take a CONNACK
            return
        self._sender.resume(session, connection, now)
        if self._bridge is not None and any(one.terms is not None for one in session.subscriptions.values()):
            self._bridge.resumed(connection, session, now)

    def _find(self, connection: Connection, owner: str) -> Session | None:
        """The session that the client left, if there is one: that of its identifier among its owner's, or one without
        an owner that it may adopt. So nobody can resume or replace the session of another, or keep an identifier from
        somebody else. A session without an owner is from a time without credentials, or an older version stored it with
        the name of its user only."""
        sessions = self.ns(connection.namespace).sessions
        found = sessions.get((owner, connection.client_id))
        if found is None and owner:
            found = sessions.get(("", connection.client_id))
            if found is not None and found.reserved_for not in ("", owner.partition(":")[2]):
                return None
        return found

    def _refusal(self, connection: Connection, packet: Connect, found: Session | None) -> tuple[int, str] | None:
        settings = self._settings
        takes_over = found is not None and found.connection is not None  # and makes room
        if self.clients >= settings.connections_max and not takes_over:
            return reasons.SERVER_BUSY, "too many connections; try again later"
        if found is None and sum(len(ns.sessions) for ns in self.namespaces.values()) >= settings.sessions_max:
            return reasons.QUOTA_EXCEEDED, "there are too many sessions; those of clients that stay away expire"
        sessions = len(self.ns(connection.namespace).sessions)
        if found is None and (problem := settings.quota(connection.namespace, "sessions", sessions)):
            return reasons.QUOTA_EXCEEDED, problem
        if packet.properties.authentication_method is not None:
            return reasons.BAD_AUTHENTICATION_METHOD, "no authentication method is supported; use a password"
        if len(packet.client_id.encode()) > settings.client_id_bytes_max:
            return reasons.CLIENT_ID_NOT_VALID, f"a client identifier has at most {settings.client_id_bytes_max} bytes"
        will = packet.will
        if will is None:
            return None
        if will.qos > settings.qos_max:
            return reasons.QOS_NOT_SUPPORTED, f"the highest QoS is {settings.qos_max}"
        if will.retain and not settings.retain_available:
            return reasons.RETAIN_NOT_SUPPORTED, "messages are not retained"
        if is_too_deep(will.topic):
            return reasons.TOPIC_NAME_INVALID, "the will topic has too many levels"
        if self._access.may_publish(connection, will.topic):
            return reasons.NOT_AUTHORIZED, "not allowed to publish on the will's topic"
        return None

    def _allowed(self, session: Session, connection: Connection) -> bool:
        """Whether the client may still subscribe to all that its session is subscribed to."""
        return not any(self._access.may_subscribe(connection, one) for one in session.subscriptions)

    def _begin(
        self, connection: Connection, packet: Connect, now: int, owner: str, session: Session | None
    ) -> tuple[Session, bool]:
        """The session of a new connection, and whether it is one that was there before."""
        ns = self.ns(connection.namespace)
        if session is not None and session.connection is not None:
            self.close(session.connection, now, reasons.SESSION_TAKEN_OVER, "another connection took the session over")
            session = ns.sessions.get((owner, connection.client_id))  # unless it ended with its connection
        if session is not None and (packet.clean_start or not self._allowed(session, connection)):
            self.end(session, now)
            session = None
        expiry_s = min(_wanted_expiry(packet), self._settings.session_expiry_max_s)
        present = session is not None
        if session is None:
            session = Session(connection.namespace, owner, connection.client_id, packet.version, expiry_s)
            ns.sessions[owner, connection.client_id] = session
        else:
            if session.owner != owner:
                del ns.sessions[session.owner, session.client_id]
                self._session_store.assign(session, owner)
                ns.sessions[owner, session.client_id] = session
            self._timers.cancel(session)
            if not expiry_s:
                self._session_store.delete_session(session)
            session.expiry_s = expiry_s
            session.protocol = packet.version
            session.will_at = session.ended_at = 0
        session.reserved_for = ""
        session.will = packet.will
        session.connection = connection
        connection.session = session
        self.clients += 1
        self._session_store.session(session)
        return session, present

    def _keep_alive(self, packet: Connect) -> int:
        most = self._settings.keep_alive_max_s
        wanted = packet.keep_alive_s
        if packet.version == V5 and most and (wanted == 0 or wanted > most):
            return most
        return wanted

    def _terms(self, connection: Connection, packet: Connect, session: Session, keep_alive_s: int) -> Properties:
        """What the client must know of our limits, and where we did not do as it asked."""
        settings = self._settings
        asked = packet.properties
        wants_response = asked.request_response_information == 1 and settings.response_information
        return Properties(
            session_expiry_s=session.expiry_s if session.expiry_s != (asked.session_expiry_s or 0) else None,
            receive_maximum=settings.receive_maximum,
            maximum_qos=settings.qos_max if settings.qos_max < 2 else None,
            retain_available=None if settings.retain_available else 0,
            maximum_packet_bytes=settings.packet_bytes_max,
            assigned_client_id=None if packet.client_id else connection.client_id,
            topic_alias_maximum=settings.topic_alias_max or None,
            shared_available=None if settings.shared_available else 0,
            server_keep_alive_s=keep_alive_s if keep_alive_s != packet.keep_alive_s else None,
            response_information=settings.response_information + connection.client_id if wants_response else None,
        )

    # --- sessions ---------------------------------------------------------------------------------------------------

    def leave(self, session: Session, now: int) -> None:
        """The session's connection has ended."""
        if not session.persistent:
            self.end(session, now)
            return
        session.ended_at = now
        ns = self.ns(session.namespace)
        if session.will is not None:
            due = will_due(session, now)
            if due > now:
                session.will_at = due
            else:
                self._wills.publish(ns, session, now)
        self._router.redistribute(ns, session, now, ends=False)
        self._session_store.session(session)
        self.watch(session)

    def watch(self, session: Session) -> None:
        """Set the deadline of a session without a connection: its will, then its end."""
        dues = [due for due in (session.will_at, session.expires_at()) if due]
        if dues:
            self._timers.set(session, min(dues))

    def due(self, session: Session, now: int) -> None:
        """The deadline of a session without a connection has come."""
        expires_at = session.expires_at()
        if expires_at is not None and expires_at <= now:
            self.end(session, now)
            return
        self._wills.publish(self.ns(session.namespace), session, now)
        self._session_store.session(session)
        self.watch(session)

    def end(self, session: Session, now: int) -> None:
        """The session is over: nothing of it stays but its will, which is published now if it was still to come."""
        ns = self.ns(session.namespace)
        del ns.sessions[session.owner, session.client_id]
        if self._bridge is not None and any(one.terms is not None for one in session.subscriptions.values()):
            self._bridge.ended(session, now)
        self._timers.cancel(session)
        self._session_store.delete_session(session)
        for topic_filter in list(session.subscriptions):
            ns.unsubscribe(session, topic_filter)
        self._router.redistribute(ns, session, now, ends=True)
        self._wills.publish(ns, session, now)
        session.clear()  # objects that still refer to it do not keep its messages in memory


def _wanted_expiry(packet: Connect) -> int:
    if packet.version == V311:
        return 0 if packet.clean_start else NEVER
    return packet.properties.session_expiry_s or 0


def _apply_connect_properties(connection: Connection, asked: Properties, settings: HubLimits) -> None:
    """Take over what a v5 client said about itself; of a 3.1.1 client nothing is known."""
    connection.receive_maximum = min(asked.receive_maximum or PACKET_ID_MAX, settings.inflight_max)
    connection.quota = connection.receive_maximum
    connection.wants_problems = asked.request_problem_information != 0
    connection.alias_max = min(asked.topic_alias_maximum or 0, settings.topic_alias_out_max)
    if asked.maximum_packet_bytes is not None:
        connection.packet_bytes_max = asked.maximum_packet_bytes
