"""Single calls that travel together.

Each is answered by itself, but those that come while a request is under way share the next one: a hundred handlers that
ack at about the same time cost two requests, and a single one waits for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

Perform = Callable[[list[Item]], Awaitable[Sequence[Result | Exception]]]
"""Does all of them in one request: for each what came of it."""

BATCH_MAX = 1_000
"""Items in one request. The server takes 10,000; smaller ones keep each answer's way short."""


class CallBatcher(Generic[Item, Result]):
    """See the module. `weight` of an item counts against `weight_max` of a batch, so that requests stay small."""

    def __init__(
        self, perform: Perform[Item, Result], weight: Callable[[Item], int] = lambda _: 0, weight_max: int = 1
    ) -> None:
        self._perform = perform
        self._weight = weight
        self._weight_max = weight_max
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._task: asyncio.Task[None] | None = None

    async def put(self, item: Item) -> Result:
        """What came of it; raises what refused it."""
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
        """How many of those that wait go into one request: one at least."""
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
                continue  # whoever asked has stopped waiting
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    async def close(self) -> None:
        """Wait until everything that was asked for is done."""
        while self._task is not None:
            await asyncio.wait((self._task,))
