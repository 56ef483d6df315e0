"""Room on the disk that a store keeps for the time when there is none left.

A settlement is a write, and a store that cannot write cannot be drained. So a file without content occupies some of the
disk. It is given up when the disk is full: leases and settlements go on in its place, messages are refused. It is made
again when there is twice as much room as it takes.

It must be enough for what an opening writes to tables before it deletes the logs. That is what was in memory: a write
buffer, and another one that was being flushed (`WRITE_BUFFERS_MIN`).
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import structlog

from holdfast.files import sync_path

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

WRITE_BUFFERS_MIN = 2
"""A smaller reserve would not be enough to open the store again."""

_BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system's own block size


class Reserve:
    """The file `path`, of `size_bytes`. None: for a store that is opened to look at it; what there is stays."""

    def __init__(self, path: Path, size_bytes: int | None) -> None:
        self._path = path
        self.size_bytes = size_bytes or 0
        self._kept = size_bytes is None
        self._refused = False  # the file system can reserve nothing: said once
        self._changing = threading.Lock()

    @property
    def missing_bytes(self) -> int:
        """What it should occupy and does not. Files are looked at, not remembered: it may be deleted by hand."""
        try:
            occupied = self._path.stat().st_blocks * _BLOCK_BYTES
        except OSError:
            occupied = 0
        return max(self.size_bytes - occupied, 0)

    def make(self, free_bytes: int) -> None:
        """Occupy it, if there is room for it and as much again."""
        if self._kept:
            return
        with self._changing:
            if not self.size_bytes:
                self._remove()
            elif not self._refused and self.missing_bytes and free_bytes >= 2 * self.size_bytes:
                try:
                    self._allocate()
                except OSError as error:
                    self._refused = True
                    self._remove()
                    log.warning("no room can be reserved on this disk", path=str(self._path), error=str(error))

    def _allocate(self) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, self.size_bytes)
            os.posix_fallocate(descriptor, 0, self.size_bytes)
        finally:
            os.close(descriptor)

    def give_up(self) -> bool:
        """Free what it occupies. Returns whether it occupied anything."""
        with self._changing:
            return self._remove()

    def _remove(self) -> bool:
        if not self._path.exists():
            return False
        self._path.unlink()
        sync_path(self._path.parent)
        return True
