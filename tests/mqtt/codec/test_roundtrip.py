"""What is encoded is decoded again, for every packet, version and direction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.mqtt.codec import (
    V5,
    V311,
    Connect,
    Decoder,
    Packet,
    PreparedPublish,
    Publish,
    encode,
    encode_puback,
    encode_pubacks,
    encode_publish,
)
from tests.mqtt.codec import strategies

VERSIONS = pytest.mark.parametrize("version", [V311, V5])


@VERSIONS
@strategies.patient
@given(data=st.data())
def test_what_a_client_sends(version: int, data: st.DataObject) -> None:
    packet = data.draw(strategies.from_client(version))
    assert Decoder(version).feed(encode(packet, version)) == [packet]


@VERSIONS
@strategies.patient
@given(data=st.data())
def test_what_a_server_sends(version: int, data: st.DataObject) -> None:
    packet = data.draw(strategies.from_server(version))
    assert Decoder(version, from_client=False).feed(encode(packet, version)) == [packet]


@VERSIONS
@strategies.patient
@given(data=st.data())
def test_a_connect_sets_the_version_of_what_follows(version: int, data: st.DataObject) -> None:
    connect: Connect = data.draw(strategies.connects(version))
    after: list[Packet] = data.draw(st.lists(strategies.from_client(version), max_size=5))
    decoder = Decoder()
    raw = b"".join([encode(connect, version), *(encode(packet, version) for packet in after)])
    assert decoder.feed(raw) == [connect, *after]
    assert decoder.version == version


@VERSIONS
@strategies.patient
@given(data=st.data())
def test_a_prepared_publish_gives_the_same_bytes(version: int, data: st.DataObject) -> None:
    packet: Publish = data.draw(strategies.publishes(version, from_client=False))
    prepared = PreparedPublish(packet.topic, packet.payload, packet.properties, version)
    raw = encode_publish(packet, version)
    for _ in range(2):  # the second time from what the first has left
        assert prepared.encode(packet.qos, packet.packet_id, retain=packet.retain, dup=packet.dup) == raw
    assert prepared.size(packet.qos) == len(raw)


@strategies.patient
@given(st.lists(strategies.packet_ids))
def test_a_run_of_pubacks_is_each_of_them(packet_ids: list[int]) -> None:
    raw = encode_pubacks(packet_ids)
    assert raw == b"".join(map(encode_puback, packet_ids))
    assert [packet.packet_id for packet in Decoder(V5).feed(raw)] == packet_ids  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [0, 1, 100, 126, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
@VERSIONS
def test_lengths_at_the_edges_of_their_encoding(version: int, size: int) -> None:
    packet = Publish("t", b"\xa5" * size, 1, 1)
    assert Decoder(version).feed(encode(packet, version)) == [packet]


def test_more_topics_than_are_remembered() -> None:
    packets = [Publish(f"topic/{number}", b"") for number in range(200)]
    packets += [Publish("long/" * 100, b""), packets[0]]
    assert Decoder(V5).feed(b"".join(encode_publish(packet, V5) for packet in packets)) == packets
