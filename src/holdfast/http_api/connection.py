"""One connection: uvicorn's protocols, with what they lack.

HTTP/1.1: it bounds the number of connections, the size of a request's head and the time it may take, and it tells a
request that runs while further ones wait behind it (pipelining) that its client has gone.

WebSocket: its application is told the subject of the client's certificate, and can end the connection at once: ASGI
knows no way to get rid of a client that does not read.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from holdfast.auth.tls import peer_subject
from holdfast.config.settings import HttpSettings
from holdfast.units import SECOND


class Connection(HttpToolsProtocol):
    """See the module."""

    settings: ClassVar[HttpSettings]

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0  # of the head that is being read, before the data at hand
        self._fed_bytes = 0  # of the data at hand
        self._in_head = True
        self._running: RequestResponseCycle | None = None
        self._subject: str | None = None
        self._refused = False
        self._own: dict[object, object] = {}  # what the application may do with the connection, besides ASGI
        self._abort_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._own = {
            "abort": transport.abort,
            "answer": self.answer_whole,
            "arrived": self.arrived,
            "body": self.take_body,
        }
        self._subject = peer_subject(transport.get_extra_info("ssl_object"))
        if len(self.connections) > self.settings.max_connections:
            transport.abort()
            return
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch_head()
        for timer in (self._linger_timer, self._abort_timer):
            if timer is not None:
                timer.cancel()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Nothing came for long. What is still to be sent may be read for a while, not for ever."""
        super().timeout_keep_alive_handler()
        self._abort_timer = self.loop.call_later(self.settings.write_timeout / SECOND, self.transport.abort)

    def _watch_head(self) -> None:
        self._unwatch_head()
        self._head_timer = self.loop.call_later(self.settings.header_timeout / SECOND, self._head_too_slow)

    def _unwatch_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_too_slow(self) -> None:
        if not self.transport.is_closing():
            self._refuse(b"408 Request Timeout", b"The request's headers did not arrive in time.")

    def _head_too_large(self) -> None:
        self._refuse(b"431 Request Header Fields Too Large", b"The request's headers are too large.")

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._fed_bytes = len(data)
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > self.settings.max_header_bytes:
                self._head_too_large()
            elif self._head_timer is None:  # most heads arrive whole, and need none
                self._watch_head()

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()
        self.scope.setdefault("extensions", {})["holdfast"] = self._own
        if self._subject is not None:
            self.scope.setdefault("extensions", {})["tls"] = {"client_cert_name": self._subject}

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._unwatch_head()
        limit = self.settings.max_header_bytes
        if self._head_bytes + self._fed_bytes > limit:  # it may be the body that came with it
            size = len(self.url) + sum([len(name) + len(value) for name, value in self.headers])
            if size > limit:
                self._head_too_large()
                return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._refused:
            return
        super().on_message_complete()
        if self._linger_timer is not None:  # what was refused is all here: the next request may come
            self._linger_timer.cancel()
            self._linger_timer = None
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.more_body and not self.pipeline and not self.transport.is_closing():
            # It was answered before all of it was read. To close now would make the client lose the answer; to read on
            # for ever would let it hold the connection with one byte now and then.
            self._linger_timer = self.loop.call_later(self.settings.header_timeout / SECOND, self.transport.close)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def arrived(self) -> bool:
        """Whether all of the request's body is here: there is nothing to wait for, and no timer needed."""
        return self._running is not None and not self._running.more_body

    def take_body(self) -> bytes | None:
        """The request's body, if all of it is here; None: it must be received."""
        cycle = self._running
        if cycle is None or cycle.more_body or cycle.disconnected or cycle.waiting_for_100_continue:
            return None
        body = bytes(cycle.body)
        cycle.body = bytearray()
        cycle.flow.resume_reading()
        cycle.message_event.clear()
        return body

    def answer_whole(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """Send an answer in one write; uvicorn's way are two, of which each is a call of the system: a fifth of what a
        small request costs. False: it must go the ordinary way, and nothing was done."""
        cycle = self._running
        if cycle is None or cycle.response_started or cycle.disconnected or cycle.flow.write_paused:
            return False
        parts = [STATUS_LINE[status]]
        for name, value in (*cycle.default_headers, *headers):
            if b"\n" in value or b"\r" in value:
                return False  # uvicorn refuses it
            if name == b"connection" and value == b"close":
                cycle.keep_alive = False
            else:
                parts += (name, b": ", value, b"\r\n")
        parts.append(b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n")
        if cycle.scope["method"] != "HEAD":
            parts.append(body)
        self.transport.write(b"".join(parts))
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()
        return True

    def _refuse(self, status: bytes, text: bytes) -> None:
        """An answer for a request that never became one."""
        self._refused = True
        self._unwatch_head()
        self.transport.write(
            b"HTTP/1.1 %s\r\ncontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (status, len(text), text)
        )
        self.transport.close()


class SocketConnection(WebSocketsSansIOProtocol):
    """See the module. What it adds stands in the scope, as the extensions `tls` and `holdfast`."""

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)  # starts the application in the next pass of the loop
        extensions = self.scope.setdefault("extensions", {})
        extensions["holdfast"] = {"abort": self.transport.abort}
        subject = peer_subject(self.transport.get_extra_info("ssl_object"))
        if subject is not None:
            extensions["tls"] = {"client_cert_name": subject}
