"""The server's libraries, which are not installed with the client alone."""

from __future__ import annotations

from importlib.util import find_spec

from holdfast.errors import ServerMissing

SERVER = (
    *(
        "argon2",
        "cronsim",
        "cryptography",
        "httptools",
        "jinja2",
        "joserfc",
        "prometheus_client",
        "pyarrow",
        "rocksdict",
    ),
    *("structlog", "tzdata", "uvloop", "websockets"),
)
"""Modules of the extra `[server]`."""


def missing() -> list[str]:
    """Modules of the server that are not installed."""
    return [name for name in SERVER if find_spec(name) is None]


def explain(error: ModuleNotFoundError) -> ServerMissing | None:
    """The message for a failed import; None if it is not a library of the server."""
    name = (error.name or "").partition(".")[0]
    return ServerMissing(missing=name) if name in SERVER else None
