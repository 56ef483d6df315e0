"""What a handler returns, how errors become RFC 9457 problems, and how a response is written."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec
import structlog

from holdfast import wire
from holdfast.broker.submission import Submission
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.http_api.server.request import Request
    from holdfast.http_api.server.routes import Endpoint

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

JSON = b"application/json"
PROBLEM = b"application/problem+json"
NDJSON = b"application/x-ndjson"
EVENTS = b"text/event-stream"
ARROW = b"application/vnd.apache.arrow.stream"

CORRELATION: Final = b"x-correlation-id"

RETRY_AFTER_SECONDS = 1
"""What `Retry-After` says where nothing better is known: long enough not to hammer, short enough not to idle."""

Header = tuple[bytes, bytes]

encode = msgspec.json.Encoder().encode


class EndpointResult(Protocol):
    """What an endpoint's handler gives: a response, or how it comes about."""

    def deliver(self, request: Request) -> None:
        """Respond to the request, now or later."""


class Response:
    """A whole response, or one whose body is sent in parts as they are made."""

    __slots__ = ("body", "close", "content_type", "headers", "status")

    def __init__(
        self,
        body: bytes | AsyncIterator[bytes] = b"",
        status: int = 200,
        content_type: bytes = JSON,
        headers: Sequence[Header] = (),
        close: Callable[[], None] | None = None,
    ) -> None:
        self.body = body
        self.close = close  # called when the response is over, however it ends
        self.status = status
        self.content_type = content_type
        self.headers = headers

    def deliver(self, request: Request) -> None:
        request.respond(self)


class DeferredResponse(NamedTuple):
    """A response that is sent when the submission is done."""

    response: Response
    submission: Submission[object]
    undo: Callable[[], None] | None = None
    """Called if the client has gone before the response."""

    def deliver(self, request: Request) -> None:
        response, undo = self.response, self.undo

        def on_done(error: HoldfastError | None) -> None:
            if error is not None:
                request.fail(error)
            elif not request.respond(response) and undo is not None:
                undo()

        self.submission.on_done(on_done)

    async def ready(self) -> Response:
        """The response, when it may be sent."""
        await self.submission
        return self.response


class TaskResponse(NamedTuple):
    """A response that a coroutine makes, in a task of its own."""

    work: Coroutine[object, object, Response]

    def deliver(self, request: Request) -> None:
        request.api.spawn(self._run(request))

    async def _run(self, request: Request) -> None:
        try:
            result = await self.work
        except Exception as error:  # noqa: BLE001 - it is answered
            request.fail(error)
        else:
            request.respond(result)
        finally:
            request.end()


def response(value: object, status: int = 200) -> Response:
    return Response(encode(value), status)


EXACT_MAX = (1 << 53) - 1  # the greatest number that every reader of JSON keeps exactly


def problem_of(error: HoldfastError, correlation_id: str = "", errors: Sequence[wire.ItemError] = ()) -> wire.Problem:
    return wire.Problem(
        type=f"/docs#error-{error.code}",
        title=error.code.replace("_", " ").capitalize(),
        status=error.http,
        code=error.code,
        detail=str(error),
        retryable=error.retryable,
        details=plain(error.details),
        correlation_id=correlation_id,
        errors=list(errors),
    )


def item_error(index: int, error: HoldfastError) -> wire.ItemError:
    return wire.ItemError(
        index=index,
        code=error.code,
        detail=str(error),
        status=error.http,
        retryable=error.retryable,
        details=plain(error.details),
    )


def plain(details: dict[str, object]) -> dict[str, object]:
    """Details as JSON can say them. Ids are texts, as everywhere: JavaScript loses numbers of 63 bits."""
    return {
        name: value
        if value is None or (isinstance(value, bool | int | float | str) and not _is_id(name, value))
        else str(value)
        for name, value in details.items()
    }


def _is_id(name: str, value: object) -> bool:
    return isinstance(value, int) and (name == "id" or name.endswith("_id") or abs(value) > EXACT_MAX)


def problem_response(error: HoldfastError, correlation_id: str = "", errors: Sequence[wire.ItemError] = ()) -> Response:
    """The response that is a problem."""
    return Response(encode(problem_of(error, correlation_id, errors)), error.http, PROBLEM, error_headers(error))


def error_response(
    error: Exception,
    endpoint: Endpoint | None,
    batch_errors: Sequence[wire.ItemError],
    correlation_id: str,
    content_type: str,
) -> Response:
    """The response to a request that failed, in the format of its endpoint. `content_type` is that of the request."""
    if not isinstance(error, HoldfastError):
        path = endpoint.path if endpoint is not None else ""
        log.error("a request failed", path=path, correlation_id=correlation_id, exc_info=error)
        return problem_response(HoldfastError(), correlation_id)
    if endpoint is not None and endpoint.error_format is not None:
        result = endpoint.error_format.make(error, content_type)
        result.headers = [*result.headers, *error_headers(error)]
        return result
    return problem_response(error, correlation_id, batch_errors)


def error_headers(error: HoldfastError) -> list[Header]:
    """What an error says in headers, whatever its body looks like."""
    headers: list[Header] = []
    if error.retryable:
        wait_ms = error.details.get("retry_after_ms", RETRY_AFTER_SECONDS * 1000)
        headers.append((b"retry-after", b"%d" % max(1, -(-int(str(wait_ms)) // 1000))))
    if error.http == 401:
        headers.append((b"www-authenticate", b'Bearer realm="holdfast", Basic realm="holdfast"'))
    if error.http == 405:
        headers.append((b"allow", str(error.details["allowed"]).encode()))
    return headers


# --- on the wire ----------------------------------------------------------------------------------------------------

_STATUS_LINES: Final = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"


class DateHeader:
    """The `date` header, made once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._line = b""

    def line(self) -> bytes:
        now = int(time.time())
        if now != self._second:
            self._second = now
            self._line = b"date: %b\r\n" % formatdate(now, usegmt=True).encode()
        return self._line


NOT_KEPT: Final = b"cache-control: no-store\r\n"
CAUTION: Final = b"x-content-type-options: nosniff\r\n" + NOT_KEPT
"""In every response: a browser takes a payload for nothing but what it is called, and nobody keeps one, unless the
response itself says how long it may be kept."""


def encode_head(response: Response, correlation_id: str, date: bytes, framing: bytes, *, close: bool) -> bytes:
    """The head of a response, up to and with the empty line. `framing` is the header that says where the body ends."""
    correlation = b"%b: %b\r\n" % (CORRELATION, correlation_id.encode())
    lines, caution = b"", CAUTION
    if response.headers:
        lines = b"".join([b"%b: %b\r\n" % header for header in response.headers])
        if lines.count(b"\n") != len(response.headers) or lines.count(b"\r") != len(response.headers):
            raise ValueError("a response header has a line break in it")
        if any(name == CORRELATION for name, _ in response.headers):
            correlation = b""
        if any(name == b"cache-control" for name, _ in response.headers):
            caution = CAUTION.removesuffix(NOT_KEPT)
    return b"%b%bcontent-type: %b\r\n%b%b%b%b%b\r\n" % (
        _STATUS_LINES[response.status],
        date,
        response.content_type,
        caution,
        lines,
        correlation,
        framing,
        b"connection: close\r\n" if close else b"",
    )


def encode_chunk(part: bytes) -> bytes:
    """A part of a body of unknown length."""
    return b"%x\r\n%b\r\n" % (len(part), part)


def refusal(status: HTTPStatus, text: bytes) -> bytes:
    """The whole response to a request that could not be read, after which the connection is closed."""
    return b"%bcontent-type: text/plain\r\n%bcontent-length: %d\r\nconnection: close\r\n\r\n%b" % (
        _STATUS_LINES[status],
        CAUTION,
        len(text),
        text,
    )
