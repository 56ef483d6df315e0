"""Consumers of queues on one connection: what each subscription holds, and what waits for room in the window.

A delivery is leased when it arrives here. It goes out as soon as the connection has room; behind its packet identifier
stands a `Ticket` until the client has answered. With QoS 1 a native consumer's PUBACK settles it; an explicit one's
only frees the window, and the delivery is settled by a PUBLISH on a settle topic. With QoS 0 nothing answers: a native
consumer is then served at most once, and what was sent counts as acked.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import msgspec

from holdfast.core.commands import Leased, Settlement, Verb
from holdfast.mqtt.codec import PACKET_BYTES_MAX, V5
from holdfast.mqtt.connection import Connection
from holdfast.mqtt.queues.deliveries import Form
from holdfast.mqtt.session import Session, Subscriber, Terms

QueueName = tuple[str, str]


class Ticket(msgspec.Struct, frozen=True, eq=False):
    """A delivery that was sent and not answered. The payload is not kept: it is read again should it be needed."""

    consumer: Consumer
    message_id: int
    token: int
    partition: int


class Membership(Protocol):
    """A member of a group, as the node has it."""

    def adopt(self, leased: Leased) -> None: ...
    def leave(self, verb: Verb | None = ...) -> None: ...


class Outlet(Protocol):
    """Where a feed sends, and where it settles."""

    def room(self, connection: Connection) -> int: ...
    def lend(self, connection: Connection, session: Session, leases: list[object]) -> list[int]: ...
    def send(self, connection: Connection, data: bytes) -> None: ...
    def settle(self, queue: QueueName, group: str, settlement: Settlement) -> None: ...
    def now(self) -> int: ...
    def soon(self) -> None: ...


class Consumer:
    """One subscription to a queue on a live connection.

    `held` finds a delivery by the identifier the client saw; it forgets the oldest beyond what the client can have.
    """

    __slots__ = ("_feed", "_held_max", "filter", "form", "group", "held", "membership", "native", "qos", "queue")

    def __init__(self, feed: Feed, subscriber: Subscriber, queue: QueueName, terms: Terms) -> None:
        self._feed = feed
        self._held_max = 2 * terms.prefetch + 16  # those it has, and some whose leases ended meanwhile
        self.filter = subscriber.filter
        self.queue = queue
        self.group = terms.group
        self.native = terms.native
        self.qos = subscriber.qos
        self.form = Form(queue[1], terms.group, subscriber.qos, feed.connection.version, subscriber.ids)
        self.membership: Membership | None = None
        self.held: dict[str, Leased] = {}

    def deliver(self, batch: list[Leased]) -> None:
        """From the node: these were leased for this consumer."""
        feed = self._feed
        feed.waiting.extend([(self, leased) for leased in batch])
        feed.pump(feed.outlet.now())
        feed.outlet.soon()  # the turn that leased them is over: without another nobody would send what was pumped

    def hold(self, leased: Leased) -> None:
        message = leased.message
        held = self.held
        held[message.extra.message_id or str(message.id)] = leased
        if len(held) > self._held_max:
            del held[next(iter(held))]


class Feed:
    """All consumers of one connection, sharing its window. What waits is bounded by the consumers' prefetch."""

    __slots__ = ("connection", "consumers", "outlet", "session", "waiting")

    def __init__(self, outlet: Outlet, connection: Connection, session: Session) -> None:
        self.outlet = outlet
        self.connection = connection
        self.session = session
        self.consumers: dict[str, Consumer] = {}
        self.waiting: deque[tuple[Consumer, Leased]] = deque()

    def pump(self, now: int) -> None:
        """Send what waits, as far as the window allows: runs of one consumer at a time."""
        connection = self.connection
        waiting = self.waiting
        while waiting and not connection.paused and not connection.closing:
            consumer = waiting[0][0]
            most = self.outlet.room(connection) if consumer.qos else len(waiting)
            run: list[Leased] = []
            while waiting and waiting[0][0] is consumer and len(run) < most:
                run.append(waiting.popleft()[1])
            if not run:
                return
            if self.consumers.get(consumer.filter) is consumer:
                self._send(consumer, run, now)

    def _send(self, consumer: Consumer, run: list[Leased], now: int) -> None:
        connection = self.connection
        outlet = self.outlet
        ids = [0] * len(run)
        if consumer.qos:
            tickets = [Ticket(consumer, leased.message.id, leased.token, leased.partition) for leased in run]
            ids = outlet.lend(connection, self.session, list[object](tickets))
        packets = consumer.form.encode(run, ids, now)
        limit = connection.packet_bytes_max
        if limit < PACKET_BYTES_MAX:
            for index in [index for index, packet in enumerate(packets) if len(packet) > limit]:
                self._too_large(consumer, run[index], ids[index], len(packets[index]))
                packets[index] = b""
        outlet.send(connection, b"".join(packets))
        if not consumer.native or connection.version != V5:
            for leased in run:
                consumer.hold(leased)
        if not consumer.qos and consumer.native:
            for leased in run:
                outlet.settle(consumer.queue, consumer.group, _settlement(leased, Verb.ACK))

    def _too_large(self, consumer: Consumer, leased: Leased, packet_id: int, size_bytes: int) -> None:
        """The client cannot take it [MQTT-3.1.2-24]: that is a failed attempt, and another consumer may do better."""
        if packet_id:
            del self.session.leases[packet_id]
            self.connection.quota += 1
        limit = self.connection.packet_bytes_max
        error = f"the packet has {size_bytes} bytes; the consumer takes at most {limit} (Maximum Packet Size)"
        self.outlet.settle(consumer.queue, consumer.group, _settlement(leased, Verb.NACK, error))

    def send_again(self, consumer: Consumer, packet_id: int, leased: Leased, now: int) -> bool:
        """What the client did not answer on the connection before. False if there is no room for it now."""
        [data] = consumer.form.encode([leased], [packet_id], now, dup=True)
        if self.connection.quota <= 0 or len(data) > self.connection.packet_bytes_max:
            return False
        self.connection.quota -= 1
        self.outlet.send(self.connection, data)
        consumer.hold(leased)
        return True

    def leave(self, verb: Verb | None) -> None:
        """The connection has ended: leases are released, failed, or kept for the client's return (None)."""
        for consumer in self.consumers.values():
            if consumer.membership is not None:
                consumer.membership.leave(verb)
        if verb is None:  # what was never sent goes back at once
            self.give_back(self.waiting)
        self.consumers.clear()
        self.waiting.clear()

    def remove(self, consumer: Consumer) -> None:
        """The client unsubscribed: it wants no more of this queue, and what it holds is released."""
        del self.consumers[consumer.filter]
        self.waiting = deque(item for item in self.waiting if item[0] is not consumer)
        for packet_id, lease in list(self.session.leases.items()):
            if isinstance(lease, Ticket) and lease.consumer is consumer:
                self.session.leases[packet_id] = None  # the identifier stays in use until its PUBACK
        if consumer.membership is not None:
            consumer.membership.leave(Verb.RELEASE)

    def give_back(self, items: deque[tuple[Consumer, Leased]]) -> None:
        for consumer, leased in items:
            self.outlet.settle(consumer.queue, consumer.group, _settlement(leased, Verb.RELEASE))


def _settlement(leased: Leased, verb: Verb, error: str = "") -> Settlement:
    return Settlement(leased.message.id, leased.token, verb, error=error, partition=leased.partition)
