"""Backups of a running node: the stream of backup/source.py, made on a thread of its own, as its client reads it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from uuid import uuid4

from holdfast import threads, wire
from holdfast.backup.source import Lake, stream
from holdfast.errors import LimitExceeded
from holdfast.store.contract import Store

BACKUPS_MAX = 1
"""Concurrent backups: each keeps files of the store from being deleted."""

LEAVE_SECONDS = 5.0  # for the thread to notice that its backup was ended, when the node stops


class Backups:
    """The backups of one node. `directory` must be on the store's file system, and is used for nothing else."""

    def __init__(self, store: Store, lake: Lake, directory: Path, clock: Callable[[], int]) -> None:
        self._store = store
        self._lake = lake
        self._directory = directory
        self._clock = clock
        self._streams: set[BackupStream] = set()

    def clear(self) -> None:
        """Remove what a crash left."""
        if self._store.name != "memory":
            shutil.rmtree(self._directory, ignore_errors=True)

    async def take(self, request: wire.BackupRequest) -> BackupStream:
        """Begin a backup. The caller must close the stream."""
        if len(self._streams) >= BACKUPS_MAX:
            raise LimitExceeded(
                what="The number of backups under way", limit=BACKUPS_MAX, advice="Wait for the other to end"
            )
        parts = stream(self._store, self._lake, self._directory / uuid4().hex, request, self._clock)
        taking = BackupStream(parts, self._streams.discard)
        self._streams.add(taking)
        try:
            await taking.begin()
        except BaseException:
            taking.close()
            raise
        return taking

    async def stop(self) -> None:
        """End what is under way, before the store is closed."""
        for taking in list(self._streams):
            taking.close()
            await threads.run_in_thread("holdfast-stop", taking.wait)


class BackupStream:
    """A backup under way."""

    def __init__(self, parts: Iterator[bytes], over: Callable[[BackupStream], None]) -> None:
        self._parts = parts
        self._over = over
        self._worker = threads.WorkerThread("holdfast-backup")
        self._first = b""
        self._closed = False

    async def begin(self) -> None:
        """Wait for its first bytes, so that an early failure is an error response and not a truncated one."""
        self._first = await self._read()

    async def _read(self) -> bytes:
        return await asyncio.wrap_future(self._worker.submit(next, self._parts, b""))

    async def parts(self) -> AsyncIterator[bytes]:
        """The stream. An error in the middle means that it is incomplete."""
        data, self._first = self._first, b""
        while data:
            yield data
            data = await self._read()

    def close(self) -> None:
        """End it, if it has not ended, and remove the copy. A second close does nothing."""
        if self._closed:
            return
        self._closed = True
        close: Callable[[], object] = getattr(self._parts, "close", lambda: None)
        self._worker.start(close)
        self._worker.end(0)
        self._over(self)

    def wait(self) -> None:
        """Wait for its thread to end."""
        self._worker.end(LEAVE_SECONDS)
