"""The files of a store: those it had when it was closed in order, to detect at the next opening that one was lost or
truncated, and those before an opening (`BeforeOpening`).

RocksDB cannot: after a crash a log or manifest without its end, and a table that nothing refers to, are normal, so it
drops them and opens. After an orderly close they are damage, and opening would make it worse.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import StoreCorrupt
from holdfast.store.directory import Directory

_NAME = "files"
_KEPT = (".sst", ".blob", ".log")
_WRITTEN = (".sst", ".blob", ".dbtmp")
_CURRENT = "CURRENT"  # names the manifest; a new one is named when it is whole


def write(directory: Directory) -> None:
    """Write down the files of the database and their sizes. It must be closed."""
    directory.put(_NAME, "".join(f"{size} {name}\n" for name, size in sorted(_sizes(directory.data).items())))


def check(directory: Directory) -> None:
    """Compare with the list, if there is one."""
    recorded = directory.read(_NAME)
    if recorded is None:
        return
    found = _sizes(directory.data)
    for line in recorded.splitlines():
        size, _, name = line.partition(" ")
        if name not in found:
            raise StoreCorrupt(path=directory.data / name, problem="it is missing")
        if str(found[name]) != size:
            raise StoreCorrupt(path=directory.data / name, problem=f"it has {found[name]} bytes instead of {size}")


def exists(directory: Directory) -> bool:
    """Whether there is a list: the store was closed in order."""
    return directory.read(_NAME) is not None


def drop(directory: Directory) -> None:
    """Delete the list, if there is one: from now on the files change."""
    if exists(directory):
        directory.remove(_NAME)


def _sizes(data: Path) -> dict[str, int]:
    if not data.is_dir():
        return {}
    return {file.name: file.stat().st_size for file in data.iterdir() if _matters(file)}


def _matters(file: Path) -> bool:
    return file.suffix in _KEPT or file.name == _CURRENT or file.name.startswith("MANIFEST-")


class BeforeOpening:
    """The files of a database before it is opened, so that an opening that fails leaves no others.

    An opening writes what it reads from the logs to tables, and only then a new manifest that names them. RocksDB
    deletes tables that nothing names when an opening has succeeded: on a full disk each that fails would take more of
    it.
    """

    def __init__(self, data: Path) -> None:
        self._data = data
        self._names = self._list()
        self._current = self._read_current()

    def remove_others(self) -> None:
        """Remove tables and blobs that were not there, unless the opening came as far as to name them."""
        if self._current is None or self._read_current() != self._current:
            return
        for name in self._list() - self._names:
            if Path(name).suffix in _WRITTEN:
                (self._data / name).unlink(missing_ok=True)

    def _list(self) -> set[str]:
        return {path.name for path in self._data.iterdir()} if self._data.is_dir() else set()

    def _read_current(self) -> bytes | None:
        path = self._data / _CURRENT
        return path.read_bytes() if path.exists() else None
