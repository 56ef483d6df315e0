"""A file that may change while the server runs: it is looked at now and then, and read again when it differs.

A file that cannot be read or makes no sense any more changes nothing: what was read last still holds, and the log says
so once. A slip in an editor must not lock everybody out. A file that was emptied or deleted is no slip: who lets in by
it lets in nobody any more.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

import structlog

from holdfast.errors import InvalidConfig

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

FILE_BYTES_MAX: Final = 64 << 20
"""Larger files are refused unread: 10,000 users with 100 scopes each are some 30 MiB."""

T = TypeVar("T")
Stamp = tuple[int, int, int, int]


class Emptied(ValueError):
    """Raised when a file is read that holds nothing, and so lets nobody in. Its text completes "The file ..."."""


class Watched(Generic[T]):
    """A file and what was read from it. `read` raises ValueError whose text completes "The file ..."; `nobody` is what
    holds when the file is gone or emptied, None: what was read last."""

    def __init__(
        self,
        setting: str,
        path: Path,
        read: Callable[[bytes], T],
        is_secret: Callable[[T], bool],
        nobody: T | None,
        interval: int,
        now: int,
    ) -> None:
        """Raises InvalidConfig if the file is not good: then the server does not start."""
        self._setting = setting
        self._is_secret = is_secret
        self._nobody = nobody
        self._path = path
        self._read = read
        self._interval = interval
        self._checked_at = now
        self._failed: Stamp | None = None
        self.value, self._stamp = self._load()

    def refresh(self, now: int) -> bool:
        """Whether there is something new. Looks no more often than the interval says, or when the clock went back."""
        if 0 <= now - self._checked_at < self._interval:
            return False
        self._checked_at = now
        try:
            stamp = _stamp(self._path.stat())
        except OSError:
            stamp = (0, 0, 0, 0)
        if stamp in (self._stamp, self._failed):
            return False
        try:
            self.value, self._stamp = self._load()
        except InvalidConfig as error:
            if self._nobody is not None and isinstance(error.__cause__, Emptied | FileNotFoundError):
                self.value, self._stamp, self._failed = self._nobody, stamp, None
                log.warning(
                    "file is empty or gone: it lets in nobody any more", setting=self._setting, error=str(error)
                )
                return True
            self._failed = stamp
            log.error("changed file is invalid, what was read before still holds", error=str(error))
            return False
        self._failed = None
        log.info("read again", setting=self._setting, path=str(self._path))
        return True

    def _load(self) -> tuple[T, Stamp]:
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                content = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise self._problem(error.strerror or str(error)) from error
        if len(content) > FILE_BYTES_MAX:
            raise self._problem(f"the file is larger than {FILE_BYTES_MAX} bytes")
        if status.st_mode & stat.S_IWOTH:
            raise self._problem("the file can be written by everybody; take that right away (chmod o-w)")
        try:
            value = self._read(content)
        except ValueError as error:
            raise self._problem(f"the file {error}") from error
        if status.st_mode & stat.S_IROTH and self._is_secret(value):
            log.warning("file with secrets can be read by everybody (chmod 600)", path=str(self._path))
        return value, _stamp(status)

    def _problem(self, problem: str) -> InvalidConfig:
        return InvalidConfig(field=self._setting, value=str(self._path), problem=problem)


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
