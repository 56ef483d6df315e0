"""Shipping of the audit log: every entry reaches a real receiver, in order, whatever happened in between."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from holdfast.auth import audit_shipping
from holdfast.auth.audit import LINE_BYTES_MAX, AuditLog, numbered_files
from holdfast.auth.audit_places import UDP_BYTES_MAX
from holdfast.auth.audit_shipping import BATCH_BYTES_MAX, BATCH_LINES_MAX, AuditShipping
from holdfast.auth.audit_webhook import Webhook
from holdfast.auth.principal import Principal
from holdfast.config import AuditSettings, Config, NodeSettings
from holdfast.config.load import load
from holdfast.config.secret import SecretText
from holdfast.errors import InvalidConfig
from holdfast.units import KIB
from tests.auth.conftest import Clock
from tests.waiting import PATIENCE_SECONDS, until

OPS = Principal(name="ops", namespace="acme", method="password")
RFC_5424 = re.compile(
    rb"<(\d+)>1 (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) ([!-~]+) holdfast (\d+) ([!-~]{1,32}) - (\{.*\})", re.DOTALL
)


class Receiver:
    """An HTTP server on loopback that remembers the bodies it has taken. `status`: what it answers."""

    def __init__(self) -> None:
        receiver = self
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.refused = 0
        self.status = 204

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if receiver.status < 300:
                    receiver.bodies.append(body)
                    receiver.headers.append(dict(self.headers))
                else:
                    receiver.refused += 1
                self.send_response(receiver.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def numbers(self) -> list[int]:
        return [number for body in self.bodies for number in numbers_of(body)]

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join(PATIENCE_SECONDS)
        self._server.server_close()


def numbers_of(body: bytes) -> list[int]:
    return [json.loads(line)["number"] for line in body.splitlines()]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    yield server
    server.stop()


class Server:
    """The audit log of a server, and its shipping."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self.audit = AuditLog(config, clock)
        self.shipping = AuditShipping(config, self.audit, pause_seconds=0.001)

    def write(self, count: int, text: str | list[str] = "") -> None:
        for _ in range(count):
            self.audit.record(OPS, "queue.delete", "orders", "ok", front="http", text=text)

    async def stop(self) -> None:
        await self.shipping.stop()
        self.audit.close()


Start = Callable[..., Awaitable[Server]]


@pytest.fixture
async def start(tmp_path: Path, clock: Clock) -> AsyncIterator[Start]:
    servers: list[Server] = []

    async def make(**settings: object) -> Server:
        audit = msgspec.structs.replace(AuditSettings(), **settings)
        server = Server(Config(node=NodeSettings(data_dir=tmp_path), audit=audit), clock)
        servers.append(server)
        await server.shipping.start()
        return server

    yield make
    for server in servers:
        await server.stop()


def webhook(receiver: Receiver) -> SecretText:
    return SecretText(f"http://ops:hunter2@127.0.0.1:{receiver.port}/audit?key=x")


# --- webhook ----------------------------------------------------------------------------------------------------------


async def test_a_webhook_gets_every_entry_in_order_as_it_stands_in_the_log(
    start: Start, receiver: Receiver, tmp_path: Path
) -> None:
    server = await start(webhook=webhook(receiver))
    server.write(3)
    await until(lambda: len(receiver.numbers) >= 3)
    server.write(2)
    await until(lambda: len(receiver.numbers) >= 5)
    assert b"".join(receiver.bodies) == (tmp_path / "audit.log").read_bytes()
    assert receiver.headers[0]["content-type"] == "application/x-ndjson"
    assert receiver.headers[0]["authorization"].startswith("Basic ")
    await until(lambda: server.audit.unshipped == 0)


async def test_an_entry_is_sent_when_it_is_on_disk(
    start: Start, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a crash would give its number to another entry, which would not be sent."""
    begun, go_on = threading.Event(), threading.Event()
    fsync, send = os.fsync, Webhook.send
    sent: list[int] = []

    def slow(descriptor: int) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_SECONDS)
        fsync(descriptor)

    async def noted(self: Webhook, lines: Sequence[bytes]) -> None:
        sent.append(len(lines))
        await send(self, lines)

    monkeypatch.setattr(os, "fsync", slow)
    monkeypatch.setattr(Webhook, "send", noted)
    server = await start(webhook=webhook(receiver))
    server.write(1)
    assert await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
    for _ in range(50):
        await asyncio.sleep(0)
    assert sent == []
    go_on.set()
    await until(lambda: receiver.numbers == [1])


async def test_a_restart_continues_after_what_was_shipped(start: Start, receiver: Receiver, tmp_path: Path) -> None:
    first = await start(webhook=webhook(receiver))
    first.write(3)
    await first.stop()  # sends what is left
    assert receiver.numbers == [1, 2, 3]
    assert json.loads((tmp_path / "audit.log.shipped").read_bytes()) == {"webhook": 3}
    unshipped = await start()
    unshipped.write(2)
    await unshipped.stop()
    again = await start(webhook=webhook(receiver))
    again.write(1)
    await until(lambda: len(receiver.numbers) >= 6)
    assert receiver.numbers == [1, 2, 3, 4, 5, 6]


async def test_what_was_shipped_of_another_log_does_not_count(start: Start, receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "audit.log.shipped").write_text('{"webhook": 17}')
    server = await start(webhook=webhook(receiver))
    server.write(2)
    await until(lambda: receiver.numbers == [1, 2])
    await server.stop()
    (tmp_path / "audit.log.shipped").write_text("not JSON")
    await start(webhook=webhook(receiver))
    await until(lambda: len(receiver.numbers) >= 4)
    assert receiver.numbers == [1, 2, 1, 2]


async def test_after_an_outage_all_entries_follow_from_the_files_also_from_numbered_ones(
    start: Start, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_shipping, "MEMORY_LINES_MAX", 10)
    receiver.status = 503
    with capture_logs() as logged:
        server = await start(webhook=webhook(receiver), file_bytes=64 * KIB)
        server.write(1_000)
        await until(lambda: receiver.refused >= 3)
        assert len(numbered_files(tmp_path / "audit.log")) > 3
        assert server.audit.unshipped == 1_000
        receiver.status = 204
        await until(lambda: len(receiver.numbers) >= 700)
        server.write(500)  # and the files are numbered anew while they are read
        await until(lambda: len(receiver.numbers) >= 1_500)
    assert receiver.numbers == list(range(1, 1_501))
    told = [line for line in logged if line["event"] == "audit log is not shipped"]
    assert [(line["place"], line["problem"]) for line in told] == [("webhook", "answered 503")]
    assert "hunter2" not in str(logged)


async def test_nobody_listens_and_it_is_told_once_a_minute(tmp_path: Path, clock: Clock, receiver: Receiver) -> None:
    receiver.stop()
    config = Config(node=NodeSettings(data_dir=tmp_path), audit=AuditSettings(webhook=webhook(receiver)))
    audit = AuditLog(config, clock)
    moments: list[float] = []

    def half_minutes() -> float:
        moments.append(30.0 * len(moments))
        return moments[-1]

    shipping = AuditShipping(config, audit, pause_seconds=0.001, clock=half_minutes)
    with capture_logs() as logged:
        await shipping.start()
        audit.record(OPS, "queue.delete", "orders", "ok", front="http")
        await until(lambda: len(moments) >= 4)
        await shipping.stop()
    audit.close()
    told = [line for line in logged if line["event"] == "audit log is not shipped"]
    assert len(told) == (len(moments) + 1) // 2
    assert not (tmp_path / "audit.log.shipped").exists()


async def test_batches_are_bounded_by_lines_and_by_bytes(start: Start, receiver: Receiver) -> None:
    receiver.status = 500
    server = await start(webhook=webhook(receiver))
    server.write(BATCH_LINES_MAX + 1)
    server.write(20, text=["x" * 900] * 110)
    receiver.status = 204
    await until(lambda: len(receiver.numbers) >= BATCH_LINES_MAX + 21)
    assert receiver.numbers == list(range(1, BATCH_LINES_MAX + 22))
    assert max(len(body.splitlines()) for body in receiver.bodies) == BATCH_LINES_MAX
    assert BATCH_BYTES_MAX - LINE_BYTES_MAX < max(map(len, receiver.bodies)) <= BATCH_BYTES_MAX


async def test_memory_is_bounded_by_bytes(
    start: Start, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(audit_shipping, "MEMORY_BYTES_MAX", 1_000)
    server = await start(webhook=webhook(receiver))
    server.write(30)
    (tmp_path / "audit.log").unlink()  # so only what is in memory can be sent
    with capture_logs() as logged:
        await until(lambda: 30 in receiver.numbers)
        await until(lambda: server.audit.unshipped == 0)
    assert 1 <= len(receiver.numbers) <= 4
    (told,) = [line for line in logged if "deleted before" in line["event"]]
    assert told["count"] == 30 - len(receiver.numbers)


async def test_a_receiver_that_hangs_does_not_hold_up_the_stop(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_shipping, "STOP_SECONDS", 0.01)
    accepted = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        await reader.read()
        writer.close()

    with closing(await asyncio.start_server(hang, "127.0.0.1", 0)) as hanging:
        port = hanging.sockets[0].getsockname()[1]
        server = await start(webhook=SecretText(f"http://127.0.0.1:{port}/"))
        server.write(1)
        await accepted.wait()
        await asyncio.wait_for(server.stop(), PATIENCE_SECONDS)
        assert server.audit.unshipped == 1


# --- syslog -----------------------------------------------------------------------------------------------------------


def parsed(message: bytes) -> tuple[int, int]:
    """Priority and number of an entry."""
    found = RFC_5424.fullmatch(message)
    assert found, message
    entry = json.loads(found[6])
    assert (found[2].decode(), found[5].decode()) == (entry["at"], entry["act"])
    return int(found[1]), entry["number"]


class Datagrams:
    """A socket that takes datagrams, on the loop."""

    def __init__(self, taken: socket.socket) -> None:
        self.socket = taken
        self.socket.setblocking(False)

    async def read(self, count: int) -> list[bytes]:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(PATIENCE_SECONDS):
            return [await loop.sock_recv(self.socket, 1 << 18) for _ in range(count)]


async def test_syslog_over_udp_is_one_message_for_each_entry(start: Start) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        server = await start(syslog=f"udp://127.0.0.1:{taken.getsockname()[1]}")
        server.write(2)
        server.audit.record(OPS, "queue.delete", "orders", "forbidden", front="http")
        messages = await Datagrams(taken).read(3)
        assert [parsed(message) for message in messages] == [(110, 1), (110, 2), (108, 3)]
        server.write(1, text=["x" * 900] * 110)
        (cut,) = await Datagrams(taken).read(1)
        assert len(cut) == UDP_BYTES_MAX
        server.write(1)
        assert [parsed(message) for message in await Datagrams(taken).read(1)] == [(110, 5)]


async def test_syslog_over_a_unix_socket_of_datagrams(start: Start, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as taken:
        taken.bind(str(tmp_path / "log"))
        server = await start(syslog=f"unix://{tmp_path}/log")
        server.write(300)  # more than the socket's queue holds
        messages = await Datagrams(taken).read(300)
    assert [parsed(message)[1] for message in messages] == list(range(1, 301))


class Stream:
    """A syslog server over a stream. It remembers what it read, by octet counting."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while True:
                size = int(await reader.readuntil(b" "))
                self.messages.append(await reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    @property
    def numbers(self) -> list[int]:
        return [parsed(message)[1] for message in self.messages]


async def test_syslog_over_tcp_counts_octets_and_sends_again_after_a_lost_connection(start: Start) -> None:
    stream = Stream()
    with closing(await asyncio.start_server(stream.accept, "127.0.0.1", 0)) as listening:
        port = listening.sockets[0].getsockname()[1]
        server = await start(syslog=f"tcp://127.0.0.1:{port}")
        server.write(2)
        await until(lambda: stream.numbers == [1, 2] and server.audit.unshipped == 0)
    stream.writers[0].transport.abort()  # while nothing is sent: the next entry goes into a dead connection
    server.write(2)
    await until(lambda: server.shipping.unshipped == 2)
    second = Stream()
    with closing(await asyncio.start_server(second.accept, "127.0.0.1", port)):
        await until(lambda: len(second.numbers) >= 2 and server.audit.unshipped == 0)
        assert second.numbers == [3, 4]


async def test_syslog_over_a_unix_socket_that_is_a_stream(start: Start, tmp_path: Path) -> None:
    stream = Stream()
    with closing(await asyncio.start_unix_server(stream.accept, tmp_path / "log")):
        server = await start(syslog=f"unix://{tmp_path}/log")
        server.write(600, text="ä\n")
        await until(lambda: len(stream.messages) >= 600)
        assert stream.numbers == list(range(1, 601))


async def test_a_place_that_is_away_does_not_hold_up_the_other(
    start: Start, receiver: Receiver, tmp_path: Path
) -> None:
    server = await start(webhook=webhook(receiver), syslog=f"unix://{tmp_path}/nobody")
    server.write(3)
    shipped = tmp_path / "audit.log.shipped"
    await until(lambda: shipped.exists() and json.loads(shipped.read_bytes()) == {"webhook": 3, "syslog": 0})
    assert receiver.numbers == [1, 2, 3]
    assert server.audit.unshipped == 3


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["ftp://h/", "https://", "hooks.example", "https://h:0/"])
def test_what_is_no_webhook_is_refused_and_not_shown(address: str) -> None:
    with pytest.raises(InvalidConfig, match=r"http://") as raised:
        load(environ={"HOLDFAST_AUDIT_WEBHOOK": address})
    assert raised.value.details["value"] != address


@pytest.mark.parametrize("address", ["tls://h:1", "udp://h", "tcp://h:70000", "unix://log", "/dev/log"])
def test_what_is_no_syslog_server_is_refused(address: str) -> None:
    with pytest.raises(InvalidConfig, match=r"udp://host:port"):
        load(environ={"HOLDFAST_AUDIT_SYSLOG": address})


@pytest.mark.parametrize("address", ["udp://[::1]:514", "tcp://log.example:601", "unix:///dev/log", ""])
def test_syslog_servers_are_read(address: str) -> None:
    assert load(environ={"HOLDFAST_AUDIT_SYSLOG": address}).audit.syslog == address
