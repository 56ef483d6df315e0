"""PUBLISH and its handshakes, both ways: what arrives, once, in order, with everything it carried."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.mqtt.codec import (
    V5,
    V311,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    encode,
)
from tests.mqtt.net.broker import Broker
from tests.mqtt.net.clauses import covers
from tests.mqtt.net.conftest import Start

BOTH = pytest.mark.parametrize("version", [V311, V5])
QOS_1_2 = pytest.mark.parametrize("qos", [1, 2])


@BOTH
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
@covers(
    "2.2.1-2 2.2.1-4 2.2.1-5 2.2.1-6 3.3.4-1 3.8.4-1 3.8.4-2 3.8.4-8 4.3.1-1 4.3.2-1 4.3.2-2 4.3.2-4 4.3.3-1 4.3.3-2"
    " 4.3.3-4 4.3.3-8 4.3.3-11 4.5.0-1 3.3.2-3",
    v311="2.3.1-4 2.3.1-5 2.3.1-6 2.3.1-7 3.3.4-1 3.8.4-1 3.8.4-2 3.8.4-6 4.3.1-1 4.3.2-1 4.3.2-2 4.3.3-1 4.3.3-2"
    " 4.5.0-1 3.3.2-3",
)
async def test_a_message_arrives_at_the_lower_qos(broker: Broker, version: int, published: int, granted: int) -> None:
    client = await broker.connect("c", version)
    assert await client.subscribe("t/+", qos=granted) == (granted,)
    publisher = await broker.connect("p", version)
    for packet_id in (1, 0xFFFF):
        assert await publisher.publish("t/1", b"payload", published, packet_id) == 0
    seen = await client.publishes(2)
    lower = min(published, granted)
    assert {(one.topic, one.payload, one.qos, one.dup, one.retain) for one in seen} == {
        ("t/1", b"payload", lower, False, False)
    }
    ids = [one.packet_id for one in seen]
    assert ids == [0, 0] if lower == 0 else (all(ids) and len(set(ids)) == 2)
    for one in seen:
        await client.acknowledge(one)
    await client.silent()


@BOTH
@covers("3.3.1-3 4.3.2-5", v311="3.3.1-3")
async def test_dup_is_not_passed_on(broker: Broker, version: int) -> None:
    client = await broker.connect("c", version)
    await client.subscribe("t", qos=2)
    publisher = await broker.connect("p", version)
    # After its PUBACK the same identifier is a new message, DUP or not.
    assert [await publisher.publish("t", b"1", 1, dup=True), await publisher.publish("t", b"2", 1, dup=True)] == [0, 0]
    assert [(one.payload, one.dup) for one in await client.publishes(2)] == [(b"1", False), (b"2", False)]


@BOTH
@covers("4.3.3-10 4.3.3-12", v311="4.3.3-2")
async def test_qos_2_is_taken_once_until_it_is_released(broker: Broker, version: int) -> None:
    client = await broker.connect("c", version)
    await client.subscribe("t", qos=0)
    publisher = await broker.connect("p", version)
    packet = Publish("t", b"1", 2, 5)
    await publisher.send(packet, replace(packet, dup=True), replace(packet, dup=True))
    await publisher.expect(PubRec(5), PubRec(5), PubRec(5))
    assert await client.payloads(1) == [b"1"]
    await client.silent()
    await publisher.send(PubRel(5))
    await publisher.expect(PubComp(5))
    await publisher.send(replace(packet, payload=b"2"))
    await publisher.expect(PubRec(5))
    assert await client.payloads(1) == [b"2"]


@BOTH
@covers("4.4.0-1 4.3.3-10", v311="4.4.0-1 4.1.0-1")
async def test_qos_2_is_taken_once_across_reconnects(broker: Broker, version: int) -> None:
    listener = await broker.connect("l")
    await listener.subscribe("t", qos=0)
    expiry = 100 if version == V5 else None
    publisher = await broker.connect("p", version, clean=False, expiry=expiry)
    await publisher.send(Publish("t", b"1", 2, 5))
    await publisher.expect(PubRec(5))
    publisher.cut()
    again = await broker.connect("p", version, clean=False, expiry=expiry)
    await again.send(Publish("t", b"1", 2, 5, dup=True))
    await again.expect(PubRec(5))
    await again.send(PubRel(5))
    await again.expect(PubComp(5))
    again.cut()
    third = await broker.connect("p", version, clean=False, expiry=expiry)
    await third.send(PubRel(5))  # its PUBCOMP was lost
    await third.expect(PubComp(5, 0x92 if version == V5 else 0))
    assert await listener.payloads(1) == [b"1"]
    await listener.silent()


@BOTH
@QOS_1_2
@covers(
    "3.3.1-1 4.3.2-3 4.3.3-3 4.3.3-5 4.3.3-6 4.4.0-1 4.6.0-1 4.6.0-4", v311="3.3.1-1 4.4.0-1 4.6.0-1 4.6.0-4 4.3.3-1"
)
async def test_what_was_not_acknowledged_comes_again(broker: Broker, version: int, qos: int) -> None:
    expiry = 100 if version == V5 else None
    client = await broker.connect("c", version, clean=False, expiry=expiry)
    await client.subscribe("t", qos=2)
    publisher = await broker.connect("p", version)
    for number in range(4):
        await publisher.publish("t", b"%d" % number, qos)
    first = await client.publishes(4)
    if qos == 2:  # two are received, in the other order, and one of them is completed
        for index in (2, 1):
            await client.send(PubRec(first[index].packet_id))
            await client.expect(PubRel(first[index].packet_id))
        await client.send(PubComp(first[2].packet_id))
    else:
        await client.acknowledge(first[2])
    await client.ping()
    client.cut()
    again = await broker.connect("c", version, clean=False, expiry=expiry)
    if qos == 2:
        await again.expect(PubRel(first[1].packet_id))
    left = [0, 3] if qos == 2 else [0, 1, 3]
    seen = await again.publishes(len(left))
    assert seen == [replace(first[index], dup=True) for index in left]
    if qos == 2:
        await again.send(PubComp(first[1].packet_id))
    for one in seen:
        await again.acknowledge(one)
    await again.silent()
    again.cut()
    third = await broker.connect("c", version, clean=False, expiry=expiry)
    await third.silent()


@covers("4.4.0-2 4.3.3-9")
async def test_a_refused_message_is_not_sent_again(broker: Broker) -> None:
    client = await broker.connect("c", expiry=100)
    await client.subscribe("t", qos=2)
    publisher = await broker.connect("p")
    await publisher.publish("t", b"1", 1)
    await publisher.publish("t", b"2", 2)
    one, two = await client.publishes(2)
    await client.send(PubAck(one.packet_id, 0x80), PubRec(two.packet_id, 0x99))
    await client.ping()
    client.cut()
    await (await broker.connect("c", clean=False, expiry=100)).silent()


@covers("2.2.1-5")
async def test_unknown_identifiers_are_named(broker: Broker) -> None:
    client = await broker.connect()
    await client.send(PubRel(9), PubRec(9), PubAck(9), PubComp(9))
    await client.expect(PubComp(9, 0x92), PubRel(9, 0x92))
    await client.silent()


@BOTH
@covers("4.6.0-5 4.6.0-6 4.6.0-2 4.6.0-3", v311="4.6.0-5 4.6.0-6 4.6.0-2 4.6.0-3")
async def test_order_is_kept(broker: Broker, version: int) -> None:
    client = await broker.connect("c", version, clean=False, expiry=100 if version == V5 else None)
    await client.subscribe("#", qos=2)
    publisher = await broker.connect("p", version)
    packets = [
        Publish(f"t/{number % 3}", b"%d" % number, number % 3, number + 1 if number % 3 else 0) for number in range(30)
    ]
    await publisher.send(*packets)
    answers = [PubAck(one.packet_id) if one.qos == 1 else PubRec(one.packet_id) for one in packets if one.qos]
    await publisher.expect(*answers)
    seen = await client.publishes(30)
    for qos in range(3):
        assert [one.payload for one in seen if one.qos == qos] == [one.payload for one in packets if one.qos == qos]
    received = [one.packet_id for one in seen if one.qos == 2]
    await client.send(*(PubRec(one) for one in received))
    await client.expect(*(PubRel(one) for one in received))


@BOTH
@covers("1.5.4-3 4.7.3-4 4.7.3-3", v311="1.5.3-3 4.7.3-4 4.7.3-3")
async def test_topics_are_taken_as_they_are(broker: Broker, version: int) -> None:
    odd = ["\ufeffa", "A", "a\u0301", "á", "a ", "/", "//", "a/", "\uffff", "x" * 65535]
    client = await broker.connect("c", version)
    for topic in odd:
        assert await client.subscribe(topic, qos=0) == (0,)
    publisher = await broker.connect("p", version)
    for topic in odd:
        await publisher.publish(topic)
    assert [one.topic for one in await client.publishes(len(odd))] == odd
    await publisher.publish("a")
    await client.silent()


# --- properties -----------------------------------------------------------------------------------------------------

CARRIED = Properties(
    payload_format=1,
    content_type="text/plain; ü",
    response_topic="answers/here",
    correlation_data=b"\x00\xff",
    user_properties=(("b", "1"), ("a", ""), ("b", "1"), ("", "ü")),
)


@pytest.mark.parametrize("qos", [0, 1, 2])
@covers("3.3.2-4 3.3.2-15 3.3.2-16 3.3.2-17 3.3.2-18 3.3.2-20")
async def test_properties_travel_unaltered(broker: Broker, qos: int) -> None:
    client = await broker.connect("c", expiry=100)
    await client.subscribe("t", qos=2)
    old = await broker.connect("old", V311)
    await old.subscribe("t", qos=2)
    publisher = await broker.connect("p")
    await publisher.publish("t", b"text", qos, properties=CARRIED)
    assert (await client.next_publish()).properties == CARRIED
    assert (await old.next_publish()).payload == b"text"
    await client.disconnect()
    if qos:
        await publisher.publish("t", b"later", qos, properties=CARRIED)
        again = await broker.connect("c", clean=False, expiry=100)
        await again.next_publish()  # the one before, again
        assert (await again.next_publish()).properties == CARRIED


@covers("3.3.2-5 3.3.2-6")
async def test_message_expiry_is_counted_down_and_what_is_late_is_dropped(broker: Broker) -> None:
    client = await broker.connect("c", expiry=100)
    await client.subscribe("t", qos=1)
    await client.disconnect()
    publisher = await broker.connect("p")
    await publisher.publish("t", b"late", 1, properties=Properties(message_expiry_s=5))
    await publisher.publish("t", b"in time", 1, properties=Properties(message_expiry_s=30))
    await publisher.publish("t", b"any time", 1)
    broker.pass_time(10)
    again = await broker.connect("c", clean=False, expiry=100)
    first, second = await again.publishes(2)
    assert (first.payload, second.payload, second.properties.message_expiry_s) == (b"in time", b"any time", None)
    assert first.properties.message_expiry_s in (19, 20)
    await again.silent()


@covers("4.3.3-7 4.3.3-13")
async def test_what_was_sent_does_not_expire(broker: Broker) -> None:
    client = await broker.connect("c", expiry=1000)
    await client.subscribe("t", qos=2)
    publisher = await broker.connect("p")
    await publisher.publish("t", b"x", 2, properties=Properties(message_expiry_s=5))
    first = await client.next_publish()
    client.cut()
    broker.pass_time(10)
    again = await broker.connect("c", clean=False, expiry=1000)
    seen = await again.next_publish()
    assert (seen.payload, seen.packet_id, seen.dup) == (b"x", first.packet_id, True)
    await again.acknowledge(seen)
    await again.silent()


# --- topic aliases --------------------------------------------------------------------------------------------------


@covers("3.3.2-12 3.3.2-7 3.2.2-17")
async def test_a_client_may_name_topics_by_alias_on_one_connection(broker: Broker) -> None:
    listener = await broker.connect("l")
    await listener.subscribe("#")
    client = await broker.connect("c", expiry=100)
    highest = client.connack.properties.topic_alias_maximum
    assert highest is not None
    for alias in (1, highest):
        named = Properties(topic_alias=alias)
        await client.publish(f"topic/{alias}", b"set", properties=named)
        await client.publish("", b"used", properties=named)
        await client.publish("other", b"moved", properties=named)
        await client.publish("", b"used", properties=named)
        topics = [one.topic for one in await listener.publishes(4)]
        assert topics == [f"topic/{alias}", f"topic/{alias}", "other", "other"]
    client.cut()
    again = await broker.connect("c", clean=False, expiry=100)
    await again.send(Publish("", b"x", properties=Properties(topic_alias=1)))
    assert await again.refused() == 0x82
    await listener.silent()


@covers("3.3.2-9 3.2.2-17 3.2.2-18")
async def test_an_alias_beyond_the_maximum_ends_the_connection(broker: Broker, start: Start) -> None:
    none = await start(topic_aliases=0)
    for one, alias in ((broker, 33), (broker, 65535), (none, 1)):
        client = await one.connect()
        await client.send(Publish("t", b"x", properties=Properties(topic_alias=alias)))
        assert await client.refused() == 0x94


@covers("3.1.2-26 3.1.2-27 3.3.2-11")
async def test_aliases_are_set_towards_a_client_that_takes_them(broker: Broker) -> None:
    client = await broker.connect("c", properties=Properties(topic_alias_maximum=2))
    plain = await broker.connect("p")
    publisher = await broker.connect("publisher")
    for one in (client, plain):
        await one.subscribe("topic/#", qos=1)
    for number in (1, 2, 3, 1, 2, 3):
        await publisher.publish(f"topic/{number}", b"x", 1)
        plain_copy = await plain.next_publish()
        assert (plain_copy.topic, plain_copy.properties.topic_alias) == (f"topic/{number}", None)
    known: dict[int, str] = {}
    topics: list[str] = []
    for copy in await client.publishes(6):
        alias = copy.properties.topic_alias
        if alias is not None:
            assert 1 <= alias <= 2
            known.setdefault(alias, copy.topic)
        topics.append(copy.topic or known[alias or 0])
    assert topics == [f"topic/{number}" for number in (1, 2, 3, 1, 2, 3)]
    assert len(known) == 2


# --- windows and sizes ----------------------------------------------------------------------------------------------


@QOS_1_2
@covers("3.3.4-9 3.3.4-10 4.9.0-1 4.9.0-2 4.9.0-3")
async def test_no_more_is_in_flight_than_the_client_takes(broker: Broker, qos: int) -> None:
    client = await broker.connect("c", properties=Properties(receive_maximum=2))
    await client.subscribe("t", qos=2)
    publisher = await broker.connect("p")
    for number in range(6):
        await publisher.publish("t", b"%d" % number, qos)
    await publisher.publish("t", b"free", 0)
    # While the window is full everything else goes on.
    got = [await client.next_publish() for _ in range(3)]
    assert [one.payload for one in got] == [b"0", b"1", b"free"]
    await client.silent()
    assert await client.subscribe("other") == (0,)
    got.pop()
    seen: list[bytes] = []
    while got:
        one = got.pop(0)
        seen.append(one.payload)
        await client.acknowledge(one)
        if len(seen) + len(got) < 6:
            got.append(await client.next_publish())
        await client.silent()
    assert seen == [b"0", b"1", b"2", b"3", b"4", b"5"]


@covers("3.3.4-7")
async def test_who_sends_more_than_we_take_is_told_and_closed(start: Start) -> None:
    broker = await start(receive_maximum=3)
    client = await broker.connect()
    await client.send(*(Publish("t", b"x", 2, number + 1) for number in range(3)))
    await client.expect(*(PubRec(number + 1, 0x10) for number in range(3)))
    await client.send(Publish("t", b"x", 2, 1, dup=True), PubRel(2))  # neither needs a place
    await client.expect(PubRec(1), PubComp(2))
    await client.send(Publish("t", b"x", 1, 9))
    await client.expect(PubAck(9, 0x10))
    await client.send(Publish("t", b"x", 2, 4), Publish("t", b"x", 2, 5))
    received, disconnect = await client.ended()
    assert isinstance(received, PubRec)
    assert isinstance(disconnect, Disconnect)
    assert disconnect.reason_code == 0x93


async def test_a_client_that_went_too_far_still_learns_why(start: Start) -> None:
    """It goes on sending while the server has long closed: that must not cost it the reason."""
    broker = await start(receive_maximum=10)
    client = await broker.connect()
    for number in range(300):
        await client.send(Publish("t", b"x" * 500, 2, number + 1))
    seen = [await client.next() for _ in range(11)]
    for packet in seen[:10]:
        assert isinstance(packet, PubRec)
        await client.send(PubRel(packet.packet_id))
    assert isinstance(seen[10], Disconnect)
    assert seen[10].reason_code == 0x93
    assert await client.ended() == []


@pytest.mark.parametrize("qos", [0, 1, 2])
@covers("3.1.2-24 3.1.2-25")
async def test_what_is_too_large_for_a_client_is_passed_over(broker: Broker, qos: int) -> None:
    client = await broker.connect("c", properties=Properties(maximum_packet_bytes=100, receive_maximum=1))
    await client.subscribe("t", qos=2)
    publisher = await broker.connect("p")
    assert await publisher.publish("t", b"x" * 200, qos) == 0
    await publisher.publish("t", b"small", qos)
    assert await client.payloads(1) == [b"small"]
    await client.silent()


@BOTH
@covers("3.3.4-1")
async def test_nobody_to_receive_is_no_error(broker: Broker, version: int) -> None:
    publisher = await broker.connect("p", version)
    code = 0x10 if version == V5 else 0
    assert [await publisher.publish("nobody", b"", qos) for qos in (0, 1, 2)] == [0, code, code]


@BOTH
async def test_packets_may_come_byte_by_byte_and_many_together(broker: Broker, version: int) -> None:
    client = await broker.open(version)
    raw = b"".join(
        encode(packet, version)
        for packet in (Connect("c", version), Publish("t", b"x" * 300, 1, 1), PingReq(), Publish("t", b"", 2, 2))
    )
    for byte in raw:
        await client.send_raw(bytes((byte,)))
    assert isinstance(await client.next(), type(client.connack))
    code = 0x10 if version == V5 else 0
    await client.expect(PubAck(1, code), PingResp(), PubRec(2, code))
    await client.send_raw(b"".join(encode(PingReq(), version) for _ in range(5000)))
    await client.expect(*([PingResp()] * 5000))
