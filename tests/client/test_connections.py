"""Connections: responses however they come, connections that are used again, and those that must not be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import httpx
import pytest

from holdfast.client import connections
from holdfast.client.connections import Connections
from tests.waiting import until

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Server:
    """Answers every request with the same bytes, and counts its connections."""

    def __init__(self, answer: bytes, *, close: bool = False, answers: int = 1_000) -> None:
        self.answer = answer
        self.opened = 0
        self.ended = 0
        self.heads: list[bytes] = []
        self._close = close
        self._answers = answers

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        try:
            for _ in range(self._answers):
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(self.answer)
                if self._close:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            self.ended += 1


@asynccontextmanager
async def opened(server: Server, idle_max: int = 20) -> AsyncIterator[Callable[..., Awaitable[httpx.Response]]]:
    """How to send a request to the server."""
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    url = httpx.URL(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/path?a=b")
    pool = Connections(url, None, idle_max)

    async def send(method: str = "GET", content: bytes = b"", read_seconds: float | None = None) -> httpx.Response:
        limits = {"connect": None, "read": read_seconds}
        request = httpx.Request(method, url, content=content, extensions={"timeout": limits})
        response = await pool.handle_async_request(request)
        await response.aread()
        return response

    async with listener:
        yield send
        await pool.aclose()


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        (OK, b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 404\r\nContent-Length: 2\r\ncontent-length:2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"ok"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;x=y\r\no\r\n01\r\nk\r\n0\r\nx: y\r\n\r\n", b"ok"),
    ],
)
async def test_a_connection_is_used_again_when_its_response_was_read(answer: bytes, content: bytes) -> None:
    server = Server(answer)
    async with opened(server) as send:
        for _ in range(3):
            assert (await send()).content == content
    assert server.opened == 1
    assert server.heads[0].startswith(b"GET /path?a=b HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nConnection: Close\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        OK + b"HTTP/1.1 408 Request Timeout\r\n\r\n",
    ],
)
async def test_but_not_where_the_next_response_would_not_be_its_own(answer: bytes) -> None:
    server = Server(answer)
    async with opened(server) as send:
        for _ in range(2):
            assert (await send()).content == b"ok"
    assert server.opened == 2


async def test_nor_when_the_server_has_closed_it_or_it_was_idle_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(OK, answers=1)
    async with opened(server) as send:
        await send()
        await until(lambda: server.ended == 1)
        for _ in range(3):  # the loop sees what the kernel has
            await asyncio.sleep(0)
        assert (await send()).content == b"ok"
    assert server.opened == 2
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.0)
    server = Server(OK)
    async with opened(server) as send:
        for _ in range(2):
            await send()
        assert server.opened == 2
        await until(lambda: server.ended == 1)


async def test_no_more_connections_are_kept_than_told() -> None:
    server = Server(OK)
    async with opened(server, idle_max=1) as send:
        await asyncio.gather(*(send() for _ in range(3)))
        assert server.opened == 3
        await until(lambda: server.ended == 2)


async def test_a_response_without_a_length_ends_with_its_connection() -> None:
    server = Server(b"HTTP/1.1 200 OK\r\n\r\nall of it", close=True)
    async with opened(server) as send:
        assert (await send()).content == b"all of it"


async def test_the_answer_to_head_has_no_body() -> None:
    server = Server(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n")
    async with opened(server) as send:
        for _ in range(2):
            assert (await send("HEAD")).content == b""
    assert server.opened == 1


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"", "without a response"),
        (b"HTTP/1.1 20", "cut off"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok", "cut off"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n", "without a response|cut off"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nok\r\n0\r\n\r\n", "another size"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n\r\n", "without a size"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n", "where it ends"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok", "where it ends"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\nok", "where it ends"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 2\r\n\r\nok", "where it ends"),
        (b"HTTP/1.1 200 OK\r\n no name: x\r\n\r\n", "header"),
        (b"HTTP/2 200 OK\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 OK\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"x" * (1 << 20) + b"\r\n\r\n", "too long"),
    ],
)
async def test_a_response_that_cannot_be_read_is_an_error_and_the_end_of_its_connection(
    answer: bytes, problem: str
) -> None:
    server = Server(answer, close=True)
    async with opened(server) as send:
        for _ in range(2):
            with pytest.raises(httpx.RemoteProtocolError, match=problem):
                await send()
    assert server.opened == 2


async def test_a_server_that_sends_nothing_is_not_waited_for_longer_than_told() -> None:
    server = Server(b"")
    async with opened(server) as send:
        with pytest.raises(httpx.ReadTimeout):
            await send(read_seconds=0.01)
        server.answer = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok"
        with pytest.raises(httpx.ReadTimeout):
            await send(read_seconds=0.01)
        await until(lambda: server.ended == 2)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"])
async def test_a_request_that_is_cancelled_closes_its_connection(answer: bytes) -> None:
    server = Server(answer)
    async with opened(server) as send:
        waiting = asyncio.ensure_future(send())
        await until(lambda: server.heads)
        waiting.cancel()
        await asyncio.wait([waiting])
        await until(lambda: server.ended == 1)


async def test_an_answer_that_comes_before_the_request_was_read_is_the_answer() -> None:
    server = Server(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    async with opened(server) as send:
        assert (await send("POST", content=b"x" * (16 << 20))).status_code == 413


async def test_nobody_listening_is_a_connect_error() -> None:
    pool = Connections(httpx.URL("http://127.0.0.1:1"), None, 1)
    with pytest.raises(httpx.ConnectError):
        await pool.handle_async_request(httpx.Request("GET", "http://127.0.0.1:1"))
