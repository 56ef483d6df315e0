"""What the sender of a job has in hand: wait for its result, see how far it is, cancel it.

A worker that has `results=` sends what its function returns to the queue `results/<queue>`, under the job's id, before
it acks. So a result is there once, also if the worker dies in between, for as long as that queue keeps its messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import msgspec

from holdfast import wire
from holdfast.client import calls
from holdfast.client.client import Client
from holdfast.client.drafts import JSON, draft
from holdfast.client.messages import Message
from holdfast.client.portal import Portal
from holdfast.client.times import Duration, optional_duration, seconds
from holdfast.client.workers.context import client_elsewhere, client_here, sync_client_here
from holdfast.errors import GroupNotFound, MessageNotFound, NoResult, QueueNotFound, ResultTimeout

Value = TypeVar("Value")

PREFIX: Final = "results/"
OUTCOME: Final = "outcome"
DONE: Final = "done"
FAILED: Final = "failed"
LOOK_SECONDS: Final = 10.0
"""How long a wait lasts before it is looked whether the job is still there: one that died leaves no result."""


class Progress(msgspec.Struct, frozen=True):
    """How far a job is, as it has said itself."""

    percent: float
    text: str = ""


class Job(msgspec.Struct, frozen=True):
    """A job that was sent. One whose id was kept is made again by `Worker.job`."""

    id: str
    queue: str
    duplicate: bool = False
    """Whether it had been sent before, under this id."""
    group: str = "default"

    async def result(self, timeout: Duration = "30s") -> Any:  # noqa: ASYNC109 - of the job, not of this call
        """What its function has returned. Waits for it; raises `NoResult` if the job has failed for good or is gone,
        `ResultTimeout` if it has not ended in time.

        The worker must keep results (`@worker(…, results="1h")`); the sender needs `consume` for `results/<queue>` and
        for the queue.
        """
        return await self._result(client_here(), seconds(timeout, "timeout"))

    async def _result(self, client: Client, timeout_seconds: float) -> Any:
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_seconds
        while True:
            left = max(until - loop.time(), 0.0)
            try:
                return await self._kept(client, min(left, LOOK_SECONDS))
            except (MessageNotFound, QueueNotFound):
                if not await self._is_live(client):
                    return await self._left_behind(client)
                if left <= LOOK_SECONDS:
                    raise ResultTimeout(job=self.id, queue=self.queue, timeout_seconds=timeout_seconds) from None

    async def progress(self) -> Progress | None:
        """How far it is, as its function has said by `report_progress`; None: it has said nothing, or has ended."""
        return await self._progress(client_here())

    async def _progress(self, client: Client) -> Progress | None:
        try:
            state = await client.call(calls.state(self.queue, self.id, self.group, ""))
        except (MessageNotFound, GroupNotFound):
            return None
        return state.json(Progress) if state.data else None

    async def cancel(self) -> bool:
        """Remove it, whether it waits or runs. False: it has ended already. Needs `admin` for the queue.

        A function that runs is cancelled when its lease is extended next, at most a third of the queue's
        `delivery_timeout` later; one on a thread sees it on its message.
        """
        return await self._cancel(client_here())

    async def _cancel(self, client: Client) -> bool:
        try:
            await client.call(calls.delete_message(self.queue, self.id, leased=True))
        except MessageNotFound:
            return False
        return True

    def result_sync(self, timeout: Duration = "30s") -> Any:
        """`result` for code that is not asynchronous."""
        return _run(lambda client: self._result(client, seconds(timeout, "timeout")))

    def progress_sync(self) -> Progress | None:
        """`progress` for code that is not asynchronous."""
        return _run(self._progress)

    def cancel_sync(self) -> bool:
        """`cancel` for code that is not asynchronous."""
        return _run(self._cancel)

    async def _kept(self, client: Client, wait_seconds: float) -> Any:
        found = await client.call(calls.named_message(PREFIX + self.queue, self.id, wait_seconds))
        body = found.base64 if isinstance(found.base64, bytes) else b""
        if found.properties.get(OUTCOME) == FAILED:
            raise NoResult(job=self.id, queue=self.queue, problem=body.decode(errors="replace"))
        if found.content_type == JSON:
            return msgspec.json.decode(body)
        return body if found.properties.get("type") == "bytes" else body.decode()

    async def _is_live(self, client: Client) -> bool:
        try:
            await client.message(self.queue, self.id)
        except (MessageNotFound, QueueNotFound):
            return False
        return True

    async def _left_behind(self, client: Client) -> Any:
        """The job is gone. It may have ended since its result was looked for."""
        try:
            return await self._kept(client, 0)
        except (MessageNotFound, QueueNotFound):
            problem = "it has left its queue without one: it died, expired or was deleted, or its result has expired"
            raise NoResult(job=self.id, queue=self.queue, problem=problem) from None


def _run(work: Callable[[Client], Coroutine[Any, Any, Value]]) -> Value:
    """Do asynchronous work for code that is not: on the loop of the worker whose thread this is, or of a client."""
    elsewhere = client_elsewhere()
    if elsewhere is not None:
        return Portal.of(elsewhere[1]).run(work(elsewhere[0]))
    return sync_client_here().run(work)


# --- what a worker does --------------------------------------------------------------------------------------------


class Results:
    """Where a worker keeps the results of its jobs, and for how long."""

    def __init__(self, queue: str, keep: Duration) -> None:
        self.queue = PREFIX + queue
        self._keep = optional_duration(keep)

    async def open(self, client: Client) -> None:
        """Create the queue if it does not exist. Nobody consumes it: messages expire, and are then dropped."""
        config = {
            "partitions": 1,
            "ordering": "none",
            "max_depth": 0,
            "message_ttl": self._keep,
            "dedup_window": self._keep,
            "dlq": {"enabled": False},
        }
        await client.create_queue(self.queue, config, exist_ok=True)

    def done(self, message: Message, result: object) -> wire.Draft:
        """The message that keeps a result."""
        kind = {"type": "bytes"} if isinstance(result, (bytes, bytearray, memoryview)) else {}
        return draft(result, message_id=message.id, ttl=self._keep, properties={OUTCOME: DONE, **kind})

    def failed(self, message: Message, error: str) -> wire.Draft:
        """The message that says that there is none."""
        return draft(error, message_id=message.id, ttl=self._keep, properties={OUTCOME: FAILED})

    async def keep(self, client: Client, result: wire.Draft) -> None:
        """Send it. Sent again, it is the same."""
        (await client.send_many(self.queue, [result])).check()
