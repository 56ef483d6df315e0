"""Who else on the machine may read or change what the server trusts, checked at its start.

A file of credentials or configuration that everybody may write lets everybody in: the server does not start. What
everybody may read is a warning: a container's only user, or a mounted secret, may have such a mode.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import structlog

from holdfast.config import Config
from holdfast.errors import InvalidConfig

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class _Trusted(NamedTuple):
    setting: str
    path: Path | None
    secret: bool


def _trusted(config: Config) -> Iterator[_Trusted]:
    yield _Trusted("auth.users_file", config.auth.users_file, secret=True)
    yield _Trusted("auth.key_file", config.auth.key_file, secret=True)
    yield _Trusted("auth.revoked_file", config.auth.revoked_file, secret=False)
    yield _Trusted("tls.key_file", config.tls.key_file, secret=True)
    for origin in set(config.origins.values()):
        kind, _, path = origin.partition(" ")
        if kind == "file":
            yield _Trusted("--config", Path(path), secret=config.origins.get("auth.token_secret") == origin)


def check(config: Config) -> None:
    """Raises InvalidConfig if everybody may change what decides who is let in."""
    for setting, path, secret in _trusted(config):
        if path is None or not path.exists():
            continue
        mode = path.stat().st_mode
        if mode & stat.S_IWOTH:
            problem = f"everybody on this machine may write it; try: chmod o-w {path}"
            raise InvalidConfig(field=setting, value=str(path), problem=problem)
        if secret and mode & stat.S_IROTH:
            log.warning("everybody on this machine may read a secret", setting=setting, path=str(path))
    data_dir = config.node.data_dir
    if data_dir.exists() and data_dir.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
        log.warning("everybody on this machine may read the data directory", path=str(data_dir), advice="chmod 700")
