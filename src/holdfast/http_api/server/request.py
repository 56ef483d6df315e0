"""One request: its parameters, its headers and its body, read within limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive, Scope

from holdfast import wire
from holdfast.auth.principal import Principal
from holdfast.broker.node import Node
from holdfast.core.queue import check_name
from holdfast.engine.catalog import QueueName
from holdfast.errors import (
    HoldfastError,
    InvalidArgument,
    MalformedRequest,
    MediaTypeUnsupported,
    Overloaded,
    RequestTimeout,
    RequestTooLarge,
)
from holdfast.http_api.openapi.routes import Endpoint
from holdfast.http_api.server.response import DeferredResponse, Response, item_error
from holdfast.units import SECOND, parse_duration, parse_instant

if TYPE_CHECKING:
    from holdfast.http_api.server.app import Api

_Shape = TypeVar("_Shape")

ID_MAX = (1 << 63) - 1

OFFLOAD_BYTES = 256 << 10
OFFLOAD_MESSAGES = 1_000
"""A body, or an answer, of more than this is read or made on a thread: it takes 5 ms or more, up to 50, and whoever
else calls would wait for it."""

QUEUE_TOPIC = "$queue/"
_JSON = {"application/json", ""}
_ONCE = frozenset(
    (
        b"authorization",
        b"content-encoding",
        b"content-type",
        b"host",
        b"idempotency-key",
        b"if-match",
        b"if-none-match",
        b"last-event-id",
        b"origin",
        b"x-correlation-id",
    )
)


class ClientDisconnected(Exception):
    """The client closed the connection; nobody waits for an answer."""


class Call:
    """See the module."""

    __slots__ = (
        "_held",
        "_receive",
        "api",
        "batch_errors",
        "correlation_id",
        "endpoint",
        "headers",
        "noted",
        "parameters",
        "principal",
        "scope",
    )

    def __init__(
        self,
        api: Api,
        scope: Scope,
        receive: Receive,
        endpoint: Endpoint,
        parameters: list[str],
        headers: dict[bytes, bytes],
        correlation_id: str,
        principal: Principal,
    ) -> None:
        self.api = api
        self.scope = scope
        self.endpoint = endpoint
        if parameters and parameters[0].startswith(QUEUE_TOPIC):
            parameters[0] = parameters[0].removeprefix(QUEUE_TOPIC)
        self.parameters = parameters
        self.headers = headers
        self.correlation_id = correlation_id
        self.principal = principal
        self.noted: dict[str, object] = {}  # details for the audit log
        self.batch_errors: list[wire.ItemError] = []
        self._receive = receive
        self._held = 0

    @property
    def node(self) -> Node:
        return self.api.node

    @property
    def namespace(self) -> str:
        return self.principal.namespace

    @property
    def queue(self) -> QueueName:
        """The queue that the path names, by its name or by its MQTT topic (as a message's `reply_to` may have it)."""
        return (self.namespace, check_name(self.parameters[0]))

    def header(self, name: bytes) -> str | None:
        """A request header, None if it was not sent. Header values are UTF-8, or Latin-1 where they are not."""
        raw = self.headers.get(name)
        if raw is None:
            return None
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw.decode("latin-1")

    @property
    def given_correlation_id(self) -> str | None:
        """The correlation id the caller sent, if it sent one: that one is kept with messages."""
        return self.correlation_id if b"x-correlation-id" in self.headers else None

    @property
    def content_type(self) -> str:
        """The body's content type in lower case, without parameters."""
        return (self.header(b"content-type") or "").partition(";")[0].strip().lower()

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
        client = self.scope.get("client")
        return client[0] if client else ""

    def refused(self, errors: Mapping[int, HoldfastError]) -> HoldfastError:
        """For a batch of which nothing was taken: the first one's error, with all of them in the answer."""
        self.batch_errors = [item_error(index, errors[index]) for index in sorted(errors)]
        return errors[min(errors)]

    def message_id(self, position: int = 1) -> int:
        """A message's id in the path."""
        return read_id(self.parameters[position], "the message id")

    def query(self, shape: type[_Shape]) -> _Shape:
        """The query string as a struct. Unknown names and wrong values are refused."""
        raw = self.scope["query_string"]
        try:
            return msgspec.convert(_pairs(raw) if raw else {}, shape, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidArgument(field="query", problem=f"is wrong: {error}") from None

    # --- the body ---------------------------------------------------------------------------------------------------

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, within the limits of size, time and memory."""
        self._check_encoding()
        settings = self.api.config.http
        deadline = asyncio.get_running_loop().time() + settings.body_timeout / SECOND
        extension = connection_extension(self.scope)
        total = 0
        more = True
        while more:
            if extension is not None and extension["arrived"]():
                event = await self._receive()
            else:
                try:
                    async with asyncio.timeout_at(deadline):
                        event = await self._receive()
                except TimeoutError:
                    raise RequestTimeout(limit_seconds=settings.body_timeout // SECOND) from None
            if event["type"] == "http.disconnect":
                raise ClientDisconnected
            chunk = event.get("body", b"")
            more = event.get("more_body", False)
            total += len(chunk)
            if total > settings.max_request_bytes:
                raise RequestTooLarge(limit_bytes=settings.max_request_bytes)
            self.hold(len(chunk))
            if chunk:
                yield chunk

    def _check_encoding(self) -> None:
        """A payload that was packed on the way would be stored so, and nobody would know."""
        encoding = self.header(b"content-encoding")
        if encoding is not None and encoding.lower() != "identity":
            given = f"{self.content_type}, Content-Encoding {encoding[:64]}"
            raise MediaTypeUnsupported(given=given, allowed="it without Content-Encoding")

    def hold(self, size_bytes: int) -> None:
        """So much of the call is in memory, until it is over. Raises Overloaded if that is too much."""
        if self.api.buffered_bytes + size_bytes > self.api.config.http.max_buffered_bytes:
            raise Overloaded(waiting=self.api.working)
        self.api.buffered_bytes += size_bytes
        self._held += size_bytes

    def close(self) -> None:
        """The call is over; what it held in memory is free."""
        self.api.buffered_bytes -= self._held
        self._held = 0

    async def body(self) -> bytes:
        """The whole body."""
        self._check_encoding()
        length = self.headers.get(b"content-length")
        limit = self.api.config.http.max_request_bytes
        if length is not None and length.isdigit() and int(length) > limit:
            raise RequestTooLarge(limit_bytes=limit)
        extension = connection_extension(self.scope)
        whole: bytes | None = extension["body"]() if extension is not None else None
        if whole is None:
            buffered = await self._buffered(extension) if extension is not None and length is not None else None
            return b"".join([chunk async for chunk in self.chunks()]) if buffered is None else buffered
        if len(whole) > limit:
            raise RequestTooLarge(limit_bytes=limit)
        self.hold(len(whole))
        return whole

    async def _buffered(self, extension: dict[str, Any]) -> bytes | None:
        """The whole body, if the connection can wait for it."""
        done: asyncio.Future[bytes] | None = extension["gather"](self.hold)
        if done is None:
            return None
        settings = self.api.config.http
        try:
            async with asyncio.timeout(settings.body_timeout / SECOND):
                return await done
        except TimeoutError:
            raise RequestTimeout(limit_seconds=settings.body_timeout // SECOND) from None

    async def json(self, decoder: msgspec.json.Decoder[_Shape], default: bytes = b"") -> _Shape:
        """The body as a struct. `default` stands for a body that was left out."""
        return self.decoded(decoder, await self.body(), default)

    def decoded(self, decoder: msgspec.json.Decoder[_Shape], raw: bytes, default: bytes = b"") -> _Shape:
        """As `json`, for a body that is at hand."""
        if not raw and default:
            raw = default
        elif not self.is_json:
            raise MediaTypeUnsupported(given=self.content_type, allowed="application/json")
        return decode(decoder.decode, raw)

    async def offload(self, large: bool, make: Callable[[], _Shape]) -> _Shape:
        """What `make` makes, on a thread if it is much work. It may touch nothing that others have, too."""
        return await self.api.on_thread(make) if large else make()

    async def when_durable(self, deferred: DeferredResponse) -> Response:
        """What was promised, when it may be given."""
        await deferred.submission
        return deferred.response

    async def gone(self) -> None:
        """Returns when the client has gone."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


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


def read_headers(raw: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by name. One that has a meaning here is refused if it is given twice: whoever looked at the request on
    its way may have gone by the other."""
    headers = dict(raw)
    if len(headers) != len(raw):
        seen: set[bytes] = set()
        for name, _ in raw:
            if name in seen and (name in _ONCE or name.startswith(b"holdfast-")):
                raise MalformedRequest(problem=f"the header {name.decode('latin-1')} is given twice")
            seen.add(name)
        headers[b"accept"] = b", ".join([value for name, value in raw if name == b"accept"])
    return headers


def connection_extension(scope: Scope) -> dict[str, Any] | None:
    """What our own connection offers besides ASGI; None under another server, as in tests without sockets."""
    extension: dict[str, Any] | None = scope.get("extensions", {}).get("holdfast")
    return extension


def decode(decoder: Callable[[bytes], _Shape], raw: bytes) -> _Shape:
    """A struct from JSON, or an error that says where it is wrong."""
    try:
        if not raw.isascii():
            raw.decode()  # parts that are kept as they are must be UTF-8 too
        return decoder(raw)
    except msgspec.ValidationError as error:
        raise InvalidArgument(field="The body", problem=f"is wrong: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedRequest(problem=f"the body is not JSON ({error})") from None
    except RecursionError:
        raise MalformedRequest(problem="the body is nested too deeply") from None


def read_id(text: str, field: str) -> int:
    """An id or token as the wire spells it."""
    if text.isascii() and text.isdigit() and len(text) <= 19 and 0 < (number := int(text)) <= ID_MAX:
        return number
    raise InvalidArgument(field=field, problem="is a number as this server gave it, as a string")


def duration(value: object, field: str) -> int:
    try:
        return parse_duration(value)
    except ValueError as error:
        raise InvalidArgument(field=field, problem=str(error)) from None


def instant(value: object, field: str) -> int:
    try:
        return parse_instant(value)
    except ValueError as error:
        raise InvalidArgument(field=field, problem=str(error)) from None
