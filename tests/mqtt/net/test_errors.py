"""Every violation that a client can commit, over a socket: the reason code, the end of the connection, and nothing
else changed. The cases are those of the codec's own conformance test."""

from __future__ import annotations

import pytest

from holdfast.mqtt.codec import V5, V311, ConnAck, Disconnect, Packet, Publish, encode, return_code_311
from tests.mqtt.codec import cases
from tests.mqtt.net.broker import Broker
from tests.mqtt.net.clauses import covers
from tests.mqtt.net.conftest import Start
from tests.mqtt.raw import BOTH, Case, frame, text

CASES = [case for case in cases.ALL if case.from_client]
CLAUSES = {
    version: " ".join(
        sorted({case.rule.clause(v).removeprefix("MQTT-") for case in CASES for v in case.versions if v == version})
    )
    for version in BOTH
}


def expected(case: Case, version: int) -> list[tuple[type[Packet], int]]:
    """What the server says before it closes."""
    if case.connect:
        if version == V5:
            return [(ConnAck, case.rule.reason_code)]
        code = return_code_311(case.rule.reason_code)
        return [] if code is None else [(ConnAck, code)]
    return [(Disconnect, case.rule.reason_code)] if version == V5 else []


def shown(packets: list[Packet]) -> list[tuple[type[Packet], int]]:
    assert all(isinstance(packet, (ConnAck, Disconnect)) for packet in packets), packets
    return [(type(packet), packet.reason_code) for packet in packets if isinstance(packet, (ConnAck, Disconnect))]


@pytest.mark.parametrize("version", BOTH)
@covers(
    CLAUSES[V5] + " 2.2.2-1 3.1.2-2 3.14.0-1 3.14.4-1 3.14.4-2 4.7.3-2 3.3.2-13 3.3.2-19 3.8.3-1 3.10.3-1 3.3.2-1",
    v311=CLAUSES[V311] + " 2.2.2-1 3.1.2-11 3.2.2-6 3.8.3-1 3.10.3-1 4.7.3-2 3.3.2-1 3.1.0-1",
)
async def test_a_violation_ends_its_connection_and_nothing_else(broker: Broker, version: int) -> None:
    witness = await broker.connect("witness")
    await witness.subscribe("#", qos=2)
    wrong: list[object] = []
    for case in CASES:
        if version not in case.versions:
            continue
        if case.connect:
            client = await broker.open(version)
        else:
            client = await broker.connect("c", version)
        await client.send_raw(case.raw)
        seen = shown(await client.ended())
        if seen != expected(case, version):
            wrong.append((case.what, seen, expected(case, version)))
    assert wrong == []
    await witness.silent()
    await broker.until(lambda: len(broker.front._links) == 1)
    assert len(broker.hub.connections) == 1
    assert set(broker.sessions()) == {"witness"}


@pytest.mark.parametrize("version", BOTH)
@covers("3.2.2-15 3.3.2-12")
async def test_a_packet_over_the_limit_is_refused_before_it_has_arrived(start: Start, version: int) -> None:
    broker = await start(max_packet_bytes=2048)
    client = await broker.connect("c", version)
    fits = encode(Publish("t", b"x" * (2048 - 3 - 3 - (version == V5))), version)
    assert len(fits) == 2048
    await client.send_raw(fits)
    await client.ping()
    await client.send_raw(encode(Publish("t", b"x" * 2048), version)[:4])
    assert await client.refused() == (0x95 if version == V5 else 0)


@pytest.mark.parametrize("version", BOTH)
async def test_what_came_before_a_violation_was_done(broker: Broker, version: int) -> None:
    listener = await broker.connect("l")
    await listener.subscribe("t", qos=1)
    client = await broker.connect("c", version)
    await client.send_raw(encode(Publish("t", b"1", 1, 1), version) + b"\x00\x00" + encode(Publish("t", b"2"), version))
    await client.ended()
    assert await listener.payloads(1) == [b"1"]
    await listener.silent()


async def test_a_connect_has_a_limit_of_its_own(start: Start) -> None:
    broker = await start(max_connect_bytes=1024)
    client = await broker.open()
    await client.send_raw(b"\x10\xff\x7f")
    assert await client.refused() == 0x95


async def test_something_else_than_mqtt_is_turned_away(broker: Broker) -> None:
    client = await broker.open()
    await client.send_raw(b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n")
    assert await client.refused() == 0x82
    other = await broker.open()
    await other.send_raw(frame(0x10, text("HTTP") + "05 02 003c 00" + text("c")))
    assert await other.refused() == 0x84
