"""`holdfast context`: servers under names, so that their addresses and files need not be typed again."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from holdfast.cli.support import contexts
from holdfast.cli.support.connection import settings
from holdfast.cli.support.options import output_format
from holdfast.cli.support.output import show_note, show_rows
from holdfast.errors import InvalidArgument


@click.group()
def context() -> None:
    """Save servers under names, and choose the one that commands talk to.

    \b
    holdfast --url https://queues.example:8080 --token-file ~/.holdfast-token context save production
    holdfast context use production
    holdfast --context laptop queue list
    """


@context.command()
@click.argument("name")
@click.option("--use", "choose", is_flag=True, help="Choose it too.")
def save(name: str, choose: bool) -> None:
    """Save under NAME the server and credentials that are given before `context`, or by their environment variables.

    Files are saved by their path, and no secret is: a token must be in a --token-file.
    """
    given = settings()
    if given.token is not None:
        raise InvalidArgument(field="A token", problem="is not saved; write it to a file and give --token-file")
    if not name or len(name) > contexts.NAME_LENGTH_MAX or not name.isprintable():
        problem = f"must have 1 to {contexts.NAME_LENGTH_MAX} characters"
        raise InvalidArgument(field="The name of a context", problem=problem)
    saved = contexts.load()
    if len(saved.contexts) >= contexts.NAMES_MAX and name not in saved.contexts:
        raise InvalidArgument(field="A context", problem=f"cannot be added: there are {contexts.NAMES_MAX} already")
    files = ("token_file", "password_file", "ca_file", "certificate_file", "key_file")
    paths = {field: _absolute(getattr(given, field)) for field in files}
    saved.contexts[name] = contexts.SavedServer(
        url=given.url, user=given.user, namespace=given.namespace, verify=given.verify, **paths
    )
    if choose:
        saved.current = name
    contexts.save(saved)
    show_note(f"Saved {name}: {given.url}." + (" Commands talk to it now." if choose else ""))


def _absolute(path: Path | None) -> str | None:
    return str(path.expanduser().absolute()) if path is not None else None


@context.command("list")
@output_format
def list_all(output: str) -> None:
    """List what is saved."""
    saved = contexts.load()
    rows: list[dict[str, object]] = [
        {"name": name, "current": name == saved.current, **msgspec.to_builtins(each)}
        for name, each in sorted(saved.contexts.items())
    ]
    if output != "table":
        show_rows(output, [], rows)
    elif not rows:
        show_note("No context is saved. Save one: holdfast --url URL context save NAME")
    else:
        for row in rows:
            row["current"] = "*" if row["current"] else ""
        show_rows(output, ["current", "name", "url", "user", "token_file", "namespace"], rows)


@context.command()
@click.argument("name", default="")
def use(name: str) -> None:
    """Talk to the server NAME from now on; without NAME to the default again."""
    saved = contexts.load()
    _check(saved, name)
    saved.current = name
    contexts.save(saved)
    show_note(f"Commands talk to {saved.contexts[name].url}." if name else "No context is chosen.")


@context.command()
@click.argument("name")
def delete(name: str) -> None:
    """Delete what is saved under NAME."""
    saved = contexts.load()
    _check(saved, name)
    del saved.contexts[name]
    if saved.current == name:
        saved.current = ""
    contexts.save(saved)
    show_note(f"Deleted {name}.")


def _check(saved: contexts.Contexts, name: str) -> None:
    if name and name not in saved.contexts:
        known = ", ".join(sorted(saved.contexts)) or "none is saved"
        raise InvalidArgument(field=f"Context {name!r}", problem=f"does not exist; there are: {known}")
