"""Error responses as exceptions: the same classes that the server raised."""

from __future__ import annotations

from typing import Protocol

import msgspec

from holdfast import wire
from holdfast.errors import AnswerUnreadable, HoldfastError, all_errors

EXCERPT_CHARS = 200  # characters: enough to recognise a proxy's error page

_problem = msgspec.json.Decoder(wire.Problem).decode
_KINDS = {kind.code: kind for kind in all_errors()}


class _ErrorFields(Protocol):
    """The fields that a problem and the error of one item share."""

    @property
    def code(self) -> str: ...
    @property
    def detail(self) -> str: ...
    @property
    def details(self) -> dict[str, object]: ...


def error_of(stated: _ErrorFields) -> HoldfastError:
    """The error that the server raised, with the server's message.

    A newer server may have codes that this client does not know: they become a plain `HoldfastError`, and `details`
    holds the code.
    """
    kind = _KINDS.get(stated.code, HoldfastError)
    details = dict(stated.details)
    if kind is HoldfastError:
        details["code"] = stated.code
    error = kind(**details)
    error.args = (stated.detail,)
    return error


def problem_of(status: int, body: bytes, url: str) -> wire.Problem | AnswerUnreadable:
    """The problem document of a response whose status is not a success."""
    try:
        return _problem(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        excerpt = body[:EXCERPT_CHARS].decode(errors="replace").strip()
        return AnswerUnreadable(url=url, status=status, problem=repr(excerpt))
