"""Users of a file of `holdfast apply`: steps that change the users file, which a running server reads by itself."""

from __future__ import annotations

import functools
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.cli.commands.topology.document import UserEntry
from holdfast.cli.commands.topology.plan import Step
from holdfast.cli.support.users_file import GENERATED_BYTES, changing, read_users, users_settings, with_password
from holdfast.config import AuthSettings
from holdfast.errors import InvalidArgument

if TYPE_CHECKING:
    from holdfast.auth.users import User


def users_of(path: Path) -> dict[str, UserEntry]:
    """The users of a users file, as a file of `apply` says them."""
    settings, path = users_settings(path, None)
    known = read_users(path, settings).by_name
    return {name: _entry(user) for name, user in sorted(known.items())}


def _entry(user: User) -> UserEntry:
    return UserEntry(scopes=list(user.scopes), namespace=user.namespace, subject=user.subject)


def user_steps(path: Path | None, wanted: dict[str, UserEntry], prune: bool) -> list[Step]:
    """Steps from the users file to what is wanted. Passwords and access keys stay as they are."""
    from holdfast.auth import users  # noqa: PLC0415

    if path is None:
        raise InvalidArgument(field="users", problem="are in a file of the server's: name it with --users-file")
    settings, path = users_settings(path, None)
    known = read_users(path, settings).by_name if path.exists() else {}
    steps: list[Step] = []
    for name, entry in wanted.items():
        found = known.get(name)
        user = _changed(found, name, entry)
        try:
            users.check(user if user.password or user.subject else _stand_in(user), settings.scopes_max)
        except ValueError as error:
            raise InvalidArgument(field=f"users.{name}", problem=f"cannot be: it {error}") from None
        if found is None:
            details = [f"scopes: {' '.join(entry.scopes) or 'none'}"]
            if user.subject is None:
                details.append("with a password that is generated and shown once")
            steps.append(Step("+", f"user {name}", details, functools.partial(_put, path, settings, name, entry)))
        elif user != found:
            had = _entry(found)
            changes = [
                f"{field}: {_said(getattr(had, field))} -> {_said(getattr(entry, field))}"
                for field in entry.__struct_fields__
                if getattr(had, field) != getattr(entry, field)
            ]
            steps.append(Step("~", f"user {name}", changes, functools.partial(_put, path, settings, name, entry)))
    gone = sorted(known.keys() - wanted.keys()) if prune else []
    steps += [Step("-", f"user {name}", [], functools.partial(_remove, path, settings, name)) for name in gone]
    return steps


def _stand_in(user: User) -> User:
    """The user as it will be with a password, to be checked before one is made."""
    return msgspec.structs.replace(user, subject="CN=x")


def _said(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _changed(found: User | None, name: str, entry: UserEntry) -> User:
    """The user with what the file says; what only the users file knows stays."""
    from holdfast.auth.users import User  # noqa: PLC0415

    return msgspec.structs.replace(
        found or User(name=name), scopes=tuple(entry.scopes), namespace=entry.namespace, subject=entry.subject
    )


def _put(path: Path, settings: AuthSettings, name: str, entry: UserEntry) -> None:
    password = ""
    with changing(path, settings, new=True) as change:
        user = _changed(change.users.by_name.get(name), name, entry)  # somebody may have changed it since the plan
        if not (user.password or user.subject or user.access_keys):
            password = secrets.token_urlsafe(GENERATED_BYTES)
            user = with_password(user, password, settings)
        change.put(user)
    if password:
        click.echo(f"password of {name}: {password}", err=True)


def _remove(path: Path, settings: AuthSettings, name: str) -> None:
    with changing(path, settings) as change:
        change.users = change.users.without(name)
