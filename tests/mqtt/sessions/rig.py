"""A hub over a memory store under a clock that tests set, and clients that read what it sends, as bytes."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.records import Table
from holdfast.mqtt.codec import (
    V5,
    ConnAck,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    Properties,
    ProtocolError,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    Will,
    encode,
)
from holdfast.mqtt.sessions.connection import Connection
from holdfast.mqtt.sessions.hub import Hub
from holdfast.mqtt.sessions.outbox import OutboxBatch, Output
from holdfast.mqtt.sessions.ports import Access, AllowAll, Bridge
from holdfast.mqtt.sessions.session import Session
from holdfast.mqtt.sessions.settings import HubLimits
from holdfast.mqtt.sessions.system_topics import SystemTopics
from holdfast.store.memory import MemoryDisk, MemoryStore
from holdfast.units import SECOND

MQTT_TABLES = [table for table in Table if table.name.startswith("MQTT_")]
START = 1_800_000_000 * SECOND


class Client:
    """One connection. `seen` are the packets that arrived since they were last taken."""

    def __init__(self, rig: Rig, version: int, owner: str = "") -> None:
        self.rig = rig
        self.owner = owner
        self.version = version
        self.connection = rig.hub.open(self, rig.now)
        self.decoder = Decoder(max_packet_bytes=rig.hub.settings.packet_bytes_max)
        self.reader = Decoder(version, from_client=False)
        self.seen: list[Packet] = []
        self.connack = ConnAck()
        self.closed = False

    def send(self, *packets: Packet, settle: bool = True) -> list[Packet]:
        return self.send_raw(b"".join(encode(packet, self.version) for packet in packets), settle=settle)

    def send_raw(self, raw: bytes, *, settle: bool = True) -> list[Packet]:
        hub, now = self.rig.hub, self.rig.now
        try:
            packets: Sequence[Packet] = self.decoder.feed(raw)
            self._hand_in(packets)
        except ProtocolError as error:
            self._hand_in(error.packets)  # type: ignore[arg-type]
            hub.broken(self.connection, error, self.decoder.version, now)
        if settle:
            self.rig.settle()
        return self.take()

    def _hand_in(self, packets: Sequence[Packet]) -> None:
        if packets and isinstance(packets[0], Connect):
            self.rig.hub.connect(self.connection, packets[0], "ns", "assigned-1", self.rig.now, self.owner)
            packets = packets[1:]
        if packets:
            self.rig.hub.receive(self.connection, packets, self.rig.now)

    def drop(self, *, settle: bool = True) -> None:
        self.closed = True
        self.rig.hub.lost(self.connection, self.rig.now)
        if settle:
            self.rig.settle()

    def take(self) -> list[Packet]:
        seen, self.seen = self.seen, []
        return seen

    def publishes(self) -> list[Publish]:
        """The PUBLISHes among the packets that arrived; the others are lost."""
        return [packet for packet in self.take() if isinstance(packet, Publish)]

    def subscribe(
        self,
        *filters: str,
        qos: int = 0,
        identifier: int = 0,
        no_local: bool = False,
        rap: bool = False,
        handling: int = 0,
    ) -> list[Packet]:
        options = [Subscription(one, qos, no_local, rap, handling) for one in filters]
        properties = Properties(subscription_ids=(identifier,) if identifier else ())
        return self.send(Subscribe(9, tuple(options), properties))

    def publish(
        self,
        topic: str,
        payload: bytes = b"x",
        qos: int = 0,
        packet_id: int = 7,
        retain: bool = False,
        dup: bool = False,
        properties: Properties | None = None,
    ) -> list[Packet]:
        packet_id = packet_id if qos else 0
        return self.send(Publish(topic, payload, qos, packet_id, retain, dup, properties or Properties()))

    def acknowledge(self, *packets: Publish) -> list[Packet]:
        """Complete the handshake of each."""
        for packet in packets:
            if packet.qos == 1:
                self.send(PubAck(packet.packet_id))
            else:
                assert PubRel(packet.packet_id) in self.send(PubRec(packet.packet_id))
                self.send(PubComp(packet.packet_id))
        return self.take()


class Rig:
    """The shell, in a few lines: writes, syncs, sends."""

    def __init__(
        self,
        settings: HubLimits | None = None,
        access: Access | None = None,
        bridge: Bridge | None = None,
        system: SystemTopics | None = None,
    ) -> None:
        self.now = START
        self.parts = (settings, access, bridge, system)
        self.disk = MemoryDisk()
        self.store = MemoryStore(self.disk)
        self.epoch = self.store.acquire()
        self.hub = Hub(*self.parts)
        self.unsynced: list[OutboxBatch] = []

    def client(self, version: int = V5, owner: str = "") -> Client:
        return Client(self, version, owner)

    def connect(
        self,
        client_id: str = "c",
        version: int = V5,
        *,
        clean: bool = True,
        expiry: int | None = None,
        will: Will | None = None,
        keep_alive: int = 0,
        properties: Properties | None = None,
        owner: str = "",
    ) -> Client:
        client = self.client(version, owner)
        properties = properties or Properties(session_expiry_s=expiry)
        client.seen = client.send(Connect(client_id, version, clean, keep_alive, will=will, properties=properties))
        connack = client.seen.pop(0)
        assert isinstance(connack, ConnAck)
        client.connack = connack
        return client

    def session(self, client_id: str = "c", owner: str = "") -> Session:
        return self.hub.namespaces["ns"].sessions[owner, client_id]

    def turn(self) -> OutboxBatch:
        """End a turn: write and send what need not wait."""
        turn = self.hub.outbox.take()
        self.store.write(self.epoch, turn.ops)
        self._send(turn.now)
        if self.hub.outbox.unfinished:
            self.hub.pump_unfinished(self.now)
        self.unsynced.append(turn)
        return turn

    def sync(self, most: int = 1_000_000) -> None:
        """Sync and send what waited; `most`: how many turns are reported, the oldest first."""
        self.store.sync()
        outbox, self.unsynced = self.unsynced[:most], self.unsynced[most:]
        for turn in outbox:
            self._send(self.hub.outbox.mark_synced(turn))

    def settle(self) -> OutboxBatch:
        turn = self.turn()
        self.sync()
        return turn

    def _send(self, outputs: list[Output]) -> None:
        for output in outputs:
            client = output.connection.tag
            assert isinstance(client, Client)
            if not client.closed:
                client.seen += client.reader.feed(output.data)
                client.closed = output.close

    def pass_time(self, seconds: float) -> None:
        """Move the clock, stopping at every deadline."""
        end = self.now + int(seconds * SECOND)
        while True:
            self.settle()
            due = self.hub.due
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self.hub.tick(self.now)
        self.now = end

    def crash(self, keep: int = 0) -> None:
        """Lose what was not synced, and start again."""
        self.disk.crash(keep)
        self.restart()

    def restart(self) -> None:
        self.unsynced = []
        self.store = MemoryStore(self.disk)
        self.epoch = self.store.acquire()
        self.hub = Hub(*self.parts)
        self.hub.load(self.store.scan, self.now)
        self.settle()

    def records(self) -> dict[str, int]:
        """How many records there are, by table; empty ones left out."""
        counts = {table.name: len(self.disk.table(table).values) for table in MQTT_TABLES}
        return {name: count for name, count in counts.items() if count}


def code_of(packets: Sequence[Packet]) -> int:
    [packet] = packets
    assert isinstance(packet, Disconnect | PubAck | PubRec | PubComp)
    return packet.reason_code


def payloads(packets: Sequence[Packet]) -> list[bytes]:
    return [packet.payload for packet in packets if isinstance(packet, Publish)]


class Guard(AllowAll):
    def may_publish(self, connection: Connection, topic: str) -> int:
        return 0x87 if topic == "secret" else 0

    def may_subscribe(self, connection: Connection, topic_filter: str) -> int:
        return 0x87 if topic_filter == "secret" else 0
