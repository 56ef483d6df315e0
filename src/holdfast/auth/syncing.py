"""Syncs what was appended to files, on a thread. Only callers that need it to be on disk wait.

Everything that was written while a sync ran shares the next one.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import structlog

from holdfast import threads
from holdfast.files import sync_path

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class FileSyncer:
    """For one file that is appended to, and numbered when it is full. It has descriptors of its own, so that the writer
    may close its one at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._dirty: dict[tuple[int, int], int] = {}  # by device and inode, a descriptor to sync
        self._written = 0
        self._synced = 0
        self._task: asyncio.Task[None] | None = None

    def wrote(self, descriptor: int) -> None:
        """Something was appended. It is synced soon where a loop runs, else by `close`."""
        status = os.fstat(descriptor)
        place = (status.st_dev, status.st_ino)
        if place not in self._dirty:
            self._dirty[place] = os.dup(descriptor)
        self._written += 1
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())

    async def synced(self) -> None:
        """Wait until everything that was written before this call is on disk, or could not be."""
        target = self._written
        while self._synced < target:
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._run())
            await asyncio.shield(self._task)

    def close(self) -> None:
        """Sync what is left, here and now."""
        dirty, self._dirty = self._dirty, {}
        self._sync(list(dirty.values()))
        self._synced = self._written

    async def _run(self) -> None:
        while self._synced < self._written:
            target, (dirty, self._dirty) = self._written, (self._dirty, {})
            await threads.run_in_thread("holdfast-audit", self._sync, list(dirty.values()))
            self._synced = target

    def _sync(self, descriptors: list[int]) -> None:
        """The files, and the directory that names them."""
        try:
            for descriptor in descriptors:
                os.fsync(descriptor)
            if descriptors:
                sync_path(self._path.parent)
        except OSError as error:
            log.error("audit log cannot be synced", path=str(self._path), error=str(error))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
