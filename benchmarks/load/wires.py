"""The client's side of a protocol, as little of it as a load needs: packets are encoded once, answers are counted.

A wire is one connection on a plain blocking socket. Here are those to Holdfast, in `peers/wires.py` those to other
servers; `loop.py` has the loop that drives many of them.
"""

from __future__ import annotations

import re
import socket
from abc import ABC, abstractmethod

import msgspec

from holdfast.mqtt.codec import PINGREQ, V5, Connect, Properties, Publish, Subscribe, Subscription, encode

RECEIVE_BYTES = 1 << 18
SOCKET_BUFFER_BYTES = 1 << 20  # a burst fits, so that a blocking send never waits for a server that waits for us
CONTENT_LENGTH = re.compile(rb"(?i)content-length: *(\d+)")


class Wire:
    """One connection. What it received and could not interpret yet is in `_rest`."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        self._rest = b""

    def receive(self) -> bytes:
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection")
        return data

    def close(self) -> None:
        self.socket.close()


class PublisherWire(Wire, ABC):
    """A connection that stores messages."""

    @abstractmethod
    def encode(self, payload: bytes) -> bytes:
        """A request to store this message."""

    @abstractmethod
    def confirmed(self, data: bytes) -> int:
        """How many messages these bytes confirm."""


class ConsumerWire(Wire, ABC):
    """A connection that takes messages and acks each."""

    @abstractmethod
    def delivered(self, data: bytes) -> tuple[list[bytes], bytes]:
        """The payloads in these bytes, and what to answer: acks, and requests for more."""

    @abstractmethod
    def wait_acked(self) -> None:
        """Until the server has processed every ack."""


# --- MQTT 5 -----------------------------------------------------------------------------------------------------------

PACKET_IDS = 60_000
SUBSCRIBED_TOGETHER = 100


class MqttWire(PublisherWire, ConsumerWire):
    """QoS 1 to and from queues, in turn to each of them; PUBACK is the ack."""

    def __init__(self, port: int, client: str, *queues: str) -> None:
        super().__init__(port)
        self._queues = queues
        self._next = 0
        self.socket.sendall(encode(Connect(client, V5), V5))
        self._expect(0x20)

    def encode(self, payload: bytes) -> bytes:
        self._next += 1
        topic = f"$queue/{self._queues[self._next % len(self._queues)]}"
        return encode(Publish(topic, payload, 1, self._next % PACKET_IDS + 1), V5)

    def confirmed(self, data: bytes) -> int:
        return sum(self._acked(packet) for packet in self._packets(data) if packet[0] == 0x40)

    @staticmethod
    def _acked(packet: bytes) -> int:
        if len(packet) > 4 and packet[4] >= 0x80:
            raise RuntimeError(f"PUBACK with reason 0x{packet[4]:02x}")
        return 1

    def consume(self, prefetch: int, group: str = "bench") -> MqttWire:
        options = (("consumer-group", group), ("ack-mode", "puback"), ("prefetch", str(prefetch)))
        for start in range(0, len(self._queues), SUBSCRIBED_TOGETHER):
            filters = [f"$queue/{queue}" for queue in self._queues[start : start + SUBSCRIBED_TOGETHER]]
            subscriptions = tuple(Subscription(one, 1) for one in filters)
            self.socket.sendall(encode(Subscribe(1, subscriptions, Properties(user_properties=options)), V5))
            suback = self._expect(0x90)
            if max(suback[-len(filters) :]) >= 0x80:
                raise RuntimeError(f"SUBACK {suback!r}")
        return self

    def delivered(self, data: bytes) -> tuple[list[bytes], bytes]:
        payloads: list[bytes] = []
        acks: list[bytes] = []
        for packet in self._packets(data):
            if packet[0] & 0xF0 != 0x30:
                continue
            _, at = varint(packet, 1)
            at += 2 + int.from_bytes(packet[at : at + 2])
            acks.append(b"\x40\x02" + packet[at : at + 2])
            properties, at = varint(packet, at + 2)
            payloads.append(packet[at + properties :])
        return payloads, b"".join(acks)

    def wait_acked(self) -> None:
        self.socket.sendall(PINGREQ)
        while not any(packet[0] == 0xD0 for packet in self._packets(self.receive())):
            pass

    def _packets(self, data: bytes) -> list[bytes]:
        """The packets that are complete."""
        found: list[bytes] = []
        data, start = self._rest + data, 0
        while len(data) - start >= 2:
            try:
                size, body = varint(data, start + 1)
            except IndexError:  # its length is not complete
                break
            if len(data) < body + size:
                break
            found.append(data[start : body + size])
            start = body + size
        self._rest = data[start:]
        return found

    def _expect(self, kind: int) -> bytes:
        """The first packet that comes, which must be of this kind; what follows it is kept."""
        packets = self._packets(b"")
        while not packets:
            packets = self._packets(self.receive())
        first, *others = packets
        if first[0] != kind:
            raise RuntimeError(f"expected a packet 0x{kind:02x}, received {first!r}")
        self._rest = b"".join(others) + self._rest
        return first


def varint(data: bytes, at: int) -> tuple[int, int]:
    """MQTT's number of variable length, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


# --- HTTP -------------------------------------------------------------------------------------------------------------


class HttpWire(Wire):
    """One request at a time."""

    def __init__(self, port: int, queue: str) -> None:
        super().__init__(port)
        self._queue = queue

    def _request(self, path: str, body: object) -> bytes:
        data = msgspec.json.encode(body)
        head = f"POST /api/v1/queues/{self._queue}/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        return f"{head}Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data

    def _response(self, data: bytes) -> bytes | None:
        """The body, if the response is complete."""
        self._rest += data
        head, found, body = self._rest.partition(b"\r\n\r\n")
        if not found or len(body) < (size := int(CONTENT_LENGTH.findall(head)[0])):
            return None
        if not head.startswith(b"HTTP/1.1 2"):
            raise RuntimeError(body.decode())
        self._rest = body[size:]
        return body[:size]


class HttpPublisher(HttpWire, PublisherWire):
    """One message a request."""

    def encode(self, payload: bytes) -> bytes:
        return self._request("messages", {"messages": [{"text": payload.decode()}]})

    def confirmed(self, data: bytes) -> int:
        return int(self._response(data) is not None)


class LeasedDelivery(msgspec.Struct):
    """What a consumer needs of a delivery in the answer to a lease."""

    id: str
    lease_token: str
    text: str


class LeaseAnswer(msgspec.Struct):
    deliveries: list[LeasedDelivery]


class HttpConsumer(HttpWire, ConsumerWire):
    """Leases a batch, settles it, leases the next."""

    def __init__(self, port: int, queue: str, batch: int) -> None:
        super().__init__(port, queue)
        self._lease = self._request("leases", {"limit": batch, "wait": "5s"})
        self._decoder = msgspec.json.Decoder(LeaseAnswer)
        self._settling = False
        self.socket.sendall(self._lease)

    def delivered(self, data: bytes) -> tuple[list[bytes], bytes]:
        body = self._response(data)
        if body is None:
            return [], b""
        deliveries = [] if self._settling else self._decoder.decode(body).deliveries
        self._settling = bool(deliveries)
        if not deliveries:
            return [], self._lease
        done = [{"id": one.id, "lease_token": one.lease_token} for one in deliveries]
        return [one.text.encode() for one in deliveries], self._request("settle", {"settlements": done})

    def wait_acked(self) -> None:
        while self._settling:
            self._settling = self._response(self.receive()) is None
