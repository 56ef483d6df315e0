"""Retained messages and the options of subscriptions, by clause."""

from __future__ import annotations

import pytest

from holdfast.mqtt.codec import (
    V5,
    V311,
    Properties,
    PubAck,
    Publish,
    SubAck,
    UnsubAck,
    Unsubscribe,
)
from holdfast.mqtt.sessions.settings import HubLimits
from tests.mqtt.sessions.rig import Guard, Rig, code_of, payloads

BOTH = pytest.mark.parametrize("version", [V311, V5])


@BOTH
def test_a_new_subscription_is_shown_the_last_retained_message(version: int) -> None:
    rig = Rig()
    publisher = rig.connect("p")
    publisher.publish("t/a", b"old", retain=True)
    publisher.publish("t/a", b"new", 2, retain=True)
    publisher.publish("t/b", b"gone", retain=True)
    publisher.publish("t/b", b"", retain=True)  # [MQTT-3.3.1-6] [MQTT-3.3.1-7]
    rig.restart()
    client = rig.connect("c", version)
    suback, seen = client.subscribe("t/+", qos=1)
    assert isinstance(suback, SubAck)
    assert isinstance(seen, Publish)
    assert (seen.payload, seen.retain, seen.qos) == (b"new", True, 1)  # [MQTT-3.3.1-8]


@pytest.mark.parametrize(("handling", "first", "second"), [(0, 1, 1), (1, 1, 0), (2, 0, 0)])
def test_retain_handling(handling: int, first: int, second: int) -> None:
    rig = Rig()  # [MQTT-3.3.1-9] to [MQTT-3.3.1-11]
    rig.connect("p").publish("t", b"x", retain=True)
    client = rig.connect("c")
    assert len(payloads(client.subscribe("t", handling=handling))) == first
    assert len(payloads(client.subscribe("t", handling=handling))) == second


def test_retain_as_published_keeps_the_flag() -> None:
    rig = Rig()  # [MQTT-3.3.1-12] [MQTT-3.3.1-13]
    plain, kept = rig.connect("a"), rig.connect("b")
    plain.subscribe("t")
    kept.subscribe("t", rap=True)
    rig.connect("p").publish("t", b"x", retain=True)
    assert [one.retain for one in plain.publishes() + kept.publishes()] == [False, True]


def test_no_local_spares_the_publisher_but_not_its_other_subscriptions() -> None:
    rig = Rig()  # [MQTT-3.8.3-3]
    client = rig.connect("c")
    client.subscribe("t/#", no_local=True, identifier=1)
    assert client.publish("t/1", b"x", 1) == [PubAck(7, 0x10)]
    client.subscribe("t/1", identifier=2)
    [seen, _] = client.publish("t/1", b"y", 1)
    assert isinstance(seen, Publish)
    assert seen.properties.subscription_ids == (2,)
    rig.connect("p").publish("t/2", b"z")
    assert payloads(client.take()) == [b"z"]


def test_overlapping_subscriptions_give_one_copy_with_all_identifiers_at_the_highest_qos() -> None:
    rig = Rig()  # [MQTT-3.3.4-2] [MQTT-3.3.4-3]
    client = rig.connect("c", expiry=10)
    client.subscribe("t/#", qos=1, identifier=1)
    client.subscribe("t/1", qos=0, identifier=2)
    client.drop()
    rig.restart()
    rig.connect("p").publish("t/1", b"x", 2)
    [seen] = rig.connect("c", clean=False).publishes()
    assert (sorted(seen.properties.subscription_ids), seen.qos) == ([1, 2], 1)


@BOTH
def test_unsubscribing_stops_new_messages(version: int) -> None:
    rig = Rig()
    client = rig.connect("c", version, clean=False, expiry=10)
    client.subscribe("t", "$share/g/t")
    codes = (0, 0x11, 0) if version == V5 else ()
    assert client.send(Unsubscribe(3, ("t", "u", "$share/g/t"))) == [UnsubAck(3, codes)]  # [MQTT-3.11.3-2]
    assert rig.connect("p").publish("t", b"x", 1) == [PubAck(7, 0x10)]
    assert rig.records() == {"MQTT_SESSIONS": 1}


def test_an_unsuback_that_does_not_fit_closes() -> None:
    client = Rig().connect(properties=Properties(maximum_packet_bytes=40))
    assert code_of(client.send(Unsubscribe(3, tuple(f"{number}" for number in range(60))))) == 0x95


def test_wildcards_do_not_see_dollar_topics() -> None:
    rig = Rig()
    client = rig.connect("c")
    client.subscribe("#")
    publisher = rig.connect("p")
    assert publisher.publish("$x/y", b"x", 1) == [PubAck(7, 0x10)]  # [MQTT-4.7.2-1]
    assert code_of(publisher.publish("$SYS/y", b"x", 1)) == 0x87


def test_what_is_not_allowed_is_refused() -> None:
    rig = Rig(HubLimits(subscriptions_max=1, shared_available=False), Guard())
    client = rig.connect("c")
    assert client.subscribe("secret", "/" * 300, "$share/g/t", "a", "a", "b") == [
        SubAck(9, (0x87, 0x8F, 0x9E, 0, 0, 0x97))
    ]
    assert code_of(client.publish("secret", b"x", 1)) == 0x87
    assert code_of(client.publish("secret", b"x", 2)) == 0x87
    assert code_of(client.publish("/" * 300, b"x", 1)) == 0x90
    assert client.publish("secret", b"x", 0) == []
    old = rig.connect("d", V311)
    assert old.publish("secret", b"x", 1) == [PubAck(7)]  # [MQTT-3.3.5-2]
    assert old.subscribe("secret") == [SubAck(9, (0x80,))]
