"""Copies of a damaged store: one that ends before the damage in its log, and one with everything that can be read."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from holdfast.errors import StoreReadOnly
from holdfast.store import rocks_log
from holdfast.store.directory import Directory
from holdfast.store.rocks_handles import readable_changes

_NEVER_CHANGED = (".sst", ".blob")  # RocksDB writes such a file once: a copy may share it


def copy_files(source: Directory, target: Path) -> None:
    """Copy the database and its format into the new directory `target`. The original is only read."""
    try:
        (target / "db").mkdir(parents=True)
        for file in source.data.iterdir():
            _copy(file, target / "db" / file.name)
        _copy(source.path / "FORMAT", target / "FORMAT")
    except OSError as error:
        raise StoreReadOnly(path=target, problem=error.strerror or str(error)) from error


def _copy(file: Path, target: Path) -> None:
    if file.suffix in _NEVER_CHANGED:
        with suppress(OSError):  # on another file system, or one without links
            os.link(file, target)
            return
    shutil.copy2(file, target)


def end_before_damage(target: Path, synced: int | None) -> None:
    """Have the log of a copy end where it can no longer be read."""
    logs = rocks_log.logs_of(target / "db")
    found = rocks_log.examine(logs, readable_changes(target / "db"), synced)
    if found is not None:
        rocks_log.cut(logs, found)
