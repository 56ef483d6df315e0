"""Requests that last: long polls, streams, watches. They are ended when their caller's credential no longer holds, and
when the server stops.

The credential of a short request is checked when it arrives. One that waits for a quarter of an hour, or for days, must
not be given messages for a token that has expired or was revoked meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from holdfast.auth.gate import Gate
from holdfast.auth.principal import Principal
from holdfast.errors import HoldfastError, ShuttingDown, Unauthenticated
from holdfast.quotas import Quota, Quotas

CHECK_SECONDS: Final = 1.0
"""As often as the credentials of MQTT connections are checked."""

End = Callable[[HoldfastError], None]
"""Ends a request, with the reason for it."""


class LongRequests:
    """See the module."""

    def __init__(self, gate: Gate, quotas: Quotas) -> None:
        self._gate = gate
        self._quotas = quotas
        self._requests: dict[object, tuple[Principal, End]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def until(self, principal: Principal, end: End) -> Iterator[None]:
        """Call `end` if there is a reason to end the request while the block runs."""
        request = object()
        self._requests[request] = (principal, end)
        self._quotas.hold(Quota.LONG_POLLS, principal.namespace, principal.owner)
        if self._timer is None and self._gate.required:
            self._arm()
        try:
            yield
        finally:
            del self._requests[request]
            self._quotas.release(Quota.LONG_POLLS, principal.namespace, principal.owner)

    def check(self, principal: Principal) -> None:
        """Raises QuotaExceeded if the caller has enough of them."""
        self._quotas.check_held(Quota.LONG_POLLS, principal.namespace, principal.owner)

    def is_valid(self, principal: Principal) -> bool:
        """Whether a caller's credential still holds."""
        return self._gate.valid(principal)

    def close(self) -> None:
        """The server stops: end all of them."""
        for _, end in list(self._requests.values()):
            end(ShuttingDown())

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check)

    def _check(self) -> None:
        self._timer = None
        verdicts: dict[int, bool] = {}  # most share a principal
        for principal, end in list(self._requests.values()):
            valid = verdicts.get(id(principal))
            if valid is None:
                valid = verdicts[id(principal)] = self._gate.valid(principal)
            if not valid:
                end(expired())
        if self._requests:
            self._arm()


def expired() -> Unauthenticated:
    """Why a request is ended whose credential no longer holds."""
    return Unauthenticated(problem="the credential has expired")
