"""The head of a request: read once by the HTTP parser, and remembered by its bytes.

Over a connection that stays open a client sends the same head with almost every request, but for the length of the
body. A connection therefore keeps the heads of its last few kinds of requests with their bytes. A request that begins
with the same bytes needs no parser, no search for its endpoint and no table of headers: a request with one message then
takes 39 µs of the loop instead of 54. Only what the parser took for a head is kept, so that there is one opinion about
where a request ends. A head may hold a token; it is dropped with its connection.

The caller is identified for every request. Whether it may do this is decided when it is not the same caller as before,
since all else that decides it is in the head.
"""

from __future__ import annotations

from typing import Final

import httptools

from holdfast.auth.principal import Principal
from holdfast.error_text import shown
from holdfast.errors import HoldfastError, MalformedRequest, MethodNotAllowed, RouteNotFound
from holdfast.http_api.server.response import CORRELATION, Header
from holdfast.http_api.server.routes import Endpoint, Router, decoded

HEADS_MAX: Final = 8
"""How many a connection keeps: a worker needs a few, and 10,000 connections should not need much memory."""

HEAD_BYTES_MAX: Final = 2_048
"""The longest that is kept: one with a token has some hundred bytes."""

CORRELATION_BYTES_MAX: Final = 255
QUEUE_TOPIC: Final = "$queue/"
FORM: Final = "multipart/form-data"

_DIGITS_MAX: Final = 10  # of a body's length
_PATH_SHOWN: Final = 200  # characters of a path that leads nowhere

_VARYING: Final = frozenset((b"idempotency-key", CORRELATION, b"traceparent", b"x-request-id"))
"""Headers that differ with every request: a head that has one does not come again."""

_FRAMING: Final = frozenset((b"expect", b"transfer-encoding", b"upgrade"))
"""Headers that the connection acts upon: a head that has one is always parsed."""

_LENGTH: Final = b"\r\ncontent-length:"

_SINGLE: Final = frozenset(
    (
        b"authorization",
        b"content-encoding",
        b"content-type",
        b"cookie",
        b"host",
        b"idempotency-key",
        b"if-match",
        b"if-none-match",
        b"last-event-id",
        b"origin",
        b"referer",
        b"sec-fetch-site",
        b"traceparent",
        CORRELATION,
    )
)
"""Headers that have a meaning here, and so may be given once only."""


class Head:
    """What the head of a request says."""

    __slots__ = (
        "authorized",
        "content_length",
        "content_type",
        "correlation_id",
        "endpoint",
        "expects_continue",
        "headers",
        "is_form",
        "keep_alive",
        "method",
        "parameters",
        "path",
        "query",
        "refusal",
    )

    def __init__(self, method: str, url: bytes, headers: list[Header], router: Router, *, keep_alive: bool) -> None:
        """Raises HttpParserError or UnicodeDecodeError if the URL is none."""
        parsed = httptools.parse_url(url)
        self.method = method
        self.path = (parsed.path or b"").decode("ascii")
        self.query: bytes = parsed.query or b""
        self.keep_alive = keep_alive
        self.headers = dict(headers)
        self.correlation_id = _correlation_id(self.headers.get(CORRELATION))  # empty: the caller sent none
        self.expects_continue = self.headers.get(b"expect", b"").lower() == b"100-continue"
        self.content_length = int(self.headers.get(b"content-length", b"-1"))
        self.content_type = _media_type(self.headers.get(b"content-type", b""))
        self.authorized: Principal | None = None  # the caller that last proved to have the right to do this
        self.endpoint: Endpoint | None = None
        self.parameters: list[str] = []
        self.is_form = False  # the body is one that the endpoint reads as it arrives
        self.refusal: HoldfastError | None = None  # why no endpoint is called
        try:
            _check_single(headers, self.headers)
            self.endpoint, self.parameters = _find(router, self.method, self.path)
            self.is_form = self.content_type == FORM and FORM in self.endpoint.request_types
        except HoldfastError as error:
            self.refusal = error.with_traceback(None)  # which refers to this head


def _correlation_id(given: bytes | None) -> str:
    """The caller's, or none. One that is too long or not printable counts as none: it goes into headers and logs."""
    if given is None:
        return ""
    text = given.decode("latin-1")
    valid = 0 < len(given) <= CORRELATION_BYTES_MAX and text.isascii() and text.isprintable()
    return text if valid else ""


def _media_type(content_type: bytes) -> str:
    """In lower case, without parameters."""
    return content_type.decode("latin-1").partition(";")[0].strip().lower()


def _check_single(headers: list[Header], by_name: dict[bytes, bytes]) -> None:
    """Refuses a header that is given twice and has a meaning here: a proxy on the way may have acted upon the other."""
    if len(by_name) == len(headers):
        return
    seen: set[bytes] = set()
    for name, _ in headers:
        if name in seen and (name in _SINGLE or name.startswith(b"holdfast-")):
            raise MalformedRequest(problem=f"the header {shown(name.decode('latin-1'))} is given twice")
        seen.add(name)
    for joined in (b"accept", b"x-forwarded-for"):
        if joined in by_name:
            by_name[joined] = b", ".join([value for name, value in headers if name == joined])


def _find(router: Router, method: str, path: str) -> tuple[Endpoint, list[str]]:
    found = router.find(path)
    if found is None:
        raise RouteNotFound(path=path[:_PATH_SHOWN])
    methods, values = found
    endpoint = methods.get("GET" if method == "HEAD" else method)
    if endpoint is None or (method == "HEAD" and (endpoint.waits or endpoint.changes)):
        raise MethodNotAllowed(path=path[:_PATH_SHOWN], method=method, allowed=", ".join(methods))
    parameters = [decoded(value) for value in values]
    if parameters and parameters[0].startswith(QUEUE_TOPIC):
        parameters[0] = parameters[0].removeprefix(QUEUE_TOPIC)
    return endpoint, parameters


class KnownHead:
    """A head with its bytes before and after the number that is the body's length."""

    __slots__ = ("head", "prefix", "suffix")

    def __init__(self, head: Head, prefix: bytes, suffix: bytes) -> None:
        self.head = head
        self.prefix = prefix
        self.suffix = suffix

    def split(self, data: bytes) -> tuple[int, int] | None:
        """Where the body begins and ends if `data`, which has the prefix, begins with this head; None if it does
        not."""
        at = len(self.prefix)
        end = data.find(b"\r", at, at + _DIGITS_MAX + 1)
        digits = data[at:end]
        if end < 0 or not digits.isdigit() or not data.startswith(self.suffix, end):
            return None
        start = end + len(self.suffix)
        return start, start + int(digits)


def remember(raw: bytes, headers: list[Header], head: Head) -> KnownHead | None:
    """What to keep of a head; None: nothing, because it will not come again as it is, or not often.

    `raw` goes up to the first empty line, `headers` are what the parser found. That the parser saw the head end at the
    same place is known by the number of lines.
    """
    if head.endpoint is None or head.endpoint.coroutine is not None or head.query or not head.keep_alive:
        return None
    line = raw[: raw.find(b"\n") + 1]
    if not (line.startswith(b"POST /") and line.endswith(b" HTTP/1.1\r\n")):
        return None
    if len(raw) > HEAD_BYTES_MAX or raw.count(b"\n") != len(headers) + 2 or len(head.headers) != len(headers):
        return None
    if not _VARYING.isdisjoint(head.headers) or not _FRAMING.isdisjoint(head.headers):
        return None
    length = head.headers.get(b"content-length", b"")
    if not length.isdigit() or len(length) > _DIGITS_MAX:
        return None
    before, found, after = raw.lower().partition(_LENGTH)
    at = len(before) + len(found) + len(after) - len(after.lstrip(b" \t"))
    end = at + len(length)
    if not found or raw[at : end + 2] != length + b"\r\n":
        return None
    return KnownHead(head, raw[:at], raw[end:])
