"""What the MQTT front counts, for `/metrics` and `$SYS/`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from holdfast.broker.front_metrics import MetricSample, MetricSpec
from holdfast.mqtt.codec import Packet
from holdfast.mqtt.sessions.hub import Hub

KINDS = (
    *("", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP", "SUBSCRIBE", "SUBACK"),
    *("UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH"),
)
"""Kinds of packets by the number in their first four bits."""

SERIES = {
    "connections": MetricSpec("mqtt_connections", "gauge", "Clients that are connected over MQTT."),
    "sessions": MetricSpec("mqtt_sessions", "gauge", "MQTT sessions, of clients that are connected or may come back."),
    "subscriptions": MetricSpec("mqtt_subscriptions", "gauge", "Subscriptions of MQTT sessions."),
    "retained": MetricSpec("mqtt_retained", "gauge", "Retained messages."),
    "retained_bytes": MetricSpec("mqtt_retained_bytes", "gauge", "Bytes of retained messages and their topics."),
    "inflight": MetricSpec("mqtt_inflight", "gauge", "Messages sent to MQTT clients and not acknowledged yet."),
    "queued": MetricSpec("mqtt_queued", "gauge", "Messages that wait in MQTT sessions."),
    "received": MetricSpec("mqtt_packets_received", "counter", "MQTT packets that came in.", "kind"),
    "sent": MetricSpec("mqtt_packets_sent", "counter", "MQTT packets that went out.", "kind"),
    "dropped": MetricSpec(
        "mqtt_dropped",
        "counter",
        "Messages that did not reach a session: it was `full`, they had `expired` or were too `large`, its client was"
        " too `slow`, or they were over a namespace's `rate`.",
        "reason",
    ),
    "refused": MetricSpec("mqtt_refused", "counter", "Clients that were not let in."),
    "violations": MetricSpec("mqtt_violations", "counter", "Connections that broke the protocol."),
}


class Traffic:
    """Counters that outlive a hub."""

    def __init__(self) -> None:
        self.received: Counter[type] = Counter()
        self.sent = [0] * len(KINDS)  # of hubs that are gone, as the next
        self.dropped: Counter[str] = Counter()
        self.refused = 0
        self.violations = 0
        self.bytes_received = 0
        self.bytes_sent = 0
        self.sockets = 0  # that were opened
        self.connected_max = 0  # clients at the same time

    def count_received(self, packets: list[Packet]) -> None:
        """Packets of one read."""
        if len(packets) == 1:
            self.received[type(packets[0])] += 1
        else:
            self.received.update(map(type, packets))

    def add(self, hub: Hub) -> None:
        """What a hub has counted, which is thrown away."""
        self.dropped.update(hub.dropped)
        self.sent = _added(self.sent, hub.outbox.sent)

    def readings(self, hub: Hub | None) -> Iterator[MetricSample]:
        """All series; without a hub, while the store is unavailable, there are no connections."""
        counted = hub_counts(hub) if hub is not None else {}
        for key in ("connections", "sessions", "subscriptions", "retained", "retained_bytes", "inflight", "queued"):
            yield MetricSample(SERIES[key], {"": counted.get(key, 0)})
        received = {kind.__name__.upper(): count for kind, count in self.received.items()}
        yield MetricSample(SERIES["received"], dict(received))
        yield MetricSample(SERIES["sent"], dict(sent_of(self, hub)))
        dropped = self.dropped + hub.dropped if hub is not None else self.dropped
        yield MetricSample(SERIES["dropped"], dict(dropped))
        yield MetricSample(SERIES["refused"], {"": self.refused})
        yield MetricSample(SERIES["violations"], {"": self.violations})


def _added(counts: list[int], others: list[int]) -> list[int]:
    return [count + other for count, other in zip(counts, others, strict=True)]


def sent_of(traffic: Traffic, hub: Hub | None) -> dict[str, int]:
    """Packets that went out, by kind."""
    sent = _added(traffic.sent, hub.outbox.sent) if hub is not None else traffic.sent
    return {KINDS[kind]: count for kind, count in enumerate(sent) if count}


def hub_counts(hub: Hub) -> dict[str, int]:
    """What there is at the moment."""
    sessions = [session for ns in hub.namespaces.values() for session in ns.sessions.values()]
    return {
        "connections": sum(1 for session in sessions if session.connection is not None),
        "sessions": len(sessions),
        "subscriptions": sum(len(session.subscriptions) for session in sessions),
        "retained": sum(len(ns.retained) for ns in hub.namespaces.values()),
        "retained_bytes": sum(ns.retained_bytes for ns in hub.namespaces.values()),
        "inflight": sum(len(session.inflight) + len(session.leases) for session in sessions),
        "queued": sum(len(session.queue) for session in sessions),
        "queued_bytes": sum(session.queued_bytes for session in sessions),
        "shares": sum(len(ns.shares) for ns in hub.namespaces.values()),
    }
