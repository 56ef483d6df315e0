"""Releases the answers of durable turns in order; after an administrative act the audit log must be durable too.

A turn that waits for the audit log delays the turns after it, since the answers of a connection are one stream. That is
one sync of a small file, and only after administrative acts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import structlog

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

ReleaseCallback = Callable[[], None]


class AuditBarrier:
    """`synced` waits until everything that was written to the audit log is on disk."""

    def __init__(self, synced: Callable[[], Awaitable[None]]) -> None:
        self._synced = synced
        self._waiting: deque[tuple[ReleaseCallback, bool]] = deque()
        self._task: asyncio.Task[None] | None = None

    def durable(self, release: ReleaseCallback, *, administered: bool) -> None:
        """The next turn's records are durable: release its answers as soon as possible."""
        if not administered and not self._waiting:
            release()
            return
        self._waiting.append((release, administered))
        if len(self._waiting) == 1:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._waiting:
            release, administered = self._waiting[0]
            try:
                if administered:
                    await self._synced()
                release()
            except Exception:
                log.exception("answers to clients over MQTT failed")  # those behind them are to go all the same
            self._waiting.popleft()

    async def finish(self) -> None:
        """Wait until nothing waits."""
        if self._task is not None:
            await asyncio.shield(self._task)
