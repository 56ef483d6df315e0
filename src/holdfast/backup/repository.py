"""A directory of backups. They share files: one that has not changed since the last backup is kept once.

holdfast-backups     the format of the directory
backups/ID.json      the manifest of a backup, written last: what has none is no backup
objects/ab/abcd…     a file, by the SHA-256 of its content
incoming/            files that are being written
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from holdfast.backup.manifest import FORMAT, LAKE, BackupManifest, FileEntry, check_path, seal, unseal
from holdfast.errors import BackupDamaged, BackupNotFound, BackupUnwritable
from holdfast.files import make_directory, sync_path
from holdfast.journal.manifest import SegmentEntry, parse
from holdfast.journal.manifest import seal as seal_line

CHUNK_BYTES = 1 << 20
_MARK = "holdfast-backups"
_HASH_LENGTH = 64


class Added(NamedTuple):
    """A file that was written."""

    sha256: str
    size_bytes: int


class Flawed(NamedTuple):
    """What is wrong in a directory of backups."""

    path: str
    problem: str


class Repository:
    """See the module. Open one with `open` or `create`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._backups = path / "backups"
        self._objects = path / "objects"
        self._incoming = path / "incoming"

    @classmethod
    def open(cls, path: Path) -> Repository:
        """A directory that has backups."""
        if not (path / _MARK).is_file():
            raise BackupNotFound(path=path, problem="it is no directory of backups")
        _check_format(path / _MARK)
        return cls(path)

    @classmethod
    def create(cls, path: Path) -> Repository:
        """A directory that has backups, or will have: a new or an empty one is made to be one."""
        found = cls(path)
        try:
            if not (path / _MARK).is_file():
                if path.exists() and (not path.is_dir() or any(path.iterdir())):
                    raise BackupUnwritable(path=path, problem="it has something else in it: choose another directory")
                make_directory(path, mode=0o700)
                for each in (found._backups, found._objects, found._incoming):
                    make_directory(each)
                (path / _MARK).write_text(f"{FORMAT}\n")
                sync_path(path / _MARK)
                sync_path(path)
        except OSError as error:
            raise BackupUnwritable(path=path, problem=error.strerror or str(error)) from error
        _check_format(path / _MARK)
        return found

    # --- reading ----------------------------------------------------------------------------------------------------

    def ids(self) -> list[str]:
        """The backups, the oldest first."""
        return sorted(path.stem for path in self._backups.glob("*.json"))

    def manifest(self, backup: str = "") -> BackupManifest:
        """The manifest of a backup; of the newest if none is named."""
        known = self.ids()
        if not known:
            raise BackupNotFound(path=self.path, problem="it has no backup yet")
        name = backup or known[-1]
        if name not in known:
            raise BackupNotFound(path=self.path, problem=f"it has no backup {name!r}: it has {', '.join(known)}")
        path = self._backups / f"{name}.json"
        return unseal(path.read_bytes(), path)

    def object(self, sha256: str) -> Path:
        """Where a file is kept."""
        if len(sha256) != _HASH_LENGTH or not sha256.isalnum():
            raise BackupDamaged(path=self.path, problem=f"it names a file by {sha256!r}, which is no hash")
        return self._objects / sha256[:2] / sha256

    def has(self, sha256: str, size_bytes: int) -> bool:
        """Whether a file is there, by its size."""
        try:
            return self.object(sha256).stat().st_size == size_bytes
        except FileNotFoundError:
            return False

    def parts(self, sha256: str) -> Iterator[bytes]:
        """A file's content. BackupDamaged, at its end: it is not what was written."""
        digest = hashlib.sha256()
        path = self.object(sha256)
        try:
            with path.open("rb") as file:
                while part := file.read(CHUNK_BYTES):
                    digest.update(part)
                    yield part
        except OSError as error:
            raise BackupDamaged(path=path, problem=error.strerror or str(error)) from error
        if digest.hexdigest() != sha256:
            raise BackupDamaged(path=path, problem="its content is not what was written")

    def segments(self, manifest: BackupManifest) -> list[tuple[bytes, SegmentEntry]]:
        """The lines of the lake's manifest in a backup."""
        file = manifest.lake_manifest
        if file is None:
            return []
        text = b"".join(self.parts(file.sha256))
        path = self.object(file.sha256)
        try:
            lines = [(line, parse(line)) for line in text.split(b"\n")[:-1]]
        except ValueError as error:
            raise BackupDamaged(path=path, problem=str(error)) from error
        for _, entry in lines:
            check_path(f"{LAKE}/journal/{entry.file.segment}", path)
        return lines

    # --- writing ----------------------------------------------------------------------------------------------------

    def add(self, parts: Iterable[bytes]) -> Added:
        """Write a file. It is durable when this returns."""
        path = self._incoming / uuid4().hex
        digest, size_bytes = hashlib.sha256(), 0
        try:
            make_directory(self._incoming)
            with path.open("wb") as file:
                for part in parts:
                    digest.update(part)
                    size_bytes += len(part)
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            name = digest.hexdigest()
            target = self.object(name)
            make_directory(target.parent)
            path.replace(target)
            sync_path(target.parent)
        except OSError as error:
            raise BackupUnwritable(path=self.path, problem=error.strerror or str(error)) from error
        finally:
            path.unlink(missing_ok=True)
        return Added(name, size_bytes)

    def complete(self, manifest: BackupManifest) -> None:
        """Write the manifest of a backup whose files are all there: from here on it is one."""
        fresh = self._incoming / f"{manifest.id}.json"
        try:
            with fresh.open("wb") as file:
                file.write(seal(manifest))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._backups / f"{manifest.id}.json")
            sync_path(self._backups)
        except OSError as error:
            raise BackupUnwritable(path=self.path, problem=error.strerror or str(error)) from error

    def prune(self, keep: int) -> tuple[list[str], int]:
        """Delete all backups but the newest, and the files that only they had. Returns them, and the freed bytes."""
        manifests = {name: self.manifest(name) for name in self.ids()}
        dropped = list(manifests)[:-keep]
        for name in dropped:
            (self._backups / f"{name}.json").unlink()
        sync_path(self._backups)
        needed = {file.sha256 for name, one in manifests.items() if name not in dropped for file in one.files}
        for name, one in manifests.items():
            if name not in dropped:
                needed |= {entry.file.sha256 for _, entry in self.segments(one)}
        freed = 0
        for path in self._objects.glob("*/*"):
            if path.name not in needed:
                freed += path.stat().st_size
                path.unlink()
        return dropped, freed

    # --- verifying --------------------------------------------------------------------------------------------------

    def verify(self, manifest: BackupManifest, checked: dict[str, str]) -> Iterator[Flawed | int]:
        """Read all files of a backup: their sizes as they are read, and what is wrong. `checked`: hashes of files that
        were read for another backup, with what was wrong with them; it is added to."""
        for file in manifest.files:
            yield from self._verify_file(file, checked)
        yield from self._verify_lake(manifest, checked)

    def _verify_file(self, file: FileEntry, checked: dict[str, str]) -> Iterator[Flawed | int]:
        if file.sha256 not in checked:
            checked[file.sha256] = ""
            size_bytes = 0
            try:
                for part in self.parts(file.sha256):
                    size_bytes += len(part)
                    yield len(part)
            except BackupDamaged as error:
                checked[file.sha256] = str(error)
            else:
                if size_bytes != file.size_bytes:
                    checked[file.sha256] = f"it has {size_bytes} bytes instead of {file.size_bytes}"
        if checked[file.sha256]:
            yield Flawed(file.path, checked[file.sha256])

    def _verify_lake(self, manifest: BackupManifest, checked: dict[str, str]) -> Iterator[Flawed | int]:
        file = manifest.lake_manifest
        position = manifest.description.position
        if file is None or checked[file.sha256]:
            return
        try:
            lines = self.segments(manifest)
        except BackupDamaged as error:
            yield Flawed(file.path, str(error))
            return
        if position.chain_length and (
            len(lines) < position.chain_length or seal_line(lines[position.chain_length - 1][0]) != position.chain_hash
        ):
            yield Flawed(file.path, "it is not the manifest that the copy of the store belongs to")
        previous: bytes | None = None
        for number, (line, entry) in enumerate(lines, 1):
            if previous is not None and entry.previous != seal_line(previous):
                yield Flawed(file.path, f"line {number} does not carry the hash of the line before")
            previous = line
            if not manifest.lacks(number):
                name, size_bytes, sha256 = entry.file
                segment = FileEntry(path=name, size_bytes=size_bytes, sha256=sha256)
                yield from self._verify_file(segment, checked)


def _check_format(path: Path) -> None:
    text = path.read_text(errors="replace").strip()
    if not text.isdecimal() or int(text) > FORMAT:
        raise BackupDamaged(path=path, problem=f"it is of format {text[:20]!r}, this version reads {FORMAT}")
