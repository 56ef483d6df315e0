"""Settlements of one queue and group, in batches.

Each is answered by itself, but those that come while a request is under way share the next one: a hundred handlers that
ack at about the same time cost two requests, and a single one waits for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from holdfast import wire
from holdfast.client.answers import error_of
from holdfast.client.calls import Call, settle

BATCH_MAX = 1_000
"""Settlements in one request. The server takes 10,000; smaller ones keep each answer's way short."""

Perform = Callable[[Call[wire.Settled]], Awaitable[wire.Settled]]
_Waiting = tuple[wire.Settlement, "asyncio.Future[str | None]"]


class Lane:
    """See the module."""

    def __init__(self, queue: str, group: str, perform: Perform) -> None:
        self._queue = queue
        self._group = group
        self._perform = perform
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None

    async def settle(self, settlement: wire.Settlement) -> str | None:
        """Returns when it is durable: the new deadline if it extends. Raises what refused it."""
        future: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((settlement, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
                await self._send([(settlement, future) for settlement, future in batch if not future.done()])
        finally:
            self._task = None
            for _, future in self._waiting:
                future.cancel()
            self._waiting = []

    async def _send(self, batch: list[_Waiting]) -> None:
        if not batch:
            return
        try:
            answer = await self._perform(settle(self._queue, self._group, [settlement for settlement, _ in batch]))
        except Exception as error:  # noqa: BLE001 - raised where each waits
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise
        refused = {item.index: item for item in answer.errors}
        for index, (settlement, future) in enumerate(batch):
            if future.done():
                continue  # whoever asked has stopped waiting
            if index in refused:
                future.set_exception(error_of(refused[index]))
            else:
                future.set_result(answer.deadlines.get(settlement.id))

    async def close(self) -> None:
        """Wait until everything that was asked for is settled."""
        while self._task is not None:
            await asyncio.wait((self._task,))
