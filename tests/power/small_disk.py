"""A small file system of its own, for a server that fills it: a tmpfs in a mount namespace, which needs no root.

A process holds the namespace; others are started in it. Its files are seen from outside below `path`.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_READY = "mounted"


class SmallDisk:
    """`inside`: where it is for processes in the namespace; `path`: the same place for all others."""

    def __init__(self, holder: int, inside: Path) -> None:
        self._holder = holder
        self.inside = inside
        self.path = Path(f"/proc/{holder}/root{inside}")

    def entering(self) -> list[str]:
        """The beginning of a command that runs in the namespace, in the same process."""
        return ["nsenter", "--user", "--mount", "--preserve-credentials", f"--target={self._holder}", "--"]

    def fill(self) -> Path:
        """Occupy everything that is left, as another program would. Returns the file to remove."""
        filler = self.path / "filler"
        chunk = b"\0" * 65_536
        with filler.open("wb", buffering=0) as file:
            while chunk:
                try:
                    file.write(chunk)
                except OSError:
                    chunk = chunk[: len(chunk) // 2]
        return filler


@contextmanager
def small_disk(at: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """Raises OSError where no such namespace can be had."""
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        raise OSError("unshare and nsenter are not installed")
    at.mkdir()
    script = f'mount -t tmpfs -o size={size_bytes} holdfast "$0" && echo {_READY} && exec cat'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, str(at)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stderr is not None
        try:
            if holder.stdout.readline().strip() != _READY:
                raise OSError(holder.stderr.read().strip() or "no namespace could be made")
            yield SmallDisk(holder.pid, at)
        finally:
            holder.kill()
