"""Connections to one server: HTTP/1.1 on asyncio's streams, kept open between requests.

It is a transport of httpx, so that another can take its place and errors are httpx's, but without httpx's pool: that
takes half a millisecond of CPU for a request, this a tenth (docs/decisions/0019-the-clients-own-connections.md). It
knows what the client needs and no more: no redirects, no cookies, no proxies, no HTTP/2.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable
from typing import Final, Literal, NamedTuple

import httpx

IDLE_SECONDS: Final = 5.0
"""How long a connection is kept that nothing uses. A server, or a proxy, that closes it just when the next request is
sent makes the outcome of that request unknown; few close within this time."""
READ_BYTES: Final = 256 << 10
"""Read at a time, and the longest head of a response."""
EYEBALLS_SECONDS: Final = 0.25  # until the next address of a name is tried beside the first

Header = tuple[bytes, bytes]
Limits = dict[str, float | None]
"""Seconds that each step of a request may take."""
Framing = int | Literal["chunked", "closed"]
"""Where a body ends: after so many bytes, with its last chunk, or where the connection does."""


class Connections(httpx.AsyncBaseTransport):
    """See the module. `idle_max` are kept open; how many there are at the same time is for the caller to limit."""

    def __init__(self, url: httpx.URL, context: ssl.SSLContext | None, idle_max: int) -> None:
        self._host = url.raw_host.decode("ascii")
        self._port = url.port or (443 if context is not None else 80)
        self._context = context
        self._idle_max = idle_max
        self._idle: list[_Connection] = []  # the one that was used last is the last

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and read its response. A body of unknown length is read when it is asked for."""
        limits: Limits = request.extensions.get("timeout", {})
        connection = self._reusable() or await self._connect(limits.get("connect"))
        try:
            head = await connection.exchange(request, limits)
            body = _Body(self, connection, head, limits.get("read"))
            if isinstance(head.framing, int):
                return httpx.Response(head.status, headers=head.headers, content=await body.whole())
        except BaseException:
            connection.close()
            raise
        return httpx.Response(head.status, headers=head.headers, stream=body)

    def _reusable(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable():
                return connection
            connection.close()
        return None

    async def _connect(self, timeout_seconds: float | None) -> _Connection:
        loop = asyncio.get_running_loop()
        reader = _Reader(limit=READ_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            async with asyncio.timeout(timeout_seconds):
                transport, _ = await loop.create_connection(
                    lambda: protocol, self._host, self._port, ssl=self._context, happy_eyeballs_delay=EYEBALLS_SECONDS
                )
        except TimeoutError as error:
            raise httpx.ConnectTimeout(str(error)) from error
        except OSError as error:  # ssl.SSLError is one
            raise httpx.ConnectError(str(error)) from error
        return _Connection(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    def release(self, connection: _Connection) -> None:
        """A response was read to its end: the connection can be used again."""
        connection.idle_since = time.monotonic()
        self._idle.append(connection)
        if len(self._idle) > self._idle_max:
            self._idle.pop(0).close()

    async def aclose(self) -> None:
        while self._idle:
            self._idle.pop().close()


class _Reader(asyncio.StreamReader):
    """Counts what arrives: bytes that nobody asked for must not be taken for the next response."""

    received_bytes = 0

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]  # bytes always
        self.received_bytes += len(data)
        super().feed_data(data)


class _Connection:
    """One connection, which serves one request at a time."""

    def __init__(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._taken_bytes = 0  # of what was received
        self.idle_since = 0.0

    def is_reusable(self) -> bool:
        return (
            self._taken_bytes == self._reader.received_bytes
            and not self._reader.at_eof()
            and not self._writer.is_closing()
            and time.monotonic() - self.idle_since < IDLE_SECONDS
        )

    def close(self) -> None:
        self._writer.close()

    async def exchange(self, request: httpx.Request, limits: Limits) -> _Head:
        """Send a request and read the head of its response, which may come before all of the request was sent."""
        content = await request.aread()
        lines = [b"%b %b HTTP/1.1\r\n" % (request.method.encode("ascii"), request.url.raw_path)]
        lines += [b"%b: %b\r\n" % header for header in request.headers.raw]
        self._writer.write(b"".join([*lines, b"\r\n", content]))
        while True:
            head = read_head(await self.until(b"\r\n\r\n", limits.get("read")), request.method)
            if head.status >= 200:  # else it announces the response
                return head

    async def until(self, mark: bytes, timeout_seconds: float | None) -> bytes:
        """What comes up to and with the mark."""
        return await self._receive(self._reader.readuntil(mark), timeout_seconds)

    async def some(self, most: int, timeout_seconds: float | None) -> bytes:
        """What is there; nothing at the end."""
        return await self._receive(self._reader.read(most), timeout_seconds)

    async def _receive(self, reading: Awaitable[bytes], timeout_seconds: float | None) -> bytes:
        try:
            async with asyncio.timeout(timeout_seconds):
                data = await reading
        except TimeoutError as error:
            raise httpx.ReadTimeout(str(error)) from error
        except asyncio.IncompleteReadError as error:
            raise _cut_off() if error.partial else _unanswered() from error
        except asyncio.LimitOverrunError as error:
            raise _unreadable("is too long") from error
        except OSError as error:
            raise httpx.ReadError(str(error)) from error
        self._taken_bytes += len(data)
        return data


class _Head(NamedTuple):
    status: int
    headers: list[Header]
    framing: Framing
    stays_open: bool
    """The connection can be used again after the response."""


def read_head(head: bytes, method: str) -> _Head:
    """Read the head of a response to a request. Raises RemoteProtocolError."""
    first, *lines = head[:-4].split(b"\r\n")
    version, _, rest = first.partition(b" ")
    code = rest[:3]
    if version not in {b"HTTP/1.1", b"HTTP/1.0"} or not code.isdigit() or len(code) < 3:
        raise _unreadable("is not HTTP/1.1")
    status = int(code)
    headers: list[Header] = []
    stays_open = version == b"HTTP/1.1"
    framing: Framing | None = None
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip():
            raise _unreadable("has a header that is none")
        value = value.strip(b" \t")
        headers.append((name, value))
        match name.lower():
            case b"connection":
                stays_open = stays_open and b"close" not in value.lower()
            case b"transfer-encoding" if value.lower() == b"chunked" and framing is None:
                framing = "chunked"
            case b"content-length" if value.isdigit() and framing in {None, int(value)}:
                framing = int(value)
            case b"transfer-encoding" | b"content-length":
                raise _unreadable("does not say where it ends")
    if method == "HEAD" or status < 200 or status in {204, 304}:
        framing = 0
    return _Head(status, headers, "closed" if framing is None else framing, stays_open)


class _Body(httpx.AsyncByteStream):
    """The body of a response. When it is read to its end, its connection can be used again."""

    def __init__(self, owner: Connections, connection: _Connection, head: _Head, timeout_seconds: float | None) -> None:
        self._owner = owner
        self._connection: _Connection | None = connection
        self._head = head
        self._timeout_seconds = timeout_seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        connection = self._connection
        assert connection is not None, "it is read once"
        try:
            match self._head.framing:
                case "closed":
                    while part := await connection.some(READ_BYTES, self._timeout_seconds):
                        yield part
                    return
                case "chunked":
                    while size := _chunk_size(await connection.until(b"\r\n", self._timeout_seconds)):
                        async for part in self._exactly(connection, size):
                            yield part
                        await self._line_end(connection)
                    while await connection.until(b"\r\n", self._timeout_seconds) != b"\r\n":
                        pass  # a header behind the body, which means nothing here
                case size:
                    async for part in self._exactly(connection, size):
                        yield part
            if self._head.stays_open:
                self._connection = None
                self._owner.release(connection)
        finally:
            await self.aclose()

    async def whole(self) -> bytes:
        return b"".join([part async for part in self])

    async def _exactly(self, connection: _Connection, size: int) -> AsyncIterator[bytes]:
        while size:
            part = await connection.some(min(size, READ_BYTES), self._timeout_seconds)
            if not part:
                raise _cut_off()
            size -= len(part)
            yield part

    async def _line_end(self, connection: _Connection) -> None:
        if await connection.until(b"\r\n", self._timeout_seconds) != b"\r\n":
            raise _unreadable("has a chunk of another size than it says")

    async def aclose(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not digits or digits.strip(b"0123456789abcdefABCDEF"):
        raise _unreadable("has a chunk without a size")
    return int(digits, 16)


def _unreadable(problem: str) -> httpx.RemoteProtocolError:
    return httpx.RemoteProtocolError(f"the response {problem}")


def _cut_off() -> httpx.RemoteProtocolError:
    return httpx.RemoteProtocolError("the response was cut off")


def _unanswered() -> httpx.RemoteProtocolError:
    return httpx.RemoteProtocolError("the server closed the connection without a response")
