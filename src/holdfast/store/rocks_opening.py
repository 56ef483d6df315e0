"""The files of a database before it is opened, so that an opening that fails leaves no others.

An opening writes what it reads from the logs to tables, and only then a new manifest that names them. RocksDB deletes
tables that nothing names when an opening has succeeded: on a full disk each that fails would take more of it.
"""

from __future__ import annotations

from pathlib import Path

_WRITTEN = frozenset({".sst", ".blob", ".dbtmp"})
_CURRENT = "CURRENT"  # names the manifest; a new one is named when it is whole


class Files:
    """The files in a directory now."""

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
