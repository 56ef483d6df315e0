"""Publishers wait for subscribers that read.

A connection that has more unsent output than it may buffer is paused, and QoS 0 messages for it are dropped until it
has read. A subscriber that reads as fast as it can is paused too, for a moment, when a burst comes. Until it has caught
up, nothing is read from the publishers of its namespace, so that it loses nothing and no buffer grows.

One that does not read must not stop the others: each connection has a second of patience, which comes back by a tenth
of the time that passes. When that is used up, publishers no longer wait for it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, Protocol

PATIENCE_SECONDS: Final = 1.0
PATIENCE_RETURN: Final = 0.1
"""Seconds of patience that come back in a second."""

_REASON: Final = "subscribers"


class Publisher(Protocol):
    """A link from which nothing is read while there is a reason."""

    def hold(self, why: str) -> None: ...
    def unhold(self, why: str) -> None: ...


class _Patience:
    """How long publishers still wait for a connection."""

    __slots__ = ("_at", "_left", "timer")

    def __init__(self, now: float) -> None:
        self._left = PATIENCE_SECONDS
        self._at = now
        self.timer: asyncio.TimerHandle | None = None

    def left(self, now: float) -> float:
        return min(PATIENCE_SECONDS, self._left + (now - self._at) * PATIENCE_RETURN)

    def begin(self, now: float) -> None:
        self._left, self._at = self.left(now), now

    def end(self, now: float) -> None:
        self._left, self._at = max(0.0, self._left - (now - self._at)), now


class Backpressure:
    """One namespace: its publishers, and the paused connections that they wait for."""

    __slots__ = ("_loop", "_patience", "_publishers", "_waited_for")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._publishers: dict[Publisher, None] = {}  # in the order of their coming, so that a run can be repeated
        self._waited_for: set[Publisher] = set()
        self._patience: dict[Publisher, _Patience] = {}  # of connections that were paused

    def publishes(self, link: Publisher) -> None:
        """The link has published to subscribers."""
        if link not in self._publishers:
            self._publishers[link] = None
            if self._waited_for:
                link.hold(_REASON)

    def paused(self, link: Publisher) -> None:
        now = self._loop.time()
        patience = self._patience.setdefault(link, _Patience(now))
        left = patience.left(now)
        if left <= 0:
            return
        patience.begin(now)
        patience.timer = self._loop.call_later(left, partial(self.resumed, link))
        self._waited_for.add(link)
        if len(self._waited_for) == 1:
            for publisher in self._publishers:
                publisher.hold(_REASON)

    def resumed(self, link: Publisher) -> None:
        """The connection has sent what it had, or has been waited for long enough."""
        if link not in self._waited_for:
            return
        patience = self._patience[link]
        patience.end(self._loop.time())
        assert patience.timer is not None
        patience.timer.cancel()
        self._waited_for.discard(link)
        if not self._waited_for:
            for publisher in self._publishers:
                publisher.unhold(_REASON)

    def lost(self, link: Publisher) -> None:
        self.resumed(link)
        self._publishers.pop(link, None)
        self._patience.pop(link, None)

    @property
    def idle(self) -> bool:
        """Whether nothing of it is needed any more."""
        return not self._publishers and not self._patience
