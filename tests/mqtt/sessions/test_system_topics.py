"""What the broker says of itself below `$SYS/`: shown like retained messages, sent when it changes, never stored."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.mqtt.codec import Publish, Unsubscribe
from holdfast.mqtt.sessions.system_topics import SystemTopics
from holdfast.units import SECOND
from tests.mqtt.sessions.rig import Rig


class Source:
    """Values that a test sets; counts how often they are read."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {"broker/version": "holdfast", "broker/uptime": "0 seconds"}
        self.reads = 0

    def __call__(self, now: int) -> Mapping[str, str]:
        self.reads += 1
        return self.values


def started() -> tuple[Rig, Source]:
    source = Source()
    return Rig(system=SystemTopics(source, 10 * SECOND)), source


def shown(packets: list[Publish]) -> dict[str, tuple[bytes, bool]]:
    return {packet.topic: (packet.payload, packet.retain) for packet in packets}


def test_a_new_subscription_is_shown_all_values() -> None:
    rig, _ = started()
    client = rig.connect("c")
    packets = client.subscribe("$SYS/#", "#", "$SYS/broker/uptime", qos=2)
    got = [packet for packet in packets if isinstance(packet, Publish)]
    assert shown(got) == {
        "$SYS/broker/version": (b"holdfast", True),
        "$SYS/broker/uptime": (b"0 seconds", True),
    }
    assert [packet.topic for packet in got].count("$SYS/broker/uptime") == 2  # each filter is shown its own
    assert {packet.qos for packet in got} == {0}


def test_what_changes_is_sent_and_only_that() -> None:
    rig, source = started()
    client = rig.connect("c")
    client.subscribe("$SYS/#")
    rig.hub.publish_system(rig.now)
    rig.settle()
    client.take()
    source.values = {"broker/version": "holdfast", "broker/uptime": "10 seconds"}
    rig.hub.publish_system(rig.now)
    rig.settle()
    assert shown(client.publishes()) == {"$SYS/broker/uptime": (b"10 seconds", False)}
    rig.hub.publish_system(rig.now)
    rig.settle()
    assert client.publishes() == []


def test_nothing_is_read_while_nobody_subscribes() -> None:
    rig, source = started()
    client = rig.connect("c")
    client.subscribe("#", "sensors/$SYS/x")
    rig.hub.publish_system(rig.now)
    assert source.reads == 0
    client.subscribe("$SYS/#")
    rig.hub.publish_system(rig.now)
    assert source.reads == 2
    client.send(Unsubscribe(3, ("$SYS/#",)))
    rig.hub.publish_system(rig.now)
    other = rig.connect("d")
    other.subscribe("$share/g/$SYS/#", "$SYS")
    other.drop()  # its session ends with its connection
    reads = source.reads
    rig.hub.publish_system(rig.now)
    assert source.reads == reads


def test_many_subscriptions_read_the_values_once_an_interval() -> None:
    rig, source = started()
    client = rig.connect("c")
    for _ in range(5):
        client.subscribe("$SYS/#")
    assert source.reads == 1
    rig.now += 10 * SECOND
    source.values = {"broker/version": "holdfast", "broker/uptime": "10 seconds"}
    packets = client.subscribe("$SYS/broker/uptime")
    assert shown([packet for packet in packets if isinstance(packet, Publish)]) == {
        "$SYS/broker/uptime": (b"10 seconds", True)
    }
    assert source.reads == 2


def test_nothing_of_it_is_stored_for_a_client_that_is_away() -> None:
    rig, source = started()
    client = rig.connect("c", clean=False, expiry=100)
    client.subscribe("$SYS/#", qos=1)
    before = rig.records()
    client.drop()
    source.values = {"broker/version": "holdfast", "broker/uptime": "20 seconds"}
    rig.hub.publish_system(rig.now)
    rig.settle()
    assert rig.records() == before
    again = rig.connect("c", clean=False, expiry=100)
    assert again.publishes() == []
    source.values = {"broker/version": "holdfast", "broker/uptime": "30 seconds"}
    rig.hub.publish_system(rig.now)
    rig.settle()
    assert shown(again.publishes()) == {"$SYS/broker/uptime": (b"30 seconds", False)}


def test_without_such_topics_a_subscription_stays_silent() -> None:
    rig = Rig()
    client = rig.connect("c")
    assert [packet for packet in client.subscribe("$SYS/#") if isinstance(packet, Publish)] == []
    rig.hub.publish_system(rig.now)
    rig.settle()
    assert client.publishes() == []
