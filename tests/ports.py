"""TCP ports for servers that must come back at the same address, or whose address is known before they start."""

from __future__ import annotations

import fcntl
import itertools
import os
import socket
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

FIRST = 20_000
BLOCK = 100
"""Ports that one process of pytest has for itself, in turn: more than a test has servers at a time."""

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def reserved_port() -> int:
    """A free port, below those that the kernel assigns and in no other test process's block, so that nobody gets it
    before its server has started or while its server is away."""
    while True:
        port = next(_ports())
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue


@cache
def _ports() -> Iterator[int]:
    """The ports of the first block that no other process has locked. The lock ends with this process."""
    end = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 32_768
    directory = Path(tempfile.gettempdir()) / f"holdfast-ports-{os.getuid()}"
    directory.mkdir(exist_ok=True)
    for first in range(FIRST, end - BLOCK, BLOCK):
        lock = os.open(directory / str(first), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            return itertools.cycle(range(first, first + BLOCK))
    raise RuntimeError(f"all blocks of ports are taken: see {directory}")
