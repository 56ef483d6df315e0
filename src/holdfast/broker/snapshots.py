"""Snapshots of a running node: its store is copied, and another process reads the copy.

The copy is of one moment between two commits, and takes hard links and milliseconds. Reading it takes seconds for a
large backlog: so a separate process does it, which shares neither the loop nor the GIL with the node, and streams its
output as fast as the client reads. The copy is removed when the stream ends, or by the next start.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import uuid4

import structlog

from holdfast import threads
from holdfast.errors import LimitExceeded, SnapshotFailed
from holdfast.store.contract import Store

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

SNAPSHOTS_MAX = 1
"""Concurrent snapshots: each keeps files of the store from being deleted, and a core busy."""

CHUNK_BYTES = 1 << 18
PROBLEM_BYTES_MAX = 2_000


class Snapshots:
    """The snapshots of one node. `directory` must be on the store's file system, and is used for nothing else."""

    def __init__(self, store: Store, directory: Path, node: int, clock: Callable[[], int]) -> None:
        self._store = store
        self._directory = directory
        self._node = node
        self._clock = clock
        self._active = 0

    def clear(self) -> None:
        """Remove what a crash left. A store in memory has no copies: files there belong to another node."""
        if self._store.name != "memory":
            shutil.rmtree(self._directory, ignore_errors=True)

    async def take(self) -> SnapshotStream:
        """Copy the store and begin to read the copy. The caller must close the stream."""
        if self._active >= SNAPSHOTS_MAX:
            raise LimitExceeded(
                what="The number of snapshots under way", limit=SNAPSHOTS_MAX, advice="Wait for the other to end"
            )
        self._active += 1
        copy = self._directory / uuid4().hex
        try:
            await threads.run_in_thread("holdfast-copy", self._store.copy_to, copy)
            process = await asyncio.create_subprocess_exec(
                *(
                    sys.executable,
                    "-m",
                    "holdfast.broker.snapshot_dump",
                    str(copy),
                    str(self._node),
                    str(self._clock()),
                ),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except BaseException:
            self._over(copy)
            raise
        stream = SnapshotStream(process, lambda: self._over(copy))
        try:
            await stream.begin()
        except BaseException:
            stream.close()
            raise
        return stream

    def _over(self, copy: Path) -> None:
        self._active -= 1
        shutil.rmtree(copy, ignore_errors=True)


class SnapshotStream:
    """A snapshot under way."""

    def __init__(self, process: asyncio.subprocess.Process, over: Callable[[], None]) -> None:
        self._process = process
        self._over: Callable[[], None] | None = over
        self._first = b""

    async def begin(self) -> None:
        """Wait for its first bytes, so that an early failure is an error response and not a truncated one."""
        self._first = await self._read()

    async def _read(self) -> bytes:
        assert self._process.stdout is not None
        data = await self._process.stdout.read(CHUNK_BYTES)
        if not data and await self._process.wait():
            assert self._process.stderr is not None
            said = (await self._process.stderr.read())[-PROBLEM_BYTES_MAX:].decode(errors="replace").strip()
            log.error("a snapshot failed", said=said)
            raise SnapshotFailed(problem=said.rpartition("\n")[2] or "its process ended")
        return data

    async def parts(self) -> AsyncIterator[bytes]:
        """The Arrow streams in chunks. An error in the middle means that they are incomplete."""
        data, self._first = self._first, b""
        while data:
            yield data
            data = await self._read()

    def close(self) -> None:
        """End it, if it has not ended, and remove the copy. A second close does nothing."""
        if self._over is None:
            return
        if self._process.returncode is None:
            self._process.kill()
        over, self._over = self._over, None
        over()
