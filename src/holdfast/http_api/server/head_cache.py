"""Heads of requests that come again and again.

Over a connection that stays open a client sends the same head with almost every request, but for the length of the
body. What was read from such a head is remembered with its bytes, and a request that begins with the same bytes needs
no parser, no search for its endpoint and no dictionary of headers. Who calls is asked each time; whether they may is
asked when it is somebody else than before, since all that decides it stands in the head. Since a head may hold a token,
it is forgotten with the connection.

Only heads are kept whose requests an endpoint can serve at once (`Endpoint.begin`): a JSON body of known length, and
nothing in the head that would have it treated in another way.
"""

from __future__ import annotations

from typing import Final

from holdfast.auth.principal import Principal
from holdfast.http_api.openapi.routes import Endpoint

HEADS_MAX: Final = 8
"""How many a connection remembers: a worker needs a few, and 10,000 connections should not need much memory."""

HEAD_BYTES_MAX: Final = 2_048
"""The longest that is remembered: one with a token has some hundred bytes."""

_DIGITS_MAX: Final = 10
"""Of the body's length: what is longer than one read of the socket does not come at once anyway."""

_SINGLE: Final = frozenset((b"idempotency-key", b"x-correlation-id", b"traceparent", b"x-request-id"))
"""Headers that are another with every request: to remember those is of no use."""

_SPECIAL: Final = frozenset((b"expect", b"transfer-encoding", b"upgrade", b"content-encoding"))
"""Headers that want more than a look at the body."""

_LENGTH: Final = b"\r\ncontent-length:"


class Head:
    """What a head says, and its bytes before and after the number that is the body's length."""

    __slots__ = ("admitted", "endpoint", "headers", "parameters", "prefix", "suffix")

    def __init__(
        self, prefix: bytes, suffix: bytes, endpoint: Endpoint, parameters: list[str], headers: dict[bytes, bytes]
    ) -> None:
        self.prefix = prefix
        self.suffix = suffix
        self.endpoint = endpoint
        self.parameters = parameters
        self.headers = headers
        self.admitted: Principal | None = None  # who was let in with it

    def body_at(self, data: bytes) -> tuple[int, int]:
        """Where the body begins, if this is one request with this head and nothing else, and how much of it has yet to
        come; zeros if it is not."""
        at = len(self.prefix)
        end = data.find(b"\r", at, at + _DIGITS_MAX + 1)
        digits = data[at:end]
        if end < 0 or not digits.isdigit() or not data.startswith(self.suffix, end):
            return 0, 0
        start = end + len(self.suffix)
        missing = int(digits) - (len(data) - start)
        return (start, missing) if missing >= 0 else (0, 0)


def parts(raw: bytes, headers: list[tuple[bytes, bytes]]) -> tuple[bytes, bytes] | None:
    """A head's bytes before and after the body's length, or None if it is not to be remembered.

    `raw` goes up to the first empty line; `headers` are what the parser found. That it saw the head end at the same
    place is known by the number of lines.
    """
    line = raw[: raw.find(b"\n") + 1]
    if not (line.startswith(b"POST /") and line.endswith(b" HTTP/1.1\r\n")):
        return None
    if len(raw) > HEAD_BYTES_MAX or raw.count(b"\n") != len(headers) + 2:
        return None
    values = dict(headers)
    if len(values) != len(headers) or not _SINGLE.isdisjoint(values) or not _SPECIAL.isdisjoint(values):
        return None
    if values.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    length = values.get(b"content-length", b"")
    if values.get(b"content-type", b"").lower() not in _JSON or not length.isdigit() or len(length) > _DIGITS_MAX:
        return None
    before, found, after = raw.lower().partition(_LENGTH)
    at = len(before) + len(found) + len(after) - len(after.lstrip(b" \t"))
    end = at + len(length)
    if not found or raw[at : end + 2] != length + b"\r\n":
        return None
    return raw[:at], raw[end:]


_JSON: Final = (b"application/json", b"application/json; charset=utf-8", b"application/json;charset=utf-8")
