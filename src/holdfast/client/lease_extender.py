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


class LeaseExtender:
    """See the module. One for each client, with one task that runs while there are leases to extend."""

    def __init__(self) -> None:
        self._extensions: dict[Message, _Extension] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._extending: set[asyncio.Task[None]] = set()

    def keep(self, message: Message, lease_seconds: float, longest_seconds: float) -> None:
        """Extend from now on, until the message is dropped or lost, or `longest_seconds` have passed: a handler that
        hangs must not hold its message for ever."""
        self._extensions[message] = _Extension(time.monotonic(), lease_seconds, longest_seconds)
        self._changed.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def drop(self, message: Message) -> None:
        self._extensions.pop(message, None)

    def is_extending(self, message: Message) -> bool:
        return message in self._extensions

    async def close(self) -> None:
        self._extensions.clear()
        tasks = [*self._extending, *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self) -> None:
        try:
            while self._extensions:
                self._changed.clear()
                soonest = min(min(each.at, each.until, each.ends_at) for each in self._extensions.values())
                pause = max(soonest - time.monotonic(), SHORTEST_PAUSE_SECONDS)
                try:
                    async with asyncio.timeout(pause):
                        await self._changed.wait()
                except TimeoutError:
                    self._extend_due()
        finally:
            self._task = None

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
            self._changed.set()

    def _lose(self, message: Message, why: str) -> None:
        self.drop(message)
        if message.lose():
            log.warning("%r %s", message, why)
