"""From a publisher to everybody whose subscription matches."""

from __future__ import annotations

from collections import deque

from holdfast.mqtt.codec import reasons
from holdfast.mqtt.sessions.messages import FanOut, Message
from holdfast.mqtt.sessions.namespaces import Namespace
from holdfast.mqtt.sessions.retained import Retainer
from holdfast.mqtt.sessions.sender import Sender
from holdfast.mqtt.sessions.session import Outgoing, Session
from holdfast.mqtt.sessions.session_store import SessionStore
from holdfast.mqtt.sessions.shared import Share


class Router:
    """Routes messages, and routes those of a shared subscription again when a member leaves."""

    __slots__ = ("_retainer", "_sender", "_session_store")

    def __init__(self, session_store: SessionStore, sender: Sender, retainer: Retainer) -> None:
        self._session_store = session_store
        self._sender = sender
        self._retainer = retainer

    def publish(self, ns: Namespace, message: Message, publisher: Session | None, now: int) -> int:
        """Retain and route. Returns the reason code for the publisher: success, no matching subscribers, or quota
        exceeded if there were some and none could take it."""
        if message.retain and not self._retainer.put(ns, message):
            return reasons.QUOTA_EXCEEDED
        plan = ns.plan(message.topic)
        if not plan.matched:
            return reasons.NO_MATCHING_SUBSCRIBERS
        sender = self._sender
        fan_out = FanOut(message, now)
        matched = taken = False
        for each in plan.targets:
            target = each
            session = each.session
            if each.no_local and session is publisher:
                local = each.without_local()
                if local is None:
                    continue
                target = local
            matched = True
            retain = message.retain and target.retain_as_published
            qos = min(message.qos, target.qos)
            if qos:
                taken |= sender.deliver(session, fan_out, Outgoing(message, qos, retain, target.ids), message)
            else:
                taken = True
                if session.connection is not None:
                    sender.send_plain(session.connection, fan_out, retain, target.ids)
        for share in plan.shares:
            matched = True
            taken |= self._share(share, fan_out)
        if taken:
            return reasons.SUCCESS
        return reasons.QUOTA_EXCEEDED if matched else reasons.NO_MATCHING_SUBSCRIBERS

    def _share(self, share: Share, fan_out: FanOut, connected_only: bool = False) -> bool:
        """Send to one member. A QoS 0 message to a disconnected member counts as delivered: QoS 0 is never queued."""
        message = fan_out.message
        for member in share.candidates(connected_only):
            session = member.session
            retain = message.retain and member.retain_as_published
            qos = min(member.qos, message.qos)
            if qos:
                entry = Outgoing(message, qos, retain, member.ids, share.filter)
                if self._sender.deliver(session, fan_out, entry, message):
                    return True
            elif session.connection is not None:
                self._sender.send_plain(session.connection, fan_out, retain, member.ids)
                return True
        return message.qos == 0

    def redistribute(self, ns: Namespace, session: Session, now: int, *, ends: bool) -> None:
        """A member has left: its part of shared subscriptions goes to others. It is not counted among them any more if
        its session ends, and not connected otherwise."""
        left = [
            entry
            for entry in (*session.inflight.values(), *session.queue)
            if entry.share and entry.message is not None and (entry.qos == 1 or not entry.packet_id)
        ]
        gone: set[Outgoing] = set()
        for entry in left:
            share = ns.shares.get(entry.share)
            message = entry.message
            assert message is not None
            if share is None or message.expired(now):
                continue
            if self._share(share, FanOut(message, now), connected_only=not ends):
                gone.add(entry)
        if gone and not ends:
            self._remove_entries(session, gone)

    def _remove_entries(self, session: Session, gone: set[Outgoing]) -> None:
        for entry in gone:
            self._session_store.remove(session, entry)
            if session.inflight.pop(entry.packet_id, None) is not None:
                session.inflight_bytes -= entry.size_bytes
        session.queue, queued = deque(), session.queue
        session.queued_bytes = session.next_expiry = 0
        for entry in queued:
            if entry not in gone:
                assert entry.message is not None
                session.push(entry, entry.message)
