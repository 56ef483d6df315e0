"""The log that takes RocksDB's writes, so that it can be synced without RocksDB.

RocksDB's own sync makes every log durable, also those it has left, and their names in the directory. It blocks, so it
needs a thread. A log that it has synced once has a durable name, and if everything written since went to that log,
fdatasync of it is all that another sync has to do. What tells that everything went there:

    RocksDB numbers its logs upwards, writes to the last one, and uses none again. So if there is no log with a higher
    number, everything since its sync went to this one (`_follow`).
    A write is in a log, whole, when the write returns. So from then on the log must have grown with each (`written`).

Where one of these does not hold, the next sync is RocksDB's. What a log had that was left and deleted is in tables,
which RocksDB has synced.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


class LiveLog:
    """The live log of an open database in the directory `data`. `before_sync` and `after_sync` may be called on any
    thread, the others on the writer's."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._synced: int | None = None  # a log that RocksDB has synced once
        self._file: int | None = None
        self._size = 0

    def written(self) -> None:
        """RocksDB has written something. To be called after each write."""
        if self._file is None:
            return
        size = os.lseek(self._file, 0, os.SEEK_END)
        if size > self._size:
            self._size = size
        else:
            self.leave()

    def before_sync(self) -> int | None:
        """Before a sync of RocksDB's: the number of the last log that has something, which that sync includes."""
        if self._file is not None:
            return None
        return max((number for number, entry in self._logs() if _size(entry)), default=None)

    def after_sync(self, included: int | None) -> None:
        """RocksDB's sync has succeeded."""
        if included is not None:
            self._synced = included

    @property
    def file(self) -> int | None:
        """The log whose sync makes everything written so far durable; None: the sync must be RocksDB's."""
        if self._file is None and self._synced is not None:
            number, self._synced = self._synced, None
            self._follow(number)
        return self._file

    def _follow(self, number: int) -> None:
        if max((other for other, _ in self._logs()), default=None) != number:
            return
        try:
            self._file = os.open(self._data / f"{number:06d}.log", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # deleted meanwhile
            return
        self._size = os.lseek(self._file, 0, os.SEEK_END)

    def leave_deleted(self) -> None:
        """Give the space of a log back that RocksDB has deleted."""
        if self._file is not None and not os.fstat(self._file).st_nlink:
            self.leave()

    def leave(self) -> None:
        """Have RocksDB do the next sync."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _logs(self) -> Iterator[tuple[int, os.DirEntry[str]]]:
        with os.scandir(self._data) as entries:
            for entry in entries:
                name, _, kind = entry.name.partition(".")
                if kind == "log" and name.isdecimal():
                    yield int(name), entry


def _size(log: os.DirEntry[str]) -> int:
    """0 if RocksDB has deleted it meanwhile."""
    try:
        return log.stat().st_size
    except FileNotFoundError:
        return 0
