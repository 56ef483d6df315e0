"""An MQTT client with a lasting session on the simulated network: it publishes with QoS 1 and 2, consumes, is cut.

What it remembers outlives its connections and the server's processes, as a client's own store would: it sends again
what was not answered, with DUP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from random import Random
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.core.commands import Settlement
from holdfast.mqtt.codec import (
    V5,
    ConnAck,
    Connect,
    Decoder,
    Packet,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    encode,
)
from tests.simulation.node.driver import SECOND, START
from tests.simulation.node.ledger import Ledger
from tests.simulation.node.loop import SimulatedLoop

PORT = 1883
REFUSED = 0x80
GROUP = "mqtt"


class Held(NamedTuple):
    """A delivery that the client has."""

    queue: str
    message_id: int
    deadline: float
    bugs: int  # that operations had met before it was acknowledged


class MqttSession:
    """The client's side of a session. `native`: a PUBACK settles a delivery."""

    def __init__(
        self, name: str, ledger: Ledger, payloads: count[int], queues: tuple[str, ...], *, native: bool = False
    ) -> None:
        self.name = name
        self._native = native
        self.resumed = 0
        self._ledger = ledger
        self._payloads = payloads
        self._queues = queues
        self._next_id = 0
        self._unanswered: dict[int, Publish] = {}  # sent and not answered by PUBACK or PUBREC
        self._settling: dict[int, tuple[str, int]] = {}  # acks among them: queue, message id
        self._behind: dict[int, list[Held]] = {}  # by PUBLISH: what PUBACKs before it on its connection settle
        self._released: dict[int, None] = {}  # PUBREL sent and not answered
        self.connection: MqttConnection | None = None

    async def live(self, loop: SimulatedLoop, random: Random, guarded: Callable[..., Callable[..., None]]) -> None:
        """Connect, publish for a while, be cut, and again."""
        while True:
            connection = self.connection = MqttConnection(self, guarded)
            try:
                loop.connect(PORT, connection)
            except ConnectionRefusedError:
                await asyncio.sleep(0.1)
                continue
            connection.send(Connect(self.name, V5, clean_start=False, properties=Properties(session_expiry_s=3_600)))
            for _ in range(random.randint(1, 30)):
                await asyncio.sleep(random.random() * 0.2)
                if connection.connected:
                    self._publish(connection, random)
            connection.cut()
            await asyncio.sleep(random.random() * 0.05)

    def cut(self) -> None:
        if self.connection is not None:
            self.connection.cut()

    def _id(self) -> int:
        self._next_id = self._next_id % 65_535 + 1
        return self._next_id

    def _publish(self, connection: MqttConnection, random: Random) -> None:
        packets: list[Packet] = []
        for _ in range(random.choice((1, 1, 3, 10))):
            qos = random.choice((1, 2))
            number = next(self._payloads)
            payload = b"%s%d" % (b"once" if qos == 2 else b"", number)
            name = (("message-id", f"mqtt{number}"),) if qos == 1 and random.random() < 0.5 else ()
            packet = Publish(
                f"$queue/{random.choice(self._queues)}",
                payload,
                qos,
                self._id(),
                properties=Properties(user_properties=name),
            )
            self._unanswered[packet.packet_id] = packet
            self._behind[packet.packet_id], connection.acked = connection.acked, []
            packets.append(packet)
        connection.send(*packets)

    def receive(self, connection: MqttConnection, packet: Packet) -> None:
        match packet:
            case ConnAck():
                self._connected(connection, packet)
            case PubAck() | PubRec():
                self._answered(connection, packet)
            case PubComp():
                self._released.pop(packet.packet_id, None)
            case Publish():
                self._delivered(connection, packet)
            case _:
                pass

    def _connected(self, connection: MqttConnection, packet: ConnAck) -> None:
        if packet.reason_code >= REFUSED:
            return
        connection.connected, connection.failures = True, self._ledger.failures
        self._behind = {}
        if packet.session_present:
            self.resumed += 1
            connection.send(*[replace(packet, dup=True) for packet in self._unanswered.values()])
            connection.send(*[PubRel(packet_id) for packet_id in self._released])
            return
        self._unanswered, self._settling, self._released = {}, {}, {}
        topics = tuple(Subscription(f"$queue/{queue}", 1) for queue in self._queues)
        mode = "puback" if self._native else "explicit"
        options = Properties(user_properties=(("consumer-group", GROUP), ("ack-mode", mode)))
        connection.send(Subscribe(self._id(), topics, options))

    def _answered(self, connection: MqttConnection, packet: PubAck | PubRec) -> None:
        sent = self._unanswered.pop(packet.packet_id, None)
        settles = self._settling.pop(packet.packet_id, None)
        good = packet.reason_code < REFUSED
        for held in self._behind.pop(packet.packet_id, ()):
            if held.deadline > self._ledger.clock() and held.bugs == self._ledger.bugs:
                self._ledger.acknowledged(held.queue, GROUP, held.message_id)
        if isinstance(packet, PubRec) and good:
            self._released[packet.packet_id] = None
            connection.send(PubRel(packet.packet_id))
        if sent is None or not good:
            return
        if settles is not None:
            queue, message_id = settles
            self._ledger.settled(queue, GROUP, [Settlement(message_id)], [None], durable=queue != "logs")
        elif sent.topic != "$queue/logs":
            self._ledger.payload_stored(sent.topic.removeprefix("$queue/"), sent.payload)

    def _delivered(self, connection: MqttConnection, packet: Publish) -> None:
        told = dict(packet.properties.user_properties)
        message_id = int(told.get("id", told["message-id"]))
        token = int(told["lease-token"])
        if not packet.dup:
            self._ledger.delivered(GROUP, message_id, token)
        if connection.failures == self._ledger.failures:
            deadline = int(told["lease-deadline"]) / 1_000 - START / SECOND
            self._ledger.held(GROUP, message_id, token, deadline)
            if self._native:
                connection.acked.append(Held(told["queue"], message_id, deadline, self._ledger.bugs))
        if self._native:
            connection.send(PubAck(packet.packet_id))
            return
        packet_id = self._id()
        pairs = (("message-id", told["message-id"]), ("lease-token", told["lease-token"]))
        settle = Publish(
            f"$queue/{told['queue']}/$ack", b"", 1, packet_id, properties=Properties(user_properties=pairs)
        )
        self._unanswered[packet_id] = settle
        self._settling[packet_id] = (told["queue"], message_id)
        connection.send(PubAck(packet.packet_id), settle)


class MqttConnection(asyncio.Protocol):
    """One connection of a session."""

    def __init__(self, session: MqttSession, guarded: Callable[..., Callable[..., None]]) -> None:
        self._session = session
        self._decoder = Decoder(V5, from_client=False)
        self._transport: asyncio.Transport | None = None
        self._receive = guarded(session.receive)
        self.acked: list[Held] = []  # since the last PUBLISH
        self.connected = False
        self.failures = 0  # of the store before it was connected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._session.connection is self:
            for packet in self._decoder.feed(data):
                self._receive(self, packet)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connected = False
        self._transport = None

    def send(self, *packets: Packet) -> None:
        if self._transport is not None and packets:
            self._transport.write(b"".join([encode(packet, V5) for packet in packets]))

    def cut(self) -> None:
        """Go without a word."""
        self.connected = False
        if self._transport is not None:
            self._transport.abort()
