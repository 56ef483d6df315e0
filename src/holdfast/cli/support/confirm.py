"""Acts that cannot be undone: `--dry-run` tells what would happen, and without `--yes` a person is asked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., object])

yes_option = click.option(
    "-y", "--yes", is_flag=True, envvar="HOLDFAST_YES", help="Do not ask. Without a terminal it must be given."
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, envvar="HOLDFAST_DRY_RUN", help="Change nothing, only tell what would be done."
)


def confirm(question: str, yes: bool) -> None:
    """Ask, unless told not to. Nobody there to answer is a no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Say --yes, or --dry-run to see what would be done.")
    if not click.confirm(question, err=True):
        raise click.exceptions.Exit(1)
