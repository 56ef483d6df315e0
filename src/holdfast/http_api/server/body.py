"""The body of a request that did not arrive together with its head.

The connection feeds it. Until it is read, only little of it is buffered, and the client has to wait. It is then either
collected whole, which needs no task and does not stop the client, or read in pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from holdfast.errors import HoldfastError, RequestTimeout
from holdfast.patient_timer import PatientTimer

UNREAD_BYTES_MAX: Final = 64 << 10
"""How much is buffered that was not read yet."""

SMALL_BYTES: Final = 4 << 10
"""Parts of less than this are copied together: as objects of their own, tiny ones take 30 times their size."""

Part = bytes | bytearray


class ClientDisconnected(Exception):
    """The client closed the connection; a response cannot be sent."""


class Source(Protocol):
    """Where a body comes from: the connection."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


def add_part(parts: list[Part], data: bytes) -> None:
    """Add to what has arrived of a body."""
    if len(data) >= SMALL_BYTES:
        parts.append(data)
        return
    last = parts[-1] if parts else None
    if isinstance(last, bytearray):
        last += data
    else:
        parts.append(bytearray(data) if parts else data)


class Body:
    """See the module."""

    __slots__ = ("_account", "_done", "_error", "_failed", "_parts", "_source", "_timer", "_unread", "_wake", "ended")

    def __init__(self, source: Source, first: bytes) -> None:
        self._source = source
        self._parts: list[Part] = [first] if first else []
        self._unread = len(first)
        self._failed = False
        self._error: Exception | None = None  # for a reader that has yet to learn why
        self._account: Callable[[int], None] | None = None
        self._done: Callable[[Exception | None], None] | None = None
        self._timer: PatientTimer | None = None
        self._wake: asyncio.Future[None] | None = None
        self.ended = False

    # --- from the connection ----------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """The next piece has arrived."""
        if self._failed:
            return
        if self._account is not None:
            try:
                self._account(len(data))
            except HoldfastError as error:
                self.fail(error)
                return
            add_part(self._parts, data)
            return
        add_part(self._parts, data)
        self._unread += len(data)
        if self._unread > UNREAD_BYTES_MAX:
            self._source.pause_reading()
        self._notify()

    def end(self) -> None:
        """All of it has arrived."""
        self.ended = True
        self._finish(None)

    def fail(self, error: Exception) -> None:
        """The rest is not wanted, or will not arrive."""
        if not self._failed and not self.ended:
            self._failed = True
            self._error = error
            self._parts.clear()
            self._source.resume_reading()
            self._finish(error)

    def _finish(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        done, self._done, self._account = self._done, None, None  # they refer to what refers to this
        if done is not None:
            self._error = None
            done(error)
        self._notify()

    def _take_error(self) -> Exception:
        """Why it failed. It is not kept, since it then refers to what refers to this."""
        error, self._error = self._error, None
        return error or ClientDisconnected()

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    # --- from the reader --------------------------------------------------------------------------------------------

    def collect(
        self, account: Callable[[int], None], timeout_seconds: float, done: Callable[[Exception | None], None]
    ) -> None:
        """Take in all of it, then call `done`. `account` is called with the size of every piece and raises if that is
        too much."""
        if self._failed:
            raise self._take_error()
        account(self._unread)
        if self.ended:
            done(None)
            return
        self._account, self._done = account, done
        self._source.resume_reading()
        loop = asyncio.get_running_loop()
        self._timer = PatientTimer(loop, timeout_seconds, partial(self._time_out, timeout_seconds))

    def _time_out(self, seconds: float) -> None:
        self._timer = None
        self.fail(RequestTimeout(limit_seconds=int(seconds)))

    def take(self) -> bytes:
        """What is here."""
        content = b"".join(self._parts)
        self._parts.clear()
        self._unread = 0
        return content

    async def read(self, deadline: float, timeout_seconds: float) -> bytes:
        """The next piece; nothing at the end."""
        while not self._parts and not self.ended:
            if self._failed:
                raise self._take_error()
            self._source.resume_reading()
            self._wake = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._wake
            except TimeoutError:
                raise RequestTimeout(limit_seconds=int(timeout_seconds)) from None
            finally:
                self._wake = None
        return self.take()
