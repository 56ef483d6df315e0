"""The directory of a store on disk: which process holds it, its format, and the space left.

    holder   locked while the store is open; names the process, so that an error in a second one can name it
    FORMAT   the number of the layout of everything below (store/formats.py); written last when a store is created
    synced   the last change that is known to be synced (store/rocks_log.py)
    reserve  occupies room that is needed when the disk is full (store/reserve.py)
    files    the inventory of a store that was closed in order (store/inventory.py)
    db/      the files of the database

The files inside `db/` belong to the database (store/rocks.py).
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from datetime import UTC, datetime
from pathlib import Path

from holdfast.errors import StoreCorrupt, StoreError, StoreFull, StoreLocked, StoreReadOnly, StoreUnavailable
from holdfast.files import make_directory, sync_path

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_BUSY = frozenset({errno.EAGAIN, errno.EACCES})
_RELEASE_SECONDS = 10.0
"""How long the lock of a process that has ended is waited for. A process that is killed while it starts another leaves
its lock to that one until it executes its program: milliseconds, more on a busy machine."""
_RETRY_SECONDS = 0.01
_BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system's own block size


class Directory:
    """A store's directory, held from construction until `release`. Raises StoreLocked while another holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "db"
        self.synced = path / "synced"
        self.reserve = path / "reserve"
        self.views = path / "views"  # copies that are open
        try:
            make_directory(path)
            self._holder = os.open(path / "holder", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise self._refused(error) from error
        try:
            self._take()
        except BaseException:
            os.close(self._holder)
            raise

    def _take(self) -> None:
        deadline = time.monotonic() + _RELEASE_SECONDS
        while not self._lock():
            holder = self._holder_text()
            if _is_running(holder) or time.monotonic() > deadline:
                raise StoreLocked(path=self.path, holder=f" (pid {holder})" if holder else "")
            time.sleep(_RETRY_SECONDS)
        try:
            os.ftruncate(self._holder, 0)
            os.pwrite(self._holder, f"{os.getpid()} since {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}\n".encode(), 0)
        except OSError as error:
            if error.errno not in _NO_ROOM:  # without room the text is missing, which only others' errors would name
                raise self._refused(error) from error

    def _lock(self) -> bool:
        """Lock it, unless it is locked."""
        # flock, not fcntl's record locks: those are per process, and a second store in this process would pass.
        try:
            fcntl.flock(self._holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise self._refused(error) from error
        return True

    def _holder_text(self) -> str:
        """What the process that holds it wrote: its id, and since when."""
        return os.pread(self._holder, 100, 0).decode("ascii", "replace").strip()

    def _refused(self, error: OSError) -> StoreError:
        if error.errno in _NO_ROOM:
            return StoreFull(path=self.path)
        return StoreReadOnly(path=self.path, problem=error.strerror or str(error))

    def release(self) -> None:
        """Release it for others. The holder file stays: if it were removed, two processes could lock one each."""
        try:
            os.ftruncate(self._holder, 0)
        finally:
            os.close(self._holder)

    def format(self) -> int | None:
        """The format number, or None when no store has been completed here yet."""
        return format_of(self.path)

    def set_format(self, number: int) -> None:
        """Write the format number."""
        self.put("FORMAT", f"{number}\n")

    def put(self, name: str, text: str) -> None:
        """Write a small file durably: after a crash there is the old one or the new one, whole."""
        fresh = self.path / f"{name}.new"
        try:
            with fresh.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.path / name)
            sync_path(self.path)
            sync_path(self.path.parent)
        except OSError as error:
            raise self._refused(error) from error

    def read(self, name: str) -> str | None:
        """The text of a small file, None if there is none."""
        return _text(self.path / name)

    def remove(self, name: str) -> None:
        """Remove a small file, durably."""
        try:
            (self.path / name).unlink()
            sync_path(self.path)
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
        """Bytes allocated on disk to the files of the database."""
        total = 0
        try:
            files = list(self.data.iterdir())
        except OSError as error:
            raise StoreUnavailable(problem=f"{self.data}: {error.strerror}") from error
        for file in files:
            try:
                total += file.lstat().st_blocks * _BLOCK_BYTES
            except FileNotFoundError:
                continue  # the database deleted it meanwhile: it occupies nothing
        return total


def _is_running(holder: str) -> bool:
    """Whether the process that a holder file names is there. If none is named, one may just have begun."""
    number = holder.partition(" ")[0]
    if not number.isdecimal():
        return True
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


def format_of(path: Path) -> int | None:
    """The format number of the store in a directory, held by a process or not; None when no store is complete there."""
    text = _text(path / "FORMAT")
    if text is None:
        return None
    if not text.strip().isdecimal() or not int(text):
        raise StoreCorrupt(path=path / "FORMAT", problem=f"it should hold a number and holds {text[:40]!r}")
    return int(text)


def _text(file: Path) -> str | None:
    try:
        return file.read_text(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreCorrupt(path=file, problem=error.strerror or str(error)) from error
