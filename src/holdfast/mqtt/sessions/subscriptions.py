"""SUBSCRIBE and UNSUBSCRIBE."""

from __future__ import annotations

from typing import Final

from holdfast.mqtt.codec import Properties, SubAck, Subscribe, Subscription, UnsubAck, Unsubscribe, reasons
from holdfast.mqtt.sessions.connection import Connection
from holdfast.mqtt.sessions.lifecycle import Lifecycle
from holdfast.mqtt.sessions.outbox import Outbox
from holdfast.mqtt.sessions.ports import Access, Bridge
from holdfast.mqtt.sessions.retained import Retainer
from holdfast.mqtt.sessions.session import Session, Subscriber
from holdfast.mqtt.sessions.session_store import SessionStore
from holdfast.mqtt.sessions.settings import HubLimits
from holdfast.mqtt.topics import SHARE_PREFIX, is_too_deep, split_share

_FILTERS_MAX: Final = 1000
"""Filters of one SUBSCRIBE that are looked at, even if a client may have fewer subscriptions."""

_SEND_IF_NEW = 1
_SEND_NEVER = 2


class Subscriptions:
    """Adds and removes them, and shows new ones what is retained. SUBACK waits until they are durable."""

    def __init__(
        self,
        settings: HubLimits,
        outbox: Outbox,
        session_store: SessionStore,
        retainer: Retainer,
        lifecycle: Lifecycle,
        access: Access,
        bridge: Bridge | None,
    ) -> None:
        self._settings = settings
        self._outbox = outbox
        self._session_store = session_store
        self._retainer = retainer
        self._lifecycle = lifecycle
        self._access = access
        self._bridge = bridge

    def subscribe(self, connection: Connection, session: Session, packet: Subscribe, now: int) -> None:
        # Each filter is work, also where they are all the same: past a limit they are refused unseen.
        examined = packet.subscriptions[: max(self._settings.subscriptions_max, _FILTERS_MAX)]
        ns = self._lifecycle.ns(session.namespace)
        mark = len(self._outbox.ops)
        codes: list[int] = []
        new_subscribers: list[Subscriber] = []
        reason = ""
        for one in examined:
            code = self._refusal(connection, session, one)
            bridge = self._bridge
            if not code and bridge is not None and split_share(one.filter)[1].startswith(bridge.prefixes):
                granted = bridge.subscribe(connection, session, one, packet.properties, now)
                code, reason = granted.code, reason or granted.reason
                if granted.terms is not None:
                    ids = packet.properties.subscription_ids
                    subscriber = Subscriber(session, one.filter, code, ids=ids, terms=granted.terms)
                    ns.subscribe(subscriber)
                    self._session_store.put_subscription(subscriber)
            elif not code:
                code = min(one.qos, self._settings.qos_max)
                subscriber = Subscriber(
                    session, one.filter, code, one.no_local, one.retain_as_published, packet.properties.subscription_ids
                )
                new = ns.subscribe(subscriber)
                self._session_store.put_subscription(subscriber)
                never = one.retain_handling == _SEND_NEVER or one.filter.startswith(SHARE_PREFIX)
                if not never and (new or one.retain_handling != _SEND_IF_NEW):
                    new_subscribers.append(subscriber)
            codes.append(code)
        codes += [reasons.QUOTA_EXCEEDED] * (len(packet.subscriptions) - len(examined))
        if len(self._outbox.ops) > mark:
            self._outbox.hold(connection)
        answer = SubAck(packet.packet_id, tuple(codes), Properties(reason_string=reason or None))
        if not self._outbox.send_packet(connection, answer):
            self._too_large(connection, now)
            return
        for subscriber in new_subscribers:
            self._retainer.show(ns, subscriber, connection, now)

    def _refusal(self, connection: Connection, session: Session, one: Subscription) -> int:
        if is_too_deep(one.filter):
            return reasons.TOPIC_FILTER_INVALID
        if one.filter.startswith(SHARE_PREFIX) and not self._settings.shared_available:
            return reasons.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        if one.filter not in session.subscriptions:
            in_namespace = self._lifecycle.ns(session.namespace).subscriptions
            full = len(session.subscriptions) >= self._settings.subscriptions_max
            if full or self._settings.quota(session.namespace, "subscriptions", in_namespace):
                return reasons.QUOTA_EXCEEDED
        return self._access.may_subscribe(connection, one.filter)

    def unsubscribe(self, connection: Connection, session: Session, packet: Unsubscribe, now: int) -> None:
        mark = len(self._outbox.ops)
        codes: list[int] = []
        for topic_filter in packet.filters:
            subscriber = session.subscriptions.get(topic_filter)
            if subscriber is not None:
                self.remove(session, topic_filter)
                if subscriber.terms is not None and self._bridge is not None:
                    self._bridge.unsubscribed(connection, subscriber, now)
                codes.append(reasons.SUCCESS)
            else:
                codes.append(reasons.NO_SUBSCRIPTION_EXISTED)
        if len(self._outbox.ops) > mark:
            self._outbox.hold(connection)
        if not self._outbox.send_packet(connection, UnsubAck(packet.packet_id, tuple(codes))):
            self._too_large(connection, now)

    def remove(self, session: Session, topic_filter: str) -> None:
        self._lifecycle.ns(session.namespace).unsubscribe(session, topic_filter)
        self._session_store.unsubscribed(session, topic_filter)

    def _too_large(self, connection: Connection, now: int) -> None:
        """An answer that the client cannot take [MQTT-3.1.2-24]."""
        self._lifecycle.close(connection, now, reasons.PACKET_TOO_LARGE, "")
