"""A checkpoint of `reconcile`: what it has proved, sealed, so that the next proof continues from there.

    LAKE/proof/checkpoint.json   how far, in each manifest; what the messages until then became; the groups
    LAKE/proof/open-*.arrow      the events of messages that were open then: what they become is proved later

It is signed with a key (HMAC with SHA-256) that is kept outside the lake: whoever can change the lake cannot make one.
The signature covers the checkpoint, and the checkpoint names the hash of each of its files.
"""

from __future__ import annotations

import hmac
import os
import secrets
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from holdfast.errors import InvalidArgument
from holdfast.files import make_directory, sync_path
from holdfast.journal.segment import digest

FORMAT = 1
KEY_BYTES = 32
OPTION = "--checkpoint-key"


class ProvedPosition(msgspec.Struct, frozen=True):
    """How far a manifest is proved."""

    entries: int
    head: str
    """The hash of the last of these entries."""
    last_lsn: int


class OpenEvents(msgspec.Struct, frozen=True):
    name: str
    sha256: str


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    proved_at: str
    """When its last proof was made."""
    positions: dict[int, ProvedPosition]
    """By node."""
    segments: int
    events: int
    totals: list[tuple[str, str, str | None, list[int]]]
    """Of each queue and group: the sums of reconcile_task's `balances` over messages that are no longer open."""
    groups: list[dict[str, Any]]
    """The rows of `groups`."""
    highest: dict[int, int]
    """By node, the highest id that was enqueued."""
    open: list[OpenEvents]


class _Signed(msgspec.Struct):
    checkpoint: msgspec.Raw
    signature: str


class CheckpointFile:
    """The checkpoint of one lake, as one key signs it."""

    def __init__(self, lake: Path, key: bytes) -> None:
        self._directory = lake / "proof"
        self._path = self._directory / "checkpoint.json"
        self._key = key

    def read(self) -> Checkpoint | None:
        """The checkpoint, if there is one. One that was not signed with this key, or was changed, is refused."""
        try:
            signed = msgspec.json.decode(self._path.read_bytes(), type=_Signed)
            body = bytes(signed.checkpoint)
            if not hmac.compare_digest(self._sign(body), signed.signature):
                raise self._refused("is not signed with this key")
            checkpoint = msgspec.json.decode(body, type=Checkpoint)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise self._refused(f"cannot be read ({error})") from error
        if checkpoint.format != FORMAT:
            raise self._refused(f"is of format {checkpoint.format}, this version knows {FORMAT}")
        for file in checkpoint.open:
            path = self._directory / file.name
            if not path.is_file() or digest(path) != file.sha256:
                raise self._refused(f"names {file.name}, which is missing or was changed")
        return checkpoint

    def open_files(self, checkpoint: Checkpoint) -> list[str]:
        return [str((self._directory / file.name).resolve()) for file in checkpoint.open]

    def store_open(self, files: list[str]) -> list[OpenEvents]:
        """Copy the events of open messages beside the checkpoint. They count when `write` names them."""
        make_directory(self._directory)
        made: list[OpenEvents] = []
        for file in files:
            path = self._directory / f"open-{uuid4().hex}.arrow"
            shutil.copyfile(file, path)
            sync_path(path)
            made.append(OpenEvents(path.name, digest(path)))
        return made

    def write(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint, all or nothing, and remove what only the one before needed."""
        make_directory(self._directory)
        body = msgspec.json.encode(checkpoint)
        temporary = self._path.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.encode(_Signed(msgspec.Raw(body), self._sign(body))))
        sync_path(temporary)
        temporary.replace(self._path)
        sync_path(self._directory)
        needed = {file.name for file in checkpoint.open}
        for path in self._directory.glob("open-*.arrow"):
            if path.name not in needed:
                path.unlink()

    def _sign(self, body: bytes) -> str:
        return hmac.digest(self._key, body, "sha256").hex()

    def _refused(self, problem: str) -> InvalidArgument:
        return InvalidArgument(
            field=OPTION,
            problem=f"finds a checkpoint in {self._directory} that {problem}: give the key that it was made with, or"
            " prove everything again with --full",
        )


def read_key(path: Path, lake: Path) -> bytes:
    """The key in a file. If there is no file, a key is made, which only its owner may read."""
    if path.resolve().is_relative_to(lake.resolve()):
        problem = f"is {path}, inside the lake: who can change the lake could sign a checkpoint. Keep it elsewhere"
        raise InvalidArgument(field=OPTION, problem=problem)
    try:
        text = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return _new_key(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(field=OPTION, problem=f"cannot read {path}: {error}") from error
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) < KEY_BYTES:
        problem = f"is {path}, which holds no key: {KEY_BYTES} bytes in hex. Name a new file, and a key is made"
        raise InvalidArgument(field=OPTION, problem=problem)
    return key


def _new_key(path: Path) -> bytes:
    key = secrets.token_bytes(KEY_BYTES)
    try:
        make_directory(path.parent)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(key.hex() + "\n")
        sync_path(path)
        sync_path(path.parent)
    except OSError as error:
        raise InvalidArgument(field=OPTION, problem=f"cannot make {path}: {error}") from error
    return key
