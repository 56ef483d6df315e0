"""Changes that cannot be undone: `--dry-run` shows what would happen, and without `--yes` the user must confirm."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., object])

yes_option = click.option(
    "-y", "--yes", is_flag=True, envvar="HOLDFAST_YES", help="Do not ask for confirmation. Required without a terminal."
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, envvar="HOLDFAST_DRY_RUN", help="Change nothing, only show what would be done."
)


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation, unless `yes`. Without a terminal the answer is no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Give --yes, or --dry-run to see what would be done.")
    if not click.confirm(question, err=True):
        raise click.exceptions.Exit(1)
