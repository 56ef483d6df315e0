"""Calls that last: long polls, streams, watches. They are ended when what vouched for their caller no longer holds, and
when the server stops.

A call that is over in a moment is checked when it comes. One that waits for a quarter of an hour, or for days, must not
be given messages for a token that has expired or was taken back meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from holdfast.auth.gate import Gate
from holdfast.auth.principal import Principal
from holdfast.errors import HoldfastError, ShuttingDown, Unauthenticated

CHECK_SECONDS: Final = 1.0
"""As often as MQTT's connections are looked at."""

End = Callable[[HoldfastError], None]
"""Has a call end, with the reason for it."""


class LongCalls:
    """See the module."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._calls: dict[object, tuple[Principal, End]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def until(self, principal: Principal, end: End) -> Iterator[None]:
        """While the block lasts, `end` is called should there be a reason."""
        call = object()
        self._calls[call] = (principal, end)
        if self._timer is None and self._gate.required:
            self._arm()
        try:
            yield
        finally:
            del self._calls[call]

    def is_valid(self, principal: Principal) -> bool:
        """Whether a caller may still be given something."""
        return self._gate.valid(principal)

    def close(self) -> None:
        """The server stops: end all of them."""
        for _, end in list(self._calls.values()):
            end(ShuttingDown())

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check)

    def _check(self) -> None:
        self._timer = None
        verdicts: dict[int, bool] = {}  # most share a principal
        for principal, end in list(self._calls.values()):
            valid = verdicts.get(id(principal))
            if valid is None:
                valid = verdicts[id(principal)] = self._gate.valid(principal)
            if not valid:
                end(expired())
        if self._calls:
            self._arm()


def expired() -> Unauthenticated:
    """Why a call is ended whose caller is no longer known."""
    return Unauthenticated(problem="the credential has expired")
