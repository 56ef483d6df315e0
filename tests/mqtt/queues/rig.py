"""A server with both fronts on free ports, a clock that can be moved on, and a client that shows every packet."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.auth.gate import Gate
from holdfast.broker.node import Node, wall_clock
from holdfast.broker.webhooks import Webhooks
from holdfast.config import Config
from holdfast.config.settings import HttpSettings, JournalSettings, MqttSettings, NodeSettings
from holdfast.engine.stats import GroupStats
from holdfast.http_api import HttpFront
from holdfast.mqtt.codec import (
    V5,
    V311,
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
    UnsubAck,
    Unsubscribe,
    Will,
    encode,
)
from holdfast.mqtt.net import MqttFront
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.memory import MemoryStore
from holdfast.units import SECOND
from tests.mqtt import pipe
from tests.waiting import PATIENCE_SECONDS, until

T = TypeVar("T", bound=object)
SPACE = "default"
STARTED = 1_772_323_200_000_000  # where the clock of a server in this process stands until a test moves it


def config_for(path: Path, **parts: msgspec.Struct) -> Config:
    """The defaults on free ports, with everything below `path` and no segment written unless a test asks for it."""
    return replace(
        Config(
            node=NodeSettings(data_dir=path),
            journal=JournalSettings(segment_age=3_600_000_000),
            http=HttpSettings(listen="127.0.0.1:0"),
            mqtt=MqttSettings(listen="127.0.0.1:0", stats_interval=100_000, keep_alive_max=0),
        ),
        **parts,
    )


class Server:
    """A node with its fronts, as `holdfast serve` wires them.

    On a memory store its clients need no socket, its syncs no thread, and its clock moves only when a test moves it, so
    that everything happens in the same order in every run: the coverage of these tests is a gate.
    """

    def __init__(self, config: Config, store: Store, *, in_process: bool | None = None) -> None:
        self.config = config
        self.store = store
        self.skew = 0
        self._in_process = isinstance(store, MemoryStore) if in_process is None else in_process
        self._clients: list[Raw] = []
        # Reading the certificates of the world's authorities takes longer than most of these tests.
        webhooks = Webhooks(config.webhooks, lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        self.node = Node(config, store, self._clock, webhooks)
        self.gate = Gate(config, self._clock)
        self.mqtt = MqttFront(config, self.node, self.gate)
        self.http = HttpFront(config, self.node, self.gate)

    def _clock(self) -> int:
        return (STARTED if self._in_process else wall_clock()) + self.skew

    async def start(self) -> None:
        with pipe.without_threads() if self._in_process else nullcontext():
            await self.node.start()
        await self.mqtt.start()

    async def stop(self) -> None:
        for client in self._clients:  # first: a server that stops waits a while for those it told
            await client.end()
        await self.mqtt.stop()
        await self.node.stop()
        await self.gate.close()

    @property
    def port(self) -> int:
        return self.mqtt.addresses[0][1]

    def pass_time(self, seconds: float) -> None:
        """Move the clock on, and let everybody look at it."""
        self.skew += int(seconds * SECOND)
        self.node.cell.run_due()
        self.mqtt._due()

    async def client(self, client_id: str, version: int = V5, **options: object) -> Raw:
        if self._in_process:
            ends: Ends = pipe.connect(self.mqtt.make_link())
        else:
            ends = await dial(self.port)
        client = await Raw.connect(ends, client_id, version, **options)  # type: ignore[arg-type]
        self._clients.append(client)
        return client

    async def create(self, queue: str, **fields: object) -> None:
        await self.node.queues.create((SPACE, queue), {name.replace("__", "."): one for name, one in fields.items()})

    def group(self, queue: str, group: str) -> GroupStats:
        return next(one for one in self.node.inspection.current_stats((SPACE, queue)).groups if one.name == group)

    def depth(self, queue: str) -> int:
        return self.node.inspection.current_stats((SPACE, queue)).depth

    async def payloads(self, queue: str) -> list[bytes]:
        """What a queue holds, oldest first."""
        page = await self.node.inspection.browse((SPACE, queue), 1000)
        return [message.payload for _, message, _ in page.messages]


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter | pipe.ClientEnd]
"""What a client reads from and writes to."""


async def dial(port: int) -> Ends:
    return await asyncio.open_connection("127.0.0.1", port)


class Raw:
    """One connection. What arrives waits in `seen` until somebody expects it."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter | pipe.ClientEnd, version: int
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = Decoder(version, from_client=False)
        self._packet_id = 0
        self.version = version
        self.seen: list[Packet] = []
        self.connack = ConnAck()

    @classmethod
    async def connect(
        cls,
        ends: Ends,
        client_id: str,
        version: int = V5,
        *,
        clean: bool = True,
        expiry_s: int | None = None,
        window: int | None = None,
        packet_bytes_max: int | None = None,
        will: Will | None = None,
        username: str | None = None,
        password: bytes | None = None,
    ) -> Raw:
        client = cls(*ends, version)
        properties = Properties()
        if version == V5:
            properties = Properties(
                session_expiry_s=expiry_s, receive_maximum=window, maximum_packet_bytes=packet_bytes_max
            )
        client.send(Connect(client_id, version, clean, 0, username, password, will, properties))
        try:
            client.connack = await client.expect(ConnAck)
        except BaseException:
            ends[1].close()
            raise
        return client

    # --- sending ----------------------------------------------------------------------------------------------------

    def send(self, *packets: Packet) -> None:
        """All of them in one write."""
        self._writer.write(b"".join([encode(packet, self.version) for packet in packets]))

    def next_id(self) -> int:
        self._packet_id += 1
        return self._packet_id

    def packet(
        self, topic: str, payload: bytes = b"", qos: int = 1, *, user: dict[str, str] | None = None, **fields: object
    ) -> Publish:
        """A PUBLISH with the next packet identifier; `user` are user properties, `fields` the others."""
        pairs = tuple((user or {}).items())
        properties = Properties(user_properties=pairs, **fields)  # type: ignore[arg-type]
        return Publish(topic, payload, qos, self.next_id() if qos else 0, properties=properties)

    async def publish(
        self, topic: str, payload: bytes = b"", qos: int = 1, *, user: dict[str, str] | None = None, **fields: object
    ) -> PubAck | PubRec:
        packet = self.packet(topic, payload, qos, user=user, **fields)
        self.send(packet)
        if qos == 0:
            await self.ping()
            return PubAck(0)
        if qos == 1:
            return await self.expect(PubAck, lambda ack: ack.packet_id == packet.packet_id)
        received = await self.expect(PubRec, lambda ack: ack.packet_id == packet.packet_id)
        if received.reason_code < 0x80:
            self.send(PubRel(packet.packet_id))
            await self.expect(PubComp)
        return received

    async def subscribe(self, topic_filter: str, qos: int = 1, /, **user: str) -> SubAck:
        """`user` are user properties, `consumer_group` is `consumer-group`; only `subscription_id` is a property."""
        identifier = user.pop("subscription_id", "")
        pairs = tuple((name.replace("_", "-"), value) for name, value in user.items())
        ids = (int(identifier),) if identifier else ()
        packet_id = self.next_id()
        properties = Properties(user_properties=pairs, subscription_ids=ids)
        self.send(Subscribe(packet_id, (Subscription(topic_filter, qos),), properties))
        return await self.expect(SubAck, lambda ack: ack.packet_id == packet_id)

    async def unsubscribe(self, topic_filter: str) -> UnsubAck:
        self.send(Unsubscribe(self.next_id(), (topic_filter,)))
        return await self.expect(UnsubAck)

    async def settle(self, delivery: Publish, verb: str = "ack", **user: str) -> PubAck:
        """By its message-id and lease-token."""
        told = user_properties_of(delivery)
        pairs = {"message-id": told["message-id"], "lease-token": told["lease-token"], **user}
        answer = await self.publish(f"$queue/{told['queue']}/${verb}", user=pairs)
        assert isinstance(answer, PubAck)
        return answer

    async def ping(self) -> None:
        """When this is answered, everything sent before has been seen."""
        self.send(PingReq())
        await self.expect(PingResp)

    async def disconnect(self, *before: Packet) -> None:
        self.send(*before, Disconnect())
        await self.closed()
        await self.end()

    def vanish(self) -> None:
        """Without a word."""
        self._writer.transport.abort()

    async def end(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    # --- receiving --------------------------------------------------------------------------------------------------

    async def expect(self, kind: type[T], condition: Callable[[T], bool] = lambda _: True) -> T:
        """The first packet of this kind, from now or before; others wait."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                for index, packet in enumerate(self.seen):
                    if isinstance(packet, kind) and condition(packet):
                        del self.seen[index]
                        return packet
                if not await self._read():
                    raise ConnectionError(f"closed; there was {self.seen}")

    async def _read(self) -> bool:
        data = await self._reader.read(1 << 16)
        self.seen += self._decoder.feed(data)
        return bool(data)

    async def delivery(self) -> Publish:
        """The next PUBLISH; with QoS 1 it is not answered."""
        return await self.expect(Publish)

    async def take(self, verb: str = "ack", **user: str) -> Publish:
        """The next delivery, answered and settled."""
        delivery = await self.delivery()
        self.accept(delivery)
        assert (await self.settle(delivery, verb, **user)).reason_code == 0
        return delivery

    def accept(self, delivery: Publish, reason_code: int = 0, reason: str | None = None) -> None:
        """PUBACK."""
        if delivery.qos:
            self.send(PubAck(delivery.packet_id, reason_code, Properties(reason_string=reason)))

    async def closed(self) -> Disconnect | None:
        """Wait for the end of the connection; the DISCONNECT that came before it, if any."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                while await self._read():
                    pass
            except ConnectionError:
                pass
        return next((packet for packet in self.seen if isinstance(packet, Disconnect)), None)

    async def nothing_more(self) -> None:
        """Assert that no PUBLISH comes that was caused before now."""
        await self.ping()
        await self.ping()
        assert not [packet for packet in self.seen if isinstance(packet, Publish)]


def user_properties_of(delivery: Publish) -> dict[str, str]:
    """User properties of a delivery."""
    return dict(delivery.properties.user_properties)


__all__ = ["SPACE", "V5", "V311", "Raw", "Server", "config_for", "dial", "open_store", "until", "user_properties_of"]
