"""Extends the leases of messages that are being worked on, so that a handler may take longer than a lease.

A lease is extended when a third of it has passed: two extensions may fail before it is lost. A lease that the server
does not extend, or that must have ended while the server could not be reached, is lost: the message's handler is
cancelled, or sees it on the message.
"""

from __future__ import annotations

import asyncio
import logging
import time

from holdfast.client.messages import Message
from holdfast.errors import LeaseLost

log = logging.getLogger("holdfast.client")

EXTENSIONS_PER_LEASE = 3
SHORTEST_PAUSE_SECONDS = 0.01  # at most a hundred rounds a second, however short the leases


class _Extension:
    """When a message's lease is to be extended next, until when, and when it ends if it is not extended."""

    __slots__ = ("at", "ends_at", "lease_seconds", "until")

    def __init__(self, now: float, lease_seconds: float, longest_seconds: float) -> None:
        self.at = now + lease_seconds / EXTENSIONS_PER_LEASE
        self.lease_seconds = lease_seconds
        self.until = now + longest_seconds
        self.ends_at = now + lease_seconds

    @property
    def due_at(self) -> float:
        """When something is to be done about it."""
        return min(self.at, self.until, self.ends_at)


class LeaseExtender:
    """See the module. One for each client, with one timer that runs while there are leases to extend."""

    def __init__(self) -> None:
        self._extensions: dict[Message, _Extension] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = 0.0
        self._extending: set[asyncio.Task[None]] = set()

    def keep(self, message: Message, lease_seconds: float, longest_seconds: float) -> None:
        """Extend from now on, until the message is dropped or lost, or `longest_seconds` have passed: a handler that
        hangs must not hold its message for ever."""
        extension = _Extension(time.monotonic(), lease_seconds, longest_seconds)
        self._extensions[message] = extension
        self._wake_by(extension.due_at)

    def drop(self, message: Message) -> None:
        self._extensions.pop(message, None)

    def is_extending(self, message: Message) -> bool:
        return message in self._extensions

    async def close(self) -> None:
        self._extensions.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._extending:
            task.cancel()
        if self._extending:
            await asyncio.wait(self._extending)

    def _wake_by(self, moment: float) -> None:
        """Look after the leases at this moment. A timer that is due before is left: it finds when to look next."""
        if self._timer is not None:
            if self._wakes_at <= moment:
                return
            self._timer.cancel()
        pause = max(moment - time.monotonic(), SHORTEST_PAUSE_SECONDS)
        self._wakes_at = moment
        self._timer = asyncio.get_running_loop().call_later(pause, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._extend_due()
        if self._extensions:
            self._wake_by(min(each.due_at for each in self._extensions.values()))

    def _extend_due(self) -> None:
        now = time.monotonic()
        for message, extension in list(self._extensions.items()):
            if extension.until <= now:
                self._lose(message, "was held for too long; its lease is no longer extended")
            elif extension.ends_at <= now:
                self._lose(message, "has lost its lease, which could not be extended in time")
            elif extension.at <= now:
                extension.at = now + extension.lease_seconds
                task = asyncio.create_task(self._extend(message, extension))
                self._extending.add(task)
                task.add_done_callback(self._extending.discard)

    async def _extend(self, message: Message, extension: _Extension) -> None:
        asked_at = time.monotonic()
        try:
            await message.extend(extension.lease_seconds)
            extension.ends_at = asked_at + extension.lease_seconds
        except LeaseLost:
            self._lose(message, "has lost its lease; another consumer may be working on the message now")
        except Exception as error:  # noqa: BLE001 - nobody waits here; if it lasts, the lease is lost
            log.warning("the lease of %r could not be extended: %s", message, error)
        finally:
            extension.at = time.monotonic() + extension.lease_seconds / EXTENSIONS_PER_LEASE
            if message in self._extensions:
                self._wake_by(extension.due_at)

    def _lose(self, message: Message, why: str) -> None:
        self.drop(message)
        if message.lose():
            log.warning("%r %s", message, why)
