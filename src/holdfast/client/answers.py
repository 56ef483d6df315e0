"""Answers that are refusals, back to the same errors that the server raised."""

from __future__ import annotations

from typing import Protocol

import msgspec

from holdfast import wire
from holdfast.errors import AnswerUnreadable, HoldfastError, all_errors

EXCERPT_CHARS = 200  # characters: enough to recognise a proxy's error page

_problem = msgspec.json.Decoder(wire.Problem).decode
_KINDS = {kind.code: kind for kind in all_errors()}


class _ErrorFields(Protocol):
    """What a problem and an item's error have in common."""

    @property
    def code(self) -> str: ...
    @property
    def detail(self) -> str: ...
    @property
    def details(self) -> dict[str, object]: ...


def error_of(stated: _ErrorFields) -> HoldfastError:
    """The error that the server raised, in the server's own words.

    A newer server may have codes that this client does not know: they become the root of the tree, and `details` has
    their code.
    """
    kind = _KINDS.get(stated.code, HoldfastError)
    details = dict(stated.details)
    if kind is HoldfastError:
        details["code"] = stated.code
    error = kind(**details)
    error.args = (stated.detail,)
    return error


def problem_of(status: int, body: bytes, url: str) -> wire.Problem | AnswerUnreadable:
    """The problem in an answer whose status is not a success."""
    try:
        return _problem(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        excerpt = body[:EXCERPT_CHARS].decode(errors="replace").strip()
        return AnswerUnreadable(url=url, status=status, problem=repr(excerpt))
