"""How much room the lake takes. To find out is to look at every file, so that is done rarely, and on a thread: the lake
may be on a disk that does not answer."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

import msgspec
import structlog

from holdfast import threads
from holdfast.journal.manifest import segment_files

log = structlog.get_logger()

VALID_SECONDS: Final = 300.0
FIRST_SECONDS: Final = 2.0
"""How long the first caller waits, who would know nothing otherwise."""


class LakeSize(msgspec.Struct, frozen=True):
    """What was found: the bytes of all files, of tables and quarantine too, and the segments of the journal."""

    size_bytes: int
    segments: int


def measure(lake: Path) -> LakeSize:
    """Look at every file. A file that goes away meanwhile does not count."""
    size_bytes = 0
    for directory, _, files in os.walk(lake):
        for name in files:
            try:
                size_bytes += Path(directory, name).lstat().st_size
            except FileNotFoundError:
                continue
    return LakeSize(size_bytes, sum(1 for _ in segment_files(lake / "journal")))


class LakeMeter:
    """Measures when somebody asks and what is known is old."""

    def __init__(self, lake: Path) -> None:
        self._lake = lake
        self._size: LakeSize | None = None
        self._measured_at = 0.0
        self._task: asyncio.Task[None] | None = None

    async def read(self, wait_seconds: float = FIRST_SECONDS) -> LakeSize | None:
        """What was found last, some minutes ago at most; None: nothing yet."""
        loop = asyncio.get_running_loop()
        if self._task is None and (self._size is None or loop.time() - self._measured_at >= VALID_SECONDS):
            self._task = loop.create_task(self._measure())
        if self._size is None and self._task is not None:
            await asyncio.wait({self._task}, timeout=wait_seconds)
        return self._size

    async def _measure(self) -> None:
        try:
            self._size = await threads.run_in_thread("holdfast-lake-size", lambda: measure(self._lake))
        except OSError as error:
            log.warning("the size of the lake cannot be found out", lake=str(self._lake), error=str(error))
        finally:
            self._measured_at = asyncio.get_running_loop().time()
            self._task = None

    def stop(self) -> None:
        """A thread that hangs is left alone."""
        if self._task is not None:
            self._task.cancel()
