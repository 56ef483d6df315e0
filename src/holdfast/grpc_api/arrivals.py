"""What clients may occupy before anything is known of what they send: connections, and requests that arrive slowly.

gRPC's library has no number of the bytes of a message that has arrived in part, and gives it room for all of it. So
what is bounded is how many such messages there are: one that is not here within a second counts, and past the bound
the oldest is refused of the caller that has most of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from holdfast.auth.principal import Principal
from holdfast.errors import Overloaded
from holdfast.quotas import Quota, Quotas

SLOW_SECONDS: Final = 1.0
"""A request that takes no longer to arrive is not counted."""

STRANGERS_MAX: Final = 4
"""Slow requests of callers who need no credential, since it takes a message of a few bytes to ask for health."""

Owner = tuple[str, str]


class _Arrival:
    """A request that is awaited."""

    __slots__ = ("is_refused", "owner", "task")

    def __init__(self, owner: Owner, task: asyncio.Task[object]) -> None:
        self.owner = owner
        self.task = task
        self.is_refused = False


class SlowArrivals:
    """Requests that arrive slowly, at most so many at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._slow: dict[_Arrival, None] = {}  # the oldest first

    @contextmanager
    def awaiting(self, principal: Principal) -> Iterator[None]:
        """While a request is awaited. Raises Overloaded if it has to make room for others."""
        task = asyncio.current_task()
        assert task is not None
        arrival = _Arrival((principal.namespace, principal.identity), task)
        timer = asyncio.get_running_loop().call_later(SLOW_SECONDS, self._is_slow, arrival)
        try:
            yield
        except asyncio.CancelledError:
            if not arrival.is_refused:
                raise
            task.uncancel()
            raise Overloaded(waiting=self._most) from None
        finally:
            timer.cancel()
            self._slow.pop(arrival, None)

    def _is_slow(self, arrival: _Arrival) -> None:
        self._slow[arrival] = None
        if len(self._slow) > self._most:
            most = Counter(one.owner for one in self._slow).most_common(1)[0][0]
            refused = next(one for one in self._slow if one.owner == most)
            del self._slow[refused]
            refused.is_refused = True
            refused.task.cancel()

    def __len__(self) -> int:
        return len(self._slow)


class Connections:
    """Connections that have calls, each counted for the caller of its first. Those without calls are closed by gRPC
    after a while."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._calls: dict[str, int] = {}
        self._principals: dict[str, Principal] = {}

    @contextmanager
    def used(self, connection: str, principal: Principal) -> Iterator[None]:
        """While a call runs. Raises QuotaExceeded if the caller has too many connections."""
        calls = self._calls.get(connection, 0)
        if not calls:
            self._quotas.acquire(Quota.CONNECTIONS, principal.namespace, principal.owner)
            self._principals[connection] = principal
        self._calls[connection] = calls + 1
        try:
            yield
        finally:
            self._leave(connection)

    def _leave(self, connection: str) -> None:
        left = self._calls[connection] - 1
        if left:
            self._calls[connection] = left
            return
        del self._calls[connection]
        principal = self._principals.pop(connection)
        self._quotas.release(Quota.CONNECTIONS, principal.namespace, principal.owner)
