"""What a backup holds: its files with their hashes, and its position in the journal.

    store/…                     the copy of an embedded store, as its files
    records/00000, …            the records of a remote store, in pages (store/pages.py)
    lake/journal/_manifest-…    the lake's manifest, up to the position; the segments are those that its entries name

The manifest of a backup is sealed by its own hash, and every file is kept under the hash of its content.
"""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath

import msgspec

from holdfast.errors import BackupDamaged

FORMAT = 1
"""Of the manifest and of the directory. A newer one is refused."""

STORE, RECORDS, LAKE = "store", "records", "lake"


class JournalPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Where in the journal a backup was taken: it has everything up to `last_lsn`, and nothing after it."""

    last_lsn: int
    exported_lsn: int
    """Rows up to this one are in the lake, the others in the copy of the store."""
    chain_hash: str = ""
    """Of the last line of the lake's manifest, and its number; 0: nothing was exported."""
    chain_length: int = 0


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file of a backup."""

    path: str
    size_bytes: int
    sha256: str
    fingerprint: str = ""
    """What the server knows a file by that never changes, so that it is not sent again."""


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of a backup before its files."""

    taken_at: str
    node: int
    version: str
    store: str
    """The kind of the store."""
    store_format: int
    position: JournalPosition
    size_bytes: int
    """Of the files that follow, about."""


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole of a backup."""

    format: int
    id: str
    description: Description
    files: list[FileEntry]
    lake: bool
    missing_segments: list[tuple[int, int]] = []
    """Entries of the lake's manifest whose segments were not there any more, from and to."""

    @property
    def lake_manifest(self) -> FileEntry | None:
        """The file of the lake's manifest."""
        return next((file for file in self.files if file.path.startswith(f"{LAKE}/")), None)

    def lacks(self, number: int) -> bool:
        """Whether the segment of this entry, from 1, was not there any more."""
        return any(first <= number <= last for first, last in self.missing_segments)


class _Sealed(msgspec.Struct, frozen=True):
    sha256: str
    manifest: msgspec.Raw


_encode = msgspec.json.Encoder().encode


def seal(manifest: BackupManifest) -> bytes:
    """A manifest as it is stored."""
    text = _encode(manifest)
    return _encode(_Sealed(hashlib.sha256(text).hexdigest(), msgspec.Raw(text))) + b"\n"


def unseal(data: bytes, path: object) -> BackupManifest:
    """Read a manifest, and compare its hash."""
    try:
        sealed = msgspec.json.decode(data, type=_Sealed)
        text = bytes(sealed.manifest)
        if hashlib.sha256(text).hexdigest() != sealed.sha256:
            raise BackupDamaged(path=path, problem="it is not as it was written")
        manifest = msgspec.json.decode(text, type=BackupManifest)
    except msgspec.DecodeError as error:
        raise BackupDamaged(path=path, problem=f"it cannot be read: {error}") from error
    if manifest.format > FORMAT:
        raise BackupDamaged(
            path=path, problem=f"it is of format {manifest.format}, this version reads {FORMAT}: install a newer one"
        )
    for file in manifest.files:
        check_path(file.path, path)
    return manifest


def check_path(name: str, where: object) -> None:
    """Refuse a name that would leave the directory it is restored to."""
    parts = PurePosixPath(name).parts
    plain = "/".join(parts) == name and len(parts) > 1  # the parts of `store//etc` would be those of `store/etc`
    if not plain or parts[0] not in (STORE, RECORDS, LAKE) or ".." in parts or "\0" in name or "\\" in name:
        raise BackupDamaged(path=where, problem=f"it names a file {name!r}, which no backup has")
