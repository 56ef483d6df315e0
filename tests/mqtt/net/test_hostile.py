"""Clients that mean no good, or know no better: nothing they do stops the server, changes what is not theirs, or holds
its memory."""

from __future__ import annotations

import asyncio
import socket
from itertools import product
from random import Random

import pytest
import structlog

from holdfast.mqtt.codec import (
    V5,
    V311,
    Connect,
    Decoder,
    Packet,
    PingReq,
    Properties,
    ProtocolError,
    PubAck,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
    encode,
)
from holdfast.mqtt.net import backpressure, link
from holdfast.mqtt.net.link import Link
from holdfast.mqtt.net.rate_limited_log import RateLimitedLog
from holdfast.units import SECOND
from tests.mqtt.net.broker import Broker
from tests.mqtt.net.client import Client
from tests.mqtt.net.conftest import Start

BOTH = pytest.mark.parametrize("version", [V311, V5])


def link_of(broker: Broker, client_id: str) -> Link:
    connection = broker.session(client_id).connection
    assert connection is not None
    assert isinstance(connection.tag, Link)
    return connection.tag


def buffered(broker: Broker, client_id: str) -> int:
    return int(link_of(broker, client_id)._transport.get_write_buffer_size())  # type: ignore[union-attr]


async def deaf(broker: Broker, version: int = V5) -> Client:
    """A client with a small window that reads only when it is told to."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, broker.address)
    reader, writer = await asyncio.open_connection(sock=raw, limit=1024)
    client = Client(reader, writer, version)
    broker.adopt(client)
    return client


def narrow(broker: Broker, client_id: str) -> None:
    """Let the system buffer little on the way to it."""
    raw = link_of(broker, client_id)._transport.get_extra_info("socket")  # type: ignore[union-attr]
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


def state(broker: Broker) -> object:
    """All there is of others than `c`."""
    ns = broker.hub.namespaces["default"]
    sessions = {name: sorted(session.subscriptions) for (_, name), session in ns.sessions.items() if name != "c"}
    return sessions, [(topic, ns.retained.get(topic)) for topic in ns.retained]


async def only_left(broker: Broker, *client_ids: str) -> None:
    """Nothing is kept of anybody else."""
    await broker.until(lambda: len(broker.front._links) == len(client_ids))
    assert len(broker.hub.connections) == len(client_ids)
    assert broker.hub._lifecycle.clients == len(client_ids)
    assert set(broker.sessions()) == set(client_ids)


# --- broken packets -------------------------------------------------------------------------------------------------


def stream(dice: Random, version: int) -> list[bytes]:
    """What a well-behaved client might send after its CONNECT."""
    name = f"t/{dice.randrange(5)}"
    carried = (
        Properties(user_properties=(("k", "v" * dice.randrange(50)),), content_type="x")
        if version == V5
        else Properties()
    )
    packets: list[Packet] = [
        Publish(name, dice.randbytes(dice.randrange(200)), properties=carried),
        Publish(name, b"x", 1, dice.randrange(1, 65536), dice.random() < 0.2),
        Publish(name, b"x", 2, dice.randrange(1, 65536)),
        PubRel(dice.randrange(1, 65536)),
        PubAck(dice.randrange(1, 65536)),
        PubRec(dice.randrange(1, 65536)),
        Subscribe(1, (Subscription("t/#", dice.randrange(3)), Subscription("$share/g/+/1", 1))),
        Unsubscribe(2, ("t/#",)),
        PingReq(),
    ]
    return [encode(packet, version) for packet in dice.choices(packets, k=6)]


def spoil(dice: Random, raw: bytes) -> bytes:
    broken = bytearray(raw)
    match dice.randrange(5):
        case 0:
            return raw[: dice.randrange(len(raw))]
        case 1:
            for _ in range(dice.randrange(1, 4)):
                broken[dice.randrange(len(broken))] ^= 1 << dice.randrange(8)
        case 2:
            at = dice.randrange(len(broken))
            broken[at : at + dice.randrange(8)] = dice.randbytes(dice.randrange(8))
        case 3:
            return dice.randbytes(dice.randrange(1, 100))
        case _:
            broken[1:2] = b"\xff\xff\xff" + bytes((dice.randrange(256),))
    return bytes(broken)


def first_violation(raw: bytes, version: int) -> bool:
    """Whether the very first packet is refused."""
    try:
        Decoder(version, 1024 * 1024).feed(raw)
    except ProtocolError as error:
        return not error.packets
    return False


@BOTH
@pytest.mark.parametrize("seed", range(4))
async def test_spoilt_packets_do_no_harm(broker: Broker, version: int, seed: int) -> None:
    dice = Random(seed)
    witness = await broker.connect("witness", V311)
    assert await witness.subscribe("witness/#") == (0,)
    for number in range(60):
        will = Will("t/will", b"w") if dice.random() < 0.3 else None
        client = await broker.connect("c", version, will=will)
        raw = spoil(dice, b"".join(stream(dice, version)))
        before = state(broker)
        await client.send_raw(raw)
        if first_violation(raw, version):
            await client.ended()
            assert "c" not in broker.sessions()
            assert state(broker) == before, f"seed {seed}, round {number}: {raw.hex()}"
        client.cut()
    for _ in range(60):  # and as the first thing that is said
        client = await broker.open(version)
        await client.send_raw(spoil(dice, encode(Connect("c", version, will=Will("t", b"w")), version)))
        client.cut()
    await broker.until(lambda: len(broker.front._links) == 1)
    broker.pass_time(8 * 86_400)  # a flipped bit may have asked for a session that stays
    await only_left(broker, "witness")
    await witness.send(Publish("witness/1", b"alive"))
    assert await witness.payloads(1) == [b"alive"]


# --- silence and slowness -------------------------------------------------------------------------------------------


async def test_a_silent_connection_is_closed(broker: Broker) -> None:
    silent = await broker.open()
    slow = await broker.open()
    for byte in encode(Connect("c"), V5)[:-1]:
        await slow.send_raw(bytes((byte,)))
    assert len(broker.hub.connections) == 2
    broker.pass_time(10.1)
    assert await silent.ended() == []
    assert await slow.ended() == []
    await only_left(broker)


async def test_a_client_that_never_reads_is_spared_then_dropped_and_others_do_not_notice(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backpressure, "PATIENCE_SECONDS", 0.0)
    broker = await start(buffer_bytes=16 * 1024, stall_timeout=1_000_000)
    stuck = await deaf(broker)
    await stuck.connect(Connect("stuck"))
    await stuck.subscribe("t")
    reading = await broker.connect("reading")
    await reading.subscribe("t")
    publisher = await broker.connect("publisher")
    stuck_link = link_of(broker, "stuck")
    narrow(broker, "stuck")
    sent = 0
    while "slow" not in broker.hub.dropped:
        await publisher.publish("t", b"x" * 50_000)
        sent += 1
        assert (await reading.next_publish()).payload == b"x" * 50_000
        if "stuck" in broker.sessions():
            assert buffered(broker, "stuck") < 16 * 1024 + 2 * 51_000
    await broker.until(lambda: stuck_link not in broker.front._links)
    await publisher.publish("t", b"last")
    assert await reading.payloads(1) == [b"last"]
    await only_left(broker, "reading", "publisher")


async def test_what_waits_for_a_slow_reader_comes_when_it_reads_again(start: Start) -> None:
    broker = await start(buffer_bytes=16 * 1024)
    slow = await deaf(broker)
    await slow.connect(Connect("slow"))
    await slow.subscribe("t", qos=1)
    publisher = await broker.connect("publisher")
    number = 0
    while not broker.session("slow").queue:
        assert await publisher.publish("t", b"%06d" % number + b"x" * 50_000, 1) == 0
        number += 1
    seen: list[int] = []
    while len(seen) < number:
        packet = await slow.next_publish()
        seen.append(int(packet.payload[:6]))
        await slow.acknowledge(packet)
    assert seen == list(range(number))


@BOTH
async def test_who_publishes_and_reads_no_answers_is_not_read_either(start: Start, version: int) -> None:
    broker = await start(buffer_bytes=1024, stall_timeout=100_000)
    client = await deaf(broker, version)
    await client.connect(Connect("c", version))
    its_link = link_of(broker, "c")
    narrow(broker, "c")
    raw = b"".join(encode(Publish("t", b"", 1, number), version) for number in range(1, 900))
    for _ in range(100_000):
        if its_link not in broker.front._links:
            break
        client._writer.write(raw)
        if client._writer.transport.get_write_buffer_size() > 1 << 20:  # nobody takes it any more
            await broker.until(lambda: its_link not in broker.front._links)
            break
        await asyncio.sleep(0)
        if "c" in broker.sessions():
            assert buffered(broker, "c") < 512 * 1024  # one read makes no more answers than that
    client.cut()
    await only_left(broker)


async def test_who_acknowledges_nothing_holds_no_more_than_its_share(start: Start) -> None:
    broker = await start(max_queued_bytes=1024 * 1024)
    client = await broker.connect("c")
    await client.subscribe("t", qos=1)
    publisher = await broker.connect("p")
    codes = [await publisher.publish("t", b"x" * 100_000, 1) for _ in range(40)]
    got = codes.count(0)
    assert codes == [0] * got + [0x97] * (40 - got)
    session = broker.session("c")
    assert 1024 * 1024 <= session.inflight_bytes <= 1024 * 1024 + 100_001
    assert session.queued_bytes <= 1024 * 1024
    for _ in range(got):
        await client.acknowledge(await client.next_publish())
    await client.silent()
    assert (session.inflight_bytes, session.queued_bytes) == (0, 0)


async def test_asking_for_everything_retained_many_times_holds_no_memory(start: Start) -> None:
    broker = await start(buffer_bytes=64 * 1024)
    publisher = await broker.connect("p")
    for number in range(20):
        await publisher.publish(f"a/a/a/a/a/a/a/{number}", b"x" * 50_000, retain=True)
    greedy = await deaf(broker)
    await greedy.connect(Connect("greedy"))
    narrow(broker, "greedy")
    filters = ["/".join(levels) + "/#" for levels in product("a+", repeat=7)]  # each of them matches all
    await greedy.send(Subscribe(1, tuple(Subscription(one) for one in filters)))
    connection = broker.session("greedy").connection
    assert connection is not None
    await broker.until(lambda: connection.paused)
    assert buffered(broker, "greedy") < 512 * 1024
    assert len(connection.showing) > 100
    await publisher.publish("others", b"are served")
    greedy.cut()
    await only_left(broker, "p")
    assert not connection.showing


async def test_nor_does_asking_again_and_again(start: Start) -> None:
    broker = await start(buffer_bytes=64 * 1024)
    publisher = await broker.connect("p")
    await publisher.publish("t", b"x" * 100_000, retain=True)
    greedy = await deaf(broker)
    await greedy.connect(Connect("greedy"))
    narrow(broker, "greedy")
    await greedy.send(*[Subscribe(number, (Subscription("t"),)) for number in range(1, 1001)])
    connection = broker.session("greedy").connection
    assert connection is not None
    await broker.until(lambda: connection.paused)
    assert buffered(broker, "greedy") < 512 * 1024


async def test_retained_messages_are_limited_in_number_and_size(start: Start) -> None:
    broker = await start(max_retained=3, max_retained_bytes=1000)
    client = await broker.connect()
    codes = [await client.publish(topic, b"x" * 450, 1, retain=True) for topic in ("a", "b", "c")]
    assert codes == [0x10, 0x10, 0x97]
    codes = [await client.publish(topic, b"x", 1, retain=True) for topic in ("b", "c", "d")]
    assert codes == [0x10, 0x10, 0x97]
    assert await client.publish("a", b"", 1, retain=True) == 0x10
    assert await client.publish("d", b"x", 1, retain=True) == 0x10
    assert broker.hub.namespaces["default"].retained_bytes == 6


# --- crowds ---------------------------------------------------------------------------------------------------------


async def test_more_clients_than_there_is_room_for_are_turned_away(start: Start) -> None:
    broker = await start(max_connections=3)
    clients = [await broker.connect(str(number)) for number in range(3)]
    for version, code in ((V5, 0x89), (V311, 3)):
        late = await broker.open(version)
        answer = await late.connect(Connect("late", version))
        assert answer.reason_code == code
        assert await late.ended() == []
    await clients[0].disconnect()
    await broker.connect("late")
    await only_left(broker, "1", "2", "late")


async def test_strangers_who_say_nothing_do_not_take_the_places_of_clients(start: Start) -> None:
    broker = await start(max_connections=3)
    for _ in range(3):
        await broker.open()
    for number in range(3):
        await broker.connect(str(number))


async def test_more_sessions_than_there_is_room_for_are_refused(start: Start) -> None:
    broker = await start(max_sessions=2)
    for name in ("a", "b"):
        await (await broker.connect(name, expiry=100)).disconnect()
    for version, code in ((V5, 0x97), (V311, 3)):
        client = await broker.open(version)
        assert (await client.connect(Connect("c", version))).reason_code == code
    assert (await broker.connect("a", clean=False, expiry=100)).connack.session_present
    broker.pass_time(101)
    await broker.connect("c")


async def test_many_who_claim_the_same_name_leave_one(broker: Broker) -> None:
    clients = [await broker.open() for _ in range(50)]
    for client in clients:
        await client.send(Connect("same", properties=Properties(session_expiry_s=10), will=Will("w", b"")))
    await broker.until(lambda: len(broker.front._links) <= 50 and broker.hub._lifecycle.clients == 1)
    for client in clients:
        client.cut()
    await broker.until(lambda: not broker.front._links)
    assert set(broker.sessions()) == {"same"}
    assert (len(broker.hub.connections), broker.hub._lifecycle.clients) == (0, 0)


async def test_large_and_deep_but_lawful(broker: Broker) -> None:
    client = await broker.connect("c", expiry=100)
    filters = [f"{number}/+/x" for number in range(1000)]
    for start_at in range(0, 1000, 100):
        assert await client.subscribe(*filters[start_at : start_at + 100]) == (0,) * 100
    assert await client.subscribe("one more") == (0x97,)
    deepest = "/".join("a" * 128)
    assert await client.publish(deepest + "/a" * 200, b"", 1) == 0x90
    many = Properties(user_properties=(("k" * 100, "v" * 900),) * 1000)
    assert await (await broker.connect("p")).publish("7/a/x", b"", 1, properties=many) == 0
    assert (await client.next_publish()).properties == many
    stranger = await broker.open()
    await stranger.send(Connect("s", properties=Properties(user_properties=(("k" * 100, "v" * 900),) * 200)))
    assert await stranger.refused() == 0x95


async def test_more_filters_in_one_packet_than_anybody_needs_are_refused_unseen(start: Start) -> None:
    broker = await start(max_subscriptions=10)
    client = await broker.connect()
    codes = await client.subscribe(*["same"] * 1000, "same", "same")
    assert codes == (0,) * 1000 + (0x97, 0x97)


async def test_a_client_that_reads_slowly_is_not_called_silent(start: Start) -> None:
    broker = await start(buffer_bytes=16 * 1024)
    slow = await deaf(broker)
    await slow.connect(Connect("slow", keep_alive_s=10))
    narrow(broker, "slow")
    await slow.subscribe("t", qos=1)
    publisher = await broker.connect("p")
    number = 0
    while not broker.session("slow").queue:
        await publisher.publish("t", b"x" * 50_000, 1)
        number += 1
    await slow.send(PingReq())  # which waits in the system, since nothing is read from it
    for _ in range(3):
        broker.pass_time(16)
    seen = 0
    while seen < number:
        packet = await slow.next()
        if isinstance(packet, Publish):
            seen += 1
            await slow.acknowledge(packet)
    broker.pass_time(31)
    assert await slow.refused() == 0x8D  # now it is


async def test_what_does_not_reach_a_session_is_reported(start: Start) -> None:
    broker = await start(max_queued_messages=1)
    away = await broker.connect("away", expiry=100)
    await away.subscribe("t", qos=1)
    await away.disconnect()
    publisher = await broker.connect("p")
    for _ in range(3):
        await publisher.publish("t", b"x", 1)
    with structlog.testing.capture_logs() as lines:
        broker.front._report_drops()
        broker.front._report_drops()
    assert [(line["event"], line["full"]) for line in lines] == [("MQTT messages did not reach a session", 2)]


async def test_a_stop_does_not_wait_for_clients_that_do_not_close(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "LINGER_SECONDS", 0.05)
    broker = await start(buffer_bytes=16 * 1024)
    stuck = await deaf(broker)
    await stuck.connect(Connect("stuck"))
    narrow(broker, "stuck")
    await stuck.subscribe("t")
    polite = await broker.connect("polite")
    old = await broker.connect("old", V311)
    while not broker.hub.dropped["slow"]:
        await polite.publish("t", b"x" * 50_000)
    await broker.front.stop()
    assert not broker.front._links
    assert await polite.refused() == 0x8B
    assert await old.refused() == 0


def test_nobody_fills_the_log() -> None:
    rate_limited_log = RateLimitedLog("MQTT protocol error")
    with structlog.testing.capture_logs() as lines:
        for number in range(50):
            rate_limited_log.emit(number, peer="somewhere")
        rate_limited_log.emit(SECOND)
    assert len(lines) == 11
    assert lines[-1]["others_not_shown"] == 40
    assert all("others_not_shown" not in line for line in lines[:-1])
