"""One packet of each kind with its exact bytes, worked out by hand from the tables of the standards."""

from __future__ import annotations

import pytest

from holdfast.mqtt.codec import (
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
    PreparedPublish,
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
    Will,
    encode,
    encode_puback,
    encode_pubacks,
    without_explanation,
)  # fmt: skip

# (version, sent by a client, packet, bytes)
EXAMPLES: list[tuple[int, bool, Packet, str]] = [
    (V311, True, Connect("c", V311, True, 60), "10 0d 0004 4d515454 04 02 003c 0001 63"),
    (
        V311,
        True,
        Connect("c", V311, False, 10, "u", b"p", Will("w", b"bye", 1, True)),
        "10 1b 0004 4d515454 04 ec 000a 0001 63 0001 77 0003 627965 0001 75 0001 70",
    ),
    (V5, True, Connect("", V5, True, 0), "10 0d 0004 4d515454 05 02 0000 00 0000"),
    (
        V5,
        True,
        Connect(
            "c",
            V5,
            True,
            0,
            will=Will("w", b"", 2, False, Properties(will_delay_s=5)),
            properties=Properties(session_expiry_s=300, receive_maximum=10),
        ),
        "10 21 0004 4d515454 05 16 0000 08 11 0000012c 21 000a 0001 63 05 18 00000005 0001 77 0000",
    ),
    (V311, False, ConnAck(True, 0), "20 02 01 00"),
    (V5, False, ConnAck(False, 0, Properties(server_keep_alive_s=30, maximum_qos=1)), "20 08 00 00 05 13 001e 24 01"),
    (V311, True, Publish("a/b", b"hi"), "30 07 0003 612f62 6869"),
    (V311, True, Publish("a/b", b"hi", 1, 10, True, True), "3b 09 0003 612f62 000a 6869"),
    (V5, True, Publish("a/b", b"hi", 2, 10), "34 0a 0003 612f62 000a 00 6869"),
    (
        V5,
        True,
        Publish("", b"", properties=Properties(topic_alias=3, user_properties=(("k", "v"),))),
        "30 0d 0000 0a 23 0003 26 0001 6b 0001 76",
    ),
    (V5, False, Publish("t", b"", properties=Properties(subscription_ids=(1, 200))), "30 09 0001 74 05 0b 01 0b c801"),
    (V5, True, PubAck(10), "40 02 000a"),
    (V5, True, PubRec(10, 0x97), "50 03 000a 97"),
    (V5, True, PubRel(10, 0x92, Properties(reason_string="x")), "62 08 000a 92 04 1f 0001 78"),
    (V311, True, PubComp(10), "70 02 000a"),
    (V311, True, Subscribe(1, (Subscription("a", 2), Subscription("+/#", 0))), "82 0c 0001 0001 61 02 0003 2b2f23 00"),
    (
        V5,
        True,
        Subscribe(1, (Subscription("a", 1, True, True, 2),), Properties(subscription_ids=(5,))),
        "82 09 0001 02 0b 05 0001 61 2d",
    ),
    (V311, False, SubAck(1, (0, 2, 0x80)), "90 05 0001 00 02 80"),
    (V5, False, SubAck(1, (1, 0x87)), "90 05 0001 00 01 87"),
    (V311, True, Unsubscribe(1, ("a", "b")), "a2 08 0001 0001 61 0001 62"),
    (V5, True, Unsubscribe(1, ("a",)), "a2 06 0001 00 0001 61"),
    (V311, False, UnsubAck(1), "b0 02 0001"),
    (V5, False, UnsubAck(1, (0, 0x11)), "b0 05 0001 00 00 11"),
    (V311, True, PingReq(), "c0 00"),
    (V5, False, PingResp(), "d0 00"),
    (V311, True, Disconnect(), "e0 00"),
    (V5, True, Disconnect(0x04, Properties(session_expiry_s=0)), "e0 07 04 05 11 00000000"),
    (V5, False, Disconnect(0x8B), "e0 01 8b"),
    (V5, True, Auth(0x18, Properties(authentication_method="m")), "f0 06 18 04 15 0001 6d"),
    (V5, False, Auth(), "f0 00"),
]


@pytest.mark.parametrize(("version", "from_client", "packet", "raw"), EXAMPLES)
def test_exact_bytes_both_ways(version: int, from_client: bool, packet: Packet, raw: str) -> None:
    wire = bytes.fromhex(raw)
    assert encode(packet, version) == wire

    def fresh() -> Decoder:
        return Decoder(None if isinstance(packet, Connect) else version, from_client=from_client)

    assert fresh().feed(bytearray(wire)) == [packet]
    decoder = fresh()
    assert decoder.feed(b"") == []
    assert [got for byte in wire for got in decoder.feed(bytes((byte,)))] == [packet]


def test_a_large_publish_byte_by_byte() -> None:
    packet = Publish("t", b"x" * 20_000, 1, 1)
    decoder = Decoder(V5)
    assert [got for byte in encode(packet, V5) for got in decoder.feed(bytes((byte,)))] == [packet]


def test_a_prepared_publish_goes_to_subscribers_of_any_qos() -> None:
    prepared = PreparedPublish("a/b", b"hi", Properties(), V311)
    assert prepared.encode(0, 0).hex(" ") == "30 07 00 03 61 2f 62 68 69"
    assert prepared.encode(1, 10).hex(" ") == "32 09 00 03 61 2f 62 00 0a 68 69"
    assert prepared.encode(1, 11, dup=True).hex(" ") == "3a 09 00 03 61 2f 62 00 0b 68 69"
    assert prepared.encode(1, 12).hex(" ") == "32 09 00 03 61 2f 62 00 0c 68 69"
    assert prepared.encode(2, 10, retain=True).hex(" ") == "35 09 00 03 61 2f 62 00 0a 68 69"
    assert (prepared.size(0), prepared.size(1)) == (9, 11)


def test_a_run_of_pubacks() -> None:
    assert encode_puback(258) == b"\x40\x02\x01\x02"
    assert encode_pubacks([1, 258]) == b"\x40\x02\x00\x01\x40\x02\x01\x02"


def test_a_client_that_wants_no_explanation_gets_none_but_in_connack_publish_and_disconnect() -> None:
    why = Properties(reason_string="why", user_properties=(("a", "b"),))
    assert without_explanation(PubAck(1, 0x97, why)) == PubAck(1, 0x97)
    assert without_explanation(Disconnect(0x97, why)) == Disconnect(0x97, why)
