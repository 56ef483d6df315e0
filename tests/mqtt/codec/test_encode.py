"""What the encoder refuses, what it leaves out for 3.1.1, and how it keeps to a maximum packet size."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.mqtt.codec import (
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    V5,
    V311,
    Auth,
    ConnAck,
    Connect,
    Decoder,
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
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    encode,
    encode_within,
    return_code_311,
    without_explanation,
)  # fmt: skip
from holdfast.mqtt.codec.properties import write_varint
from tests.mqtt.codec import strategies

EXPLAINED = Properties(reason_string="why", user_properties=(("a", "b"),))


@pytest.mark.parametrize(
    ("packet", "raw"),
    [
        (PingReq(), PINGREQ),
        (PingResp(), PINGRESP),
        (Disconnect(), DISCONNECT),
        (PubAck(258), b"\x40\x02\x01\x02"),
        (PubRec(258), b"\x50\x02\x01\x02"),
        (PubRel(258), b"\x62\x02\x01\x02"),
        (PubComp(258), b"\x70\x02\x01\x02"),
    ],
)
@pytest.mark.parametrize("version", [V311, V5])
def test_plain_packets_are_as_short_as_can_be(packet: Packet, raw: bytes, version: int) -> None:
    assert encode(packet, version) == raw


@pytest.mark.parametrize(
    ("packet", "raw"),
    [
        (PubAck(1, 0x97, EXPLAINED), b"\x40\x02\x00\x01"),
        (SubAck(1, (0, 1, 2, 0x80, 0x87, 0xA2), EXPLAINED), b"\x90\x08\x00\x01\x00\x01\x02\x80\x80\x80"),
        (UnsubAck(1, (0, 0x11), EXPLAINED), b"\xb0\x02\x00\x01"),
        (Disconnect(0x8B, EXPLAINED), b"\xe0\x00"),
        (ConnAck(False, 5, EXPLAINED), b"\x20\x02\x00\x05"),
        (Publish("t", b"p", properties=EXPLAINED), b"\x30\x04\x00\x01tp"),
        (Subscribe(1, (Subscription("a", 1, True, True, 2),), EXPLAINED), b"\x82\x06\x00\x01\x00\x01a\x01"),
        (Unsubscribe(1, ("a",), EXPLAINED), b"\xa2\x05\x00\x01\x00\x01a"),
    ],
)
def test_what_311_cannot_say_is_left_out(packet: Packet, raw: bytes) -> None:
    assert encode(packet, V311) == raw


def test_a_property_that_a_packet_cannot_carry_is_left_out() -> None:
    will = Properties(will_delay_s=5, content_type="text/plain", subscription_ids=(7,))
    publish = Publish("t", b"", properties=Properties(content_type="text/plain", subscription_ids=(7,)))
    assert encode(Publish("t", b"", properties=will), V5) == encode(publish, V5)
    assert encode(PubAck(1, 0x10, will), V5) == b"\x40\x04\x00\x01\x10\x00"


@pytest.mark.parametrize(
    "packet",
    [
        Publish("a\0b", b""),
        Publish("x" * 65_536, b""),
        Publish("\ud800", b""),
        Publish("t", b"", 1, 0),
        Publish("t", b"", 1, 65_536),
        Publish("t", b"", properties=Properties(message_expiry_s=2**32)),
        Publish("t", b"", properties=Properties(correlation_data=bytes(65_536))),
        Publish("t", b"", properties=Properties(user_properties=(("a", "\0"),))),
        Publish("t", b"", properties=Properties(subscription_ids=(2**28,))),
        PubAck(0),
        PubAck(1, 0x01),
        ConnAck(False, 0x8E),
        SubAck(1, (3,)),
        UnsubAck(1, (1,)),
        Disconnect(0x05),
        Auth(0x05),
        Connect("c", keep_alive_s=65_536),
    ],
)
def test_what_the_wire_cannot_carry_is_our_mistake(packet: Packet) -> None:
    with pytest.raises((ValueError, OverflowError, struct.error)):
        encode(packet, V5)


@pytest.mark.parametrize("packet", [Auth(), ConnAck(False, 0x87)])
def test_what_311_has_no_word_for_is_our_mistake(packet: Packet) -> None:
    with pytest.raises(ValueError, match=r"3\.1\.1|reason code"):
        encode(packet, V311)


def test_refusals_have_a_return_code_in_311_or_none() -> None:
    known = {code: return_code_311(code) for code in range(256) if return_code_311(code) is not None}
    assert known == {0x00: 0, 0x84: 1, 0x85: 2, 0x86: 4, 0x87: 5, 0x88: 3, 0x89: 3, 0x8A: 5, 0x8C: 4, 0x97: 3, 0x9F: 3}
    for code in known.values():
        assert code is not None
        assert encode(ConnAck(False, code), V311) == bytes((0x20, 2, 0, code))


# --- maximum packet size --------------------------------------------------------------------------------------------

ANSWERS: list[tuple[str, Packet]] = [
    ("MQTT-3.2.2-19 and -20", ConnAck(properties=EXPLAINED)),
    ("MQTT-3.4.2-2 and -3", PubAck(1, properties=EXPLAINED)),
    ("MQTT-3.5.2-2 and -3", PubRec(1, properties=EXPLAINED)),
    ("MQTT-3.6.2-2 and -3", PubRel(1, properties=EXPLAINED)),
    ("MQTT-3.7.2-2 and -3", PubComp(1, properties=EXPLAINED)),
    ("MQTT-3.9.2-1 and -2", SubAck(1, (0,), EXPLAINED)),
    ("MQTT-3.11.2-1 and -2", UnsubAck(1, (0,), EXPLAINED)),
    ("MQTT-3.14.2-3 and -4", Disconnect(0x8B, EXPLAINED)),
    (
        "MQTT-3.15.2-2 and -3",
        Auth(0x18, Properties(authentication_method="m", reason_string="why", user_properties=(("a", "b"),))),
    ),
]


@pytest.mark.parametrize("packet", [pytest.param(packet, id=clause) for clause, packet in ANSWERS])
def test_an_explanation_that_does_not_fit_is_left_out(packet: Packet) -> None:
    properties = packet.properties  # type: ignore[union-attr]
    brief = msgspec.structs.replace(properties, user_properties=())
    silent = msgspec.structs.replace(brief, reason_string=None)
    whole, shorter = (len(encode(packet, V5)), len(encode(msgspec.structs.replace(packet, properties=brief), V5)))
    shortest = encode_within(msgspec.structs.replace(packet, properties=silent), V5, 1000)
    assert shortest is not None
    for limit in range(1, whole + 1):
        raw = encode_within(packet, V5, limit)
        if limit < len(shortest):
            assert raw is None
        else:
            assert raw is not None
            assert len(raw) <= limit
            [got] = Decoder(V5, from_client=False).feed(raw)
            kept = properties if limit == whole else brief if limit >= shorter else got.properties  # type: ignore[union-attr]
            assert got == msgspec.structs.replace(packet, properties=kept)
            assert got.properties.authentication_method == properties.authentication_method  # type: ignore[union-attr]


def test_a_length_has_at_most_four_bytes() -> None:
    assert write_varint(268_435_455) == b"\xff\xff\xff\x7f"
    with pytest.raises(ValueError, match="four bytes"):
        write_varint(268_435_456)


def test_the_reason_goes_when_the_user_properties_alone_fit() -> None:
    packet = PubAck(1, 0x97, Properties(reason_string="a long story " * 20, user_properties=(("a", "b"),)))
    raw = encode_within(packet, V5, 30)
    assert raw == encode(PubAck(1, 0x97, Properties(user_properties=(("a", "b"),))), V5)


@pytest.mark.parametrize("packet", [Publish("t", b"payload", properties=EXPLAINED), PingResp(), Connect("client")])
def test_other_packets_go_whole_or_not_at_all(packet: Packet) -> None:
    size = len(encode(packet, V5))
    assert encode_within(packet, V5, size) == encode(packet, V5)
    assert encode_within(packet, V5, size - 1) is None


def test_in_311_there_is_nothing_to_leave_out() -> None:
    assert encode_within(SubAck(1, (0,), EXPLAINED), V311, 5) == b"\x90\x03\x00\x01\x00"
    assert encode_within(SubAck(1, (0,), EXPLAINED), V311, 4) is None


@strategies.patient
@given(st.data())
def test_without_an_explanation_the_rest_stays(data: st.DataObject) -> None:
    """[MQTT-3.1.2-29]"""
    packet = data.draw(strategies.from_server(V5))
    quiet = without_explanation(packet)
    assert type(quiet) is type(packet)
    if isinstance(packet, Publish | ConnAck | Disconnect | PingResp):
        assert quiet == packet
    else:
        assert isinstance(quiet, PubAck | PubRec | PubRel | PubComp | SubAck | UnsubAck | Auth)
        assert not quiet.properties.user_properties
        assert quiet.properties.reason_string is None
        assert Decoder(V5, from_client=False).feed(encode(quiet, V5)) == [quiet]
