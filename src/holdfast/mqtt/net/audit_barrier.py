"""Releases the answers of durable turns in order; after an administrative act the audit log must be durable too.

A turn that waits for the audit log delays the turns after it, since the answers of a connection are one stream. That is
one sync of a small file, and only after administrative acts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from holdfast.errors import HoldfastError
from holdfast.mqtt.sessions.hub import Hub
from holdfast.mqtt.sessions.outbox import OutboxBatch

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class HeldTurn(msgspec.Struct, frozen=True):
    """A turn with answers that wait until it is durable; `administered`: and its entries in the audit log."""

    hub: Hub
    batch: OutboxBatch
    administered: bool


class AuditBarrier:
    """`synced` waits until everything that was written to the audit log is on disk, `release` sends a turn's
    answers."""

    def __init__(self, synced: Callable[[], Awaitable[None]], release: Callable[[HeldTurn], None]) -> None:
        self._synced = synced
        self._release = release
        self._waiting: deque[HeldTurn] = deque()
        self._task: asyncio.Task[None] | None = None

    def durable(self, turn: HeldTurn, error: HoldfastError | None) -> None:
        """The next turn's records are durable: release its answers as soon as possible. With an error they never will
        be, and the front cuts the connections."""
        if error is not None:
            return
        if not turn.administered and not self._waiting:
            self._release(turn)
            return
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._waiting:
            turn = self._waiting[0]
            try:
                if turn.administered:
                    await self._synced()
                self._release(turn)
            except Exception:
                log.exception("answers to clients over MQTT failed")  # those behind them are to go all the same
            self._waiting.popleft()

    async def finish(self) -> None:
        """Wait until nothing waits."""
        if self._task is not None:
            await asyncio.shield(self._task)
