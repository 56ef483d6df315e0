"""The `holdfast` command.

Exit codes, the same for every command:

    0     done; for `serve`, stopped gracefully
    1     failed; the message and the error's code are on standard error
    2     the command line or the configuration is wrong; nothing was started
    130   ended at once by a second Ctrl-C (SIGINT); 143 by a second SIGTERM
"""

from __future__ import annotations

import click

from holdfast import __version__
from holdfast.cli.completion import completion
from holdfast.cli.config import config
from holdfast.cli.output import show_error
from holdfast.cli.serve import serve
from holdfast.cli.token import token
from holdfast.cli.user import user
from holdfast.errors import ConfigUnreadable, HoldfastError, InvalidConfig

EXIT_FAILED = 1
EXIT_USAGE = 2


class _Root(click.Group):
    """Shows our errors as one line instead of a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except HoldfastError as error:
            show_error(error)
            ctx.exit(EXIT_USAGE if isinstance(error, InvalidConfig | ConfigUnreadable) else EXIT_FAILED)


@click.group(cls=_Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="holdfast", message="%(prog)s %(version)s")
def main() -> None:
    """Holdfast, a durable message queue broker.

    Exit codes: 0 done, 1 failed, 2 wrong command line or configuration, 130 or 143 ended by a second signal.
    """


for command in (serve, config, user, token, completion):
    main.add_command(command)
