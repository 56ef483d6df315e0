"""MQTT over WebSocket and over TLS, with client certificates."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme
from msgspec.structs import replace
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from holdfast.config.audit_settings import AuditSettings
from holdfast.mqtt.codec import (
    V5,
    V311,
    ConnAck,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    Will,
    encode,
)
from holdfast.mqtt.net import backpressure
from holdfast.mqtt.net.websocket import WebSocketConnection
from tests.auth import rig
from tests.mqtt.net.broker import Broker, config_for, memory_broker
from tests.mqtt.net.clauses import covers
from tests.mqtt.net.client import Client
from tests.mqtt.net.conftest import Run
from tests.mqtt.net.secure import Certificates
from tests.waiting import PATIENCE_SECONDS

BOTH = pytest.mark.parametrize("version", [V311, V5])


class Socket:
    """A client over WebSocket."""

    def __init__(self, raw: ClientConnection, version: int) -> None:
        self.raw = raw
        self.version = version
        self._decoder = Decoder(version, from_client=False)
        self._packets: list[Packet] = []

    async def send(self, *packets: Packet) -> None:
        await self.raw.send(b"".join(encode(packet, self.version) for packet in packets))

    async def next(self) -> Packet:
        while not self._packets:
            async with asyncio.timeout(PATIENCE_SECONDS):
                data = await self.raw.recv()
            assert isinstance(data, bytes)
            self._packets += self._decoder.feed(data)
        return self._packets.pop(0)

    async def ended(self) -> int:
        """The code with which the server closed it."""
        while self.raw.close_code is None:
            with contextlib.suppress(ConnectionClosed):
                await self.next()
        return self.raw.close_code


def url(broker: Broker) -> str:
    assert broker.http is not None
    return broker.http.url.replace("http", "ws", 1) + "/mqtt"


async def open_socket(broker: Broker, version: int = V5, **options: object) -> Socket:
    raw = await connect(url(broker), subprotocols=["mqtt"], compression=None, open_timeout=PATIENCE_SECONDS, **options)  # type: ignore[arg-type, list-item]
    return Socket(raw, version)


@pytest.fixture
async def broker(run: Run, tmp_path: Path) -> Broker:
    config = config_for(tmp_path, buffer_bytes=64 * 1024, stall_timeout=100_000)
    return await run(memory_broker(replace(config, http=replace(config.http, enabled=True))))


@BOTH
@covers("6.0.0-2 6.0.0-3 6.0.0-4 4.2.0-1", v311="6.0.0-2 6.0.0-3 6.0.0-4")
async def test_packets_may_be_cut_and_joined_in_messages_at_will(broker: Broker, version: int) -> None:
    client = await open_socket(broker, version)
    assert client.raw.subprotocol == "mqtt"
    whole = encode(Connect("c", version), version) + encode(Subscribe(1, (Subscription("t", 1),)), version)
    for start in range(0, len(whole), 3):
        await client.raw.send(whole[start : start + 3])
    assert isinstance(await client.next(), ConnAck)
    assert isinstance(await client.next(), SubAck)
    await client.send(Publish("t", b"1", 1, 1), Publish("t", b"2"), PingReq())
    seen = [await client.next() for _ in range(4)]
    assert [one.payload for one in seen if isinstance(one, Publish)] == [b"1", b"2"]
    assert PubAck(1) in seen
    assert PingResp() in seen
    tcp = await broker.connect("other")
    await tcp.publish("t", b"across")
    packet = await client.next()
    assert isinstance(packet, Publish)
    assert packet.payload == b"across"
    await client.send(Disconnect())
    assert await client.ended() == 1000
    await broker.until(lambda: len(broker.front._links) == 1)


async def test_packets_are_read_before_their_message_ends(broker: Broker) -> None:
    """So nothing is kept of a message that never ends, of however many fragments."""
    client = await open_socket(broker)
    connected = asyncio.Event()

    async def fragments() -> AsyncIterator[bytes]:
        yield encode(Connect("c"), V5)
        await connected.wait()
        yield encode(PingReq(), V5)

    sending = asyncio.ensure_future(client.raw.send(fragments()))
    assert isinstance(await client.next(), ConnAck)
    connected.set()
    assert isinstance(await client.next(), PingResp)
    await sending


@covers("6.0.0-1", v311="6.0.0-1")
async def test_a_text_message_ends_the_connection(broker: Broker) -> None:
    listener = await broker.connect("l")
    await listener.subscribe("w")
    client = await open_socket(broker)
    await client.send(Connect("c", will=Will("w", b"bye")))
    await client.next()
    await client.raw.send("text")
    assert await client.ended() == 1003
    assert await listener.payloads(1) == [b"bye"]
    await broker.until(lambda: len(broker.front._links) == 1)


@pytest.mark.parametrize("offered", [[], ["mqttv3.1"], ["chat", "MQTT"]])
@covers("6.0.0-3", v311="6.0.0-3")
async def test_only_the_subprotocol_mqtt_is_spoken(broker: Broker, offered: list[str]) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await connect(url(broker), subprotocols=offered or None, open_timeout=PATIENCE_SECONDS)  # type: ignore[arg-type]
    assert refused.value.response.status_code == 403
    assert not broker.front._links


async def test_among_several_subprotocols_mqtt_is_chosen(broker: Broker) -> None:
    async with connect(url(broker), subprotocols=["chat", "mqtt"], open_timeout=PATIENCE_SECONDS) as raw:  # type: ignore[list-item]
        assert raw.subprotocol == "mqtt"


async def test_there_is_nothing_at_other_paths(broker: Broker) -> None:
    for path in ("/", "/mqtt/", "/api"):
        other = url(broker).removesuffix("/mqtt") + path
        with pytest.raises(InvalidStatus):
            await connect(other, subprotocols=["mqtt"], open_timeout=PATIENCE_SECONDS)  # type: ignore[list-item]


@BOTH
async def test_a_protocol_error_is_told_and_the_socket_closed(broker: Broker, version: int) -> None:
    client = await open_socket(broker, version)
    await client.send(Connect("c", version))
    await client.next()
    await client.raw.send(b"\x00\x00")
    if version == V5:
        disconnect = await client.next()
        assert isinstance(disconnect, Disconnect)
        assert disconnect.reason_code == 0x81
    assert await client.ended() == 1000
    await broker.until(lambda: not broker.front._links)


async def test_a_message_larger_than_a_packet_may_be_is_refused(broker: Broker) -> None:
    client = await open_socket(broker)
    await client.raw.send(b"\x10" * (2 * 1024 * 1024))
    assert await client.ended() == 1009
    await broker.until(lambda: not broker.front._links)
    assert broker.hub.connections == {}


async def test_a_page_from_elsewhere_is_refused_unless_it_knows_a_secret(run: Run, tmp_path: Path) -> None:
    plain = config_for(tmp_path)
    open_to_all = await run(memory_broker(replace(plain, http=replace(plain.http, enabled=True))))
    with pytest.raises(InvalidStatus):
        await open_socket(open_to_all, origin="https://evil.example")
    users = rig.write_users(tmp_path / "users.json", rig.user("shop", "secret", "consume:#"))
    guarded = replace(
        plain,
        http=replace(plain.http, enabled=True),
        auth=rig.settings(users_file=users),
        audit=AuditSettings(enabled=False),
    )
    broker = await run(memory_broker(guarded))
    client = await open_socket(broker, origin="https://dashboard.example")
    await client.send(Connect("c", username="shop", password=b"secret"))
    answer = await client.next()
    assert isinstance(answer, ConnAck)
    assert answer.reason_code == 0


async def test_a_foreign_name_for_loopback_is_refused(broker: Broker) -> None:
    with pytest.raises(InvalidStatus):
        await open_socket(broker, additional_headers={"Host": "evil.example"})
    assert not broker.front._links


async def test_a_socket_that_is_never_read_is_dropped(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backpressure, "PATIENCE_SECONDS", 0.0)
    client = await open_socket(broker, max_queue=1)
    await client.send(Connect("stuck"), Subscribe(1, (Subscription("t"),)))
    await broker.until(lambda: "stuck" in broker.sessions())
    publisher = await broker.connect("p")
    await broker.until(lambda: bool(broker.session("stuck").subscriptions))
    while "stuck" in broker.sessions():
        await publisher.publish("t", b"x" * 100_000)
    await broker.until(lambda: len(broker.front._links) == 1)
    assert broker.hub.dropped["slow"] > 0
    client.raw.transport.abort()


async def test_a_silent_websocket_is_closed(broker: Broker) -> None:
    client = await open_socket(broker)
    await broker.until(lambda: len(broker.front._links) == 1)
    broker.pass_time(10.1)
    assert await client.ended() == 1000
    await broker.until(lambda: not broker.front._links)


async def test_a_socket_that_does_not_answer_pings_is_closed(broker: Broker) -> None:
    assert broker.http is not None
    reader, writer = await asyncio.open_connection(*broker.http.address)
    lines = ["GET /mqtt HTTP/1.1", "host: localhost", "connection: Upgrade", "upgrade: websocket"]
    lines += [
        "sec-websocket-version: 13",
        "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==",
        "sec-websocket-protocol: mqtt",
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    (connection,) = broker.http.connections.open
    assert isinstance(connection, WebSocketConnection)
    for _ in range(2):
        connection.ping()  # as a timer does
        assert await reader.readexactly(2) == b"\x89\x00"
        writer.write(b"\x8a\x80\x00\x00\x00\x00")
        await broker.until(lambda: not connection.pinged)
    connection.ping()
    connection.ping()
    await broker.until(lambda: not broker.front._links)
    await broker.until(lambda: not broker.http.connections.open)  # type: ignore[union-attr]
    writer.close()


async def test_at_a_stop_clients_are_told_why(broker: Broker) -> None:
    sockets = [await open_socket(broker, version) for version in (V5, V311)]
    for number, one in enumerate(sockets):
        await one.send(Connect(str(number), one.version))
        await one.next()
    await broker.stop()
    last = await sockets[0].next()
    assert isinstance(last, Disconnect)
    assert last.reason_code == 0x8B
    assert [await one.ended() for one in sockets] == [1000, 1000]
    await broker.start()


# --- TLS ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


async def secured(
    run: Run, tmp_path: Path, certificates: Certificates, clients: str = "optional", **auth: object
) -> Broker:
    config = config_for(tmp_path, tls_listen="127.0.0.1:0")
    return await run(
        memory_broker(
            replace(
                config,
                http=replace(config.http, enabled=True),
                tls=certificates.settings(clients),
                auth=rig.settings(**auth),
                audit=AuditSettings(enabled=False),
            )
        )
    )


async def over_tls(broker: Broker, context: ssl.SSLContext, version: int = V5) -> Client:
    host, port = broker.front.addresses[1]
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    client = Client(reader, writer, version)
    broker.adopt(client)
    return client


@BOTH
async def test_mqtt_over_tls(run: Run, tmp_path: Path, certificates: Certificates, version: int) -> None:
    broker = await secured(run, tmp_path, certificates)
    context, _ = certificates.client()
    client = await over_tls(broker, context, version)
    await client.connect(Connect("c", version))
    await client.subscribe("t", qos=2)
    other = await broker.connect("plain")  # the port without TLS is there as well
    payload = bytes(range(256)) * 1000
    assert await other.publish("t", payload, 2) == 0
    seen = await client.next_publish()
    assert seen.payload == payload
    await client.acknowledge(seen)
    await client.disconnect()
    broken = await over_tls(broker, context, version)
    await broken.connect(Connect("c", version))
    await broken.send_raw(b"\x00\x00")
    assert await broken.refused() == (0x81 if version == V5 else 0)
    await broker.until(lambda: len(broker.front._links) == 1)


@pytest.mark.parametrize("transport", ["tcp", "websocket"])
async def test_a_certificate_says_who_the_client_is(
    run: Run, tmp_path: Path, certificates: Certificates, transport: str
) -> None:
    context, subject = certificates.client("shop")
    users = rig.write_users(tmp_path / "users.json", rig.user("shop", None, "produce:orders/#", subject=subject))
    broker = await secured(run, tmp_path, certificates, users_file=users)
    client = await over_tls(broker, context) if transport == "tcp" else await open_socket(broker, ssl=context)
    await client.send(Connect("c"))
    answer = await client.next()
    assert isinstance(answer, ConnAck)
    assert answer.reason_code == 0
    await client.send(Publish("orders/1", b"", 1, 1), Publish("bills/1", b"", 1, 2))
    answers = [await client.next(), await client.next()]
    assert [one.reason_code for one in answers if isinstance(one, PubAck)] == [0x10, 0x87]
    page = await open_socket(broker, ssl=context, origin="https://evil.example")
    await page.send(Connect("page"))
    answer = await page.next()
    assert isinstance(answer, ConnAck)
    assert answer.reason_code == 0x87  # a browser would send the certificate for any page


async def test_a_certificate_of_nobody_known_is_not_enough(
    run: Run, tmp_path: Path, certificates: Certificates
) -> None:
    users = rig.write_users(tmp_path / "users.json", rig.user("shop", "secret", "produce:#", subject="CN=shop"))
    broker = await secured(run, tmp_path, certificates, users_file=users)
    context, _ = certificates.client("somebody")
    client = await over_tls(broker, context)
    assert (await client.connect(Connect("c"))).reason_code == 0x86
    again = await over_tls(broker, context)
    assert (await again.connect(Connect("c", username="shop", password=b"secret"))).reason_code == 0


async def test_a_required_certificate_must_be_there_and_of_our_authority(
    run: Run, tmp_path: Path, certificates: Certificates
) -> None:
    context, subject = certificates.client("shop")
    users = rig.write_users(tmp_path / "users.json", rig.user("shop", None, "produce:#", subject=subject))
    broker = await secured(run, tmp_path, certificates, "required", users_file=users)
    for wrong in (certificates.client()[0], certificates.client("shop", trustme.CA())[0]):
        try:
            client = await over_tls(broker, wrong)
            await client.send(Connect("c"))
            assert await client.ended() == []
        except (ssl.SSLError, ConnectionError):
            pass  # with TLS 1.3 it shows when the client first reads
    right = await over_tls(broker, context)
    assert (await right.connect(Connect("c", properties=Properties(session_expiry_s=5)))).reason_code == 0
    assert set(broker.sessions()) == {"c"}


async def test_an_unfinished_handshake_is_closed(run: Run, tmp_path: Path, certificates: Certificates) -> None:
    config = config_for(tmp_path, tls_listen="127.0.0.1:0", connect_timeout=100_000)
    broker = await run(memory_broker(replace(config, tls=certificates.settings("none"))))
    reader, writer = await asyncio.open_connection(*broker.front.addresses[1])
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await reader.read() == b""
    writer.close()
