"""The seams: a bridge that claims topics, the broker as a publisher, namespaces."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast.mqtt.codec import (
    V5,
    V311,
    Disconnect,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    Publish,
    PubRec,
    SubAck,
    Subscription,
    Unsubscribe,
    Will,
    encode,
)
from holdfast.mqtt.sessions.connection import Connection
from holdfast.mqtt.sessions.hub import Hub
from holdfast.mqtt.sessions.messages import Message
from holdfast.mqtt.sessions.ports import Granted, PublishBatch, Refusal
from holdfast.mqtt.sessions.session import Session, Subscriber, Terms
from holdfast.mqtt.sessions.settings import HubLimits
from tests.mqtt.sessions.rig import Rig, code_of, payloads

BOTH = pytest.mark.parametrize("version", [V311, V5])


class Queues:
    """A bridge that writes down what it is asked."""

    def __init__(self) -> None:
        self.prefixes: tuple[str, ...] = ("$queue/", "$admin/")
        self.asked: list[object] = []
        self.hub: Hub | None = None
        self.refused: set[int] = set()
        self.lengths: list[int] = []

    def publish(self, connection: Connection, batches: Sequence[PublishBatch], now: int) -> None:
        self.asked.append([(one.topic, one.qos) for run in batches for one in run.packets])
        self.lengths += [len(run.packets) for run in batches]
        assert self.hub is not None
        for run in batches:
            for index, packet in enumerate(run.packets):
                if packet.packet_id in self.refused:
                    run.refusals[index] = Refusal(0x97, "full")
            self.hub.reject_publishes(connection, run, now)

    def captures(self, namespace: str, topic: str) -> bool:
        return topic.startswith("captured")

    def capture(self, connection: Connection | None, namespace: str, run: PublishBatch, now: int) -> None:
        self.asked.append((connection is not None, run.packets[0].topic))

    def acknowledged(self, acks: Sequence[tuple[PubAck, object]]) -> None:
        self.asked.append([lease for _, lease in acks])

    def will(self, namespace: str, client_id: str, will: Will, now: int) -> None:
        self.asked.append((namespace, client_id, will.payload))

    def subscribe(
        self, connection: Connection, session: Session, subscription: Subscription, properties: Properties, now: int
    ) -> Granted:
        self.asked.append(subscription.filter)
        if subscription.filter.endswith("/no"):
            return Granted(0x8F, None, "no such queue")
        return Granted(1, Terms("g", 5))

    def unsubscribed(self, connection: Connection, subscriber: Subscriber, now: int) -> None:
        self.asked.append(subscriber.filter)

    def resumed(self, connection: Connection, session: Session, now: int) -> None:
        self.asked.append("resumed")

    def closed(self, connection: Connection, session: Session, graceful: bool, now: int) -> None:
        self.asked.append(graceful)

    def ended(self, session: Session, now: int) -> None:
        self.asked.append("ended")


class Pumped:
    """A feed that counts."""

    def __init__(self) -> None:
        self.count = 0

    def pump(self, now: int) -> None:
        self.count += 1


def bridged() -> tuple[Queues, Rig]:
    bridge = Queues()
    rig = Rig(bridge=bridge)
    bridge.hub = rig.hub
    return bridge, rig


def test_claimed_topics_go_to_the_bridge_and_are_answered_in_their_place() -> None:
    bridge, rig = bridged()
    client = rig.connect("c", expiry=10, will=Will("$queue/w", b"bye"))
    alias = Properties(topic_alias=1)
    one, two = Publish("$queue/a", b"1", 1, 1), Publish("$queue/a", b"2", 2, 2)
    plain = Publish("plain", b"", 1, 4)
    assert client.send(one, plain, two, Publish("$admin/b", b"", 0, properties=alias), two) == [
        PubAck(1),
        PubAck(4, 0x10),
        PubRec(2),
        PubRec(2),
    ]
    assert bridge.asked.pop() == [("$queue/a", 1), ("$queue/a", 2), ("$admin/b", 0)]
    assert client.subscribe("$share/g/$queue/a", "t", "$admin/x", "$queue/no") == [
        SubAck(9, (1, 0, 1, 0x8F), Properties(reason_string="no such queue"))
    ]
    client.send(Unsubscribe(1, ("$share/g/$queue/a", "t")))
    client.drop()
    assert bridge.asked == [
        "$share/g/$queue/a", "$admin/x", "$queue/no", "$share/g/$queue/a", False, ("ns", "c", b"bye"),
    ]  # fmt: skip
    again = rig.connect("c", clean=False, expiry=10)
    again.send(Disconnect())
    assert bridge.asked[-2:] == ["resumed", True]
    rig.connect("c", clean=True).send(Disconnect())
    assert bridge.asked[-3:] == [True, "ended", True]


def test_what_the_bridge_rejects_is_refused_in_its_place() -> None:
    bridge, rig = bridged()
    bridge.refused = {1, 2}
    client = rig.connect("c", expiry=10)
    said = Properties(reason_string="full")
    two = Publish("$queue/a", b"2", 2, 2)
    assert client.send(Publish("$queue/a", b"1", 1, 1), two, Publish("$queue/a", b"3", 1, 3)) == [
        PubAck(1, 0x97, said),
        PubRec(2, 0x97, said),
        PubAck(3),
    ]
    bridge.refused = set()
    assert client.send(two) == [PubRec(2)]  # it was not kept: this is a new one
    quiet = rig.connect("q", properties=Properties(request_problem_information=0))
    bridge.refused = {0, 1}
    assert quiet.send(Publish("$queue/a", b"1", 1, 1), Publish("$queue/a", b"")) == [PubAck(1, 0x97)]


def test_messages_to_a_queue_are_claimed_in_runs() -> None:
    bridge, rig = bridged()
    client = rig.connect("c")
    other = Properties(topic_alias=1)
    client.send(*[Publish("$queue/a", b"", 1, n) for n in range(1, 6)])
    assert bridge.lengths == [1, 4]  # the first shows that the client may
    bridge.lengths.clear()
    answers = client.send(
        Publish("$queue/a", b"", 1, 6),
        Publish("$queue/a", b"", 1, 7),
        Publish("$queue/a", b"", 2, 8),
        Publish("$queue/a", b"", 1, 9),
        PingReq(),
        Publish("$queue/a", b"", 1, 10),
        Publish("$queue/a", b"", 1, 11, properties=other),
        Publish("$queue/b", b"", 1, 12),
        Publish("$queue/b", b"", 1, 13),
    )
    assert bridge.lengths == [2, 1, 1, 1, 1, 1, 1]
    assert answers == [
        PubAck(6), PubAck(7), PubRec(8), PubAck(9), PingResp(), PubAck(10), PubAck(11), PubAck(12), PubAck(13),
    ]  # fmt: skip


def test_an_ack_of_a_bridges_message_ends_a_run() -> None:
    bridge, rig = bridged()
    client = rig.connect("c")
    session = client.connection.session
    assert session is not None
    assert session.allocate_packet_ids(["lease"]) == [1]
    client.send(Publish("$queue/a", b"", 1, 1))
    client.send(Publish("$queue/a", b"", 1, 2), PubAck(1), Publish("$queue/a", b"", 1, 3))
    assert bridge.lengths == [1, 1, 1]


def test_a_subscription_that_is_withdrawn_ends_the_connection_once() -> None:
    _, rig = bridged()
    client = rig.connect("c", expiry=100)
    client.subscribe("$queue/a")
    rig.hub.revoke_subscription(client.connection, "$queue/a", "the group was deleted", rig.now)
    rig.hub.revoke_subscription(client.connection, "$queue/a", "the group was deleted", rig.now)
    rig.settle()
    assert [type(packet) for packet in client.take()] == [Disconnect]
    assert rig.session("c").subscriptions == {}


def test_a_refusal_of_a_message_that_was_released_meanwhile_forgets_nothing() -> None:
    bridge, rig = bridged()
    client = rig.connect("c")
    bridge.refused = {1}
    run = PublishBatch([Publish("$queue/a", b"", 2, 7)], 0)
    run.refusals[0] = Refusal(0x97, "full")
    client.connection.held = [b""]
    rig.hub.reject_publishes(client.connection, run, rig.now)
    session = client.connection.session
    assert session is not None
    assert session.incoming == set()


def test_a_run_does_not_go_beyond_the_receive_maximum() -> None:
    bridge = Queues()
    rig = Rig(HubLimits(receive_maximum=3), bridge=bridge)
    bridge.hub = rig.hub
    client = rig.connect("c")
    client.send(Publish("$queue/a", b"", 1, 1))
    assert client.send(*[Publish("$queue/a", b"", 1, n) for n in range(2, 5)]) == [PubAck(2), PubAck(3), PubAck(4)]
    answers = client.send(*[Publish("$queue/a", b"", 1, n) for n in range(5, 9)])
    assert [type(answer) for answer in answers] == [PubAck, PubAck, PubAck, Disconnect]
    assert code_of(answers[-1:]) == 0x93


def test_in_3_1_1_a_refused_message_closes_the_connection_instead_of_being_acknowledged() -> None:
    bridge, rig = bridged()
    bridge.refused = {2, 3}
    client = rig.connect("c", version=V311)
    answers = client.send(
        Publish("$queue/a", b"1", 1, 1), Publish("$queue/a", b"2", 1, 2), Publish("$queue/a", b"3", 1, 3)
    )
    assert answers == [PubAck(1)]
    assert client.closed


def test_captured_messages_go_to_subscribers_and_to_the_bridge() -> None:
    bridge, rig = bridged()
    listener = rig.connect("l")
    listener.subscribe("captured/#")
    client = rig.connect("c", will=Will("captured/will", b"w"))
    assert client.send(Publish("captured/t", b"x", 1, 1), Publish("captured/t", b"y")) == [PubAck(1)]
    client.drop()
    assert bridge.asked == [(True, "captured/t"), (True, "captured/t"), False, (False, "captured/will")]
    assert payloads(listener.take()) == [b"x", b"y", b"w"]


def test_what_a_bridge_sends_shares_the_window_and_the_identifiers() -> None:
    bridge, rig = bridged()
    client = rig.connect("c", properties=Properties(receive_maximum=2))
    session = client.connection.session
    assert session is not None
    client.subscribe("t")
    feed = client.connection.feed = Pumped()
    assert session.allocate_packet_ids(["lease"]) == [1]
    session._packet_id = 0
    assert session.allocate_packet_ids(["other"]) == [2]
    client.connection.quota -= 2
    rig.hub.outbox.send(client.connection, encode(Publish("$queue/a", b"x", 1, 1), V5))
    rig.settle()
    assert payloads(client.take()) == [b"x"]
    client.send(PubAck(1), PubAck(2), PubAck(2))
    assert bridge.asked == [["lease", "other"]]
    assert feed.count == 1
    assert client.connection.quota == 2


def test_the_broker_can_publish_itself_and_namespaces_do_not_meet() -> None:
    rig = Rig()
    client = rig.connect("c")
    client.subscribe("t")
    assert rig.hub.publish("other", Message("t", b"x", 0, False, Properties()), rig.now) == 0x10
    assert rig.hub.publish("ns", Message("t", b"y", 0, False, Properties()), rig.now) == 0
    rig.settle()
    assert payloads(client.take()) == [b"y"]


def test_many_topics_fill_the_plans_only_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.mqtt.sessions.namespaces.MATCHES_CACHED_MAX", 2)
    rig = Rig()
    client = rig.connect("c")
    client.subscribe("#")
    publisher = rig.connect("p")
    for number in range(5):
        publisher.publish(f"t/{number}")
    assert len(client.publishes()) == 5
    assert len(rig.hub.namespaces["ns"]._plans) <= 2


def test_many_receivers_get_the_same_bytes() -> None:
    rig = Rig()
    clients = [rig.connect(f"c{number}", version) for number in range(3) for version in (V311, V5)]
    for client in {client.connection.client_id: client for client in clients}.values():
        client.subscribe("t")
    rig.connect("p").send(Publish("t", b"x"), settle=False)
    data = [output.data for output in rig.settle().now]
    assert data == [encode(Publish("t", b"x"), V5)] * 3
