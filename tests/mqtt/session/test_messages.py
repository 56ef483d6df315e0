"""Messages by clause: QoS both ways, durability, retained, options, shares, aliases, limits, the bridge."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast.core.records import Table
from holdfast.errors import FormatUnknown
from holdfast.mqtt.codec import (
    V5,
    V311,
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
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
    encode,
)
from holdfast.mqtt.connection import Connection
from holdfast.mqtt.hub import Hub
from holdfast.mqtt.messages import Message
from holdfast.mqtt.seams import AllowAll, Granted, Refusal, Run
from holdfast.mqtt.session import Session, Subscriber, Terms
from holdfast.mqtt.settings import MqttSettings
from tests.mqtt.session.rig import Client, Rig

BOTH = pytest.mark.parametrize("version", [V311, V5])


def code_of(packets: Sequence[Packet]) -> int:
    [packet] = packets
    assert isinstance(packet, Disconnect | PubAck | PubRec | PubComp)
    return packet.reason_code


def payloads(packets: Sequence[Packet]) -> list[bytes]:
    return [packet.payload for packet in packets if isinstance(packet, Publish)]


# --- QoS ------------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_a_message_goes_out_at_the_lower_qos(version: int, published: int, granted: int) -> None:
    rig = Rig()  # [MQTT-3.8.4-8]
    client = rig.connect("c", version)
    assert client.subscribe("t/#", qos=granted) == [SubAck(9, (granted,))]
    rig.connect("p", version).publish("t/1", b"x", published)
    [seen] = client.publishes()
    assert (seen.qos, seen.topic, seen.payload, seen.dup, seen.retain) == (
        min(published, granted),
        "t/1",
        b"x",
        False,
        False,
    )


@BOTH
def test_qos_2_is_taken_once_until_it_is_released(version: int) -> None:
    rig = Rig()  # [MQTT-4.3.3-2]
    client = rig.connect("c")
    client.subscribe("t")
    publisher = rig.connect("p", version, clean=False, expiry=100)
    assert publisher.publish("t", b"1", 2) == [PubRec(7)]
    assert publisher.publish("t", b"1", 2, dup=True) == [PubRec(7)]
    publisher.drop()
    rig.crash()
    publisher = rig.connect("p", version, clean=False, expiry=100)
    assert publisher.publish("t", b"1", 2, dup=True) == [PubRec(7)]
    assert payloads(client.take()) == [b"1"]
    assert publisher.send(PubRel(7)) == [PubComp(7)]
    assert publisher.send(PubRel(7)) == [PubComp(7, 0x92 if version == V5 else 0)]


def test_the_receiver_of_qos_2_is_led_through_the_handshake_and_unknown_ids_are_named() -> None:
    rig = Rig()
    client = rig.connect("c", expiry=100)
    client.subscribe("t", qos=2)
    rig.connect("p").publish("t", b"x", 2)
    [seen] = client.publishes()
    assert client.send(PubComp(seen.packet_id), PubAck(seen.packet_id)) == []
    assert client.send(PubRec(seen.packet_id)) == [PubRel(seen.packet_id)]
    assert client.send(PubRec(seen.packet_id)) == [PubRel(seen.packet_id)]
    client.drop()
    rig.crash()
    client = rig.connect("c", clean=False, expiry=100)
    assert client.take() == [PubRel(seen.packet_id)]  # [MQTT-4.4.0-1]
    assert client.send(PubComp(seen.packet_id)) == []
    assert client.send(PubRec(99)) == [PubRel(99, 0x92)]
    client.send(Disconnect(0, Properties(session_expiry_s=0)))
    assert rig.records() == {}


def test_a_refusing_pubrec_ends_the_message() -> None:
    rig = Rig()
    client = rig.connect("c", expiry=100)
    client.subscribe("t", qos=2)
    rig.connect("p").publish("t", b"x", 2)
    [seen] = client.publishes()
    assert client.send(PubRec(seen.packet_id, 0x80)) == []  # [MQTT-4.3.3-4]
    assert rig.records() == {"MQTT_SESSIONS": 1, "MQTT_SUBSCRIPTIONS": 1}


@BOTH
@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_not_acknowledged_comes_again_with_its_identifier(version: int, qos: int) -> None:
    rig = Rig()
    client = rig.connect("c", version, clean=False, expiry=100)
    client.subscribe("t", qos=qos)
    publisher = rig.connect("p")
    for payload in (b"1", b"2", b"3"):
        publisher.publish("t", payload, qos)
    first = client.publishes()
    client.acknowledge(first[0])
    client.drop()
    rig.crash()
    again = rig.connect("c", version, clean=False, expiry=100)
    seen = again.publishes()
    assert [(one.packet_id, one.payload, one.dup) for one in seen] == [
        (one.packet_id, one.payload, True) for one in first[1:]
    ]  # [MQTT-3.3.1-1] [MQTT-4.6.0-1]
    again.acknowledge(*seen)
    assert rig.records() == {"MQTT_SESSIONS": 1, "MQTT_SUBSCRIPTIONS": 1}


# --- durability -----------------------------------------------------------------------------------------------------


def test_an_answer_waits_for_the_sync_if_a_persistent_session_got_the_message() -> None:
    rig = Rig()
    client = rig.connect("c", expiry=100)
    client.subscribe("t", qos=1)
    publisher = rig.connect("p")
    publisher.send(Publish("t", b"1", 1, 1), Publish("nobody", b"2", 1, 2), settle=False)
    rig.turn()
    assert payloads(client.take()) == [b"1"]  # need not wait
    assert publisher.take() == []
    publisher.send(Publish("nobody", b"3", 1, 3), settle=False)  # later than one that waits
    rig.turn()
    assert publisher.take() == []
    rig.sync()
    assert publisher.take() == [PubAck(1), PubAck(2, 0x10), PubAck(3, 0x10)]  # [MQTT-4.6.0-2]


def test_transient_sessions_write_nothing_and_are_answered_at_once() -> None:
    rig = Rig()
    client = rig.connect("c")
    client.subscribe("t", qos=2)
    publisher = rig.connect("p")
    publisher.send(Publish("t", b"1", 2, 1), settle=False)
    turn = rig.turn()
    assert (turn.ops, turn.held) == ([], [])
    assert publisher.take() == [PubRec(1)]
    [seen] = client.publishes()
    client.send(PubRec(seen.packet_id), settle=False)
    turn = rig.turn()
    assert (turn.ops, turn.held) == ([], [])
    assert client.take() == [PubRel(seen.packet_id)]


def test_qos_2_to_a_persistent_session_and_its_pubrel_wait_for_the_sync() -> None:
    rig = Rig()
    client = rig.connect("c", expiry=100)
    client.subscribe("t", qos=2)
    rig.connect("p").send(Publish("t", b"1", 2, 1), settle=False)
    rig.turn()
    assert client.take() == []
    rig.sync()
    [seen] = client.publishes()
    client.send(PubRec(seen.packet_id), settle=False)
    rig.turn()
    assert client.take() == []
    rig.sync()
    assert client.take() == [PubRel(seen.packet_id)]


def test_a_sync_that_ends_within_a_turn_frees_what_waited_in_order() -> None:
    rig = Rig()
    rig.connect("c", expiry=100).subscribe("t", qos=1)
    publisher = rig.connect("p")
    publisher.send(Publish("t", b"1", 1, 1), settle=False)
    rig.turn()
    publisher.send(Publish("nobody", b"2", 1, 2), settle=False)
    rig.sync()
    assert publisher.send(Publish("nobody", b"3", 1, 3), settle=False) == [PubAck(1)]
    rig.turn()
    assert publisher.take() == [PubAck(2, 0x10), PubAck(3, 0x10)]


def test_a_payload_is_stored_once_for_all_sessions() -> None:
    rig = Rig()
    for number in range(5):
        rig.connect(f"c{number}", expiry=100).subscribe("t", qos=1)
    rig.connect("p").publish("t", b"x" * 100, 1, retain=True)
    assert rig.records()["MQTT_MESSAGES"] == 1
    rig.connect("p").publish("t", b"", 1, retain=True)
    for number in range(5):
        client = rig.connect(f"c{number}", clean=False, expiry=100)
        client.acknowledge(*client.publishes())
        client.send(Disconnect(0, Properties(session_expiry_s=0)))
    assert rig.records() == {}


def test_a_record_of_an_unknown_version_is_refused() -> None:
    for table, key in ((Table.MQTT_MESSAGES, bytes(8)), (Table.MQTT_SESSIONS, b"ns\0c")):
        rig = Rig()
        rig.store.write(rig.epoch, [(table, key, b"\x09" + bytes(30))])
        with pytest.raises(FormatUnknown):
            rig.restart()


def test_many_records_are_read_back_page_by_page() -> None:
    rig = Rig()
    publisher = rig.connect("p")
    publisher.send(*(Publish(f"t/{number}", b"x", retain=True) for number in range(1500)))
    rig.restart()
    assert len(rig.hub.spaces["ns"].retained) == 1500


# --- retained messages and subscription options ---------------------------------------------------------------------


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


class Guard(AllowAll):
    def may_publish(self, connection: Connection, topic: str) -> int:
        return 0x87 if topic == "secret" else 0

    def may_subscribe(self, connection: Connection, topic_filter: str) -> int:
        return 0x87 if topic_filter == "secret" else 0


def test_what_is_not_allowed_is_refused() -> None:
    rig = Rig(MqttSettings(subscriptions_max=1, shared_available=False), Guard())
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


# --- expiry ---------------------------------------------------------------------------------------------------------


def test_message_expiry_is_counted_down_and_what_is_late_is_dropped() -> None:
    rig = Rig()  # [MQTT-3.3.2-5] [MQTT-3.3.2-6]
    client = rig.connect("c", expiry=100)
    client.subscribe("t", qos=1)
    client.drop()
    publisher = rig.connect("p")
    for seconds in (5, 20):
        publisher.publish("t", b"%d" % seconds, 1, properties=Properties(message_expiry_s=seconds))
    rig.pass_time(7.5)
    client = rig.connect(
        "c", clean=False, expiry=100, properties=Properties(session_expiry_s=100, topic_alias_maximum=1)
    )
    [seen] = client.publishes()
    assert (seen.payload, seen.properties.message_expiry_s) == (b"20", 13)
    assert rig.hub.dropped == {"expired": 1}
    client.drop()
    rig.pass_time(20)
    [again] = rig.connect("c", clean=False, expiry=100).publishes()
    assert (again.dup, again.properties.message_expiry_s) == (True, 0)  # its delivery had begun


def test_a_retained_message_goes_when_it_expires() -> None:
    rig = Rig()
    publisher = rig.connect("p")
    publisher.publish("t", b"x", retain=True, properties=Properties(message_expiry_s=5))
    publisher.publish("u", b"x", retain=True, properties=Properties(message_expiry_s=5))
    publisher.publish("u", b"stays", retain=True)
    rig.now += 6_000_000
    assert payloads(rig.connect("c").subscribe("#")) == [b"stays"]
    rig.pass_time(0)
    assert rig.records() == {"MQTT_MESSAGES": 1, "MQTT_RETAINED": 1}


# --- flow control and limits ----------------------------------------------------------------------------------------


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
    rig = Rig(MqttSettings(receive_maximum=2))
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
        (MqttSettings(qos_max=1), Publish("t", b"x", 2, 1), 0x9B),  # [MQTT-3.2.2-11]
        (MqttSettings(retain_available=False), Publish("t", b"x", retain=True), 0x9A),  # [MQTT-3.2.2-14]
        (MqttSettings(topic_alias_max=3), Publish("t", b"x", properties=Properties(topic_alias=4)), 0x94),
        (MqttSettings(), Publish("", b"x", properties=Properties(topic_alias=4)), 0x82),
    ):
        assert code_of(Rig(settings).connect("c").send(packet)) == code


def test_a_full_queue_drops_the_newest_after_the_expired_and_tells_the_publisher_if_nobody_had_room() -> None:
    for settings in (MqttSettings(queued_messages_max=2), MqttSettings(queued_bytes_max=4)):
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
    rig = Rig(MqttSettings(retained_messages_max=1))
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


def test_packet_identifiers_come_round_and_pass_by_those_in_flight() -> None:
    session = Rig().connect("c").connection.session
    assert session is not None
    session._packet_id = 65534
    assert session.next_packet_id() == 65535
    session.inflight = dict.fromkeys([1, 2], None)  # type: ignore[assignment]
    assert session.next_packet_id() == 3


# --- aliases --------------------------------------------------------------------------------------------------------


def test_a_client_may_name_topics_by_alias() -> None:
    rig = Rig()  # [MQTT-3.3.2-12]
    other = rig.connect("o")
    other.subscribe("#")
    client = rig.connect("c")
    client.publish("long/topic", b"1", properties=Properties(topic_alias=1))
    client.send(Publish("", b"2", properties=Properties(topic_alias=1)))
    client.publish("other", b"3", properties=Properties(topic_alias=1))
    client.send(Publish("", b"4", properties=Properties(topic_alias=1)))
    assert [(one.topic, one.properties.topic_alias) for one in other.publishes()] == [
        ("long/topic", None),
        ("long/topic", None),
        ("other", None),
        ("other", None),
    ]


def test_aliases_are_set_towards_a_client_that_takes_them() -> None:
    rig = Rig()
    client = rig.connect("c", properties=Properties(topic_alias_maximum=1, maximum_packet_bytes=100))
    client.subscribe("#", qos=1)
    publisher = rig.connect("p")
    for topic, payload, qos in (
        ("long", b"x" * 100, 0),
        ("long", b"1", 0),
        ("long", b"2", 1),
        ("longer", b"3", 0),
        ("abc", b"4", 0),
    ):
        publisher.publish(topic, payload, qos, properties=Properties(message_expiry_s=9 if qos else None))
    assert [(one.topic, one.properties.topic_alias) for one in client.publishes()] == [
        ("long", 1),
        ("", 1),
        ("longer", None),
        ("abc", None),
    ]


# --- shared subscriptions -------------------------------------------------------------------------------------------


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
    rig = Rig(MqttSettings(inflight_max=1))
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
    away = rig.hub.spaces["ns"].sessions.get("m0")
    assert (away is None) == (expiry is None)
    assert away is None or (not away.inflight and not away.queue)


def test_qos_2_that_was_sent_stays_with_its_member() -> None:
    rig = Rig(MqttSettings(inflight_max=1))  # [MQTT-4.8.2-4]
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
    assert len(rig.hub.spaces["ns"].sessions["m1"].queue) == 2
    assert payloads(second.take()) == [b"1"]


def test_with_all_members_away_their_sessions_keep_the_messages() -> None:
    rig = Rig(MqttSettings(queued_messages_max=1))
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


def test_a_member_at_qos_0_that_is_away_is_passed_by() -> None:
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
    assert len(rig.hub.spaces["ns"].sessions["m0"].inflight) == 3
    other = rig.connect("m1")
    other.subscribe("$share/g/t", qos=1)
    rig.pass_time(200)
    assert payloads(other.take()) == [b"1"]
    assert rig.records() == {}


def test_a_members_own_queue_stays_in_order_when_its_share_is_passed_on() -> None:
    rig = Rig(MqttSettings(inflight_max=1))
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
    assert len(rig.hub.spaces["ns"].sessions["m1"].queue) == 2


# --- seams ----------------------------------------------------------------------------------------------------------


class Queues:
    """A bridge that writes down what it is asked."""

    def __init__(self) -> None:
        self.prefixes: tuple[str, ...] = ("$queue/", "$admin/")
        self.asked: list[object] = []
        self.hub: Hub | None = None
        self.refused: set[int] = set()
        self.lengths: list[int] = []

    def publish(self, connection: Connection, runs: Sequence[Run], now: int) -> None:
        self.asked.append([(one.topic, one.qos) for run in runs for one in run.packets])
        self.lengths += [len(run.packets) for run in runs]
        assert self.hub is not None
        for run in runs:
            for index, packet in enumerate(run.packets):
                if packet.packet_id in self.refused:
                    run.refusals[index] = Refusal(0x97, "full")
            self.hub.turn_down(connection, run, now)

    def captures(self, namespace: str, topic: str) -> bool:
        return topic.startswith("captured")

    def capture(self, connection: Connection | None, namespace: str, run: Run, now: int) -> None:
        self.asked.append((connection is not None, run.packets[0].topic))

    def acknowledged(self, connection: Connection, session: Session, acks: Sequence[PubAck], now: int) -> None:
        assert self.hub is not None
        self.asked.append(self.hub.returned(connection, session, acks))

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


def test_what_the_bridge_turns_down_is_refused_in_its_place() -> None:
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
    assert rig.hub.lend(client.connection, session, ["lease"]) == [1]
    client.send(Publish("$queue/a", b"", 1, 1))
    client.send(Publish("$queue/a", b"", 1, 2), PubAck(1), Publish("$queue/a", b"", 1, 3))
    assert bridge.lengths == [1, 1, 1]


def test_a_subscription_that_is_withdrawn_ends_the_connection_once() -> None:
    _, rig = bridged()
    client = rig.connect("c", expiry=100)
    client.subscribe("$queue/a")
    rig.hub.withdraw(client.connection, "$queue/a", "the group was deleted", rig.now)
    rig.hub.withdraw(client.connection, "$queue/a", "the group was deleted", rig.now)
    rig.settle()
    assert [type(packet) for packet in client.take()] == [Disconnect]
    assert rig.hub.spaces["ns"].sessions["c"].subscriptions == {}


def test_a_refusal_of_a_message_that_was_released_meanwhile_forgets_nothing() -> None:
    bridge, rig = bridged()
    client = rig.connect("c")
    bridge.refused = {1}
    run = Run([Publish("$queue/a", b"", 2, 7)], 0)
    run.refusals[0] = Refusal(0x97, "full")
    client.connection.held = [b""]
    rig.hub.turn_down(client.connection, run, rig.now)
    session = client.connection.session
    assert session is not None
    assert session.incoming == set()


def test_a_run_does_not_go_beyond_the_receive_maximum() -> None:
    bridge = Queues()
    rig = Rig(MqttSettings(receive_maximum=3), bridge=bridge)
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
    assert rig.hub.room(client.connection) == 2
    assert rig.hub.lend(client.connection, session, ["lease"]) == [1]
    session._packet_id = 0
    assert rig.hub.lend(client.connection, session, ["other"]) == [2]
    assert rig.hub.room(client.connection) == 0
    rig.hub.send(client.connection, encode(Publish("$queue/a", b"x", 1, 1), V5))
    rig.settle()
    assert payloads(client.take()) == [b"x"]
    client.send(PubAck(1), PubAck(2), PubAck(2))
    assert bridge.asked == [["lease", "other", None]]
    assert feed.count == 1
    assert rig.hub.room(client.connection) == 2


def test_the_broker_can_publish_itself_and_namespaces_do_not_meet() -> None:
    rig = Rig()
    client = rig.connect("c")
    client.subscribe("t")
    assert rig.hub.publish("other", Message("t", b"x", 0, False, Properties()), rig.now) == 0x10
    assert rig.hub.publish("ns", Message("t", b"y", 0, False, Properties()), rig.now) == 0
    rig.settle()
    assert payloads(client.take()) == [b"y"]


def test_many_topics_fill_the_plans_only_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.mqtt.spaces.MATCHES_CACHED_MAX", 2)
    rig = Rig()
    client = rig.connect("c")
    client.subscribe("#")
    publisher = rig.connect("p")
    for number in range(5):
        publisher.publish(f"t/{number}")
    assert len(client.publishes()) == 5
    assert len(rig.hub.spaces["ns"]._plans) <= 2


def test_many_receivers_get_the_same_bytes() -> None:
    rig = Rig()
    clients = [rig.connect(f"c{number}", version) for number in range(3) for version in (V311, V5)]
    for client in {client.connection.client_id: client for client in clients}.values():
        client.subscribe("t")
    rig.connect("p").send(Publish("t", b"x"), settle=False)
    data = [output.data for output in rig.settle().now]
    assert data == [encode(Publish("t", b"x"), V5)] * 3
