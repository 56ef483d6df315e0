"""Whom a connection is from behind proxies: only those that are named are believed."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from holdfast.auth.gate import Gate
from holdfast.auth.proxies import SIGNATURE, ProxyHeaderInvalid, TrustedProxies, read_header
from holdfast.broker.node import Node
from holdfast.config import Config
from holdfast.config.settings import HttpSettings, MqttSettings, NodeSettings, TlsSettings
from holdfast.http_api import HttpFront
from holdfast.mqtt.codec import Connect, Decoder, encode
from holdfast.mqtt.net.front import MqttFront
from holdfast.store.memory import MemoryStore
from holdfast.units import MILLISECOND
from tests.auth import rig
from tests.http_api.server.rig import Wire
from tests.waiting import until

LINE = b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 8080\r\n"


def block(kind: int, family: int, body: bytes) -> bytes:
    return SIGNATURE + bytes((kind, family)) + len(body).to_bytes(2, "big") + body


FOUR = bytes((192, 0, 2, 7)) + bytes((10, 0, 0, 1)) + b"\x12\x67\x1f\x90"
SIX = bytes.fromhex("20010db8000000000000000000000007") + bytes(16) + b"\x12\x67\x1f\x90"
EXTENSION = b"\x01\x00\x02h2"


async def header(data: bytes) -> tuple[str, bytes]:
    """What the header says, and what was not read."""
    stream = asyncio.StreamReader()
    stream.feed_data(data)
    stream.feed_eof()
    return await read_header(stream.readexactly), await stream.read()


# --- the PROXY protocol ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "client"),
    [
        (LINE, "192.0.2.7"),
        (b"PROXY TCP6 2001:db8::7 ::1 4711 8080\r\n", "2001:db8::7"),
        (b"PROXY UNKNOWN\r\n", ""),
        (b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n", ""),
        (block(0x21, 0x11, FOUR), "192.0.2.7"),
        (block(0x21, 0x11, FOUR + EXTENSION), "192.0.2.7"),
        (block(0x21, 0x21, SIX), "2001:db8::7"),
        (block(0x20, 0x11, FOUR), ""),  # the proxy's own connection, to see whether we live
        (block(0x20, 0x00, b""), ""),
        (block(0x21, 0x31, bytes(216)), ""),  # a socket of the file system
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_a_header_names_the_client_and_nothing_behind_it_is_read(data: bytes, client: str) -> None:
    assert await header(data + b"PROXY or what the client sends\r\n") == (client, b"PROXY or what the client sends\r\n")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 4711\r\n",
        b"PROXY TCP4 nobody 10.0.0.1 4711 8080\r\n",
        b"PROXY SCTP 192.0.2.7 10.0.0.1 4711 8080\r\n",
        b"PROXY " + b"x" * 200 + b"\r\n",
        b"\r\n" * 10,
        block(0x31, 0x11, FOUR),
        block(0x22, 0x11, FOUR),
        block(0x21, 0x11, FOUR[:11]),
        block(0x21, 0x11, FOUR + bytes(5_000)),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_what_is_no_header_is_refused(data: bytes) -> None:
    with pytest.raises(ProxyHeaderInvalid):
        await header(data)


# --- X-Forwarded-For ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.0.0.1", b"192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", b"192.0.2.7, 10.0.0.9", "192.0.2.7"),
        ("10.0.0.1", b"1.1.1.1, 192.0.2.7,10.0.0.9", "192.0.2.7"),  # what stands before may be forged
        ("10.0.0.1", b"192.0.2.7:4711", "192.0.2.7"),
        ("10.0.0.1", b"[2001:db8::7]:4711", "2001:db8::7"),
        ("10.0.0.1", b"2001:db8::7", "2001:db8::7"),
        ("::ffff:10.0.0.1", b"192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", b"10.0.0.8, 10.0.0.9", "10.0.0.8"),  # a proxy calls for itself
        ("10.0.0.1", b"192.0.2.7, unknown, 10.0.0.9", "10.0.0.9"),
        ("10.0.0.1", b"", "10.0.0.1"),
        ("10.0.0.1", None, "10.0.0.1"),
        ("10.1.0.1", b"192.0.2.7", "10.1.0.1"),  # it is not named
        ("", b"192.0.2.7", ""),
    ],
)
def test_the_client_is_the_last_address_that_no_trusted_proxy_has(
    peer: str, forwarded: bytes | None, client: str
) -> None:
    assert TrustedProxies(("10.0.0.0/24",)).client(peer, forwarded) == client


# --- on a server ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(
    tmp_path: Path, proxies: tuple[str, ...], *, proxy_protocol: bool = False, tls: TlsSettings | None = None
) -> AsyncIterator[tuple[HttpFront, MqttFront]]:
    users = rig.write_users(tmp_path / "users.json", rig.user("shop", "good"))
    config = Config(
        node=NodeSettings(data_dir=tmp_path),
        http=HttpSettings(listen="127.0.0.1:0", proxy_protocol=proxy_protocol, header_timeout=2_000 * MILLISECOND),
        mqtt=MqttSettings(listen="127.0.0.1:0", proxy_protocol=proxy_protocol),
        auth=rig.settings(users_file=users, trusted_proxies=proxies, login_failures=1),
        tls=tls or TlsSettings(),
    )
    node = Node(config, MemoryStore())
    await node.start()
    gate = Gate(config, node.clock)
    mqtt = MqttFront(config, node, gate)
    await mqtt.start()
    http = HttpFront(config, node, gate, {"/mqtt": mqtt.websocket()})
    await http.start()
    try:
        yield http, mqtt
    finally:
        await mqtt.stop()
        await http.stop()
        await node.stop()
        await gate.close()


def login(user: str, forwarded: str = "") -> bytes:
    credential = b64encode(f"{user}:wrong".encode()).decode()
    head = f"GET /api/v1/queues HTTP/1.1\r\nhost: localhost\r\nauthorization: Basic {credential}\r\n{forwarded}\r\n"
    return head.encode()


async def ask(front: HttpFront, data: bytes, context: ssl.SSLContext | None = None, first: bytes = b"") -> int:
    """The status of the response; 0 if the connection is closed without one."""
    reader, writer = await asyncio.open_connection(*front.address)
    writer.write(first)
    if context is not None:
        await writer.start_tls(context, server_hostname="localhost")
    try:
        return (await Wire(reader, writer).ask(data)).status
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0
    finally:
        writer.close()


async def test_logins_behind_a_trusted_proxy_are_throttled_by_client(tmp_path: Path) -> None:
    async with serving(tmp_path, ("127.0.0.1",)) as (front, _):
        one, two = (f"x-forwarded-for: 1.1.1.1\r\nx-forwarded-for: 192.0.2.{last}\r\n" for last in (1, 2))
        assert [await ask(front, login("a", one)), await ask(front, login("b", one))] == [401, 429]
        assert [await ask(front, login("c", two)), await ask(front, login("d", two))] == [401, 429]
        assert await ask(front, login("e")) == 401  # the proxy itself
        assert await ask(front, login("a", "x-forwarded-for: 192.0.2.3\r\n")) == 429  # and by user


async def test_who_is_not_named_cannot_say_whom_it_calls_for(tmp_path: Path) -> None:
    async with serving(tmp_path, ("10.0.0.1",)) as (front, _):
        assert await ask(front, login("a", "x-forwarded-for: 192.0.2.1\r\n")) == 401
        assert await ask(front, login("b", "x-forwarded-for: 192.0.2.2\r\n")) == 429


@pytest.mark.parametrize("encrypted", [False, True])
async def test_the_proxy_protocol_names_the_client_also_before_tls(tmp_path: Path, encrypted: bool) -> None:
    tls = context = None
    if encrypted:
        authority = trustme.CA()
        issued = authority.issue_cert("localhost")
        certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
        issued.cert_chain_pems[0].write_to_path(certificate)
        issued.private_key_pem.write_to_path(key)
        tls = TlsSettings(certificate_file=certificate, key_file=key)
        context = ssl.create_default_context()
        authority.configure_trust(context)
    async with serving(tmp_path, ("127.0.0.1",), proxy_protocol=True, tls=tls) as (front, _):
        other = LINE.replace(b"192.0.2.7", b"192.0.2.8")
        two = block(0x21, 0x11, FOUR[:3] + b"\x09" + FOUR[4:])
        for number, first in enumerate((LINE, other, two)):
            assert await ask(front, login(f"u{number}"), context, first) == 401
            assert await ask(front, login(f"v{number}"), context, first) == 429
        assert await ask(front, login("w"), None, b"GET / HTTP/1.1\r\n") == 0  # no header


async def test_a_header_of_somebody_who_is_not_named_is_no_header(tmp_path: Path) -> None:
    async with serving(tmp_path, ("10.0.0.1",), proxy_protocol=True) as (front, _):
        assert await ask(front, login("a")) == 401
        assert await ask(front, login("b"), None, LINE) == 400
        assert await ask(front, login("c")) == 429


async def test_a_header_that_never_ends_does_not_hold_a_connection(tmp_path: Path) -> None:
    async with serving(tmp_path, ("127.0.0.1",), proxy_protocol=True) as (front, _):
        reader, writer = await asyncio.open_connection(*front.address)
        writer.write(b"PROXY TCP4 ")
        assert await reader.read() == b""
        writer.close()


async def test_over_mqtt_the_client_is_who_the_proxy_says(tmp_path: Path) -> None:
    async with serving(tmp_path, ("127.0.0.1",), proxy_protocol=True) as (front, mqtt):
        wrong = encode(Connect("c", username="shop", password=b"wrong"), 5)
        for first, codes in ((LINE, [0x86, 0x9F]), (block(0x20, 0, b""), [0x9F])):
            for code in codes:
                reader, writer = await asyncio.open_connection(*mqtt.addresses[0])
                writer.write(first + wrong)
                [answer] = Decoder(5, from_client=False).feed(await reader.read())
                assert answer.reason_code == code  # type: ignore[union-attr]
                writer.close()
        reader, writer = await asyncio.open_connection(*front.address)
        writer.write(
            LINE + b"GET /mqtt HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-protocol: mqtt\r\n"
            b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        await reader.readuntil(b"\r\n\r\n")
        await until(lambda: [link.peer for link in mqtt._links] == ["192.0.2.7"])
        writer.close()
