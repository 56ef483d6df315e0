"""Batches single calls.

Each call gets its own result, but calls that are made while a request is in flight share the next request: a hundred
handlers that ack at about the same time cost two requests, and a single call is sent immediately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

Perform = Callable[[list[Item]], Awaitable[Sequence[Result | Exception]]]
"""Performs all items in one request and returns one result for each."""

BATCH_MAX = 1_000
"""Items in one request. The server accepts 10,000; smaller requests keep the latency of each call low."""


BATCHERS_MAX = 1_000  # queues, and groups of queues, that have a call batcher


class CallBatcher(Generic[Item, Result]):
    """See the module. The weights of a batch's items add up to at most `weight_max`, so that requests stay small."""

    def __init__(
        self, perform: Perform[Item, Result], weight: Callable[[Item], int] = lambda _: 0, weight_max: int = 1
    ) -> None:
        self._perform = perform
        self._weight = weight
        self._weight_max = weight_max
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._task: asyncio.Task[None] | None = None

    async def put(self, item: Item) -> Result:
        """The result for this item; raises its error."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        try:
            while self._waiting:
                size = self._fitting()
                batch, self._waiting = self._waiting[:size], self._waiting[size:]
                await self._send([(item, future) for item, future in batch if not future.done()])
        finally:
            self._task = None
            for _, future in self._waiting:
                future.cancel()
            self._waiting = []

    def _fitting(self) -> int:
        """How many waiting items go into one request: at least one."""
        total = 0
        for index, (item, _) in enumerate(self._waiting[:BATCH_MAX]):
            total += self._weight(item)
            if total > self._weight_max and index:
                return index
        return min(len(self._waiting), BATCH_MAX)

    async def _send(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        if not batch:
            return
        try:
            results = await self._perform([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001 - raised where each waits
            results = [error] * len(batch)
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():
                continue  # the caller was cancelled
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    async def close(self) -> None:
        """Wait until all pending calls are done."""
        while self._task is not None:
            await asyncio.wait((self._task,))


Key = TypeVar("Key")


def add_bounded(batchers: dict[Key, CallBatcher[Item, Result]], key: Key, batcher: CallBatcher[Item, Result]) -> None:
    """Remember a call batcher for the next call. Beyond the limit the oldest are forgotten: calls that are in one are
    still performed."""
    batchers[key] = batcher
    while len(batchers) > BATCHERS_MAX:
        batchers.pop(next(iter(batchers)))
