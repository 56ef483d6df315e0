"""`holdfast completion`: completion scripts for shells."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, /, shell: str) -> None:
    """Print the completion script for SHELL. For bash: eval "$(holdfast completion bash)"."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "holdfast", "_HOLDFAST_COMPLETE").source())
