"""A client that sends what it is told, right or wrong, and reads what comes back packet by packet."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from holdfast.mqtt.codec import (
    V5,
    ConnAck,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    encode,
)
from tests.waiting import PATIENCE_SECONDS

"""How long anything may take on a busy machine before it counts as never."""


class Ended(Exception):
    """The server has closed the connection."""


class Client:
    """`connack` is the answer to its CONNECT."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = Decoder(version, from_client=False)
        self._packets: list[Packet] = []
        self.version = version
        self.connack = ConnAck()

    @classmethod
    async def open(cls, host: str, port: int, version: int = V5) -> Client:
        return cls(*await asyncio.open_connection(host, port), version)

    # --- sending ----------------------------------------------------------------------------------------------------

    async def send(self, *packets: Packet) -> None:
        await self.send_raw(b"".join(encode(packet, self.version) for packet in packets))

    async def send_raw(self, raw: bytes) -> None:
        self._writer.write(raw)
        with contextlib.suppress(ConnectionError):  # what the server said before it closed can still be read
            await self._writer.drain()

    async def connect(self, packet: Connect) -> ConnAck:
        await self.send(packet)
        answer = await self.next()
        assert isinstance(answer, ConnAck)
        self.connack = answer
        return answer

    async def subscribe(
        self,
        *filters: str,
        qos: int = 0,
        identifier: int = 0,
        no_local: bool = False,
        rap: bool = False,
        handling: int = 0,
    ) -> tuple[int, ...]:
        """Returns the codes of SUBACK."""
        options = [Subscription(one, qos, no_local, rap, handling) for one in filters]
        properties = Properties(subscription_ids=(identifier,) if identifier else ())
        await self.send(Subscribe(9, tuple(options), properties))
        answer = await self.next()
        assert isinstance(answer, SubAck)
        assert answer.packet_id == 9
        return answer.reason_codes

    async def publish(
        self,
        topic: str,
        payload: bytes = b"x",
        qos: int = 0,
        packet_id: int = 7,
        retain: bool = False,
        dup: bool = False,
        properties: Properties | None = None,
    ) -> int:
        """Sees the handshake through. Returns the reason code of PUBACK or PUBREC; a PINGRESP stands in at QoS 0."""
        packet = Publish(topic, payload, qos, packet_id if qos else 0, retain, dup, properties or Properties())
        await self.send(packet)
        if not qos:
            await self.ping()
            return 0
        answer = await self.next()
        assert isinstance(answer, PubAck if qos == 1 else PubRec)
        assert answer.packet_id == packet_id
        if qos == 2 and answer.reason_code < 0x80:
            await self.send(PubRel(packet_id))
            await self.expect(PubComp(packet_id))
        return answer.reason_code

    async def acknowledge(self, packet: Publish) -> None:
        """Complete the handshake as the receiver."""
        if packet.qos == 1:
            await self.send(PubAck(packet.packet_id))
        elif packet.qos == 2:
            await self.send(PubRec(packet.packet_id))
            await self.expect(PubRel(packet.packet_id))
            await self.send(PubComp(packet.packet_id))

    async def ping(self) -> None:
        """What was sent before has been handled when this returns, if nothing else is on its way."""
        await self.send(PingReq())
        await self.expect(PingResp())

    async def disconnect(self, reason_code: int = 0, properties: Properties | None = None) -> None:
        await self.send(Disconnect(reason_code, properties or Properties()))
        await self.ended()

    def cut(self) -> None:
        """Vanish."""
        self._writer.transport.abort()

    # --- reading ----------------------------------------------------------------------------------------------------

    async def next(self) -> Packet:
        """The next packet, or `Ended`."""
        while not self._packets:
            async with asyncio.timeout(PATIENCE_SECONDS):
                try:
                    data = await self._reader.read(65536)
                except ConnectionError:
                    data = b""
            if not data:
                raise Ended
            self._packets += self._decoder.feed(data)
        return self._packets.pop(0)

    async def expect(self, *packets: Packet) -> None:
        """These packets come next."""
        seen = [await self.next() for _ in packets]
        assert seen == list(packets), f"{seen} came, not {packets}"

    async def next_publish(self) -> Publish:
        packet = await self.next()
        assert isinstance(packet, Publish), packet
        return packet

    async def publishes(self, count: int) -> list[Publish]:
        return [await self.next_publish() for _ in range(count)]

    async def payloads(self, count: int) -> list[bytes]:
        return [packet.payload for packet in await self.publishes(count)]

    async def silent(self) -> None:
        """Nothing has come that was not read, and the connection lives."""
        await self.ping()

    def unread(self) -> int:
        """Bytes and packets that have come and were not looked at."""
        return len(self._packets) + len(self._reader._buffer)  # type: ignore[attr-defined]

    async def ended(self) -> list[Packet]:
        """What still came before the server closed the connection; fails if it does not."""
        seen: list[Packet] = []
        with contextlib.suppress(Ended):
            while True:
                seen.append(await self.next())
        self.cut()
        return seen

    async def refused(self) -> int:
        """The reason code with which the server ended the connection: DISCONNECT or CONNACK, or 0 without a word."""
        seen = await self.ended()
        last: Sequence[Packet] = seen[-1:]
        for packet in last:
            assert isinstance(packet, (Disconnect, ConnAck)), seen
            return packet.reason_code
        return 0
