"""TCP ports for servers that must come back at the same address, or whose address is known before they start."""

from __future__ import annotations

import itertools
import os
import socket
from pathlib import Path

FIRST = 20_000
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")

_numbers = itertools.count(os.getpid() * 97)  # so that processes of pytest do not try the same ones


def reserved_port() -> int:
    """A free port, below those that the kernel assigns, so that nobody gets it while its server is away."""
    ports = range(FIRST, int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 32_768)
    while True:
        port = ports[next(_numbers) % len(ports)]
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
