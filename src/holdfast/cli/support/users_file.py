"""The users file, read and written by commands: under a lock, and only as a server would take it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.config import AuthSettings, load
from holdfast.errors import InvalidArgument

if TYPE_CHECKING:
    from holdfast.auth.users import User, Users

# argon2 and other libraries of the users file are imported by the commands that need them: the others start quickly.

GENERATED_BYTES = 24
"""192 bits of a password that is generated, 32 characters."""


def users_settings(path: Path | None, config_path: Path | None) -> tuple[AuthSettings, Path]:
    settings = load(config_path, os.environ).auth
    path = path or settings.users_file
    if path is None:
        raise click.UsageError("Which file? Give --file, or set auth.users_file in the server's configuration.")
    return settings, path


def read_users(path: Path, settings: AuthSettings) -> Users:
    from holdfast.auth import users  # noqa: PLC0415

    try:
        return users.read(path.read_bytes(), settings.users_max, settings.scopes_max)
    except FileNotFoundError:
        problem = "does not exist. `holdfast user add` creates it"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except ValueError as error:
        problem = str(error)
    raise InvalidArgument(field=f"Users file {path}", problem=problem)


class UsersChange:
    """A users file between being read and being written."""

    def __init__(self, users: Users, check: Callable[[User], None]) -> None:
        self.users = users
        self._check = check

    def user(self, name: str) -> User:
        try:
            return self.users.by_name[name]
        except KeyError:
            raise InvalidArgument(field=f"User {name!r}", problem="does not exist") from None

    def put(self, entry: User) -> None:
        """Raises if a server would refuse the file."""
        owner = self.users.by_subject.get(entry.subject or "")
        try:
            self._check(entry)
        except ValueError as error:
            raise click.UsageError(f"The users file would be invalid: it {error}.") from None
        if owner is not None and owner.name != entry.name:
            raise click.UsageError(f"The subject {entry.subject} already belongs to {owner.name}.")
        self.users = self.users.with_user(entry)


@contextmanager
def changing(path: Path, settings: AuthSettings, *, new: bool = False) -> Iterator[UsersChange]:
    """Reads the file, and writes it when the block succeeds; under a lock."""
    from holdfast.auth import files, users  # noqa: PLC0415

    if not new:
        read_users(path, settings)  # no lock file is left beside a file that does not exist
    try:
        with files.locked(path):
            known = users.Users() if new and not path.exists() else read_users(path, settings)
            change = UsersChange(known, partial(users.check, scopes_max=settings.scopes_max))
            yield change
            files.replace(path, change.users.encode())
    except OSError as error:
        raise InvalidArgument(
            field=f"Users file {path}", problem=f"cannot be written: {error.strerror or error}"
        ) from error


def with_password(entry: User, password: str, settings: AuthSettings) -> User:
    from holdfast.auth.passwords import hasher  # noqa: PLC0415

    return msgspec.structs.replace(entry, password=hasher(settings).hash(password))
