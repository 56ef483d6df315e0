"""MQTT over WebSocket: an ASGI endpoint that the HTTP server mounts at `/mqtt`.

Packets may be cut and joined in messages at will [MQTT-6.0.0-2], text messages are refused [MQTT-6.0.0-1], the
subprotocol is `mqtt` [MQTT-6.0.0-3].
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import structlog

from holdfast.errors import HoldfastError
from holdfast.mqtt.net.link import LINGER_SECONDS, Link

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

SUBPROTOCOL: Final = "mqtt"
_UNSUPPORTED_DATA: Final = 1003
_PROTOCOL_ERROR: Final = 1002
_POLICY_VIOLATION: Final = 1008


class WebSocketEndpoint:
    """Makes a link of every WebSocket that is opened."""

    def __init__(self, make: Callable[[], Link], check: Callable[[str, str | None], None], buffer_bytes: int) -> None:
        """`check` is given the headers host and origin, and raises if a page from elsewhere opens the WebSocket."""
        self._make = make
        self._check = check
        self._buffer_bytes = buffer_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (await receive())["type"] != "websocket.connect":
            return
        if SUBPROTOCOL not in scope.get("subprotocols", ()):
            await send({"type": "websocket.close", "code": _PROTOCOL_ERROR, "reason": "subprotocol mqtt is needed"})
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self._check(headers.get(b"host", ""), headers.get(b"origin"))
        except HoldfastError as error:
            log.warning("WebSocket refused", code=error.code, origin=headers.get(b"origin"))
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": error.code})
            return
        await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL})
        link = self._make()
        extensions = scope.get("extensions") or {}
        link.subject = extensions.get("tls", {}).get("client_cert_name")
        link.host, link.origin = headers.get(b"host", ""), headers.get(b"origin")
        transport = WebSocketTransport(
            link, send, self._buffer_bytes, extensions.get("holdfast", {}).get("abort", _nothing)
        )
        client = scope.get("client")
        link.open(transport, str(client[0]) if client else "")
        writer = asyncio.create_task(transport.write_out())
        try:
            await _read(link, transport, receive)
        finally:
            link.connection_lost(None)
            transport.close()
            await asyncio.wait((writer,), timeout=LINGER_SECONDS)
            transport.abort()
            await writer


async def _read(link: Link, transport: WebSocketTransport, receive: Receive) -> None:
    while not transport.ended.is_set():
        await transport.readable.wait()
        message = await receive()
        if message["type"] != "websocket.receive":
            return
        data = message.get("bytes")
        if data is None:
            transport.code = _UNSUPPORTED_DATA
            transport.close()
            return
        link.data_received(data)


def _nothing() -> None:
    """Another server than ours may know no way to end a connection at once."""


class WebSocketTransport:
    """`Wire` over ASGI's calls: what is written waits here, and the link is told when it is too much."""

    def __init__(self, link: Link, send: Send, buffer_bytes: int, abort: Callable[[], None]) -> None:
        self._abort = abort
        self._link = link
        self._send = send
        self._high = buffer_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._paused = False
        self._more = asyncio.Event()
        self._closing = False
        self.code = 1000
        self.readable = asyncio.Event()
        self.readable.set()
        self.ended = asyncio.Event()

    def write(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        self._more.set()
        if self._size > self._high and not self._paused:
            self._paused = True
            self._link.pause_writing()

    def can_write_eof(self) -> bool:
        return False  # a WebSocket has its own goodbye

    def write_eof(self) -> None:
        raise NotImplementedError("see can_write_eof")

    def close(self) -> None:
        self._closing = True
        self._more.set()

    def abort(self) -> None:
        self._parts.clear()
        self.close()
        self.readable.set()
        if not self.ended.is_set():
            self.ended.set()
            self._abort()

    def pause_reading(self) -> None:
        self.readable.clear()

    def resume_reading(self) -> None:
        self.readable.set()

    async def write_out(self) -> None:
        """Send what is written until it is closed."""
        try:
            while self._parts or not self._closing:
                if not self._parts:
                    self._more.clear()
                    await self._more.wait()
                    continue
                data, self._parts, self._size = b"".join(self._parts), [], 0
                await self._send({"type": "websocket.send", "bytes": data})
                if self._paused and self._size <= self._high // 4:
                    self._paused = False
                    self._link.resume_writing()
            await self._send({"type": "websocket.close", "code": self.code})
        except Exception:  # noqa: BLE001, S110 - the client is gone; servers raise what they like then, and reading ends too
            pass
        self.ended.set()
        self.readable.set()
