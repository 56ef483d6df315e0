"""The meaning of RocksDB's errors. The binding raises plain exceptions with RocksDB's text, so the text decides."""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import StoreCorrupt, StoreError, StoreFull, StoreLocked, StoreReadOnly, StoreUnavailable

_NO_ROOM = ("No space left on device", "Disk quota exceeded", "Max allowed space was reached")
_NOT_ALLOWED = ("Permission denied", "Read-only file system", "Operation not permitted")
_DAMAGED = ("Corruption", "checksum mismatch", "bad magic number")
_LOCKED = ("While lock file", "lock hold by current process")
# While opening: what FORMAT says must be there is not.
_MISSING = ("No such file or directory", "does not exist (create_if_missing is false)", "Column family not found")


def translate(error: Exception, path: Path, *, opening: bool = False) -> StoreError:
    """The error of holdfast.errors that an error of RocksDB stands for."""
    text = str(error)
    if any(sign in text for sign in _NO_ROOM):
        return StoreFull(path=path)
    if any(sign in text for sign in _LOCKED):
        return StoreLocked(path=path, holder="")
    if any(sign in text for sign in _NOT_ALLOWED):
        return StoreReadOnly(path=path, problem=text)
    if any(sign in text for sign in _DAMAGED) or (opening and any(sign in text for sign in _MISSING)):
        return StoreCorrupt(path=path, problem=text)
    return StoreUnavailable(problem=text)


def too_many_skipped(error: Exception) -> bool:
    """Whether a scan gave up because it had to step over too many tombstones."""
    return str(error).startswith("Result incomplete")
