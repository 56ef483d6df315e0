"""The `holdfast` command.

Exit codes, the same for every command:

    0     done; for `serve`, stopped gracefully
    1     failed, or not all of it was done; the message and the error's code are on standard error
    2     the command line or the configuration is wrong; nothing was started or sent
    3     there was nothing to receive
    130   ended by Ctrl-C (SIGINT); `serve` and `worker` by a second one, and by a second SIGTERM with 143

Results are on standard output, messages about them on standard error. Every flag has an environment variable:
`HOLDFAST_`, the words of the command and the flag in capitals, joined by `_`, as in `HOLDFAST_QUEUE_CREATE_MAX_DEPTH`;
flags that many commands share have one for all: `HOLDFAST_URL`, `HOLDFAST_TOKEN`, `HOLDFAST_OUTPUT`, `HOLDFAST_YES`,
`HOLDFAST_DRY_RUN`, `HOLDFAST_GROUP`. Flags of `serve` are settings, and use the settings' variables too. `NO_COLOR` is
respected.
"""

from __future__ import annotations

import errno
from typing import Any

import click

from holdfast.build_info import version_line
from holdfast.cli.commands.audit import audit
from holdfast.cli.commands.backup import backup, restore
from holdfast.cli.commands.bench import bench
from holdfast.cli.commands.browse import browse
from holdfast.cli.commands.completion import completion
from holdfast.cli.commands.config import config
from holdfast.cli.commands.consumer import consumer
from holdfast.cli.commands.context import context as context_group
from holdfast.cli.commands.dlq import dlq
from holdfast.cli.commands.doctor import doctor
from holdfast.cli.commands.messages.history import history
from holdfast.cli.commands.messages.move import move
from holdfast.cli.commands.messages.request import request
from holdfast.cli.commands.messages.tail import tail
from holdfast.cli.commands.pipeline import pipeline
from holdfast.cli.commands.queue import queue
from holdfast.cli.commands.quota import quota
from holdfast.cli.commands.receive import receive
from holdfast.cli.commands.schedule import schedule
from holdfast.cli.commands.send import send
from holdfast.cli.commands.serve import serve
from holdfast.cli.commands.settle import ack, extend, nack, reject, release
from holdfast.cli.commands.store import store
from holdfast.cli.commands.token import token
from holdfast.cli.commands.top import top
from holdfast.cli.commands.topology.apply import apply, export_all
from holdfast.cli.commands.user import user
from holdfast.cli.commands.worker import worker
from holdfast.cli.support.connection import connection_from, connection_options
from holdfast.cli.support.extras import explain
from holdfast.cli.support.options import add_env_vars
from holdfast.cli.support.output import show_error
from holdfast.errors import ConfigUnreadable, HoldfastError, InvalidConfig, InvalidName, OutputUnwritable

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
USAGE = (InvalidConfig, ConfigUnreadable, InvalidName)
"""The command line is wrong, whatever the server."""


ANYWHERE = ("--context", "--url", "--token", "--token-file")


class _Root(click.Group):
    """Shows our errors as one line instead of a traceback, and accepts the server's address after the command too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _in_front(args))

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(EXIT_INTERRUPTED)
        except HoldfastError as error:
            show_error(error)
            ctx.exit(EXIT_USAGE if isinstance(error, USAGE) else EXIT_FAILED)
        except OSError as error:
            if error.errno == errno.EPIPE or error.filename is not None:
                raise  # click handles a closed pipe; an error with a file name is not about our output
            show_error(OutputUnwritable(problem=error.strerror or str(error)))
            ctx.exit(EXIT_FAILED)
        except ModuleNotFoundError as error:
            explained = explain(error)
            if explained is None:
                raise
            show_error(explained)
            ctx.exit(EXIT_FAILED)


def _in_front(args: list[str]) -> list[str]:
    """People write `holdfast queue list --url ...` as well."""
    front: list[str] = []
    rest: list[str] = []
    left = iter(args)
    for arg in left:
        if arg == "--":
            rest += [arg, *left]
        elif arg in ANYWHERE:
            front += [arg, *([value] if (value := next(left, None)) is not None else [])]
        elif arg.partition("=")[0] in ANYWHERE:
            front.append(arg)
        else:
            rest.append(arg)
    return [*front, *rest]


def _show_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        click.echo(version_line())
        context.exit()


@click.group(cls=_Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and the commit it was built from, and exit.",
)
@connection_options
@click.pass_context
def main(context: click.Context, /, **options: Any) -> None:
    """Holdfast, a durable message queue broker.

    The options below say which server a command talks to; `serve` and what works on files need none of them.

    Exit codes: 0 done, 1 failed, 2 wrong command line or configuration, 3 nothing to receive, 130 or 143 ended by a
    signal.
    """
    context.obj = connection_from(context, options)


COMMANDS: tuple[click.Command, ...] = (
    serve,
    queue,
    send,
    receive,
    ack,
    nack,
    reject,
    release,
    extend,
    browse,
    tail,
    history,
    request,
    move,
    consumer,
    dlq,
    schedule,
    apply,
    export_all,
    worker,
    top,
    bench,
    doctor,
    audit,
    store,
    backup,
    restore,
    pipeline,
    context_group,
    config,
    quota,
    user,
    token,
    completion,
)

for command in COMMANDS:
    main.add_command(command)
    add_env_vars(command, f"HOLDFAST_{command.name}")
