"""Extends the leases of messages that are being worked on, so that a handler may take longer than a lease.

A lease is extended when a third of it has passed: two extensions may fail before it is lost.
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
    """When a message's lease is to be extended next, and until when."""

    __slots__ = ("at", "lease_seconds", "until")

    def __init__(self, at: float, lease_seconds: float, until: float) -> None:
        self.at = at
        self.lease_seconds = lease_seconds
        self.until = until


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
        now = time.monotonic()
        self._extensions[message] = _Extension(
            now + lease_seconds / EXTENSIONS_PER_LEASE, lease_seconds, now + longest_seconds
        )
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
                soonest = min(extension.at for extension in self._extensions.values())
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
                log.warning("%r was held for too long; its lease is no longer extended", message)
                self.drop(message)
            elif extension.at <= now:
                extension.at = now + extension.lease_seconds
                task = asyncio.create_task(self._extend(message, extension))
                self._extending.add(task)
                task.add_done_callback(self._extending.discard)

    async def _extend(self, message: Message, extension: _Extension) -> None:
        try:
            await message.extend(extension.lease_seconds)
        except LeaseLost:
            if self.is_extending(message):  # else it was settled meanwhile
                log.warning("the lease of %r is lost; another consumer may be working on the message now", message)
                self.drop(message)
        except Exception as error:  # noqa: BLE001 - nobody waits here; the handler finds out when it settles
            log.warning("the lease of %r could not be extended: %s", message, error)
        finally:
            extension.at = time.monotonic() + extension.lease_seconds / EXTENSIONS_PER_LEASE
            self._changed.set()
