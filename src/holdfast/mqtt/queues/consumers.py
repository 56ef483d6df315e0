"""Consumers of queues on one connection: what each subscription holds, and what waits for room in the window.

A delivery is already leased when it arrives here. It is sent as soon as the connection's window has room, and the
session maps its packet identifier to a `SentDelivery` until the client acknowledges it. With QoS 1 a native consumer's
PUBACK settles the delivery; an explicit consumer's PUBACK only frees the window, and a PUBLISH on a settle topic
settles the delivery. QoS 0 has no acknowledgement: a native consumer then gets at-most-once delivery. What is sent
counts as acked, and leaves when its ack is written: else a crash in between would have it delivered again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from itertools import accumulate
from typing import Protocol

import msgspec
from msgspec.structs import replace

from holdfast.core.commands import Leased, Settlement, Verb
from holdfast.engine.catalog import QueueName
from holdfast.mqtt.codec import PACKET_BYTES_MAX
from holdfast.mqtt.queues.deliveries import DeliveryEncoder
from holdfast.mqtt.sessions.connection import Connection
from holdfast.mqtt.sessions.hub import Hub
from holdfast.mqtt.sessions.session import Session, Subscriber, Terms


class SentDelivery(msgspec.Struct, frozen=True, eq=False):
    """A delivery that was sent. `name` is the producer's message id, if it gave one. The payload is not kept: it is
    read from the store again if it is needed."""

    consumer: Consumer
    message_id: int
    token: int
    partition: int
    name: str | None

    @property
    def external_id(self) -> str:
        """The identifier that the client saw."""
        return str(self.message_id) if self.name is None else self.name


class Membership(Protocol):
    """A member of a group: what the node offers."""

    def adopt(self, leased: Leased) -> None: ...
    def leave(self, verb: Verb | None = ...) -> None: ...


class Settles(Protocol):
    """The bridge."""

    def settle(self, queue: QueueName, group: str, settlement: Settlement) -> None: ...
    def now(self) -> int: ...


class Consumer:
    """One subscription to a queue on a live connection.

    An explicit consumer's deliveries are in `held`, by the identifier the client saw, until they are settled; then they
    are in `settled` for a while, so that a repeated settlement gets the same answer. A native consumer's deliveries are
    in the session's leases. Both drop the oldest entries beyond what the client can hold.
    """

    __slots__ = (
        "_feed",
        "_kept_max",
        "encoder",
        "filter",
        "group",
        "held",
        "membership",
        "native",
        "qos",
        "queue",
        "settled",
    )  # fmt: skip

    def __init__(self, feed: Feed, subscriber: Subscriber, queue: QueueName, terms: Terms) -> None:
        self._feed = feed
        self._kept_max = 2 * terms.prefetch + 16  # what it can hold, and some whose leases have ended
        self.filter = subscriber.filter
        self.queue = queue
        self.group = terms.group
        self.native = terms.native
        self.qos = subscriber.qos
        self.encoder = DeliveryEncoder(queue[1], terms.group, subscriber.qos, feed.connection.version, subscriber.ids)
        self.membership: Membership  # set when it joins, before anything is delivered
        self.held: dict[str, SentDelivery] = {}
        self.settled: dict[str, SentDelivery] = {}

    def deliver(self, batch: list[Leased]) -> None:
        """From the node: these were leased for this consumer."""
        feed = self._feed
        feed.waiting.append((self, batch))
        feed.pump(feed.bridge.now())

    def to_sent(self, batch: list[Leased]) -> list[SentDelivery]:
        return [
            SentDelivery(self, (message := leased.message).id, leased.token, leased.partition, message.extra.message_id)
            for leased in batch
        ]

    def hold(self, sent: SentDelivery) -> None:
        held = self.held
        name = sent.external_id
        before = held.get(name)
        if before is not None and before.message_id != sent.message_id:
            name = str(sent.message_id)  # its producer's identifier is another message's too
        held.pop(name, None)  # one that comes again is the newest
        held[name] = sent
        if len(held) > self._kept_max:
            del held[next(iter(held))]

    def mark_settled(self, sent: SentDelivery) -> None:
        """The client has settled it by topic."""
        name = sent.external_id
        own = str(sent.message_id)
        if self.held.get(name) is sent:
            del self.held[name]
        elif self.held.get(own) is sent:
            del self.held[own]
        elif self.native:
            leases = self._feed.session.leases
            for packet_id in [packet_id for packet_id, lease in leases.items() if lease is sent]:
                leases[packet_id] = None  # the identifier stays in use until its PUBACK
        self.settled[own] = sent
        if len(self.settled) > self._kept_max:
            del self.settled[next(iter(self.settled))]

    def find(self, message_id: str, token: int, *, oldest: bool) -> SentDelivery | None:
        """The delivery with this identifier and token; without either the oldest one, if `oldest`."""
        if not message_id and not token:
            return next(self._out(), None) if oldest else None
        sent = self.held.get(message_id)
        if sent is not None and (not token or token == sent.token):
            return sent
        known = (*self._out(), *self.settled.values())
        return next((one for one in known if _matches(one, message_id, token)), None)

    def _out(self) -> Iterator[SentDelivery]:
        """What the client holds, oldest first."""
        for sent in list(self._feed.session.leases.values() if self.native else self.held.values()):
            if isinstance(sent, SentDelivery) and sent.consumer is self:
                yield sent

    def take_over(self, before: Consumer) -> None:
        """Replace the consumer of the same filter, after the client subscribed to it again."""
        self.held = {name: replace(sent, consumer=self) for name, sent in before.held.items()}
        self.settled = before.settled
        waiting = self._feed.waiting
        for index, (consumer, run) in enumerate(waiting):
            if consumer is before:
                waiting[index] = (self, run)
        leases = self._feed.session.leases
        for packet_id, lease in leases.items():
            if isinstance(lease, SentDelivery) and lease.consumer is before:
                leases[packet_id] = replace(lease, consumer=self)


class Feed:
    """All consumers of one connection, sharing its window. What waits, in runs of one consumer, is bounded by the
    consumers' prefetch."""

    __slots__ = ("_buffer_bytes", "_outbox", "bridge", "connection", "consumers", "session", "waiting")

    def __init__(self, bridge: Settles, hub: Hub, connection: Connection, session: Session) -> None:
        self.bridge = bridge
        self._outbox = hub.outbox
        self._buffer_bytes = hub.settings.buffer_bytes
        self.connection = connection
        self.session = session
        self.consumers: dict[str, Consumer] = {}
        self.waiting: deque[tuple[Consumer, list[Leased]]] = deque()

    def pump(self, now: int) -> None:
        """Send what waits, as far as the window allows. Beyond what a connection may buffer it goes on when that has
        been sent."""
        waiting = self.waiting
        if not waiting:
            return
        connection = self.connection
        left_bytes = self._buffer_bytes
        while waiting and not connection.paused and not connection.closing:
            if left_bytes <= 0:
                self._outbox.unfinished[connection] = None
                return
            consumer, run = waiting[0]
            most = connection.quota if consumer.qos else len(run)
            if most <= 0:
                return
            sizes = [len(leased.message.payload) for leased in run[:most]]
            if sum(sizes) > left_bytes:
                sizes = sizes[: bisect_left(list(accumulate(sizes)), left_bytes) + 1]
            left_bytes -= sum(sizes)
            if len(sizes) < len(run):
                waiting[0] = (consumer, run[len(sizes) :])
                run = run[: len(sizes)]
            else:
                waiting.popleft()
            batch = [leased for leased in run if leased.deadline > now]  # else it has expired while it waited
            if batch:
                self._send(consumer, batch, now)

    def _send(self, consumer: Consumer, batch: list[Leased], now: int) -> None:
        connection = self.connection
        sent_deliveries = consumer.to_sent(batch)
        if consumer.qos:
            connection.quota -= len(batch)
            ids = self.session.allocate_packet_ids(sent_deliveries)
        else:
            ids = [0] * len(batch)
        packets = consumer.encoder.encode(batch, ids, now)
        limit = connection.packet_bytes_max
        if limit < PACKET_BYTES_MAX:
            packets = self._fitting(consumer, batch, ids, packets, limit)
        if consumer.native and not consumer.qos:
            self._send_once(consumer, batch, b"".join(packets))  # all: this is 3.1.1, without a Maximum Packet Size
            return
        if packets:
            self._outbox.send(connection, b"".join(packets), len(packets))
        if not consumer.native:
            for sent in sent_deliveries:
                consumer.hold(sent)

    def _fitting(
        self, consumer: Consumer, batch: list[Leased], ids: list[int], packets: list[bytes], limit: int
    ) -> list[bytes]:
        """Those that the client takes."""
        fitting: list[bytes] = []
        for leased, packet_id, packet in zip(batch, ids, packets, strict=True):
            if len(packet) <= limit:
                fitting.append(packet)
            else:
                self._too_large(consumer, leased, packet_id, len(packet))
        return fitting

    def _send_once(self, consumer: Consumer, batch: list[Leased], data: bytes) -> None:
        """At most once: it is acked before it leaves."""
        self._outbox.send_when_written(self.connection, data, len(batch))
        for leased in batch:
            self.bridge.settle(consumer.queue, consumer.group, _settlement(leased, Verb.ACK))

    def _too_large(self, consumer: Consumer, leased: Leased, packet_id: int, size_bytes: int) -> None:
        """The packet exceeds the client's maximum [MQTT-3.1.2-24]: the attempt fails; another consumer can retry."""
        if packet_id:
            del self.session.leases[packet_id]
            self.connection.quota += 1
        limit = self.connection.packet_bytes_max
        error = f"the packet has {size_bytes} bytes; the consumer takes at most {limit} (Maximum Packet Size)"
        self.bridge.settle(consumer.queue, consumer.group, _settlement(leased, Verb.NACK, error))

    def send_again(self, consumer: Consumer, packet_id: int, leased: Leased, now: int) -> None:
        """Send what the client already had on an earlier connection, under the same identifier if not acknowledged."""
        connection = self.connection
        [data] = consumer.encoder.encode([leased], [packet_id], now, dup=True)
        if connection.paused or connection.quota <= 0 or len(data) > connection.packet_bytes_max:
            self.waiting.append((consumer, [leased]))
            return
        if consumer.native and not consumer.qos:
            self._send_once(consumer, [leased], data)
            return
        [sent] = consumer.to_sent([leased])
        if packet_id:
            connection.quota -= 1
            self.session.leases[packet_id] = sent
        self._outbox.send(connection, data)
        if not consumer.native:
            consumer.hold(sent)

    def release_waiting(self) -> None:
        """The connection has ended: release what was not sent, without spending an attempt."""
        for consumer, run in self.waiting:
            for leased in run:
                self.bridge.settle(consumer.queue, consumer.group, _settlement(leased, Verb.RELEASE))
        self.waiting.clear()

    def leave(self, verb: Verb | None) -> None:
        """The connection has ended: leases are released, failed, or kept for the client's return (None)."""
        for consumer in self.consumers.values():
            consumer.membership.leave(verb)
        self.consumers.clear()

    def remove(self, consumer: Consumer) -> None:
        """The client unsubscribed: release what it holds."""
        if self.consumers.get(consumer.filter) is consumer:
            del self.consumers[consumer.filter]
        self.waiting = deque(item for item in self.waiting if item[0] is not consumer)
        for packet_id, lease in list(self.session.leases.items()):
            if isinstance(lease, SentDelivery) and lease.consumer is consumer:
                self.session.leases[packet_id] = None  # the identifier stays in use until its PUBACK
        consumer.membership.leave(Verb.RELEASE)


def _matches(sent: SentDelivery, message_id: str, token: int) -> bool:
    """The client may use the producer's identifier or the broker's; the token distinguishes leases of one message."""
    if token and token != sent.token:
        return False
    return not message_id or message_id in (sent.name, str(sent.message_id))


def _settlement(leased: Leased, verb: Verb, error: str = "") -> Settlement:
    return Settlement(leased.message.id, leased.token, verb, error=error, partition=leased.partition)
