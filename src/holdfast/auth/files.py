"""Files of credentials: replaced whole, by one writer at a time, and for their owner's eyes only."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from holdfast.files import sync_path

PRIVATE: Final = 0o600
PUBLIC: Final = 0o644


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Only one writer at a time; readers need no lock, since the file is replaced whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def replace(path: Path, content: bytes, mode: int = PRIVATE) -> None:
    """Writes aside, syncs and renames, so that a crash leaves the old file or the new one.

    A link is followed, so that what it points to is replaced and not the link.
    """
    target = path.resolve()
    descriptor, tmp_path = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(tmp_path).replace(target)
    except BaseException:
        Path(tmp_path).unlink(missing_ok=True)
        raise
    sync_path(target.parent)
