"""The directory of a store on disk: who holds it, which format it is in, how much room there is.

    holder   locked while the store is open; names the process, so that a second one can be told whom to stop
    FORMAT   the number of the layout of everything below; written last when a store is created
    db/      the files of the engine

What stands inside `db/` is the engine's business (store/rocks.py), not this file's.
"""

from __future__ import annotations

import errno
import fcntl
import os
from datetime import UTC, datetime
from pathlib import Path

from holdfast.errors import DiskFull, StoreCorrupt, StoreError, StoreLocked, StoreReadOnly, StoreUnavailable

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_BUSY = frozenset({errno.EAGAIN, errno.EACCES})
_BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system's own block size


class Directory:
    """A store's directory, held from construction until `release`. Raises StoreLocked while another holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "db"
        self._format = path / "FORMAT"
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._holder = os.open(path / "holder", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise self._refused(error) from error
        try:
            self._take()
        except BaseException:
            os.close(self._holder)
            raise

    def _take(self) -> None:
        # flock, not fcntl's record locks: those are per process, and a second store in this process would pass.
        try:
            fcntl.flock(self._holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _BUSY:
                raise StoreLocked(path=self.path, holder=self._who()) from error
            raise self._refused(error) from error
        try:
            os.ftruncate(self._holder, 0)
            os.pwrite(self._holder, f"{os.getpid()} since {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}\n".encode(), 0)
        except OSError as error:
            raise self._refused(error) from error

    def _who(self) -> str:
        text = os.pread(self._holder, 100, 0).decode("ascii", "replace").strip()
        return f" (pid {text})" if text else ""

    def _refused(self, error: OSError) -> StoreError:
        if error.errno in _NO_ROOM:
            return DiskFull(path=self.path)
        return StoreReadOnly(path=self.path, problem=error.strerror or str(error))

    def release(self) -> None:
        """Let others have it. The holder file stays: were it removed, two processes could each lock one of their own."""
        try:
            os.ftruncate(self._holder, 0)
        finally:
            os.close(self._holder)

    def format(self) -> int | None:
        """The format number, or None when no store has been completed here yet."""
        try:
            text = self._format.read_text()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise StoreCorrupt(path=self._format, problem=str(error)) from error
        if not text.strip().isdecimal():
            raise StoreCorrupt(path=self._format, problem=f"it should hold a number and holds {text[:40]!r}")
        return int(text)

    def set_format(self, number: int) -> None:
        """Write the format number so that a crash leaves the old one or the new one, never half of one."""
        fresh = self.path / "FORMAT.new"
        try:
            with fresh.open("w") as file:
                file.write(f"{number}\n")
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._format)
            _sync_names(self.path)
            _sync_names(self.path.parent)
        except OSError as error:
            raise self._refused(error) from error

    def room(self) -> int:
        """Bytes that an ordinary user can still write to this file system."""
        try:
            state = os.statvfs(self.path)
        except OSError as error:
            raise StoreUnavailable(problem=f"{self.path}: {error.strerror}") from error
        return state.f_bavail * state.f_frsize

    def occupied(self) -> int:
        """Bytes allocated on disk to the files of the engine."""
        total = 0
        try:
            names = os.listdir(self.data)
        except OSError as error:
            raise StoreUnavailable(problem=f"{self.data}: {error.strerror}") from error
        for name in names:
            try:
                total += (self.data / name).lstat().st_blocks * _BLOCK_BYTES
            except FileNotFoundError:
                continue  # the engine deleted it while we looked: it occupies nothing
        return total


def _sync_names(directory: Path) -> None:
    """Make the names in a directory durable: syncing a file does not save its name."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
