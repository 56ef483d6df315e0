"""Work that ends when its lease does: another consumer may have the message then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from holdfast.errors import LeaseLost


class Losable(Protocol):
    """A message whose lease can be lost."""

    @property
    def id(self) -> str: ...
    @property
    def lost(self) -> bool: ...
    def on_lost(self, callback: Callable[[], None]) -> None: ...


class LeaseScope:
    """Cancels the task inside it when the lease is lost, and turns that into `LeaseLost`, as `asyncio.timeout` does
    with a deadline."""

    def __init__(self, message: Losable) -> None:
        self._message = message
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._cancelled = False

    def enter(self) -> None:
        """Begin. Raises LeaseLost if the lease is lost already."""
        if self._message.lost:
            raise LeaseLost(message_id=self._message.id)
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancelling = self._task.cancelling()
        self._message.on_lost(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._cancelled = True
            self._task.cancel()

    def leave(self, error: BaseException | None) -> None:
        """End. Raises LeaseLost instead of the cancellation that the loss has caused."""
        task, self._task = self._task, None
        if (
            self._cancelled
            and task is not None
            and task.uncancel() <= self._cancelling
            and isinstance(error, asyncio.CancelledError)
        ):
            raise LeaseLost(message_id=self._message.id) from error

    async def __aenter__(self) -> None:
        self.enter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave(error)
