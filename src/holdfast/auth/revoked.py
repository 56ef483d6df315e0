"""Tokens that were taken back before their end, by their `jti`: a file with one JSON line for each.

    {"jti": "5f0c…", "sub": "shop", "exp": 1798761600}

A line is of use until its token would have ended anyway (`exp`); without one it stays. `holdfast token revoke` writes
the file and leaves such lines out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

ID_BYTES_MAX: Final = 1_024


class Revocation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A token that is good no more."""

    jti: str
    sub: str = ""
    exp: int | float | None = None


def read(content: bytes, most: int) -> dict[str, Revocation]:
    """By `jti`. Raises ValueError whose text completes "The file ..."."""
    found: dict[str, Revocation] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            revoked = msgspec.json.decode(line, type=Revocation)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"has a line {number} that cannot be read: {error}") from None
        if not 0 < len(revoked.jti.encode(errors="surrogatepass")) <= ID_BYTES_MAX:
            raise ValueError(f"has a `jti` in line {number} that is not of 1 to {ID_BYTES_MAX} bytes")
        found[revoked.jti] = revoked
    if len(found) > most:
        raise ValueError(f"has {len(found)} tokens; at most {most} are allowed (auth.revoked_max)")
    return found


def as_document(revoked: Iterable[Revocation]) -> bytes:
    return b"".join(msgspec.json.encode(one) + b"\n" for one in revoked)


def still_needed(revoked: Iterable[Revocation], now_seconds: float) -> list[Revocation]:
    """Without those whose tokens have ended by themselves, a day ago at least: clocks differ."""
    return [one for one in revoked if one.exp is None or one.exp + 86_400 > now_seconds]
