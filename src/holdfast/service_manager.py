"""What the server says to systemd, if that started it with `Type=notify`: that it is ready, and that it stops."""

from __future__ import annotations

import os
import socket


def notify(state: str) -> None:
    """Send a state as `sd_notify(3)` does. Without a manager, or if it does not listen, nothing happens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.setblocking(False)
        try:
            sender.sendto(state.encode(), address.replace("@", "\0", 1) if address.startswith("@") else address)
        except OSError:
            return
