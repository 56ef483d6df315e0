"""One request: its parameters, its headers and its body, read within limits; and its response, sent once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar
from urllib.parse import parse_qsl

import msgspec
from structlog.contextvars import bound_contextvars

from holdfast import wire
from holdfast.auth.principal import Principal
from holdfast.broker.node import Node
from holdfast.core.queue import check_name
from holdfast.engine.catalog import QueueName
from holdfast.error_text import shown
from holdfast.errors import (
    HoldfastError,
    InvalidArgument,
    MalformedRequest,
    MediaTypeUnsupported,
    Overloaded,
    RequestTooLarge,
)
from holdfast.http_api.codecs.json_slices import check_cheap
from holdfast.http_api.codecs.values import decode, read_id
from holdfast.http_api.server.body import Body, ClientDisconnected
from holdfast.http_api.server.head import Head
from holdfast.http_api.server.response import Response, error_response, item_error
from holdfast.http_api.server.routes import SMALL_BYTES_MAX, Endpoint
from holdfast.trace_context import TRACEPARENT, TRACESTATE, Pairs, log_fields, pairs_of
from holdfast.units import SECOND

if TYPE_CHECKING:
    from holdfast.http_api.server.app import Api

_Shape = TypeVar("_Shape")

OFFLOAD_BYTES = 256 << 10
OFFLOAD_MESSAGES = 1_000
"""A body, or a response, of more than this is read or made on a thread: it takes 5 ms or more, up to 50, and other
callers would wait for it."""

ERRORS_SHOWN_MAX = 1_000
"""Errors in the response to a batch of which nothing was taken: to write 10,000 would take 50 ms."""

_TRACEPARENT, _TRACESTATE = TRACEPARENT.encode(), TRACESTATE.encode()

_JSON = {"application/json", ""}


class Channel(Protocol):
    """Where a request comes from and its response goes to: a connection, or a part of the server that calls for
    somebody."""

    subject: str | None

    @property
    def lost(self) -> bool: ...

    def client(self, head: Head) -> str: ...

    def claim(self, principal: Principal) -> None: ...

    def want_body(self, head: Head) -> None: ...

    def send(self, request: Request, response: Response) -> bool: ...

    def abort(self) -> None: ...


class Request:
    """See the module."""

    __slots__ = (
        "_body",
        "_buffered_bytes",
        "_connection",
        "_content",
        "_disconnected",
        "_length",
        "_working",
        "api",
        "audit_details",
        "batch_errors",
        "correlation_id",
        "head",
        "principal",
    )

    def __init__(
        self, api: Api, connection: Channel, head: Head, content: bytes | None, body: Body | None, length: int
    ) -> None:
        """`content` is the whole body if it arrived with the head, else `body` is where it arrives. `length` is what
        the client says that it has, -1 if it does not; a head that is known has that of the first request."""
        self.api = api
        self.head = head
        self.principal = UNKNOWN
        self.correlation_id = head.correlation_id or api.new_correlation_id()
        self.audit_details: dict[str, object] = {}
        self.batch_errors: list[wire.ItemError] = []
        self._connection = connection
        self._content = content
        self._body = body
        self._length = length
        self._buffered_bytes = 0
        self._working = False
        self._disconnected: asyncio.Future[None] | None = None

    @property
    def size(self) -> int:
        """How many bytes its body has, as far as that is known."""
        return self._length if self._content is None else len(self._content)

    # --- the head ---------------------------------------------------------------------------------------------------

    @property
    def node(self) -> Node:
        return self.api.node

    @property
    def endpoint(self) -> Endpoint:
        assert self.head.endpoint is not None, "a request without one is refused before anybody asks"
        return self.head.endpoint

    @property
    def parameters(self) -> list[str]:
        """The variable parts of the path, decoded."""
        return self.head.parameters

    @property
    def headers(self) -> dict[bytes, bytes]:
        return self.head.headers

    @property
    def is_traced(self) -> bool:
        """Whether it may belong to a trace; nearly all do not."""
        return _TRACEPARENT in self.head.headers

    @property
    def trace_context(self) -> Pairs:
        """The context of the trace that it belongs to."""
        headers = self.head.headers
        if _TRACEPARENT not in headers:
            return ()
        return pairs_of(headers[_TRACEPARENT].decode("latin-1"), headers.get(_TRACESTATE, b"").decode("latin-1"))

    def in_trace(self) -> AbstractContextManager[None]:
        """Log lines of this block, and of tasks that it starts, say which trace they belong to."""
        return bound_contextvars(**log_fields(self.trace_context)) if self.is_traced else nullcontext()

    @property
    def namespace(self) -> str:
        return self.principal.namespace

    @property
    def queue(self) -> QueueName:
        """The queue that the path names, by its name or by its MQTT topic (as a message's `reply_to` may have it)."""
        return (self.principal.namespace, check_name(self.head.parameters[0]))

    def header(self, name: bytes) -> str | None:
        """A request header, None if it was not sent. Header values are UTF-8, or Latin-1 where they are not."""
        raw = self.head.headers.get(name)
        if raw is None:
            return None
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw.decode("latin-1")

    @property
    def given_correlation_id(self) -> str | None:
        """The correlation id the caller sent, if it sent one: that one is kept with messages."""
        return self.head.correlation_id or None

    @property
    def content_type(self) -> str:
        """The body's content type in lower case, without parameters."""
        return self.head.content_type

    @property
    def is_json(self) -> bool:
        """Whether the body is JSON, as far as its content type says."""
        kind = self.content_type
        return kind in _JSON or kind.endswith("+json")

    def accepts(self, media_type: str) -> bool:
        """Whether the caller asks for this content type by name."""
        return media_type in (self.header(b"accept") or "")

    @property
    def peer(self) -> str:
        """The caller's address."""
        return self._connection.client(self.head)

    def claim(self, principal: Principal) -> None:
        """The connection is this caller's from now on. Raises QuotaExceeded if it has too many."""
        self._connection.claim(principal)

    @property
    def subject(self) -> str | None:
        """The subject of the caller's certificate."""
        return self._connection.subject

    def refused(self, errors: Mapping[int, HoldfastError]) -> HoldfastError:
        """For a batch of which nothing was taken: the first one's error, with the first thousand in the response."""
        self.batch_errors = [item_error(index, errors[index]) for index in sorted(errors)[:ERRORS_SHOWN_MAX]]
        return errors[min(errors)]

    def message_id(self, position: int = 1) -> int:
        """A message's id in the path."""
        return read_id(self.head.parameters[position], "the message id")

    def query(self, shape: type[_Shape]) -> _Shape:
        """The query string as a struct. Unknown names and wrong values are refused."""
        raw = self.head.query
        try:
            return msgspec.convert(_pairs(raw) if raw else {}, shape, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidArgument(field="query", problem=f"is wrong: {shown(error)}") from None

    # --- the body ---------------------------------------------------------------------------------------------------

    @property
    def content(self) -> bytes:
        """The whole body, for a handler that is called when it is here."""
        assert self._content is not None, "only forms are read as they arrive"
        return self._content

    @property
    def body_bytes_max(self) -> int:
        """The largest body that is taken here."""
        limit = self.api.config.http.max_request_bytes
        return limit if self.endpoint.bulk else min(limit, SMALL_BYTES_MAX)

    def collect(self, done: Callable[[Request, Exception | None], None]) -> bool:
        """Have the whole body in `content`: True if it is, else `done` is called when it is, or cannot be."""
        self._check_body()
        limit = self.body_bytes_max
        if self._content is not None:
            if len(self._content) > limit:
                raise RequestTooLarge(limit_bytes=limit)
            if not self._buffered_bytes:
                self.buffer(len(self._content))
            return True
        assert self._body is not None, "either it came with the head, or it arrives"
        body, size = self._body, 0

        def account(more: int) -> None:
            nonlocal size
            size += more
            if size > limit:
                raise RequestTooLarge(limit_bytes=limit)
            self.buffer(more)

        def collected(error: Exception | None) -> None:
            if error is None:
                self._content = body.take()
            done(self, error)

        self._connection.want_body(self.head)
        body.collect(account, self.api.config.http.body_timeout / SECOND, collected)
        return False

    async def body(self) -> bytes:
        """The whole body."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            if not self.collect(partial(_resolve, done)):
                await done
        finally:
            del done  # an exception refers to this frame, and would to itself
        assert self._content is not None
        return self._content

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, within the limits of size, time and memory."""
        self._check_body()
        settings = self.api.config.http
        limit, timeout = self.body_bytes_max, settings.body_timeout / SECOND
        if self._content is not None:
            if len(self._content) > limit:
                raise RequestTooLarge(limit_bytes=limit)
            self.buffer(len(self._content))
            yield self._content
            return
        assert self._body is not None
        self._connection.want_body(self.head)
        deadline = asyncio.get_running_loop().time() + timeout
        size = 0
        while chunk := await self._body.read(deadline, timeout):
            size += len(chunk)
            if size > limit:
                raise RequestTooLarge(limit_bytes=limit)
            self.buffer(len(chunk))
            yield chunk

    def _check_body(self) -> None:
        encoding = self.head.headers.get(b"content-encoding")
        if encoding is not None and encoding.lower() != b"identity":  # a packed payload would be stored as it is
            given = f"{self.content_type}, Content-Encoding {encoding.decode('latin-1')[:64]}"
            raise MediaTypeUnsupported(given=given, allowed="it without Content-Encoding")
        limit = self.body_bytes_max
        if self._length > limit:
            raise RequestTooLarge(limit_bytes=limit)

    def buffer(self, size_bytes: int) -> None:
        """Count so much of the request as held in memory until it is over. Raises Overloaded if that is too much."""
        api = self.api
        if api.buffered_bytes + size_bytes > api.config.http.max_buffered_bytes:
            raise Overloaded(waiting=api.working)
        api.count_bytes(self.principal, size_bytes)
        api.buffered_bytes += size_bytes
        self._buffered_bytes += size_bytes

    async def json(self, decoder: msgspec.json.Decoder[_Shape], default: bytes = b"") -> _Shape:
        """The body as a struct. `default` is used if there is none."""
        return self.decoded(decoder, await self.body(), default)

    def decoded(self, decoder: msgspec.json.Decoder[_Shape], raw: bytes, default: bytes = b"") -> _Shape:
        """As `json`, for a body that is at hand."""
        if not raw and default:
            raw = default
        else:
            self.check_json()
        check_cheap(raw)
        return decode(decoder.decode, raw)

    def check_json(self) -> None:
        """Refuses a body that says it is something else."""
        if not self.is_json:
            raise MediaTypeUnsupported(given=self.content_type, allowed="application/json")

    async def offload(self, large: bool, make: Callable[[], _Shape]) -> _Shape:
        """What `make` makes, on a thread if it is much work. It may touch nothing that others use too."""
        return await self.api.on_thread(make) if large else make()

    # --- the response -----------------------------------------------------------------------------------------------

    def start_work(self) -> None:
        """Count it as being worked on until it is over. Raises Overloaded if there are too many. The handler of an
        endpoint that may wait calls it for a request that does not."""
        api = self.api
        if api.working >= api.config.http.max_concurrency:
            raise Overloaded(waiting=api.working)
        api.enter()
        self._working = True

    def end(self) -> None:
        """It is over: what it held in memory is free."""
        self.api.buffered_bytes -= self._buffered_bytes
        self._buffered_bytes = 0
        if self._working:
            self._working = False
            self.api.leave()

    def respond(self, response: Response) -> bool:
        """Send the response. False: the client has gone."""
        self.end()
        head = self.head
        path = head.endpoint.path if head.endpoint is not None and self.principal is not UNKNOWN else ""
        self.api.count(head.method, path, response.status)
        return self._connection.send(self, response)

    def fail(self, error: Exception) -> None:
        """Send what the error says, if anybody is there to read it."""
        if isinstance(error, ClientDisconnected):
            self.end()
            self._connection.abort()
            return
        with self.in_trace():
            response = error_response(
                error, self.head.endpoint, self.batch_errors, self.correlation_id, self.head.content_type
            )
        self.respond(response)

    @property
    def disconnected(self) -> asyncio.Future[None]:
        """Done when the client has gone."""
        if self._disconnected is None:
            self._disconnected = asyncio.get_running_loop().create_future()
            if self._connection.lost:
                self._disconnected.set_result(None)
        return self._disconnected

    def disconnect(self) -> None:
        """The client has gone."""
        if self._body is not None:
            self._body.fail(ClientDisconnected())
        if self._disconnected is not None and not self._disconnected.done():
            self._disconnected.set_result(None)

    @property
    def unread_body(self) -> Body | None:
        """What is still arriving of it."""
        return None if self._body is None or self._body.ended else self._body


UNKNOWN = Principal(name="", namespace="", method="unknown")
"""The caller of a request that was not identified, or not yet."""


def _resolve(done: asyncio.Future[None], _: Request, error: Exception | None) -> None:
    if done.done():  # its task was cancelled
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _pairs(raw: bytes) -> dict[str, str]:
    """What a query string says, by name."""
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, strict_parsing=True, errors="strict")
    except ValueError:
        raise MalformedRequest(problem="the query string is not name=value pairs in UTF-8") from None
    values = dict(pairs)
    if len(values) != len(pairs):
        raise MalformedRequest(problem="a query parameter is given twice")
    return values
