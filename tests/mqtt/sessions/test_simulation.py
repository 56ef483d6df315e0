"""A seeded simulation: clients that publish, subscribe, drop, come back, and a broker that crashes between syncs.

Each subscriber is a persistent session with its own checker; publishers keep a message until it is acknowledged and
send it again after a reconnect, as a client must. At the end everything is delivered, and then every session ends:
nothing may be left in any table.
"""

from __future__ import annotations

import random

import pytest

from holdfast.mqtt.codec import V5, V311, Disconnect, Packet, Properties, PubAck, PubComp, Publish, PubRec, PubRel, Will
from holdfast.mqtt.sessions.settings import NEVER, HubLimits
from tests.mqtt.sessions.rig import Client, Rig

SEEDS = 60
STEPS = 150


class Peer:
    """A client with a memory: its connection may break, its session goes on."""

    def __init__(self, name: str, version: int) -> None:
        self.name = name
        self.version = version
        self.client: Client | None = None

    def join(self, rig: Rig, will: Will | None = None) -> None:
        if self.client is None or self.client.closed:
            self.client = rig.connect(self.name, self.version, clean=False, expiry=NEVER, will=will)
            self.joined(self.client)

    def joined(self, client: Client) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        if self.client is not None:
            self.client.drop(settle=False)
            self.client = None


class Publisher(Peer):
    """`waiting` is what was not acknowledged, in order: QoS, topic, payload, retain; None once released at QoS 2."""

    def __init__(self, name: str, version: int) -> None:
        super().__init__(name, version)
        self.waiting: dict[int, Publish | None] = {}
        self.count = 0
        self.last_id = 0

    def joined(self, client: Client) -> None:
        again = [one for one in self.waiting.values() if one is not None]
        again_dup = [Publish(one.topic, one.payload, one.qos, one.packet_id, one.retain, True) for one in again]
        released = [PubRel(number) for number, one in self.waiting.items() if one is None]
        packets: list[Packet] = [*again_dup, *released]
        if packets:
            self.receive(client.send(*packets, settle=False))

    def publish(self, topic: str, qos: int, retain: bool) -> Publish | None:
        if self.client is None or self.client.closed or len(self.waiting) > 20:
            return None
        self.count += 1
        packet_id = 0
        if qos:
            while True:
                self.last_id = self.last_id % 50 + 1
                if self.last_id not in self.waiting:
                    break
            packet_id = self.last_id
        packet = Publish(topic, f"{self.name}:{topic}:{qos}:{self.count}".encode(), qos, packet_id, retain)
        if qos:
            self.waiting[packet_id] = packet
        self.receive(self.client.send(packet, settle=False))
        return packet

    def receive(self, packets: list[Packet]) -> None:
        todo = list(packets)
        while todo and self.client is not None:
            match todo.pop(0):
                case PubAck(packet_id) | PubComp(packet_id):
                    self.waiting.pop(packet_id, None)
                case PubRec(packet_id):
                    self.waiting[packet_id] = None
                    todo += self.client.send(PubRel(packet_id), settle=False)


class Subscriber(Peer):
    """Acknowledges some of what it gets at once, and keeps QoS 2 identifiers as a client must."""

    def __init__(self, name: str, version: int, topic_filter: str, rng: random.Random) -> None:
        super().__init__(name, version)
        self.filter = topic_filter
        self.rng = rng
        self.got: list[Publish] = []
        self.unreleased: set[int] = set()
        self.lazy: list[Packet] = []
        self.eager = False

    def joined(self, client: Client) -> None:
        self.lazy = []
        if not client.connack.session_present:
            self.unreleased = set()
            self.receive(client.subscribe(self.filter, qos=2, handling=2))

    def receive(self, packets: list[Packet]) -> None:
        todo = list(packets)
        while todo and self.client is not None:
            packet = todo.pop(0)
            answer: Packet
            match packet:
                case Publish(qos=0):
                    self.got.append(packet)
                    continue
                case Publish(qos=1):
                    self.got.append(packet)
                    answer = PubAck(packet.packet_id)
                case Publish():
                    if packet.packet_id not in self.unreleased:
                        self.got.append(packet)
                        self.unreleased.add(packet.packet_id)
                    answer = PubRec(packet.packet_id)
                case PubRel(packet_id):
                    self.unreleased.discard(packet_id)
                    answer = PubComp(packet_id)
                case _:
                    continue
            if self.eager or self.rng.random() < 0.7:
                todo += self.client.send(answer, settle=False)
            else:
                self.lazy.append(answer)

    def catch_up(self) -> None:
        if self.client is not None and not self.client.closed:
            answers, self.lazy = self.lazy, []
            self.receive(self.client.send(*answers, settle=False) if answers else [])


class Play:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rig = Rig(HubLimits(inflight_max=self.rng.choice([1, 3, 1000]), receive_maximum=1000))
        versions = (V311, V5)
        self.publishers = [Publisher(f"p{number}", self.rng.choice(versions)) for number in range(2)]
        self.subscribers = [
            Subscriber(f"s{number}", self.rng.choice(versions), topic_filter, self.rng)
            for number, topic_filter in enumerate(("t/+", "t/1", "t/#"))
        ]
        self.sent: list[Publish] = []

    def settle(self, sync: bool = True) -> None:
        for _ in range(100):
            self.rig.turn()
            if sync:
                self.rig.sync()
            peers: list[Publisher | Subscriber] = [*self.publishers, *self.subscribers]
            busy = False
            for peer in peers:
                if peer.client is not None and peer.client.seen:
                    busy = True
                    peer.receive(peer.client.take())
            if not busy:
                return
        raise AssertionError("it does not come to rest")

    def crash(self) -> None:
        self.rig.crash(self.rng.randint(0, len(self.rig.unsynced)))
        for peer in (*self.publishers, *self.subscribers):
            peer.client = None

    def step(self) -> None:
        roll = self.rng.random()
        publisher = self.rng.choice(self.publishers)
        subscriber = self.rng.choice(self.subscribers)
        if roll < 0.55:
            topic = self.rng.choice(("t/1", "t/2"))
            packet = publisher.publish(topic, self.rng.randint(0, 2), self.rng.random() < 0.3)
            if packet is not None:
                self.sent.append(packet)
        elif roll < 0.7:
            self.rng.choice([publisher, subscriber]).leave()
        elif roll < 0.85:
            self.rng.choice([publisher, subscriber]).join(self.rig)
        elif roll < 0.92:
            subscriber.catch_up()
        elif roll < 0.95:
            self.crash()
        elif roll < 0.98:
            self.settle(sync=False)
        else:
            self.rig.now += self.rng.randint(0, 3_000_000)
        if self.rng.random() < 0.6:
            self.settle(sync=self.rng.random() < 0.6)

    def finish(self) -> None:
        for subscriber in self.subscribers:
            subscriber.eager = True
        for _ in range(10):
            for peer in (*self.publishers, *self.subscribers):
                peer.join(self.rig)
            self.settle()
            for subscriber in self.subscribers:
                subscriber.catch_up()
            self.settle()


def check(play: Play, topics: dict[str, tuple[str, ...]]) -> None:
    for subscriber in play.subscribers:
        got = [packet.payload.decode() for packet in subscriber.got]
        for packet in play.sent:
            name = packet.payload.decode()
            matches = packet.topic in topics[subscriber.filter]
            count = got.count(name)
            if not matches:
                assert count == 0, f"{name} went to {subscriber.name}, which did not ask for it"
            elif packet.qos == 1:
                assert count >= 1, f"{name} was lost for {subscriber.name}"
            elif packet.qos == 2:
                assert count == 1, f"{name} came {count} times to {subscriber.name}"
        for stream in {tuple(name.split(":")[:3]) for name in got}:
            if stream[2] == "0":
                continue
            first_seen = list(dict.fromkeys(name for name in got if tuple(name.split(":")[:3]) == stream))
            numbers = [int(name.split(":")[3]) for name in first_seen]
            assert numbers == sorted(numbers), f"{stream} out of order for {subscriber.name}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_is_lost_doubled_or_out_of_order(seed: int) -> None:
    play = Play(seed)
    for subscriber in play.subscribers:
        subscriber.join(play.rig)
    play.settle()
    for _ in range(STEPS):
        play.step()
    play.finish()
    assert play.sent
    check(play, {"t/+": ("t/1", "t/2"), "t/1": ("t/1",), "t/#": ("t/1", "t/2")})
    for publisher in play.publishers:
        assert publisher.waiting == {}
    for peer in (*play.publishers, *play.subscribers):
        assert peer.client is not None
        goodbye = peer.client if peer.version == V5 else play.rig.connect(peer.name, clean=False, expiry=NEVER)
        goodbye.send(Disconnect(0, Properties(session_expiry_s=0)))
    left = play.rig.records()
    assert set(left) <= {"MQTT_RETAINED", "MQTT_MESSAGES"}
    play.rig.restart()
    cleaner = play.rig.connect("cleaner")
    for retained in [packet for packet in cleaner.subscribe("#") if isinstance(packet, Publish)]:
        cleaner.publish(retained.topic, b"", retain=True)
    assert play.rig.records() == {}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_retained_message_is_the_last_one_and_wills_come_when_due(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig()
    last: dict[str, bytes] = {}
    watcher = rig.connect("watcher")
    watcher.subscribe("will/+")
    due: dict[str, int] = {}
    seen: list[str] = []
    for number in range(40):
        publisher = rig.connect("p")
        topic, payload = f"t/{rng.randint(0, 3)}", rng.choice([b"", b"%d" % number])
        publisher.publish(topic, payload, rng.randint(0, 2), retain=True)
        last[topic] = payload
        name = f"c{rng.randint(0, 4)}"
        delay, expiry = rng.randint(0, 20), rng.randint(1, 20)
        will = Will(f"will/{name}-{number}", b"x", 1, properties=Properties(will_delay_s=delay))
        pending = [key for key in due if key.startswith(f"will/{name}-")]
        client = rig.connect(name, clean=False, expiry=expiry, will=will)
        for key in pending:
            del due[key]
        client.drop()
        due[will.topic] = rig.now + min(delay, expiry) * 1_000_000
        rig.pass_time(rng.randint(0, 10))
        expected = {key for key, at in due.items() if at <= rig.now}
        arrived = {packet.topic for packet in watcher.publishes()}
        assert arrived == expected
        seen += arrived
        for key in expected:
            del due[key]
    assert len(seen) == len(set(seen))
    rig.restart()
    retained = rig.connect("reader").subscribe("t/#")
    assert {one.topic: one.payload for one in retained if isinstance(one, Publish)} == {
        topic: payload for topic, payload in last.items() if payload
    }
