"""One HTTP/1.1 connection: bytes in, requests to the application, responses out.

Heads are parsed by httptools, or known from before (head.py). Requests are served one after the other, in the order in
which they came; what a client sends ahead waits, parsed or as bytes, and is bounded. Everything else is bounded too:
the number of connections, the size of a head and the time it may take, how long a body may take to arrive after its
request was refused, how long a response may stay unread, and how long a connection may be idle.

A request to upgrade hands the connection to another protocol, if one is registered for its path.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol, cast

import httptools
import structlog

from holdfast.auth.principal import Principal
from holdfast.auth.tls import peer_subject
from holdfast.config.settings import HttpSettings
from holdfast.errors import MalformedRequest
from holdfast.http_api.server.body import UNREAD_BYTES_MAX, Body, ClientDisconnected, Part, add_part
from holdfast.http_api.server.head import HEADS_MAX, Head, KnownHead, remember
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import (
    CONTINUE,
    LAST_CHUNK,
    DateHeader,
    Header,
    Response,
    encode_chunk,
    encode_head,
    error_response,
    refusal,
)
from holdfast.patient_timer import PatientTimer
from holdfast.quotas import Quota
from holdfast.units import SECOND

if TYPE_CHECKING:
    from holdfast.http_api.server.app import Api

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

WEBSOCKET: Final = b"websocket"

PIPELINE_MAX: Final = 16
"""How many requests that were sent ahead are parsed; the rest waits as bytes. More than one, since only a connection
that is read tells that its client has gone."""

PARSE_BYTES: Final = 16 << 10
"""How much is parsed before it is checked whether there is room for more: up to 1,000 requests, which takes 5 ms."""


class UpgradedConnection(Protocol):
    """What takes over a connection: an asyncio protocol that can be shut down."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def shutdown(self) -> None: ...
    def abort(self) -> None: ...


Upgrade = Callable[[Callable[[UpgradedConnection], None], str], UpgradedConnection]
"""Makes what takes over a connection, given what it has to call when the connection is lost, and the client's address.
The head of the request is the first that it receives."""


class ConnectionPool:
    """The open connections of a server, and what they share."""

    def __init__(self, api: Api, settings: HttpSettings, upgrades: Mapping[str, Upgrade]) -> None:
        self.api = api
        self.settings = settings
        self.upgrades = upgrades
        self.date = DateHeader()
        self.open: set[Connection | UpgradedConnection] = set()
        self.strangers: dict[Connection, None] = {}  # whose caller has not shown who it is, oldest first
        self.empty = asyncio.Event()
        self.empty.set()

    def add_stranger(self, connection: Connection) -> None:
        """Strangers have a share of their own: the oldest makes room for a new one, who may be a user."""
        self.strangers[connection] = None
        if len(self.strangers) > self.settings.max_unauthenticated:
            oldest = next(iter(self.strangers))
            del self.strangers[oldest]
            oldest.abort()

    def add(self, connection: Connection | UpgradedConnection) -> None:
        self.open.add(connection)
        self.empty.clear()

    def discard(self, connection: Connection | UpgradedConnection) -> None:
        self.open.discard(connection)
        if isinstance(connection, Connection):
            self.strangers.pop(connection, None)
        if not self.open:
            self.empty.set()


class Connection(asyncio.Protocol):
    """See the module."""

    __slots__ = (
        "__weakref__",
        "_answered_at",
        "_claimed_by",
        "_closing",
        "_fed_bytes",
        "_head",
        "_head_bytes",
        "_head_timer",
        "_held",
        "_in_message",
        "_keep_alive_timer",
        "_known_heads",
        "_last_words",
        "_linger_timer",
        "_loop",
        "_missing",
        "_parser",
        "_parts",
        "_pipeline",
        "_pool",
        "_raw_head",
        "_raw_headers",
        "_read_paused",
        "_receiving",
        "_refused",
        "_request",
        "_transport",
        "_url",
        "_writable",
        "_write_timer",
        "lost",
        "peer",
        "subject",
    )

    def __init__(self, pool: ConnectionPool, peer: str = "") -> None:
        """`peer` is the client's address, if the connection is not from there itself."""
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # what comes behind is ignored
        self.peer = peer
        self.subject: str | None = None
        self.lost = False
        self._claimed_by: Principal | None = None
        # the request that is being read
        self._in_message = False  # the parser has begun with it
        self._url = b""
        self._raw_headers: list[Header] = []
        self._raw_head = b""  # what may be its head, if it began with the data at hand
        self._fed_bytes = 0  # the data at hand, if its first byte is of that request
        self._head_bytes = 0  # of its head, while that is not complete; then what came since the last of its body
        self._head: Head | None = None  # its head, until a request is made of it
        self._parts: list[Part] = []  # its body, until then
        self._receiving: Body | None = None  # its body from then on
        self._missing = 0  # how much of that is still to come, if the parser does not count it
        self._known_heads: list[KnownHead] = []  # newest first
        # the requests that were read
        self._request: Request | None = None  # the one being served
        self._pipeline: deque[Request] = deque()  # parsed, to be served after it
        self._held = b""  # not parsed, to be read after those
        self._read_paused = False
        # the response
        self._writable: asyncio.Event | None = None  # set when more may be written; None: it may
        self._closing = False  # the next response is the last
        self._refused = False  # nothing more is read
        self._last_words = b""  # what to send when the requests before have been answered, before it closes
        self._answered_at = 0.0
        self._head_timer: PatientTimer | None = None
        self._keep_alive_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._write_timer: PatientTimer | None = None

    # --- life -------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are, in all but the name
        peer = transport.get_extra_info("peername")
        self.peer = self.peer or (str(peer[0]) if isinstance(peer, tuple) else "")
        self.subject = peer_subject(transport.get_extra_info("ssl_object"))
        self._pool.add(self)
        if len(self._pool.open) - len(self._pool.strangers) > self._pool.settings.max_connections:
            self._transport.abort()
            return
        if self._pool.api.gate.required:
            self._pool.add_stranger(self)
        self._watch_head()

    def claim(self, principal: Principal) -> None:
        """A caller has shown who it is. The connection counts as its, whoever uses it later."""
        if self._claimed_by is None:
            quotas = self._pool.api.node.cell.quotas
            quotas.acquire(Quota.CONNECTIONS, principal.namespace, principal.owner)
            self._claimed_by = principal
            self._pool.strangers.pop(self, None)

    def _unclaim(self) -> None:
        if self._claimed_by is not None:
            principal, self._claimed_by = self._claimed_by, None
            self._pool.api.node.cell.quotas.release(Quota.CONNECTIONS, principal.namespace, principal.owner)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Nothing of what the client sent is kept, and nothing refers to the connection any more: heads have tokens in
        them, and what refers to itself stays in memory until the garbage collector looks for cycles, which is
        seldom."""
        self.lost = True
        self._unclaim()
        self._pool.discard(self)
        for timer in (self._head_timer, self._keep_alive_timer, self._linger_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        request, self._request = self._request, None
        if request is not None:
            request.disconnect()
        if self._writable is not None:
            self._writable.set()
        self._parser = self._head = self._receiving = None
        self._known_heads, self._raw_headers, self._held, self._raw_head = [], [], b"", b""
        self._parts.clear()
        self._pipeline.clear()

    def shutdown(self) -> None:
        """The server stops: what has begun is served, and nothing more."""
        if self._request is None and not self._pipeline:
            self._close()
        else:
            self._closing = True

    def _close(self) -> None:
        """Nothing more is served. What is still to be sent may be read for a while, not for ever."""
        self._refused = True
        self._transport.close()
        if self._write_timer is None and not self.lost:
            self._write_timer = PatientTimer(self._loop, self._write_seconds, self._transport.abort)

    def abort(self) -> None:
        """End it now; nothing more is sent."""
        self._transport.abort()

    def _watch_head(self) -> None:
        seconds = self._pool.settings.header_timeout / SECOND
        self._head_timer = PatientTimer(self._loop, seconds, self._head_timed_out)

    def _unwatch_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_timed_out(self) -> None:
        self._head_timer = None
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, b"The request's headers did not arrive in time.")

    def _idle_too_long(self) -> None:
        """Nothing came for long.

        The timer is not stopped by every request, which costs more than to look here when the last was.
        """
        keep_alive = self._pool.settings.keep_alive / SECOND
        busy = self._request is not None or bool(self._pipeline) or self._in_message
        left = keep_alive if busy else self._answered_at + keep_alive - self._loop.time()
        if left > 0:
            self._keep_alive_timer = self._loop.call_later(left, self._idle_too_long)
            return
        self._close()

    def _refuse(self, status: HTTPStatus, text: bytes) -> None:
        """Answer what is no request that could be served, and close: after the requests before it."""
        self._refused = True
        self._unwatch_head()
        if self._transport.is_closing():
            return
        self._last_words = refusal(status, text)
        if self._request is None and not self._pipeline:
            self._say_last_words()

    def _say_last_words(self) -> None:
        last_words, self._last_words = self._last_words, b""
        self._transport.write(last_words)
        self._close()

    # --- reading ----------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._missing:
            data = self._receive(data)
            if not data:
                return
        if self._in_message and not self._held:
            self._feed(data)
        elif self._request is None and not self._pipeline and not self._held and self._writable is None:
            self._begin(data)
        else:
            self._held += data
            if len(self._held) > UNREAD_BYTES_MAX:
                self.pause_reading()

    def _receive(self, data: bytes) -> bytes:
        """Take what belongs to the body that is being received. What comes behind it is returned."""
        body, missing = self._receiving, self._missing
        assert body is not None
        if len(data) < missing:
            self._missing -= len(data)
            body.feed(data)
            return b""
        self._missing = 0
        body.feed(data[:missing] if len(data) > missing else data)
        self._end_body(body)
        return data[missing:]

    def _begin(self, data: bytes) -> None:
        """Read a request from its first byte on."""
        for known in self._known_heads:
            if data.startswith(known.prefix):
                found = known.split(data)
                if found is not None:
                    self._begin_known(known.head, data, *found)
                    return
                break
        else:
            self._raw_head = data[: data.find(b"\r\n\r\n") + 4]
        self._feed(data)

    def _begin_known(self, head: Head, data: bytes, start: int, end: int) -> None:
        if self._head_timer is not None:
            self._unwatch_head()
        api = self._pool.api
        if len(data) >= end:
            self._held = data[end:]
            self._serve(Request(api, self, head, data[start:end], None, end - start))
            return
        self._missing = end - len(data)
        self._receiving = Body(self, data[start:])
        self._serve(Request(api, self, head, None, self._receiving, end - start))

    def _feed(self, data: bytes) -> None:
        """Let the parser read, as far as there is room for the requests in it."""
        for start in range(0, len(data), PARSE_BYTES):
            if self._refused or self._parser is None:
                return
            if len(self._pipeline) >= PIPELINE_MAX:
                self._held = data[start:]
                return
            self._parse(self._parser, data, start)

    def _parse(self, parser: httptools.HttpRequestParser, data: bytes, start: int) -> None:
        """Let the parser read some of the data. It calls the methods below."""
        chunk = data[start : start + PARSE_BYTES]
        self._fed_bytes = len(chunk)
        self._head_bytes += len(chunk)
        try:
            parser.feed_data(chunk)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrade(data[start + upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            if self._receiving is None:
                self._refuse(HTTPStatus.BAD_REQUEST, b"Invalid HTTP request received.")
            else:
                self._break_off(self._receiving, MalformedRequest(problem=f"the body cannot be read ({error})"))
            return
        finally:
            self._raw_head = b""
        if self._head is not None:  # its body has yet to come
            head, self._head = self._head, None
            self._receiving = Body(self, self._take_parts())
            self._head_bytes = 0
            self._line_up(Request(self._pool.api, self, head, None, self._receiving, head.content_length))
        elif self._in_message and self._receiving is None and not self._refused:  # in the midst of a head
            if self._head_bytes > self._pool.settings.max_header_bytes:
                self._head_too_large()
            elif self._head_timer is None and not self._read_paused:  # most heads arrive whole, and need none
                self._watch_head()
        elif self._receiving is not None and self._head_bytes > self._pool.settings.max_header_bytes:
            self._break_off(self._receiving, MalformedRequest(problem="what follows the body is too long"))

    def _break_off(self, body: Body, error: MalformedRequest) -> None:
        """The rest of a body cannot be read."""
        self._refused = self._closing = True
        body.fail(error)
        if self._linger_timer is not None:  # it was answered
            self._close()

    def _take_parts(self) -> bytes:
        content = b"".join(self._parts)  # which is the part itself if there is one
        self._parts = []
        return content

    def _head_too_large(self) -> None:
        self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, b"The request's headers are too large.")

    def on_message_begin(self) -> None:
        self._in_message = True
        self._head_bytes = self._fed_bytes
        self._url = b""
        self._raw_headers = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is None and self._receiving is None:  # else it comes behind the body, and means nothing
            self._raw_headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        if self._refused or parser is None:
            return
        self._unwatch_head()
        size = len(self._url) + sum([len(name) + len(value) for name, value in self._raw_headers])
        if size > self._pool.settings.max_header_bytes:
            self._head_too_large()
            return
        keep_alive = parser.get_http_version() == "1.1" and parser.should_keep_alive() and not parser.should_upgrade()
        method = parser.get_method().decode("ascii")
        head = Head(method, self._url, self._raw_headers, self._pool.api.router, keep_alive=keep_alive)
        if self._raw_head:
            known = remember(self._raw_head, self._raw_headers, head)
            if known is not None:
                self._known_heads = [known, *self._known_heads[: HEADS_MAX - 1]]
            self._raw_head = b""
        self._head = head

    def on_body(self, data: bytes) -> None:
        if self._refused:
            return
        if self._receiving is not None:
            self._head_bytes = 0
            self._receiving.feed(data)
        else:
            add_part(self._parts, data)

    def on_message_complete(self) -> None:
        if self._refused:
            return
        self._in_message = False
        self._fed_bytes = 0
        if self._receiving is not None:
            self._end_body(self._receiving)
            return
        head = self._head
        if head is not None and self._upgrade_to(head) is None:  # else the parser stops here, for `_upgrade`
            self._head = None
            self._line_up(Request(self._pool.api, self, head, self._take_parts(), None, head.content_length))

    def _end_body(self, body: Body) -> None:
        self._receiving = None
        body.end()
        if self._linger_timer is not None:  # it was refused, and now all of it is here: the next request may come
            self._linger_timer.cancel()
            self._linger_timer = None
            self._go_on()

    def pause_reading(self) -> None:
        if not self._read_paused:
            self._read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._read_paused and not self.lost:
            self._read_paused = False
            self._transport.resume_reading()
            if self._in_message and self._receiving is None and self._head_timer is None and not self._refused:
                self._watch_head()  # the time in which it could not arrive does not count

    def want_body(self, head: Head) -> None:
        """The body of the request being served is about to be read."""
        if head.expects_continue and not self._transport.is_closing():
            head.expects_continue = False
            self._transport.write(CONTINUE)

    # --- another protocol -------------------------------------------------------------------------------------------

    def _upgrade_to(self, head: Head) -> Upgrade | None:
        """What takes over the connection after this request; None: nothing does."""
        if head.headers.get(b"upgrade", b"").lower() != WEBSOCKET or head.method != "GET":
            return None
        if isinstance(head.refusal, MalformedRequest):
            return None
        tokens = [token.strip() for token in head.headers.get(b"connection", b"").lower().split(b",")]
        return self._pool.upgrades.get(head.path) if b"upgrade" in tokens else None

    def client(self, head: Head) -> str:
        """The address that a request is from, as trusted proxies say it."""
        return self._pool.api.gate.proxies.client(self.peer, head.headers.get(b"x-forwarded-for"))

    def _upgrade(self, rest: bytes) -> None:
        """The client wants to go on in another protocol. If we do not, its request has been served as any other."""
        head, self._head = self._head, None
        take_over = self._upgrade_to(head) if head is not None else None
        if head is None or take_over is None:
            self._refused = True  # what follows is not HTTP
            return
        if self._request is not None or self._pipeline or self._writable is not None:
            self._refuse(HTTPStatus.BAD_REQUEST, b"A connection is upgraded when its requests are answered.")
            return
        lines = [b"%b: %b\r\n" % header for header in self._raw_headers]
        raw = b"GET %b HTTP/1.1\r\n%b\r\n" % (self._url, b"".join(lines))
        pool, transport = self._pool, self._transport
        if self._keep_alive_timer is not None:
            self._keep_alive_timer.cancel()
        protocol = take_over(pool.discard, self.client(head))
        self._unclaim()
        pool.discard(self)
        pool.add(protocol)
        transport.set_protocol(cast("asyncio.Protocol", protocol))
        protocol.connection_made(transport)
        protocol.data_received(raw + rest)
        self._parser = None

    # --- serving ----------------------------------------------------------------------------------------------------

    def _line_up(self, request: Request) -> None:
        """A request was read: it is served when those before it have been."""
        if self._request is None and not self._pipeline and self._writable is None:
            self._serve(request)
        else:
            self._pipeline.append(request)
            if len(self._pipeline) >= PIPELINE_MAX or sum([r.size for r in self._pipeline]) > UNREAD_BYTES_MAX:
                self.pause_reading()  # until those that were read are answered, or its body is wanted

    def _serve(self, request: Request) -> None:
        self._request = request
        self._pool.api.serve(request)

    def _go_on(self) -> None:
        """The last request was answered and received completely: continue with what came behind it."""
        if self._writable is not None or self._linger_timer is not None or self.lost:
            return
        if self._pipeline or (self._held and not self._refused):
            self._loop.call_soon(self._next)
            return
        if self._last_words:
            self._say_last_words()
            return
        if self._keep_alive_timer is None:
            keep_alive = self._pool.settings.keep_alive / SECOND
            self._keep_alive_timer = self._loop.call_later(keep_alive, self._idle_too_long)
        if self._read_paused:
            self.resume_reading()

    def _next(self) -> None:
        if self._transport.is_closing() or self._request is not None or self._writable is not None:
            return
        if self._pipeline:
            self._serve(self._pipeline.popleft())
            if self._pipeline or not self._in_message:
                return  # else the body of this one may be in what is held
        data, self._held = self._held, b""
        self.resume_reading()
        if data:
            self.data_received(data)

    # --- responding -------------------------------------------------------------------------------------------------

    def send(self, request: Request, response: Response) -> bool:
        """Send the response to the request being served. False: the client has gone."""
        if self._request is not request or self._transport.is_closing():
            if response.close is not None:
                response.close()
            return False
        body, head = response.body, request.head
        pool = self._pool
        last = not head.keep_alive or self._is_ending()
        if head.expects_continue and request.unread_body is not None:
            last = True  # whether its body follows, or the next request, is for the client to decide
        if not isinstance(body, bytes):
            pool.api.spawn(self._stream(request, response, body, last=last))
            return True
        framing = b"content-length: %d\r\n" % len(body)
        try:
            data = encode_head(response, request.correlation_id, pool.date.line(), framing, close=last)
        except ValueError as error:
            return self.send(request, error_response(error, head.endpoint, (), request.correlation_id, ""))
        self._transport.write(data if head.method == "HEAD" else data + body)
        if response.close is not None:
            response.close()
        self._finish(request, last=last)
        return True

    async def _stream(self, request: Request, response: Response, parts: AsyncIterator[bytes], *, last: bool) -> None:
        """Send a response as its parts are made, no faster than the client reads."""
        head = request.head
        whole = head.method == "HEAD"
        framing = b"transfer-encoding: chunked\r\n"
        try:
            data = encode_head(response, request.correlation_id, self._pool.date.line(), framing, close=last)
            self._transport.write(data)
            async with aclosing(parts) as open_parts:  # type: ignore[type-var]
                async for part in open_parts:
                    if part and not whole:
                        self._transport.write(encode_chunk(part))
                    await self._drain()
            await self._drain()
            if not whole:
                self._transport.write(LAST_CHUNK)
        except ClientDisconnected:
            return
        except Exception as error:
            with request.in_trace():
                log.error("a response failed midway", correlation_id=request.correlation_id, exc_info=error)
            self._transport.abort()
            return
        finally:
            if response.close is not None:
                response.close()
        self._finish(request, last=last or self._is_ending())

    def _is_ending(self) -> bool:
        """Whether the response to the request being served is the last."""
        return self._pool.api.closing or (self._closing and not self._pipeline)

    async def _drain(self) -> None:
        """Wait until more may be written. A client that reads nothing for too long is disconnected."""
        if self._writable is not None:
            await self._writable.wait()
        if self._transport.is_closing():
            raise ClientDisconnected

    def _finish(self, request: Request, *, last: bool) -> None:
        self._request = None
        self._answered_at = self._loop.time()
        if last:
            self._close()
            return
        body = request.unread_body
        if body is not None:
            # To close now would make the client lose the response; to read on for ever would let it hold the connection
            # with one byte now and then.
            body.fail(ClientDisconnected())
            timeout = self._pool.settings.header_timeout / SECOND
            self._linger_timer = self._loop.call_later(timeout, self._close)
            return
        self._go_on()

    def pause_writing(self) -> None:
        """The client does not read as fast as it is sent to."""
        self._writable = asyncio.Event()
        self._arm_write_timer(self._transport.get_write_buffer_size())

    def _arm_write_timer(self, unread: int) -> None:
        self._write_timer = PatientTimer(self._loop, self._write_seconds, partial(self._check_progress, unread))

    @property
    def _write_seconds(self) -> float:
        return self._pool.settings.write_timeout / SECOND

    def _check_progress(self, unread: int) -> None:
        left = self._transport.get_write_buffer_size()
        if left < unread:
            self._arm_write_timer(left)
            return
        self._write_timer = None
        log.warning("a client does not read its response; closing", peer=self.peer)
        self._transport.abort()

    def resume_writing(self) -> None:
        if self._write_timer is not None and not self._transport.is_closing():
            self._write_timer.cancel()
            self._write_timer = None
        if self._writable is not None:
            self._writable.set()
            self._writable = None
        if self._request is None:
            self._go_on()
