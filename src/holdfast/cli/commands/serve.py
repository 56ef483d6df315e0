"""`holdfast serve`: run a node."""

from __future__ import annotations

import os
from pathlib import Path

import click

from holdfast.cli.support.options import config_file, given, setting_flags
from holdfast.config import load


@click.command()
@setting_flags
@config_file
@click.pass_context
def serve(context: click.Context, /, config_path: Path | None, **flags: object) -> None:
    """Run a broker node until it is stopped.

    Settings come from defaults, the configuration file, HOLDFAST_ variables and these flags; later ones take precedence
    (`holdfast config show --origin`). SIGTERM or Ctrl-C stops gracefully, a second one immediately.
    """
    config = load(config_path, os.environ, given(flags))
    # Only this command needs the broker and its libraries; the others should start quickly.
    from holdfast import server  # noqa: PLC0415

    context.exit(server.run(config))
