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

PARTS_OF_A_LEASE = 3
SHORTEST_PAUSE_SECONDS = 0.01  # whatever the lease, no more than a hundred rounds a second


class _Kept:
    """When a message's lease is to be extended next, and for how long that goes on."""

    __slots__ = ("at", "lease_seconds", "until")

    def __init__(self, at: float, lease_seconds: float, until: float) -> None:
        self.at = at
        self.lease_seconds = lease_seconds
        self.until = until


class Keeper:
    """See the module. One for each client, with one task that runs while there is something to keep."""

    def __init__(self) -> None:
        self._kept: dict[Message, _Kept] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._extending: set[asyncio.Task[None]] = set()

    def keep(self, message: Message, lease_seconds: float, longest_seconds: float) -> None:
        """From now on, until it is dropped, lost, or `longest_seconds` have passed: a handler that hangs must not hold
        its message for ever."""
        now = time.monotonic()
        self._kept[message] = _Kept(now + lease_seconds / PARTS_OF_A_LEASE, lease_seconds, now + longest_seconds)
        self._changed.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def drop(self, message: Message) -> None:
        self._kept.pop(message, None)

    def keeps(self, message: Message) -> bool:
        return message in self._kept

    async def close(self) -> None:
        self._kept.clear()
        tasks = [*self._extending, *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self) -> None:
        try:
            while self._kept:
                self._changed.clear()
                soonest = min(kept.at for kept in self._kept.values())
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
        for message, kept in list(self._kept.items()):
            if kept.until <= now:
                log.warning("%r was held for too long; its lease is no longer extended", message)
                self.drop(message)
            elif kept.at <= now:
                kept.at = now + kept.lease_seconds
                task = asyncio.create_task(self._extend(message, kept))
                self._extending.add(task)
                task.add_done_callback(self._extending.discard)

    async def _extend(self, message: Message, kept: _Kept) -> None:
        try:
            await message.extend(kept.lease_seconds)
        except LeaseLost:
            if self.keeps(message):  # else it was settled meanwhile
                log.warning("the lease of %r is lost; somebody else may be working on it now", message)
                self.drop(message)
        except Exception as error:  # noqa: BLE001 - nobody waits here; the handler finds out when it settles
            log.warning("the lease of %r could not be extended: %s", message, error)
        finally:
            kept.at = time.monotonic() + kept.lease_seconds / PARTS_OF_A_LEASE
            self._changed.set()
