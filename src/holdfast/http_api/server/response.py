"""What a handler returns, and how errors become RFC 9457 problems."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog

from holdfast import wire
from holdfast.broker.parts.messages import Receipt
from holdfast.broker.submission import Submission
from holdfast.core.commands import Draft
from holdfast.engine.catalog import QueueName
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.http_api.openapi.routes import Endpoint
    from holdfast.http_api.server.request import Call

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

JSON = b"application/json"
PROBLEM = b"application/problem+json"
NDJSON = b"application/x-ndjson"
EVENTS = b"text/event-stream"
ARROW = b"application/vnd.apache.arrow.stream"

RETRY_AFTER_SECONDS = 1
"""What `Retry-After` says where nothing better is known: long enough not to hammer, short enough not to idle."""

Header = tuple[bytes, bytes]

encode = msgspec.json.Encoder().encode


class Response:
    """A whole answer, or one whose body comes bit by bit."""

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
        self.close = close  # called when the answer is over, however it ends
        self.status = status
        self.content_type = content_type
        self.headers = headers


class DeferredEnqueue(NamedTuple):
    """Messages to enqueue together with those of other requests, and what makes the answer of the receipt, or raises
    why there is none."""

    queue: QueueName
    drafts: list[Draft]
    response: Callable[[Receipt], Response]


class DeferredResponse(NamedTuple):
    """A response that is sent when the submission is done."""

    response: Response
    submission: Submission[object]
    undo: Callable[[], None] | None = None
    """Called if the client has gone before the answer."""


def response(value: object, status: int = 200) -> Response:
    return Response(encode(value), status)


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
    """Details as JSON can say them."""
    return {
        name: value if isinstance(value, bool | int | float | str) or value is None else str(value)
        for name, value in details.items()
    }


def problem_response(error: HoldfastError, correlation_id: str = "", errors: Sequence[wire.ItemError] = ()) -> Response:
    """The answer that is a problem."""
    return Response(encode(problem_of(error, correlation_id, errors)), error.http, PROBLEM, error_headers(error))


def error_response(error: Exception, endpoint: Endpoint | None, call: Call | None, correlation_id: str) -> Response:
    """The answer to a request that failed, as its endpoint says such things."""
    if not isinstance(error, HoldfastError):
        path = endpoint.path if endpoint is not None else ""
        log.error("a request failed", path=path, correlation_id=correlation_id, exc_info=error)
        return problem_response(HoldfastError(), correlation_id)
    if endpoint is not None and endpoint.error_format is not None:
        result = endpoint.error_format.make(error)
        result.headers = [*result.headers, *error_headers(error)]
        return result
    return problem_response(error, correlation_id, call.batch_errors if call is not None else ())


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
