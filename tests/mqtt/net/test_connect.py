"""CONNECT and CONNACK: who is let in, on what terms, and what becomes of the connection that was there before."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.mqtt.codec import (
    V5,
    V311,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    Properties,
    PubAck,
    Publish,
    Subscribe,
    Subscription,
    Will,
    encode,
)  # fmt: skip
from tests.mqtt.net.broker import Broker
from tests.mqtt.net.clauses import covers
from tests.mqtt.net.conftest import Start
from tests.mqtt.raw import connect, frame, text

BOTH = pytest.mark.parametrize("version", [V311, V5])


@BOTH
@covers("3.1.4-5 3.2.0-1 3.2.0-2 3.2.2-1 3.2.2-2 3.2.2-8 4.2.0-1", v311="3.1.4-4 3.2.0-1 3.2.2-1")
async def test_a_connect_is_answered_first_and_once(broker: Broker, version: int) -> None:
    client = await broker.open(version)
    # All in one write: what follows the CONNECT waits for its answer.
    await client.send(Connect("c", version), Subscribe(1, (Subscription("t", 1),)), Publish("t", b"x", 1, 2), PingReq())
    kinds = [type(await client.next()).__name__ for _ in range(5)]
    assert kinds[0] == "ConnAck"
    assert sorted(kinds) == ["ConnAck", "PingResp", "PubAck", "Publish", "SubAck"]


@covers("3.1.3-1 3.1.3-2", v311="3.1.3-1 3.1.3-2")
@BOTH
async def test_all_fields_of_a_connect_are_understood(broker: Broker, version: int) -> None:
    listener = await broker.connect("l", version)
    await listener.subscribe("w", qos=2)
    client = await broker.connect(
        "c", version, will=Will("w", b"bye", 2, False), keep_alive=60, username="u", password=b"\x00\xff"
    )
    connection = broker.session("c").connection
    assert connection is not None
    assert (connection.username, connection.keep_alive_us) == ("u", 90_000_000)
    client.cut()
    will = await listener.next_publish()
    assert (will.topic, will.payload, will.qos) == ("w", b"bye", 2)


@BOTH
@covers("3.1.3-5", v311="3.1.3-5")
async def test_every_alphanumeric_client_id_of_up_to_23_bytes_is_let_in(broker: Broker, version: int) -> None:
    letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    for client_id in ("0", letters[:23], letters[23:46], letters[39:], "a" * 1024, "ü/+#$ "):
        await broker.connect(client_id, version)
    assert len(broker.sessions()) == 6


@covers("3.1.3-6 3.1.3-7 3.2.2-16")
async def test_a_client_without_an_identifier_is_given_one_of_its_own(broker: Broker) -> None:
    names = set()
    for _ in range(3):
        client = await broker.connect("", expiry=10)
        name = client.connack.properties.assigned_client_id
        assert name
        names.add(name)
    assert len(names) == 3
    again = await broker.connect(names.pop(), clean=False, expiry=10)
    assert again.connack.session_present
    assert again.connack.properties.assigned_client_id is None


@covers(v311="3.1.3-6 3.1.3-7 3.1.3-8 3.1.3-9")
async def test_in_3_1_1_only_a_clean_session_may_go_without_an_identifier(broker: Broker) -> None:
    first = await broker.connect("", V311)
    second = await broker.connect("", V311)
    await first.ping()
    await second.ping()
    client = await broker.open(V311)
    await client.send_raw(connect(V311, "00", text("")))
    assert await client.refused() == 2


@BOTH
@covers("3.1.3-8 3.2.2-6 3.2.2-7", v311="3.2.2-4 3.2.2-5")
async def test_a_client_id_that_is_too_long_is_refused(broker: Broker, version: int) -> None:
    client = await broker.open(version)
    answer = await client.connect(Connect("a" * 1025, version))
    assert (answer.reason_code, answer.session_present) == (0x85 if version == V5 else 2, False)
    assert await client.ended() == []
    assert broker.sessions() == {}


@covers("3.1.3-4 3.1.3-11 3.1.3-12 3.1.4-1", v311="3.1.3-4 3.1.3-10 3.1.3-11 3.1.4-1")
@pytest.mark.parametrize(
    ("version", "flags", "payload"),
    [
        pytest.param(V311, "02", "0001ff", id="client id, 3.1.1"),
        pytest.param(V311, "06", text("c") + "0001ff" + text(""), id="will topic, 3.1.1"),
        pytest.param(V311, "82", text("c") + "0001ff", id="user name, 3.1.1"),
        pytest.param(V5, "02", "0001ff", id="client id, 5"),
        pytest.param(V5, "06", text("c") + "00 0001ff" + text(""), id="will topic, 5"),
        pytest.param(V5, "82", text("c") + "0001ff", id="user name, 5"),
    ],
)
async def test_names_that_are_not_utf_8_are_refused(broker: Broker, version: int, flags: str, payload: str) -> None:
    client = await broker.open(version)
    await client.send_raw(connect(version, flags, payload))
    assert await client.refused() == (0x81 if version == V5 else 0)
    assert broker.sessions() == {}


@BOTH
@covers("3.1.2-4 3.1.2-5 3.1.2-6 3.1.2-23 3.1.4-4 3.2.2-3 4.1.0-1", v311="3.1.2-4 3.1.2-6 3.1.4-3 3.2.2-2 3.2.2-3")
async def test_a_session_is_taken_up_again_or_discarded(broker: Broker, version: int) -> None:
    expiry = 100 if version == V5 else None
    client = await broker.connect("c", version, clean=False, expiry=expiry)
    assert not client.connack.session_present
    await client.subscribe("t", qos=1)
    await client.disconnect()
    publisher = await broker.connect("p", version)
    await publisher.publish("t", b"away", 1)
    again = await broker.connect("c", version, clean=False, expiry=expiry)
    assert again.connack.session_present
    seen = await again.next_publish()
    assert seen.payload == b"away"
    await again.acknowledge(seen)
    await again.disconnect()
    fresh = await broker.connect("c", version, clean=True)
    assert not fresh.connack.session_present
    await publisher.publish("t", b"nobody", 1)
    await fresh.silent()


@BOTH
@covers("3.1.4-3 4.13.2-1", v311="3.1.4-2")
async def test_a_second_connection_takes_the_session_over(broker: Broker, version: int) -> None:
    expiry = 100 if version == V5 else None
    old = await broker.connect("c", version, clean=False, expiry=expiry)
    await old.subscribe("t", qos=1)
    new = await broker.connect("c", version, clean=False, expiry=expiry)
    assert new.connack.session_present
    ending = await old.ended()
    if version == V5:
        [disconnect] = ending
        assert isinstance(disconnect, Disconnect)
        assert disconnect.reason_code == 0x8E
    else:
        assert ending == []
    await (await broker.connect("p")).publish("t", b"x", 1)
    assert (await new.next_publish()).payload == b"x"


@covers("3.1.4-6", v311="3.1.4-5")
@BOTH
async def test_nothing_behind_a_refused_connect_is_looked_at(broker: Broker, version: int) -> None:
    listener = await broker.connect("l")
    await listener.subscribe("t")
    client = await broker.open(version)
    await client.send(Connect("a" * 1025, version), Publish("t", b"x"), Publish("t", b"x", 1, 1))
    [answer] = await client.ended()
    assert isinstance(answer, ConnAck)
    await listener.silent()


async def test_a_protocol_error_right_behind_the_connect_comes_after_connack(broker: Broker) -> None:
    client = await broker.open()
    await client.send_raw(encode(Connect("c"), V5) + b"\xf1\x00")
    connack, disconnect = await client.ended()
    assert isinstance(connack, ConnAck)
    assert isinstance(disconnect, Disconnect)
    assert (connack.reason_code, disconnect.reason_code) == (0, 0x81)


@covers("4.12.0-1 4.12.0-6")
async def test_an_authentication_method_is_refused(broker: Broker) -> None:
    client = await broker.open()
    asked = Properties(authentication_method="SCRAM-SHA-1", authentication_data=b"x")
    answer = await client.connect(Connect("c", properties=asked))
    assert (answer.reason_code, answer.properties.authentication_method) == (0x8C, None)
    assert await client.ended() == []


@covers("4.12.0-7")
async def test_auth_that_nobody_agreed_on_is_a_protocol_error(broker: Broker) -> None:
    client = await broker.connect()
    await client.send_raw(frame(0xF0, "18 04 15 0001 6d"))
    assert await client.refused() == 0x82


# --- keep alive -----------------------------------------------------------------------------------------------------


@BOTH
@covers("3.1.2-22 3.2.2-22", v311="3.1.2-24")
async def test_a_client_silent_for_one_and_a_half_keep_alives_is_closed(broker: Broker, version: int) -> None:
    client = await broker.connect("c", version, keep_alive=10)
    broker.pass_time(14)
    await client.ping()
    broker.pass_time(14)
    await client.ping()  # it was heard of in time
    broker.pass_time(15.1)
    assert await client.refused() == (0x8D if version == V5 else 0)


async def test_a_keep_alive_that_is_too_long_is_cut_and_the_client_told(start: Start) -> None:
    broker = await start(keep_alive_max=60_000_000)
    asked = [await broker.connect(str(asked_for), keep_alive=asked_for) for asked_for in (0, 30, 61)]
    assert [one.connack.properties.server_keep_alive_s for one in asked] == [60, None, 60]
    broker.pass_time(44)
    await asked[1].ping()
    broker.pass_time(46.1)
    assert await asked[0].refused() == 0x8D
    assert await asked[1].refused() == 0x8D


async def test_a_3_1_1_client_without_keep_alive_may_be_silent(broker: Broker) -> None:
    client = await broker.connect("c", V311)
    broker.pass_time(100_000)
    await client.ping()


@BOTH
@covers("3.12.4-1", v311="3.12.4-1")
async def test_a_ping_is_answered(broker: Broker, version: int) -> None:
    await (await broker.connect("c", version)).ping()


# --- terms ----------------------------------------------------------------------------------------------------------


async def test_connack_carries_the_limits(start: Start) -> None:
    broker = await start(
        receive_maximum=17,
        max_packet_bytes=2048,
        topic_aliases=3,
        session_expiry_max=60_000_000,
        max_connect_bytes=1024,
    )
    client = await broker.connect("c", expiry=61, properties=Properties(request_response_information=1))
    assert client.connack.properties == Properties(
        session_expiry_s=60,
        receive_maximum=17,
        maximum_packet_bytes=2048,
        topic_alias_maximum=3,
        server_keep_alive_s=1200,
        response_information="response/c",
    )


@covers("3.1.2-28")
async def test_response_information_is_given_to_those_who_ask(broker: Broker) -> None:
    for asked_for, given in ((None, None), (0, None), (1, "response/c")):
        client = await broker.connect("c", properties=Properties(request_response_information=asked_for))
        assert client.connack.properties.response_information == given


@covers("3.1.2-29")
async def test_who_wants_no_problem_information_gets_none_but_on_the_way_out(broker: Broker) -> None:
    deep = "/".join("a" * 300)
    talkative = await broker.connect("t")
    silent = await broker.connect("s", properties=Properties(request_problem_information=0))
    for client, told in ((talkative, True), (silent, False)):
        await client.send(Publish(deep, b"", 1, 1))
        answer = await client.next()
        assert isinstance(answer, PubAck)
        assert (answer.reason_code, answer.properties.reason_string is not None) == (0x90, told)
    await silent.send_raw(b"\x60\x02\x00\x01")
    [disconnect] = await silent.ended()
    assert isinstance(disconnect, Disconnect)
    assert disconnect.properties.reason_string  # allowed here


@covers("3.2.2-19 3.2.2-20 3.14.2-3")
async def test_reasons_are_left_out_where_they_do_not_fit(broker: Broker) -> None:
    client = await broker.open()
    small = Properties(maximum_packet_bytes=20)
    answer = await client.connect(Connect("a" * 1025, properties=small))
    assert (answer.reason_code, answer.properties.reason_string) == (0x85, None)
    other = await broker.connect("c", properties=replace(small, maximum_packet_bytes=30))
    await other.send_raw(b"\x60\x02\x00\x01")
    [disconnect] = await other.ended()
    assert isinstance(disconnect, Disconnect)
    assert (disconnect.reason_code, disconnect.properties.reason_string) == (0x81, None)


@covers("3.1.2-1 3.1.2-2", v311="3.1.2-1 3.1.2-2")
async def test_who_speaks_no_known_version_is_told_so(broker: Broker) -> None:
    for level, version, code in ((3, V311, 1), (6, V5, 0x84), (0x84, V5, 0x84)):
        client = await broker.open(version)
        await client.send_raw(
            frame(0x10, text("MQTT") + f"{level:02x} 02 003c" + ("00" if level > 5 else "") + text("c"))
        )
        assert await client.refused() == code
    old = await broker.open(V311)
    await old.send_raw(frame(0x10, text("MQIsdp") + "03 02 003c" + text("c")))
    assert await old.refused() == 1
