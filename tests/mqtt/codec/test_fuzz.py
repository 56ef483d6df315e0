"""Bytes from nowhere: nothing but ProtocolError ever comes out, and how a stream is cut changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.mqtt.codec import V5, V311, Connect, Decoder, Packet, ProtocolError, Publish, encode
from tests.mqtt.codec import cases, strategies

Outcome = tuple[list[Packet], tuple[int, str, str] | None]


def outcome(decoder: Decoder, chunks: list[bytes]) -> Outcome:
    packets: list[Packet] = []
    for chunk in chunks:
        try:
            packets += decoder.feed(chunk)
        except ProtocolError as error:
            packets += error.packets  # type: ignore[arg-type]
            return packets, (error.reason_code, error.message, error.clause)
    return packets, None


def fresh(version: int | None, from_client: bool) -> Decoder:
    return Decoder(version, 10_000, from_client=from_client)


sides = st.sampled_from([(None, True), (V311, True), (V5, True), (V311, False), (V5, False)])


@st.composite
def streams(draw: st.DrawFn, version: int | None, from_client: bool) -> bytes:
    """Good packets in a row, perhaps one of them damaged."""
    spoken = version or draw(st.sampled_from([V311, V5]))
    packets: list[Packet] = draw(
        st.lists(strategies.from_client(spoken) if from_client else strategies.from_server(spoken), max_size=6)
    )
    raws = [encode(packet, spoken) for packet in packets]
    if version is None:
        raws.insert(0, encode(draw(strategies.connects(spoken)), spoken))
    raws += draw(st.lists(st.sampled_from([case.raw for case in cases.ALL]), max_size=1))
    return b"".join(raws)


@strategies.patient
@given(side=sides, raw=st.binary(max_size=200))
def test_random_bytes(side: tuple[int | None, bool], raw: bytes) -> None:
    decoder = fresh(*side)
    packets, error = outcome(decoder, [raw])
    assert len(packets) <= len(raw)
    assert decoder.buffered_bytes <= len(raw)
    assert error is None or error[2].startswith("MQTT-")


@strategies.patient
@given(data=st.data(), side=sides)
def test_flipped_bits(data: st.DataObject, side: tuple[int | None, bool]) -> None:
    raw = bytearray(data.draw(streams(*side).filter(bool)))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    whole = outcome(fresh(*side), [bytes(raw)])
    single = outcome(fresh(*side), [bytes((byte,)) for byte in raw])
    assert single == whole


@strategies.patient
@given(data=st.data(), side=sides)
def test_any_cut_gives_the_same_packets(data: st.DataObject, side: tuple[int | None, bool]) -> None:
    raw = data.draw(streams(*side))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    chunks = [raw[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert outcome(fresh(*side), chunks) == outcome(fresh(*side), [raw])


@pytest.mark.parametrize("version", [V311, V5])
@strategies.patient
@given(data=st.data())
def test_cut_off_at_every_byte_a_packet_is_incomplete_and_nothing_else(version: int, data: st.DataObject) -> None:
    packet = data.draw(strategies.from_client(version))
    raw = encode(packet, version)
    for size in range(len(raw)):
        decoder = Decoder(version)
        assert decoder.feed(raw[:size]) == []
        assert decoder.buffered_bytes == size
        assert decoder.feed(raw[size:]) == [packet]
        assert decoder.buffered_bytes == 0


@pytest.mark.parametrize("version", [V311, V5])
@strategies.patient
@given(data=st.data())
def test_a_body_shorter_than_its_fields_is_refused_or_means_less(version: int, data: st.DataObject) -> None:
    """Truncated inside a frame whose length is right: the fields are cut, not the stream."""
    raw = encode(data.draw(strategies.from_client(version)), version)
    body = raw[2:] if len(raw) < 130 else raw[3:]
    for size in range(min(len(body), 127)):
        packets, error = outcome(Decoder(version), [bytes((raw[0], size)) + body[:size]])
        assert bool(packets) != bool(error)


@strategies.patient
@given(data=st.data(), kind=st.sampled_from([bytes, bytearray, memoryview]))
@example(data=None, kind=bytes)
def test_any_buffer_will_do(data: st.DataObject | None, kind: type) -> None:
    raw = data.draw(streams(None, True)) if data else b""
    decoder, other = fresh(None, True), fresh(None, True)
    halves = [raw[: len(raw) // 2], raw[len(raw) // 2 :]]
    assert outcome(decoder, [kind(half) for half in halves]) == outcome(other, halves)


def test_a_large_packet_in_small_reads_is_not_copied_again_and_again() -> None:
    packet = Publish("t", bytes(4_000_000), 1, 1)
    raw = encode(packet, V5)
    decoder = Decoder(V5)
    chunks = [raw[at : at + 1000] for at in range(0, len(raw), 1000)]
    # Quadratic copying would move 8 GB here and run into the time limit.
    assert [got for chunk in chunks for got in decoder.feed(chunk)] == [packet]


def test_many_packets_in_one_read_with_a_part_of_the_next() -> None:
    one = encode(Publish("t", b"x" * 100, 1, 1), V5)
    decoder = Decoder(V5)
    assert len(decoder.feed(one * 1000 + one[:50])) == 1000
    assert decoder.buffered_bytes == 50
    assert len(decoder.feed(one[50:] + one * 10)) == 11


@strategies.patient
@given(st.binary(max_size=100))
def test_what_follows_a_connect_in_one_read_is_decoded_in_its_version(tail: bytes) -> None:
    hello = encode(Connect("c"), V5)
    together = outcome(fresh(None, True), [hello + tail])
    apart = outcome(fresh(None, True), [hello, tail])
    assert together == apart
    assert together[0][0] == Connect("c")
