"""Shared subscriptions: who gets what, and what becomes of it when a member goes."""

from __future__ import annotations

import pytest

from holdfast.mqtt.codec import (
    V5,
    V311,
    Disconnect,
    Properties,
    PubAck,
    Unsubscribe,
)
from holdfast.mqtt.sessions.settings import HubLimits
from tests.mqtt.sessions.rig import Client, Rig, code_of, payloads

BOTH = pytest.mark.parametrize("version", [V311, V5])


def members(rig: Rig, count: int, qos: int, expiry: int | None = None) -> list[Client]:
    clients = [rig.connect(f"m{number}", expiry=expiry) for number in range(count)]
    for client in clients:
        client.subscribe("$share/g/t", qos=qos)
    return clients


@pytest.mark.parametrize("qos", [0, 1])
def test_a_shared_subscription_deals_messages_out_in_turn(qos: int) -> None:
    rig = Rig()  # [MQTT-4.8.2-3]
    clients = members(rig, 3, qos)
    publisher = rig.connect("p")
    for number in range(6):
        publisher.publish("t", b"%d" % number, qos)
    assert [len(client.publishes()) for client in clients] == [2, 2, 2]


def test_shared_subscriptions_are_shown_nothing_retained() -> None:
    rig = Rig()
    rig.connect("p").publish("t", b"x", retain=True)
    [client] = members(rig, 1, 0)
    assert client.take() == []


@pytest.mark.parametrize("expiry", [None, 100])
def test_what_a_member_leaves_behind_goes_to_another(expiry: int | None) -> None:
    rig = Rig(HubLimits(inflight_max=1))
    first, second = members(rig, 2, 2, expiry)
    publisher = rig.connect("p")
    for number in range(4):
        publisher.publish("t", b"%d" % number, 1)
    first.drop()
    got: list[bytes] = []
    while seen := second.publishes():
        got += payloads(seen)
        second.seen = second.send(*(PubAck(one.packet_id) for one in seen))
    assert sorted(got) == [b"0", b"1", b"2", b"3"]
    away = rig.hub.namespaces["ns"].sessions.get(("", "m0"))
    assert (away is None) == (expiry is None)
    assert away is None or (not away.inflight and not away.queue)


def test_qos_2_that_was_sent_stays_with_its_member() -> None:
    rig = Rig(HubLimits(inflight_max=1))  # [MQTT-4.8.2-4]
    first, second = members(rig, 2, 2, 100)
    publisher = rig.connect("p")
    for number in range(4):
        publisher.publish("t", b"%d" % number, 2, 10 + number)
    rig.connect("q").publish("t", b"direct", 0)
    first.take()
    first.drop()
    again = rig.connect("m0", clean=False, expiry=100)
    assert [(one.payload, one.dup) for one in again.publishes()] == [(b"0", True)]
    again.send(Disconnect(0, Properties(session_expiry_s=0)))  # [MQTT-4.8.2-5]
    assert len(rig.session("m1").queue) == 2
    assert payloads(second.take()) == [b"1"]


def test_with_all_members_away_their_sessions_keep_the_messages() -> None:
    rig = Rig(HubLimits(queued_messages_max=1))
    for client in members(rig, 2, 1, 100):
        client.drop()
    publisher = rig.connect("p")
    assert publisher.publish("t", b"0", 0) == []
    assert publisher.publish("t", b"1", 1) == [PubAck(7)]
    assert publisher.publish("t", b"2", 1) == [PubAck(7)]
    assert code_of(publisher.publish("t", b"3", 1)) == 0x97
    rig.restart()
    back = rig.connect("m0", clean=False, expiry=100)
    [seen] = back.publishes()
    back.send(Unsubscribe(1, ("$share/g/t",)))
    back.drop()
    assert [one.payload for one in rig.connect("m0", clean=False).publishes()] == [seen.payload]


def test_an_absent_member_at_qos_0_is_skipped() -> None:
    rig = Rig()
    for client in members(rig, 1, 0, 100):
        client.drop()
    assert code_of(rig.connect("p").publish("t", b"1", 1)) == 0x97


def test_when_nobody_else_is_there_a_message_waits_for_its_member_or_is_gone() -> None:
    rig = Rig()
    [only] = members(rig, 1, 1, 100)
    only.subscribe("u", qos=1)
    publisher = rig.connect("p")
    publisher.publish("t", b"1", 1)
    publisher.publish("t", b"2", 1, properties=Properties(message_expiry_s=1))
    publisher.publish("u", b"3", 1)
    rig.now += 2_000_000
    only.drop()
    assert len(rig.session("m0").inflight) == 3
    other = rig.connect("m1")
    other.subscribe("$share/g/t", qos=1)
    rig.pass_time(200)
    assert payloads(other.take()) == [b"1"]
    assert rig.records() == {}


def test_a_members_own_queue_stays_in_order_when_its_share_is_passed_on() -> None:
    rig = Rig(HubLimits(inflight_max=1))
    first, second = members(rig, 2, 1, 100)
    first.subscribe("own", qos=1)
    publisher = rig.connect("p")
    for topic, payload in (("own", b"1"), ("t", b"a"), ("t", b"b"), ("t", b"c"), ("own", b"2"), ("own", b"3")):
        publisher.publish(topic, payload, 1)
    first.drop()
    first = rig.connect("m0", clean=False, expiry=100)
    got: list[bytes] = []
    while seen := first.publishes():
        got += payloads(seen)
        first.seen = first.send(*(PubAck(one.packet_id) for one in seen))
    assert got == [b"1", b"2", b"3"]
    assert payloads(second.take()) == [b"a"]
    assert len(rig.session("m1").queue) == 2
