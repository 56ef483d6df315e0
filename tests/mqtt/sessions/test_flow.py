"""Flow control, and what is too much or too large."""

from __future__ import annotations

from collections import Counter

import pytest

from holdfast.mqtt.codec import (
    V5,
    V311,
    Disconnect,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
)
from holdfast.mqtt.sessions.settings import HubLimits
from tests.mqtt.sessions.rig import Guard, Rig, code_of, payloads

BOTH = pytest.mark.parametrize("version", [V311, V5])


def test_no_more_is_in_flight_than_the_client_takes() -> None:
    rig = Rig()  # [MQTT-3.3.4-9]
    client = rig.connect("c", properties=Properties(receive_maximum=2, session_expiry_s=100))
    client.subscribe("t", qos=2)
    publisher = rig.connect("p")
    for number in range(5):
        publisher.publish("t", b"%d" % number, 1 + number % 2, 10 + number)
    one, two = client.publishes()
    assert payloads(client.send(PubAck(one.packet_id))) == [b"2"]
    assert payloads(client.send(PubRec(two.packet_id))) == []
    assert payloads(client.send(PubComp(two.packet_id))) == [b"3"]
    client.drop()
    client = rig.connect("c", clean=False, properties=Properties(receive_maximum=1, session_expiry_s=100))
    [again] = client.publishes()
    assert (again.payload, again.dup) == (b"2", True)
    client.send(PubAck(3), PubRec(4), PubComp(4))  # the other was there already, so it does not come again
    assert rig.records()["MQTT_OUTGOING"] == 1


def test_a_client_that_sends_more_than_we_take_is_disconnected() -> None:
    rig = Rig(HubLimits(receive_maximum=2))
    client = rig.connect("c")
    answers = client.send(*(Publish("t", b"x", 2, number) for number in (1, 2, 2, 3)))
    last = answers[-1]
    assert isinstance(last, Disconnect)
    assert last.reason_code == 0x93
    rig.connect("s", expiry=10).subscribe("t", qos=1)
    client = rig.connect("c")
    client.send(Publish("t", b"x", 1, 1), Publish("t", b"x", 1, 2), settle=False)
    rig.turn()
    client.send(Publish("t", b"x", 1, 3), settle=False)
    rig.settle()
    assert [type(packet) for packet in client.take()] == [PubAck, PubAck, Disconnect]
    client = rig.connect("c")
    for _ in range(5):
        assert client.send(Publish("t", b"x", 1, 1), Publish("t", b"x", 1, 2)) == [PubAck(1), PubAck(2)]


def test_what_connack_ruled_out_disconnects() -> None:
    for settings, packet, code in (
        (HubLimits(qos_max=1), Publish("t", b"x", 2, 1), 0x9B),  # [MQTT-3.2.2-11]
        (HubLimits(retain_available=False), Publish("t", b"x", retain=True), 0x9A),  # [MQTT-3.2.2-14]
        (HubLimits(topic_alias_max=3), Publish("t", b"x", properties=Properties(topic_alias=4)), 0x94),
        (HubLimits(), Publish("", b"x", properties=Properties(topic_alias=4)), 0x82),
    ):
        assert code_of(Rig(settings).connect("c").send(packet)) == code


def test_a_full_queue_drops_the_newest_after_the_expired_and_reports_to_the_publisher_if_nobody_had_room() -> None:
    for settings in (HubLimits(queued_messages_max=2), HubLimits(queued_bytes_max=4)):
        rig = Rig(settings)
        client = rig.connect("c", expiry=100)
        client.subscribe("t", qos=2)
        client.drop()
        publisher = rig.connect("p")
        publisher.publish("t", b"1", 1, properties=Properties(message_expiry_s=5))
        publisher.publish("t", b"2", 1)
        assert code_of(publisher.publish("t", b"3", 2)) == 0x97
        assert rig.hub.dropped == {"full": 1}
        rig.pass_time(6)
        assert publisher.publish("t", b"4", 2) == [PubRec(7)]
        assert code_of(publisher.publish("t", b"5", 1)) == 0x97
        assert [one.payload for one in rig.connect("c", clean=False).publishes()] == [b"2", b"4"]


def test_retained_messages_are_limited() -> None:
    rig = Rig(HubLimits(retained_messages_max=1))
    client = rig.connect("c")
    client.publish("a", b"1", retain=True)
    client.publish("a", b"2", retain=True)
    assert code_of(client.publish("b", b"1", 1, retain=True)) == 0x97


def test_what_is_too_large_for_a_client_is_left_out() -> None:
    rig = Rig()  # [MQTT-3.1.2-24] [MQTT-3.1.2-25]
    asked = Properties(maximum_packet_bytes=100, session_expiry_s=100, receive_maximum=1)
    client = rig.connect("c", properties=asked)
    client.subscribe("t", qos=1)
    publisher = rig.connect("p")
    for payload, qos in ((b"x" * 100, 0), (b"x" * 100, 1), (b"fits", 1), (b"x" * 100, 1), (b"last", 1), (b"y" * 50, 1)):
        publisher.publish("t", payload, qos)
    [seen] = client.publishes()
    assert seen.payload == b"fits"
    assert payloads(client.send(PubAck(seen.packet_id))) == [b"last"]
    assert rig.hub.dropped == {"large": 3}
    small = Properties(maximum_packet_bytes=50, session_expiry_s=100)
    assert payloads(client.send(PubAck(4))) == [b"y" * 50]
    client.drop()
    client = rig.connect("c", clean=False, properties=small)
    assert client.publishes() == []
    assert rig.hub.dropped == {"large": 4}
    assert rig.records() == {"MQTT_SESSIONS": 1, "MQTT_SUBSCRIPTIONS": 1}


def test_explanations_are_left_out_for_clients_that_do_not_want_them() -> None:
    client = Rig(access=Guard()).connect("c", properties=Properties(request_problem_information=0))
    assert client.publish("secret", b"x", 1) == [PubAck(7, 0x87)]  # [MQTT-3.1.2-29]


def test_a_client_whose_transport_is_full_is_spared_until_it_has_room() -> None:
    rig = Rig()
    client = rig.connect("c")
    client.subscribe("t", qos=1)
    rig.hub.pause(client.connection)
    publisher = rig.connect("p")
    publisher.publish("t", b"0", 0)
    publisher.publish("t", b"1", 1)
    assert client.take() == []
    assert rig.hub.dropped == {"slow": 1}
    rig.hub.resume(client.connection, rig.now)
    rig.settle()
    assert payloads(client.take()) == [b"1"]


def test_packet_identifiers_wrap_and_skip_those_in_flight() -> None:
    session = Rig().connect("c").connection.session
    assert session is not None
    session._packet_id = 65534
    assert session.next_packet_id() == 65535
    session.inflight = dict.fromkeys([1, 2], None)  # type: ignore[assignment]
    assert session.next_packet_id() == 3


@BOTH
def test_packets_that_are_sent_are_counted_by_kind(version: int) -> None:
    rig = Rig()
    client = rig.connect("c", version)
    client.subscribe("t", qos=2)
    seen = Counter(map(type, client.send(PingReq())))
    for qos in (0, 1, 2):
        answers = client.publish("t", b"x", qos, 7)
        seen += Counter(map(type, answers))
    assert seen == {PingResp: 1, Publish: 3, PubAck: 1, PubRec: 1}
    kinds = {3: Publish, 4: PubAck, 5: PubRec, 13: PingResp}
    assert {kinds[kind]: count for kind, count in enumerate(rig.hub.outbox.sent) if kind in kinds and count} == seen
    assert sum(rig.hub.outbox.sent) == sum(seen.values()) + 2  # CONNACK and SUBACK
