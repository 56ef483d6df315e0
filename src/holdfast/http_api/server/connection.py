"""One connection: uvicorn's protocols, with what they lack.

HTTP/1.1: it bounds the number of connections, the size of a request's head and the time it may take, and it tells a
request that runs while further ones wait behind it (pipelining) that its client has gone. A request whose like was
there before is served at once (at_once.py), past uvicorn; what comes before its answer is held until then. Many clients
send the head and the body apart: the rest of such a request is waited for, but only for a moment. Whatever does not fit
is given to uvicorn from its first byte on. A long body that is wanted as a whole is gathered here: uvicorn's way, which
wakes the application for every 64 KiB and stops the client until that has taken them, costs three times as much.

WebSocket: its application is told the subject of the client's certificate, and can end the connection at once: ASGI
knows no way to get rid of a client that does not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from holdfast.auth.tls import peer_subject
from holdfast.config.settings import HttpSettings
from holdfast.errors import HoldfastError
from holdfast.http_api.server import fast_path
from holdfast.http_api.server.head_cache import HEADS_MAX, Head
from holdfast.http_api.server.request import ClientDisconnected
from holdfast.http_api.server.response import Response
from holdfast.units import SECOND

if TYPE_CHECKING:
    from holdfast.http_api.server.app import Api


REST_BYTES_MAX = 64 << 10
"""Of a request that is kept until all of it is here: as much as uvicorn takes before it pauses a client."""

REST_SECONDS = 1.0
"""How long the rest is waited for. What takes longer is uvicorn's business, and `http.body_timeout`'s."""


class Connection(HttpToolsProtocol):
    """See the module."""

    settings: ClassVar[HttpSettings]
    api: ClassVar[Api]

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0  # of the head that is being read, before the data at hand
        self._fed_bytes = 0  # of the data at hand
        self._in_head = True
        self._running: RequestResponseCycle | None = None
        self._subject: str | None = None
        self._refused = False
        self._extension: dict[object, object] = {}  # what the application may do with the connection, besides ASGI
        self._abort_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._between = True  # the parser waits for the first byte of a request
        self._raw_head = b""  # what may be the head of the request that comes
        self._heads: list[Head] = []  # newest first
        self._scope: Scope = {}  # of requests that are served at once: the same for all
        self._fast_path = False  # one is under way
        self._held = b""  # what came meanwhile
        self._parts: list[bytes] = []  # of a request that is served at once when all of it is here
        self._missing = 0
        self._rest_timer: asyncio.TimerHandle | None = None
        self._body_buffer: _BodyBuffer | None = None  # the body that is being read
        self._last = False  # the server stops: it is the last one
        self._answered_at = 0.0
        self._usual_headers: list[tuple[bytes, bytes]] | None = None
        self._usual_lines = b""
        self._lost = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._extension = {
            "abort": transport.abort,
            "answer": self.answer_whole,
            "arrived": self.arrived,
            "body": self.take_body,
            "gather": self.buffer_body,
        }
        self._subject = peer_subject(transport.get_extra_info("ssl_object"))
        tls = {} if self._subject is None else {"tls": {"client_cert_name": self._subject}}
        self._scope = {"type": "http", "client": self.client, "query_string": b"", "extensions": tls}
        if len(self.connections) > self.settings.max_connections:
            transport.abort()
            return
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch_head()
        for timer in (self._linger_timer, self._abort_timer, self._rest_timer):
            if timer is not None:
                timer.cancel()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        if self._body_buffer is not None:
            self._body_buffer.end(ClientDisconnected())
        super().connection_lost(exc)
        self._lost = True
        self._clear()

    def _clear(self) -> None:
        """Keep nothing of what the client sent, and let the connection go at once: heads have tokens in them, and what
        refers to itself stays in memory until somebody looks for such things, which is seldom."""
        self._heads, self._held, self._scope, self._parts = [], b"", {}, []
        self.pipeline.clear()
        running: RequestResponseCycle | None = self._running
        if running is None or running.response_complete:  # else it is told so when it ends
            self._extension.clear()
            for cycle in (running, self.cycle):
                if cycle is not None:
                    cycle.on_response = _nothing

    def timeout_keep_alive_handler(self) -> None:
        """Nothing came for long. What is still to be sent may be read for a while, not for ever.

        Requests that are served at once do not stop the timer, which costs more than to look here when the last was.
        """
        left = self._answered_at + self.timeout_keep_alive - self.loop.time()
        busy = self._fast_path or bool(self._parts)
        if busy or left > 0:
            left = self.timeout_keep_alive if busy else left
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)
            return
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
        if self._fast_path:
            self._held += data
            self.flow.pause_reading()
            return
        if self._parts:
            self._missing -= len(data)
            self._parts.append(data)
            if self._missing > 0:
                return
            data = self._take_parts()
        self._raw_head = b""
        before: RequestResponseCycle | None = self.cycle
        if self._between and (before is None or before.response_complete) and not self.flow.write_paused:
            for head in self._heads:
                if data.startswith(head.prefix):
                    start, missing = head.body_at(data)
                    if missing and len(data) + missing <= REST_BYTES_MAX:
                        self._wait_for_rest(data, missing)
                        return
                    if start and not missing and self._begin(head, data[start:]):
                        return
                    break
            else:
                self._raw_head = data[: data.find(b"\r\n\r\n") + 4]
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        """The ordinary way."""
        self._fed_bytes = len(data)
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > self.settings.max_header_bytes:
                self._head_too_large()
            elif self._head_timer is None:  # most heads arrive whole, and need none
                self._watch_head()

    def _wait_for_rest(self, data: bytes, missing: int) -> None:
        if self._head_timer is not None:
            self._unwatch_head()
        self._parts, self._missing = [data], missing
        self._rest_timer = self.loop.call_later(REST_SECONDS, self._give_up_rest)

    def _take_parts(self) -> bytes:
        data, self._parts = b"".join(self._parts), []
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None
        return data

    def _give_up_rest(self) -> None:
        """It takes too long, or the server stops."""
        data = self._take_parts()
        if not self.transport.is_closing():
            self._raw_head = b""
            self._feed(data)

    def _begin(self, head: Head, body: bytes) -> bool:
        """Serve a request at once, if it can be."""
        if self._head_timer is not None:
            self._unwatch_head()
        self._fast_path = True
        if fast_path.begin(self.api, head, body, self._scope, self._reply):
            return True
        self._fast_path = False
        return False

    def _reply(self, result: Response, correlation_id: str) -> bool:
        """Answer the request that was served at once. False: the client has gone."""
        self._fast_path = False
        transport = self.transport
        if transport.is_closing():
            return False
        assert isinstance(result.body, bytes)
        last = self._last or self.api.closing
        if self.server_state.default_headers is not self._usual_headers:  # they change once a second
            self._usual_headers = self.server_state.default_headers
            self._usual_lines = _lines(self._usual_headers)
        transport.write(
            b"%b%b%b%bcontent-type: %b\r\nx-correlation-id: %b\r\ncontent-length: %d\r\n\r\n%b"
            % (
                STATUS_LINE[result.status],
                self._usual_lines,
                _lines(result.headers) if result.headers else b"",
                b"connection: close\r\n" if last else b"",
                result.content_type,
                correlation_id.encode(),
                len(result.body),
                result.body,
            )
        )
        self.server_state.total_requests += 1
        self._answered_at = self.loop.time()
        if last:
            transport.close()
        elif self._held:
            self.loop.call_soon(self._resume)
        elif self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        return True

    def _resume(self) -> None:
        """Take what came before the answer."""
        data, self._held = self._held, b""
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self.data_received(data)

    def _cache_head(self) -> None:
        head = fast_path.read_head(self.api, self._raw_head, self.url, self.headers)
        if head is not None:
            self._heads = [head, *self._heads[: HEADS_MAX - 1]]

    def shutdown(self) -> None:
        """The server stops: no more requests over this connection."""
        if self._fast_path:
            self._last = True
            return
        if self._parts:
            self._give_up_rest()
        super().shutdown()

    def on_message_begin(self) -> None:
        self._between = False
        self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()
        self.scope.setdefault("extensions", {})["holdfast"] = self._extension
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
        if self._raw_head:
            self._cache_head()
            self._raw_head = b""
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._refused:
            return
        if self._body_buffer is None or not self._body_buffer.take(body):
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._refused:
            return
        self._between = self.parser.should_keep_alive() and not self.parser.should_upgrade()
        super().on_message_complete()
        if self._body_buffer is not None:
            self._body_buffer.end()
            self._body_buffer = None
        if self._linger_timer is not None:  # what was refused is all here: the next request may come
            self._linger_timer.cancel()
            self._linger_timer = None
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._lost:
            self._clear()
            return
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

    def buffer_body(self, hold: Callable[[int], None]) -> asyncio.Future[bytes] | None:
        """The request's body when all of it is here; None: it must be received. `hold` is told how much is in memory,
        and raises if that is too much."""
        cycle = self._running
        if cycle is None or cycle is not self.cycle or not cycle.more_body or cycle.disconnected:
            return None
        if cycle.waiting_for_100_continue or self._body_buffer is not None:
            return None
        self._body_buffer = body_buffer = _BodyBuffer(self.loop.create_future(), hold)
        if cycle.body:
            body_buffer.take(bytes(cycle.body))
            cycle.body = bytearray()
        cycle.flow.resume_reading()
        return body_buffer.done

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


class _BodyBuffer:
    """A body that is wanted as a whole."""

    __slots__ = ("_hold", "_parts", "done")

    def __init__(self, done: asyncio.Future[bytes], hold: Callable[[int], None]) -> None:
        self.done = done
        self._hold = hold
        self._parts: list[bytes] = []

    def take(self, part: bytes) -> bool:
        """False: nobody wants it any more."""
        if self.done.done():
            return False
        try:
            self._hold(len(part))
        except HoldfastError as error:
            self.end(error)
            return False
        self._parts.append(part)
        return True

    def end(self, error: Exception | None = None) -> None:
        """All of it is here, or will not be."""
        if not self.done.done():
            if error is None:
                self.done.set_result(b"".join(self._parts))
            else:
                self.done.set_exception(error)
        self._parts.clear()


def _nothing() -> None:
    """For a response whose connection is no more."""


def _lines(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])


class WebSocketConnection(WebSocketsSansIOProtocol):
    """See the module. What it adds stands in the scope, as the extensions `tls` and `holdfast`."""

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)  # starts the application in the next pass of the loop
        extensions = self.scope.setdefault("extensions", {})
        extensions["holdfast"] = {"abort": self.transport.abort}
        subject = peer_subject(self.transport.get_extra_info("ssl_object"))
        if subject is not None:
            extensions["tls"] = {"client_cert_name": subject}
