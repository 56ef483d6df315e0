"""The HTTP front without a socket: requests of a client in the same process and on the same loop.

The bytes are those that would go over a socket, and the connection that reads them is the server's own.
"""

from __future__ import annotations

import asyncio
from typing import Final

import httptools
import httpx

from holdfast.http_api import HttpFront

_FRAMING: Final = {b"connection", b"content-length", b"transfer-encoding"}


def in_process(front: HttpFront) -> httpx.AsyncBaseTransport:
    """A transport for a client. Responses come whole: streams do not end, and so cannot be read through it."""
    return _InProcess(front)


class _InProcess(httpx.AsyncBaseTransport):
    def __init__(self, front: HttpFront) -> None:
        self._front = front

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        content = await request.aread()
        headers = [(name, value) for name, value in request.headers.raw if name.lower() not in _FRAMING]
        headers += [(b"content-length", b"%d" % len(content)), (b"connection", b"close")]
        lines = [b"%b %b HTTP/1.1\r\n" % (request.method.encode(), request.url.raw_path)]
        lines += [b"%b: %b\r\n" % header for header in headers]
        connection = self._front.connect()
        wire = _Wire()
        connection.connection_made(wire)
        try:
            connection.data_received(b"".join([*lines, b"\r\n", content]))
            await wire.closed.wait()
        finally:
            connection.connection_lost(None)
        return wire.response(request.method)


class _Wire(asyncio.Transport):
    """Keeps what the server sends. Nothing waits here: the client has all of it at once."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = asyncio.Event()
        self._data = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._data += data

    def close(self) -> None:
        self.closed.set()

    def abort(self) -> None:
        self.closed.set()

    def is_closing(self) -> bool:
        return self.closed.is_set()

    def pause_reading(self) -> None:
        """All of the request has been sent."""

    def resume_reading(self) -> None:
        """See `pause_reading`."""

    def response(self, method: str) -> httpx.Response:
        """What was sent, read as a client reads it."""
        reader = _Reader()
        parser = httptools.HttpResponseParser(reader)
        parser.feed_data(bytes(self._data))
        if not reader.complete and method != "HEAD":
            raise httpx.RemoteProtocolError("the server closed the connection before its response was complete")
        return httpx.Response(parser.get_status_code(), headers=reader.headers, content=bytes(reader.body))


class _Reader:
    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = bytearray()
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True
