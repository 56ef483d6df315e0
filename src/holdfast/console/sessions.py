"""Who is signed in to the console: sessions, in memory. A restart of the server ends them.

The browser has a random token in a cookie; the server keeps the token's hash only. A session ends when it is old, when
nobody has used it for a while, and when the credential that it was opened with no longer holds.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.auth.principal import Principal
from holdfast.config.console_settings import ConsoleSettings

PER_PERSON_MAX: Final = 20
"""Sessions of one person: browsers and tabs in private windows; the oldest makes room for another."""

TOKEN_BYTES: Final = 32


class ConsoleSession(msgspec.Struct):
    """Somebody who is signed in."""

    principal: Principal
    csrf: str
    """What a form must bring along: a page of another site cannot know it."""
    read_only: bool
    opened_at: int
    used_at: int


class Sessions:
    """See the module. `is_valid` says whether a credential still holds."""

    def __init__(
        self, settings: ConsoleSettings, is_valid: Callable[[Principal], bool], clock: Callable[[], int]
    ) -> None:
        self._settings = settings
        self._is_valid = is_valid
        self._clock = clock
        self._sessions: OrderedDict[bytes, ConsoleSession] = OrderedDict()  # the one used last is last

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, principal: Principal, *, read_only: bool = False) -> str:
        """Sign somebody in. Returns the token for the cookie."""
        now = self._clock()
        own = [
            (session.opened_at, digest)
            for digest, session in self._sessions.items()
            if (session.principal.namespace, session.principal.identity) == (principal.namespace, principal.identity)
        ]
        if len(own) >= PER_PERSON_MAX:
            del self._sessions[min(own)[1]]
        while len(self._sessions) >= self._settings.max_sessions:
            self._sessions.popitem(last=False)
        token = secrets.token_urlsafe(TOKEN_BYTES)
        csrf = secrets.token_urlsafe(TOKEN_BYTES)
        self._sessions[_digest(token)] = ConsoleSession(principal, csrf, read_only, now, now)
        return token

    def find(self, token: str) -> ConsoleSession | None:
        """The session of a token, if it has not ended."""
        digest = _digest(token)
        session = self._sessions.get(digest)
        if session is None:
            return None
        now, settings = self._clock(), self._settings
        if (
            now - session.opened_at >= settings.session_age
            or now - session.used_at >= settings.session_idle
            or not self._is_valid(session.principal)
        ):
            del self._sessions[digest]
            return None
        session.used_at = now
        self._sessions.move_to_end(digest)
        return session

    def close(self, token: str) -> None:
        """Sign out."""
        self._sessions.pop(_digest(token), None)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
