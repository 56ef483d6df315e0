"""The log of a Delta table, on a disk that may lose power.

delta-rs writes commits and checkpoints and syncs nothing. So each is synced here, the contents before the names, before
anything follows from it: another table's commit, or the deletion of files. What power took before that is a commit that
nobody has seen; a file system may leave its name with half of its contents, or none. `repair` removes such a file.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import structlog
from deltalake import DeltaTable, PostCommitHookProperties

from holdfast.files import sync_path

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

CHECKPOINT_VERSIONS = 100
"""Commits between two checkpoints: a reader reads so many small files at most, and a build writes the list of all files
so seldom."""

HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""Of every commit: checkpoints are made by `DeltaLog.committed`."""


class DeltaLog:
    """The log of the table in the directory `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._path = root / "_delta_log"
        self._last_checkpoint = self._path / "_last_checkpoint"

    def created(self) -> None:
        """The table was created: make it durable, with its name."""
        sync_path(self._commit(0))
        for directory in (self._path, self._root, self._root.parent):
            sync_path(directory)

    def committed(self, table: DeltaTable) -> None:
        """Make the table's last commit durable. From time to time make a checkpoint, and delete what it replaces."""
        version = table.version()
        sync_path(self._commit(version))
        sync_path(self._path)
        if version % CHECKPOINT_VERSIONS == 0:
            table.create_checkpoint()
            for path in (*self._checkpoints(version), self._last_checkpoint):
                sync_path(path)
            sync_path(self._path)
            table.cleanup_metadata()

    def repair(self) -> None:
        """Remove a commit or a checkpoint that lost power has left in part. Only under the lake's lock."""
        if not self._path.is_dir():
            return
        commits = sorted(self._path.glob("[0-9]*.json"))
        torn = [path for path in commits[-1:] if not _is_commit(path)]
        torn += [path for path in self._path.glob("*.checkpoint*.parquet") if not _is_parquet(path)]
        if self._last_checkpoint.exists() and (torn or not _is_json(self._last_checkpoint)):
            torn.append(self._last_checkpoint)  # a hint where the last one is; without it all are looked for
        for path in torn:
            log.warning("a file of a table's log was torn, and is removed", path=str(path))
            path.unlink()
        if torn:
            sync_path(self._path)

    def _commit(self, version: int) -> Path:
        return self._path / f"{version:020d}.json"

    def _checkpoints(self, version: int) -> list[Path]:
        return sorted(self._path.glob(f"{version:020d}.checkpoint*.parquet"))


def _is_commit(path: Path) -> bool:
    lines = path.read_bytes().splitlines()
    return bool(lines) and all(map(_parses, lines))


def _is_json(path: Path) -> bool:
    return _parses(path.read_bytes())


def _parses(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _is_parquet(path: Path) -> bool:
    try:
        pq.read_metadata(path)
    except pa.ArrowInvalid:
        return False
    return True
