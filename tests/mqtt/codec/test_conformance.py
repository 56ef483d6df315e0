"""Conformance by clause: what breaks a rule is refused with that rule's code and number; what looks odd is not."""

from __future__ import annotations

import pytest

from holdfast.mqtt import rules
from holdfast.mqtt.codec import (
    V5,
    V311,
    Auth,
    ConnAck,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    Properties,
    ProtocolError,
    PubAck,
    Publish,
    Subscribe,
    Subscription,
    UnsubAck,
    encode,
)  # fmt: skip
from tests.mqtt.codec import cases
from tests.mqtt.raw import Case, block, connect, frame, text

HELLO = encode(Connect("c"), V5)


def name_of(case: Case, version: int) -> str:
    return f"{case.rule.clause(version)} v{version} {case.what}"


SENT = [pytest.param(case, version, id=name_of(case, version)) for case in cases.ALL for version in case.versions]


@pytest.mark.parametrize(("case", "version"), SENT)
def test_a_broken_rule_is_named(case: Case, version: int) -> None:
    decoder = Decoder() if case.connect else Decoder(version, from_client=case.from_client)
    with pytest.raises(ProtocolError) as caught:
        decoder.feed(case.raw)
    error = caught.value
    assert (error.clause, error.reason_code) == (case.rule.clause(version), case.rule.reason_code)
    assert error.message.startswith(case.rule.text)
    assert error.clause in str(error)


def test_every_rule_is_broken_by_some_case_in_every_version_that_has_it() -> None:
    broken = {(case.rule, version) for case in cases.ALL for version in case.versions}
    # The size limit is the receiver's; it has tests of its own below.
    known = set(rules.ALL.values()) - {rules.PACKET_TOO_LARGE}
    wanted = {(rule, V311) for rule in known if rule.v311} | {(rule, V5) for rule in known if rule.v5}
    # A first packet that is not a CONNECT has no version, and a wrong name has none either.
    wanted -= {(rules.CONNECT_NOT_FIRST, V311), (rules.PROTOCOL_NAME, V311)}
    assert {(rule.text, version) for rule, version in wanted - broken} == set()


# --- what must be accepted ------------------------------------------------------------------------------------------

ACCEPTED: list[tuple[str, int, bool, bytes, Packet]] = [
    ("U+FFFE and U+FFFF", V5, True, frame(0x30, text("\ufffe\uffff") + "00"), Publish("\ufffe\uffff", b"")),
    ("control characters", V5, True, frame(0x30, text("\x01\x1f\x7f\x9f") + "00"), Publish("\x01\x1f\x7f\x9f", b"")),
    (
        "a byte order mark is kept [MQTT-1.5.4-3]",
        V5,
        True,
        frame(0x30, text("\ufeffa") + "00"),
        Publish("\ufeffa", b""),
    ),
    ("a byte order mark is kept [MQTT-1.5.3-3]", V311, True, frame(0x30, text("\ufeffa")), Publish("\ufeffa", b"")),
    ("QoS 0 has no packet identifier", V311, True, frame(0x30, text("t") + "0001"), Publish("t", b"\0\1")),
    ("an empty payload", V5, True, frame(0x31, text("t") + "00"), Publish("t", b"", retain=True)),
    ("a slash alone", V5, True, frame(0x30, text("/") + "00"), Publish("/", b"")),
    ("a length that is not minimal, in 3.1.1", V311, True, b"\x40\x82\x00\x00\x01", PubAck(1)),
    (
        "an alias without a topic",
        V5,
        True,
        frame(0x30, "0000" + block("23 0001")),
        Publish("", b"", properties=Properties(topic_alias=1)),
    ),
    ("a PUBACK without properties", V5, True, frame(0x40, "0001 10"), PubAck(1, 0x10)),
    ("a PUBACK with everything", V5, True, frame(0x40, "0001 00 00"), PubAck(1)),
    ("a DISCONNECT without properties", V5, True, frame(0xE0, "04"), Disconnect(4)),
    ("an empty DISCONNECT", V5, True, frame(0xE0, ""), Disconnect()),
    ("an empty AUTH from a server", V5, False, frame(0xF0, ""), Auth()),
    (
        "no local on a plain filter",
        V5,
        True,
        frame(0x82, "0001 00" + text("a") + "2d"),
        Subscribe(1, (Subscription("a", 1, True, True, 2),)),
    ),
    (
        "$share in 3.1.1",
        V311,
        True,
        frame(0x82, "0001" + text("$share/g/a/#") + "01"),
        Subscribe(1, (Subscription("$share/g/a/#", 1),)),
    ),
    (
        "$share without a slash is a plain filter",
        V5,
        True,
        frame(0x82, "0001 00" + text("$share") + "00"),
        Subscribe(1, (Subscription("$share"),)),
    ),
    (
        "several subscription identifiers",
        V5,
        False,
        frame(0x30, text("t") + block("0b01 0b8001")),
        Publish("t", b"", properties=Properties(subscription_ids=(1, 128))),
    ),
    ("a session present", V5, False, frame(0x20, "01 00 00"), ConnAck(True)),
    ("an UNSUBACK of 3.1.1", V311, False, frame(0xB0, "0001"), UnsubAck(1)),
]


@pytest.mark.parametrize(
    ("version", "from_client", "raw", "packet"), [row[1:] for row in ACCEPTED], ids=[row[0] for row in ACCEPTED]
)
def test_what_looks_odd_but_is_allowed(version: int, from_client: bool, raw: bytes, packet: Packet) -> None:
    assert Decoder(version, from_client=from_client).feed(raw) == [packet]


def test_a_v5_client_may_send_a_password_without_a_user_name() -> None:
    [packet] = Decoder().feed(connect(V5, "42", cases.ID + text("secret")))
    assert packet == Connect("c", keep_alive_s=60, password=b"secret")


def test_a_v5_client_may_leave_its_identifier_to_the_server_and_keep_its_session() -> None:
    assert Decoder().feed(connect(V5, "00", text(""))) == [Connect("", clean_start=False, keep_alive_s=60)]


def test_user_properties_keep_their_order_and_repetitions() -> None:
    pairs = (("b", "1"), ("a", "2"), ("b", "1"))
    sent = "".join("26" + text(name) + text(value) for name, value in pairs)
    [packet] = Decoder(V5).feed(frame(0x30, text("t") + block(sent)))
    assert isinstance(packet, Publish)
    assert packet.properties.user_properties == pairs
    assert (packet.properties.get("a"), packet.properties.get("b"), packet.properties.get("c")) == ("2", "1", None)


def test_long_property_blocks_are_read() -> None:
    value = "v" * 50
    properties = Properties(user_properties=(("n", value),) * 5)
    packet = Publish("t", b"payload", 1, 7, properties=properties)
    assert Decoder(V5).feed(encode(packet, V5)) == [packet]


# --- errors, versions and limits ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("level", "version"), [(0, V311), (3, V311), (6, V5), (0x84, V5)])
def test_who_speaks_another_version_is_answered_in_the_nearest(level: int, version: int) -> None:
    decoder = Decoder()
    with pytest.raises(ProtocolError, match=r"MQTT-3\.1\.2-2"):
        decoder.feed(frame(0x10, text("MQTT") + f"{level:02x} 02 003c" + cases.ID))
    assert decoder.version == version
    assert not decoder.connected


def test_packets_before_the_violation_are_handed_out_once() -> None:
    decoder = Decoder(V5)
    with pytest.raises(ProtocolError) as caught:
        decoder.feed(frame(0x40, "0001") + frame(0x40, "0002") + b"\x00\x00" + frame(0x40, "0003"))
    assert caught.value.packets == [PubAck(1), PubAck(2)]
    with pytest.raises(ProtocolError) as again:
        decoder.feed(frame(0x40, "0004"))
    assert (again.value.clause, again.value.packets) == (caught.value.clause, ())
    assert decoder.buffered_bytes == 0


@pytest.mark.parametrize("version", [V311, V5])
def test_a_packet_over_the_limit_is_refused_from_its_header(version: int) -> None:
    whole = encode(Publish("t", b"x" * 200), version)
    assert Decoder(version, len(whole)).feed(whole) == [Publish("t", b"x" * 200)]
    for arrived in (3, 10, len(whole)):
        with pytest.raises(ProtocolError) as caught:
            Decoder(version, len(whole) - 1).feed(whole[:arrived])
        assert (caught.value.reason_code, caught.value.clause) == (0x95, rules.PACKET_TOO_LARGE.clause(version))


def test_a_connect_has_a_limit_of_its_own() -> None:
    decoder = Decoder(max_packet_bytes=1000, max_connect_bytes=len(HELLO))
    large = Publish("t", b"x" * 500)
    assert decoder.feed(HELLO + encode(large, V5)) == [Connect("c"), large]
    with pytest.raises(ProtocolError, match="0x95"):
        Decoder(max_packet_bytes=1000, max_connect_bytes=len(HELLO) - 1).feed(HELLO[:2])


def test_a_wrong_first_byte_is_refused_before_anything_follows() -> None:
    with pytest.raises(ProtocolError, match=r"MQTT-3\.1\.0-1"):
        Decoder().feed(b"G")
    with pytest.raises(ProtocolError, match=r"MQTT-3\.3\.1-4"):
        Decoder(V5).feed(b"\x36")


def test_a_clients_decoder_must_be_told_the_version() -> None:
    with pytest.raises(ValueError, match="give it"):
        Decoder(from_client=False)
