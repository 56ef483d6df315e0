"""`holdfast user`: the users file, with passwords, certificate subjects, namespaces and scopes."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from holdfast.cli.support.options import config_file, output_format
from holdfast.cli.support.output import show_note, show_rows
from holdfast.cli.support.secrets import ask_secret
from holdfast.cli.support.users_file import GENERATED_BYTES, changing, read_users, users_settings, with_password
from holdfast.config import AuthSettings
from holdfast.errors import InvalidArgument
from holdfast.units import format_duration

if TYPE_CHECKING:
    from holdfast.auth.users import AccessKey

# argon2 and other libraries of the users file are imported by the commands that need them: the others start quickly.

Command = TypeVar("Command", bound=Callable[..., object])

ACCESS_KEY_ID_CHARACTERS = 16
ACCESS_KEY_BYTES = 30
"""240 bits, 40 characters, as at AWS."""

users_file = click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The users file. [default: the setting auth.users_file]",
)
scopes_option = click.option(
    "--scope",
    "scopes",
    multiple=True,
    help="What the user may do, like produce:orders/#, admin:# or node. Give it several times for several scopes.",
)
namespace_option = click.option("--namespace", help="The user's namespace. [default: the server's node.namespace]")
subject_option = click.option("--subject", help="The subject of the user's client certificate, like CN=shop,O=Acme.")


@click.group()
def user() -> None:
    """Manage the users file. A running server reloads it by itself."""


@user.command()
@click.argument("name")
@scopes_option
@namespace_option
@subject_option
@click.option("--no-password", is_flag=True, help="No password: the user authenticates by its certificate only.")
@click.option("--generate", is_flag=True, help="Generate a password and print it on standard output, once.")
@click.option("--access-key", is_flag=True, help="Generate an access key for SQS clients too, and print it, once.")
@users_file
@config_file
def add(
    name: str,
    scopes: tuple[str, ...],
    namespace: str | None,
    subject: str | None,
    no_password: bool,
    generate: bool,
    access_key: bool,
    path: Path | None,
    config_path: Path | None,
) -> None:
    """Add the user NAME.

    The password is prompted for at a terminal, or read from the first line of standard input. It is never given on the
    command line.
    """
    from holdfast.auth.users import User  # noqa: PLC0415

    settings, path = users_settings(path, config_path)
    if no_password and (generate or not (subject or access_key)):
        raise click.UsageError(
            "--no-password needs --subject or --access-key, and no --generate: otherwise the user could not"
            " authenticate."
        )
    with changing(path, settings, new=True) as change:
        if name in change.users.by_name:
            raise InvalidArgument(field=f"User {name!r}", problem="exists already; change it with update or passwd")
        keys = (_new_access_key(),) if access_key else ()
        entry = User(name=name, namespace=namespace, scopes=scopes, subject=subject, access_keys=keys)
        password = "" if no_password else _password(settings, name, generate)
        change.put(entry if no_password else with_password(entry, password, settings))
    if generate:
        click.echo(password)
    _print_access_keys(keys)
    if not scopes:
        show_note(f"{name} has no scopes and may do nothing yet: holdfast user update {name} --scope produce:orders/#")
    _say(settings, f"Added {name} to {path}.")


@user.command()
@click.argument("name")
@scopes_option
@namespace_option
@subject_option
@users_file
@config_file
def update(
    name: str,
    scopes: tuple[str, ...],
    namespace: str | None,
    subject: str | None,
    path: Path | None,
    config_path: Path | None,
) -> None:
    """Change what the user NAME may do. Given scopes replace all it had; what is not given stays.

    Connections of the user are closed, so that clients reconnect with the new permissions.
    """
    settings, path = users_settings(path, config_path)
    changes = {"scopes": scopes or None, "namespace": namespace, "subject": subject}
    given = {field: value for field, value in changes.items() if value is not None}
    if not given:
        raise click.UsageError("Nothing to change: give --scope, --namespace or --subject.")
    with changing(path, settings) as change:
        change.put(msgspec.structs.replace(change.user(name), **given))
    _say(settings, f"Changed {name} in {path}.")


@user.command()
@click.argument("name")
@click.option("--generate", is_flag=True, help="Generate a password and print it on standard output, once.")
@users_file
@config_file
def passwd(name: str, generate: bool, path: Path | None, config_path: Path | None) -> None:
    """Give the user NAME a new password, prompted for at a terminal or read from standard input.

    Connections of the user are closed.
    """
    settings, path = users_settings(path, config_path)
    with changing(path, settings) as change:
        entry = change.user(name)
        password = _password(settings, name, generate)
        change.put(with_password(entry, password, settings))
    if generate:
        click.echo(password)
    _say(settings, f"{name} has a new password.")


@user.command("access-key")
@click.argument("name")
@click.option("--remove", "removed", metavar="ID", help="Remove the access key with this id instead.")
@users_file
@config_file
def access_key(name: str, removed: str | None, path: Path | None, config_path: Path | None) -> None:
    """Give the user NAME an access key, with which clients of Amazon SQS sign their requests, and print it, once.

    A user has at most two: to replace one, add the other, change the clients, and remove the first. Connections of the
    user are closed.
    """
    settings, path = users_settings(path, config_path)
    with changing(path, settings) as change:
        entry = change.user(name)
        added = () if removed else (_new_access_key(),)
        kept = tuple(key for key in entry.access_keys if key.id != removed)
        if removed and kept == entry.access_keys:
            raise InvalidArgument(field=f"Access key {removed!r}", problem=f"is not one of {name}")
        change.put(msgspec.structs.replace(entry, access_keys=(*kept, *added)))
    _print_access_keys(added)
    _say(settings, f"Removed {removed} of {name}." if removed else f"{name} has a new access key.")


def _new_access_key() -> AccessKey:
    from holdfast.auth.users import AccessKey  # noqa: PLC0415

    characters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
    key_id = "HFAK" + "".join(secrets.choice(characters) for _ in range(ACCESS_KEY_ID_CHARACTERS))
    return AccessKey(key_id, secrets.token_urlsafe(ACCESS_KEY_BYTES))


def _print_access_keys(keys: tuple[AccessKey, ...]) -> None:
    """As the environment variables of SDKs."""
    for key in keys:
        click.echo(f"AWS_ACCESS_KEY_ID={key.id}\nAWS_SECRET_ACCESS_KEY={key.secret}")


@user.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@users_file
@config_file
def remove(name: str, yes: bool, path: Path | None, config_path: Path | None) -> None:
    """Remove the user NAME. Its connections are closed."""
    settings, path = users_settings(path, config_path)
    with changing(path, settings) as change:
        change.user(name)
        if not yes and sys.stdin.isatty():
            click.confirm(f"Remove {name} from {path}?", abort=True, err=True)
        change.users = change.users.without(name)
    _say(settings, f"Removed {name} from {path}.")


@user.command("list")
@output_format
@users_file
@config_file
def list_users(output: str, path: Path | None, config_path: Path | None) -> None:
    """List the users with their scopes, without passwords and hashes."""
    settings, path = users_settings(path, config_path)
    rows: list[dict[str, object]] = [
        {
            "name": entry.name,
            "namespace": entry.namespace,
            "scopes": list(entry.scopes),
            "password": entry.password is not None,
            "subject": entry.subject,
            "access_keys": [key.id for key in entry.access_keys],
        }
        for entry in sorted(read_users(path, settings).by_name.values(), key=lambda entry: entry.name)
    ]
    show_rows(output, ["name", "namespace", "scopes", "password", "subject", "access_keys"], rows)


# --- passwords ------------------------------------------------------------------------------------------------------


def _password(settings: AuthSettings, name: str, generate: bool) -> str:
    from holdfast.auth.passwords import LENGTH_MIN  # noqa: PLC0415

    if generate:
        return secrets.token_urlsafe(GENERATED_BYTES)
    password = ask_secret(f"Password of {name}", confirm=True)
    if len(password) < LENGTH_MIN:
        raise click.UsageError(f"A password needs at least {LENGTH_MIN} characters.")
    if len(password.encode()) > settings.password_bytes_max:
        raise click.UsageError(f"A password has at most {settings.password_bytes_max} bytes (auth.password_bytes_max).")
    return password


def _say(settings: AuthSettings, text: str) -> None:
    show_note(f"{text} A running server reloads it within {format_duration(settings.reload_interval)}.")
