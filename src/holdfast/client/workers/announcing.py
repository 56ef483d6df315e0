"""Tells the server what this process works on, so that people see it there. Work does not depend on it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from holdfast import __version__, wire
from holdfast.client import calls
from holdfast.client.client import Client
from holdfast.errors import HoldfastError

log = logging.getLogger("holdfast.client")

EVERY_SECONDS: Final = 15.0
"""The server forgets a process after 45."""

WITHDRAW_SECONDS: Final = 1.0
"""How long the end of the process may wait for the server to hear of it."""

JOBS_SHOWN: Final = 20
"""Of one worker."""

Describe = Callable[[], list[wire.WorkerStatus]]


def job_of(message_id: str, began_at: float) -> wire.WorkerJob:
    """A message that was begun at this time."""
    return wire.WorkerJob(id=message_id, since=datetime.fromtimestamp(began_at, UTC).isoformat())


class Announcer:
    """See the module. `describe` says what its workers do now."""

    def __init__(self, client: Client, describe: Describe) -> None:
        self._client = client
        self._describe = describe
        self._task: asyncio.Task[None] | None = None
        self._draining = asyncio.Event()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def drain(self) -> None:
        """No more messages are taken."""
        self._draining.set()

    async def stop(self) -> None:
        """The process ends."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait((self._task,))
        with suppress(HoldfastError, TimeoutError):
            async with asyncio.timeout(WITHDRAW_SECONDS):
                await self._client.call(calls.withdraw_workers(self._client.name))

    async def _run(self) -> None:
        while True:
            draining = self._draining.is_set()
            announcement = wire.WorkerAnnouncement(
                host=socket.gethostname(),
                pid=os.getpid(),
                version=f"Python {__version__}",
                draining=draining,
                workers=self._describe(),
            )
            try:
                await self._client.call(calls.announce_workers(self._client.name, announcement))
            except HoldfastError as error:
                log.debug("the server was not told of this process: %s", error)
                if not error.retryable:  # an older server, say
                    return
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY_SECONDS):
                    await (asyncio.Event() if draining else self._draining).wait()
