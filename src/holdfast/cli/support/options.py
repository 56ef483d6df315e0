"""Flags made from the settings: a setting whose kind names a flag can be given on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from holdfast.config import Field, all_fields
from holdfast.config.kinds import Choice, Count, Kind, Location, Switch

Command = TypeVar("Command", bound=Callable[..., object])

config_file = click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Read settings from this TOML file. [default: the file HOLDFAST_CONFIG names, if any]",
)


output_format = click.option(
    "-o",
    "--output",
    envvar="HOLDFAST_OUTPUT",
    type=click.Choice(["table", "json", "jsonl"]),
    default="table",
    show_default=True,
    help="For people (table) or for programs.",
)


def setting_flags(command: Command) -> Command:
    """Add a flag for each setting that has one. The command gets them by name; `given` collects them."""
    for field in reversed(all_fields()):
        if field.kind.flag:
            command = _option(field, field.kind.flag)(command)
    return command


def add_env_vars(command: click.Command, prefix: str) -> None:
    """Give every flag of a command, and of those below it, its environment variable. Flags that are settings have the
    setting's."""
    settings = {_parameter(field) for field in all_fields() if field.kind.flag}
    for option in command.params:
        if isinstance(option, click.Option) and option.envvar is None and option.name not in settings:
            option.envvar = f"{prefix}_{max(option.opts, key=len).lstrip('-')}".replace("-", "_").upper()
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            add_env_vars(child, f"{prefix}_{name}")


def given(flags: dict[str, object]) -> dict[str, object]:
    """The values that click collected, by dotted name, for `holdfast.config.load`."""
    return {field.dotted: flags[_parameter(field)] for field in all_fields() if field.kind.flag}


def _parameter(field: Field) -> str:
    return field.dotted.replace(".", "__")


def _option(field: Field, flag: str) -> Callable[[Command], Command]:
    text = " ".join(field.doc.split()).partition(". ")[0].rstrip(".")
    if isinstance(field.kind, Switch):
        return click.option(f"{flag}/--no-{flag.removeprefix('--')}", _parameter(field), default=None, help=f"{text}.")
    return click.option(
        flag,
        _parameter(field),
        type=_type(field.kind),
        help=f"{text}. [default: {field.kind.show(field.default)}]",
    )


def _type(kind: Kind) -> click.ParamType[object]:
    match kind:
        case Choice(words=words):
            return click.Choice(words)
        case Count(low=low, high=high):
            return click.IntRange(low, high)
        case Location():
            return click.Path(path_type=Path)
        case _:
            return click.STRING
