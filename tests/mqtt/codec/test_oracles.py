"""Ours against other codecs: what they encode we decode, and what we encode they decode, to the same packet."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.mqtt.codec import (
    NO_PROPERTIES,
    V5,
    V311,
    Auth,
    ConnAck,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    PingResp,
    PubAck,
    PubComp,
    PubRec,
    PubRel,
    encode,
)
from tests.mqtt.codec import oracles, strategies

PAHO_PACKET_BYTES_MAX = 268_435_455
"""The largest Maximum Packet Size that paho takes; the standard has no such bound."""

VERSIONS = pytest.mark.parametrize("version", [V311, V5])


def read(raw: bytes, version: int, from_client: bool) -> Packet:
    [packet] = Decoder(None if raw[0] == 0x10 else version, from_client=from_client).feed(raw)
    return packet


def known_to_mqtt5(packet: Packet) -> bool:
    return packet != Auth() and not (isinstance(packet, Disconnect) and packet.reason_code == 0x8C)


@VERSIONS
@strategies.patient
@given(data=st.data())
def test_what_paho_sends_is_understood(version: int, data: st.DataObject) -> None:
    packet = data.draw(strategies.from_client(version) | strategies.connects(version))
    assume(not isinstance(packet, Auth))  # paho's client has none
    if isinstance(packet, PubAck | PubRec | PubRel | PubComp):
        packet = type(packet)(packet.packet_id)
    if isinstance(packet, Connect):
        assume(packet.password is None or packet.username is not None)
        assume(packet.will is None or packet.will.payload)
        assume((packet.properties.maximum_packet_bytes or 0) <= PAHO_PACKET_BYTES_MAX)
    raw = oracles.paho_encode(packet, version)
    assert read(raw, version, from_client=True) == packet
    if not isinstance(packet, Disconnect) and getattr(packet, "properties", NO_PROPERTIES) == NO_PROPERTIES:
        assert raw == encode(packet, version)


@VERSIONS
@strategies.patient
@given(data=st.data())
def test_paho_understands_what_we_send(version: int, data: st.DataObject) -> None:
    packet = data.draw(strategies.from_server(version))
    assume(not isinstance(packet, Auth | PingResp))
    assume(not (isinstance(packet, ConnAck) and packet.reason_code == 0x99))
    assume(version == V5 or not isinstance(packet, Disconnect))  # a 3.1.1 server sends none
    if isinstance(packet, ConnAck):
        assume((packet.properties.maximum_packet_bytes or 0) <= PAHO_PACKET_BYTES_MAX)
    raw = encode(packet, version)
    assume(b"\xef\xbb\xbf" not in raw)  # paho refuses U+FEFF
    assert oracles.paho_decode(raw, version) == packet


@strategies.patient
@given(data=st.data(), from_client=st.booleans())
def test_what_mqtt5_writes_is_understood(data: st.DataObject, from_client: bool) -> None:
    ours = strategies.from_client(V5) | strategies.connects(V5) if from_client else strategies.from_server(V5)
    packet = data.draw(ours.filter(known_to_mqtt5))
    got = read(oracles.mqtt5_encode(packet), V5, from_client)
    assert oracles.normal(got) == oracles.normal(packet)


@strategies.patient
@given(data=st.data(), from_client=st.booleans())
def test_mqtt5_understands_what_we_send(data: st.DataObject, from_client: bool) -> None:
    ours = strategies.from_client(V5) | strategies.connects(V5) if from_client else strategies.from_server(V5)
    packet = data.draw(ours.filter(known_to_mqtt5))
    assert oracles.mqtt5_decode(encode(packet, V5)) == oracles.normal(packet)
