"""Secrets inside the program: how they are kept out of logs, error messages and everything else that is shown."""

from __future__ import annotations

from hmac import compare_digest
from typing import Final

from holdfast import web_address

HIDDEN: Final = web_address.HIDDEN

_SECRET_WORDS: Final = ("password", "passwd", "secret", "token", "authorization", "private_key", "api_key", "cookie")
_HARMLESS: Final = ("lease_token", "token_id")
"""A lease's token is given to its consumer, and is of no use after the lease."""


def is_secret_name(name: str) -> bool:
    """Whether a value of that name must not be shown in a log line or an audit entry."""
    lowered = name.lower().replace("-", "_")
    return lowered not in _HARMLESS and any(lowered == word or lowered.endswith(f"_{word}") for word in _SECRET_WORDS)


class SecretText:
    """Only `reveal` gives it away: not `str`, not `repr`, not a log line, not a pickle."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretText) and compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash(self._text)

    def __str__(self) -> str:
        return HIDDEN if self._text else ""

    def __repr__(self) -> str:
        return f"SecretText({str(self)!r})"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a secret is not written anywhere")
