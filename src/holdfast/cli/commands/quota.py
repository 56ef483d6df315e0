"""`holdfast quota`: how much a namespace may have, and how much of it is used."""

from __future__ import annotations

import click

from holdfast import wire
from holdfast.cli.support.connection import connected
from holdfast.cli.support.numbers import count, size
from holdfast.cli.support.options import output_format
from holdfast.cli.support.output import show_note, show_one, show_rows
from holdfast.units import parse_size

DEFAULT = "default"


@click.group()
def quota() -> None:
    """Show and set how much a namespace may have."""


@quota.command()
@click.argument("namespace", default="")
@output_format
def show(namespace: str, output: str) -> None:
    """Show the quotas of NAMESPACE, or of your own, and how much is used. Another namespace's need the scope `node`."""
    with connected() as client:
        _show(client.quotas(namespace), output)


@quota.command("set")
@click.argument("namespace")
@click.argument("limits", nargs=-1, required=True, metavar="NAME=LIMIT...")
@output_format
def set_limits(namespace: str, limits: tuple[str, ...], output: str) -> None:
    """Set quotas of NAMESPACE, like queues=100 stored_bytes=10GiB. 0 is no limit; `default` the configuration's
    default again. Needs the scope `node`."""
    changes = dict(_read(given) for given in limits)
    with connected() as client:
        changed = client.set_quotas(namespace, changes)
    show_note(f"Set {', '.join(changes)} of namespace {namespace}.")
    if output != "table":
        _show(changed, output)


def _read(given: str) -> tuple[str, int | None]:
    name, equals, text = given.partition("=")
    if not equals:
        raise click.BadParameter(f"{given!r} is not like queues=100", param_hint="limits")
    if text == DEFAULT:
        return name, None
    try:
        return name, parse_size(text)
    except ValueError:
        raise click.BadParameter(
            f"{given!r}: a limit is a number, a size like 10GiB, or {DEFAULT}", param_hint="limits"
        ) from None


def _show(found: wire.QuotaList, output: str) -> None:
    if output != "table":
        plain = {name: {"limit": one.limit, "used": one.used, "own": one.own} for name, one in found.quotas.items()}
        show_one(output, {"namespace": found.namespace, "quotas": plain})
        return
    rows: list[dict[str, object]] = [
        {
            "quota": name,
            "used": "" if one.used is None else _number(name, one.used),
            "limit": _number(name, one.limit) if one.limit else "none",
            "set": "for this namespace" if one.own else "by default",
        }
        for name, one in found.quotas.items()
    ]
    show_rows(output, ["quota", "used", "limit", "set"], rows)


def _number(name: str, number: int) -> str:
    return size(number) if "bytes" in name else count(number)
