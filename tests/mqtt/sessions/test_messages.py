"""Messages by clause: QoS both ways, durability, expiry, aliases."""

from __future__ import annotations

import pytest

from holdfast.core.records import Table
from holdfast.errors import FormatUnknown
from holdfast.mqtt.codec import (
    V5,
    V311,
    Disconnect,
    Packet,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
)
from tests.mqtt.sessions.rig import Rig, code_of, payloads

BOTH = pytest.mark.parametrize("version", [V311, V5])


# --- QoS -------------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("version", [V311, V5])
def test_answers_about_qos_2_wait_for_the_sync_also_if_they_change_nothing(version: int) -> None:
    """What they rest on may have been written a moment ago. Undone by a crash, the client would take for released what
    we take for a copy, and its next message under the identifier would be lost."""
    rig = Rig()
    publisher = rig.connect("p", version, clean=False, expiry=100)
    publisher.publish("t", b"1", 2)
    for packet, answer in (
        (Publish("t", b"1", 2, 7, dup=True), PubRec(7)),
        (PubRel(7), PubComp(7)),
        (PubRel(7), PubComp(7, 0x92 if version == V5 else 0)),
    ):
        assert publisher.send(packet, settle=False) == []
        rig.turn()
        assert publisher.take() == []
        rig.sync()
        assert publisher.take() == [answer]


def test_the_receiver_of_qos_2_is_led_through_the_handshake_and_unknown_ids_are_named() -> None:
    rig = Rig()
    client = rig.connect("c", expiry=100)
    client.subscribe("t", qos=2)
    rig.connect("p").publish("t", b"x", 2)
    [seen] = client.publishes()
    assert client.send(PubRec(seen.packet_id)) == [PubRel(seen.packet_id)]
    assert client.send(PubRec(seen.packet_id)) == [PubRel(seen.packet_id)]
    client.drop()
    rig.crash()
    client = rig.connect("c", clean=False, expiry=100)
    assert client.take() == [PubRel(seen.packet_id)]  # [MQTT-4.4.0-1]
    assert client.send(PubComp(seen.packet_id)) == []
    assert client.send(PubRec(99), PubAck(99), PubComp(99)) == [PubRel(99, 0x92)]
    assert client.send(PubRec(99, 0x80)) == []  # which would end the message, if there were one
    client.send(Disconnect(0, Properties(session_expiry_s=0)))
    assert rig.records() == {}


@BOTH
@pytest.mark.parametrize(
    ("qos", "before", "answer"),
    [
        (1, (), PubRec(1)),
        (1, (), PubComp(1)),
        (2, (), PubAck(1)),
        (2, (), PubComp(1)),
        (2, (PubRec(1),), PubAck(1)),
    ],
    ids=["1 PUBREC", "1 PUBCOMP", "2 PUBACK", "2 PUBCOMP", "2 PUBREC PUBACK"],
)
def test_an_acknowledgement_of_the_wrong_kind_ends_the_connection_and_acknowledges_nothing(
    version: int, qos: int, before: tuple[Packet, ...], answer: Packet
) -> None:
    rig = Rig()
    client = rig.connect("c", version, clean=False, expiry=100)
    client.subscribe("t", qos=qos)
    rig.connect("p").publish("t", b"x", qos)
    assert [seen.packet_id for seen in client.publishes()] == [1]
    client.send(*before)
    answers = client.send(answer, Publish("never", b"", 1, 9))
    if version == V5:
        assert code_of(answers) == 0x82
    else:
        assert answers == []
    assert client.closed
    assert set(rig.session().inflight) == {1}


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


# --- durability ------------------------------------------------------------------------------------------------------


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


def test_what_waits_behind_an_answer_is_not_overtaken_by_what_comes_when_that_may_go() -> None:
    rig = Rig()
    publisher = rig.connect("p")
    client = rig.connect("c", expiry=100)
    client.send(Subscribe(9, (Subscription("t", 0),)), settle=False)
    rig.turn()  # its SUBACK waits for the sync
    publisher.send(Publish("t", b"1"), settle=False)
    rig.turn()
    assert client.take() == []
    rig.sync(1)
    publisher.send(Publish("t", b"2"), settle=False)
    rig.turn()
    rig.sync()
    suback, *publishes = client.take()
    assert isinstance(suback, SubAck)
    assert payloads(publishes) == [b"1", b"2"]  # [MQTT-4.6.0-5]


def test_a_connection_that_is_closed_behind_an_answer_is_closed_after_it() -> None:
    rig = Rig()
    client = rig.connect("c", expiry=100)
    client.send(Subscribe(9, (Subscription("t", 0),)), settle=False)
    rig.turn()
    rig.hub.close(client.connection, 0x8B, "shutting down", rig.now)
    rig.turn()
    assert (client.take(), client.closed) == ([], False)
    rig.sync(1)
    assert [type(packet) for packet in client.take()] == [SubAck, Disconnect]
    assert client.closed


def test_transient_sessions_write_nothing_and_are_answered_immediately() -> None:
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
    assert len(rig.hub.namespaces["ns"].retained) == 1500


# --- expiry ----------------------------------------------------------------------------------------------------------


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


# --- aliases ---------------------------------------------------------------------------------------------------------


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
