"""Durable files: what every part that writes files must do, and no more."""

from __future__ import annotations

import os
import re
from pathlib import Path

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def local_path(text: str) -> Path:
    """A path as people write it, also as `file:///…`. ValueError: it is a URL of something else, such as `s3a://…`, of
    which a path would make a directory called `s3a:`."""
    scheme = _SCHEME.match(text)
    if scheme is None:
        return Path(text)
    if scheme[1].lower() != "file":
        raise ValueError(f"must be a path on this machine; {scheme[1]}:// is not supported")
    return Path("/" + text[scheme.end() :].lstrip("/"))


def sync_path(path: Path) -> None:
    """Make a file's content, or the names in a directory, durable: syncing a file does not save its name."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path, mode: int = 0o777) -> None:
    """Make a directory and those above it, as far as they are missing. Their names are durable when this returns."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True, mode=mode)
    for each in reversed(missing):
        sync_path(each.parent)
