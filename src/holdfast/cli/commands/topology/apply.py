"""`holdfast apply` and `holdfast export`: queues, groups and schedules as a file that is kept in Git."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from msgspec.structs import replace

from holdfast.cli.commands.topology.document import FORMATS, read, write
from holdfast.cli.commands.topology.plan import Step, export, plan
from holdfast.cli.commands.topology.users import user_steps, users_of
from holdfast.cli.support.confirm import confirm, dry_run_option, yes_option
from holdfast.cli.support.connection import connected
from holdfast.cli.support.numbers import plural
from holdfast.cli.support.options import output_format
from holdfast.cli.support.output import show_note, show_rows
from holdfast.escapes import escape_controls

EXIT_DIFFERS = 1

_users_file = click.option(
    "--users-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The users file of the server, for the users of FILE. [default: users are left alone]",
)


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--prune", is_flag=True, help="Delete queues, groups and schedules that FILE does not name.")
@click.option("--check", is_flag=True, help="Change nothing; exit code 1 if there is something to change.")
@_users_file
@yes_option
@dry_run_option
@output_format
def apply(file: Path, prune: bool, check: bool, users_file: Path | None, yes: bool, dry_run: bool, output: str) -> None:
    """Make queues, groups, schedules and users as FILE says, which is TOML or YAML. The plan is shown first.

    Settings of a queue that FILE does not name get their default, but `partitions` and `paused` stay as they are. A
    second time nothing is left to do. `holdfast export` writes such a file. Of users it says what they may do; a new
    one without a certificate is given a password, which is printed once on standard error.
    """
    wanted = read(file)
    with connected() as client:
        steps = plan(client, wanted, prune)
        if wanted.users is not None:
            steps += user_steps(users_file, wanted.users, prune)
        _show(steps, output)
        if not steps:
            show_note("Nothing to do: everything is as the file says.")
        elif check:
            click.get_current_context().exit(EXIT_DIFFERS)
        elif not dry_run:
            deleted = sum(step.sign == "-" for step in steps)
            about = f"{plural(len(steps), 'change')}{f', {deleted} of them deletions' if deleted else ''}"
            confirm(f"Apply {about}?", yes)
            for done, step in enumerate(steps):
                try:
                    step.run()
                except BaseException:
                    show_note(f"{plural(done, 'change')} of {len(steps)} made; failed: {step.sign} {step.what}")
                    raise
            show_note(f"Applied {about}.")


def _show(steps: list[Step], output: str) -> None:
    if output != "table":
        show_rows(output, [], [{"change": step.sign, "what": step.what, "details": step.details} for step in steps])
        return
    for step in steps:
        click.secho(
            escape_controls(f"{step.sign} {step.what}"), fg={"+": "green", "~": "yellow", "-": "red"}[step.sign]
        )
        for detail in step.details:
            click.echo(escape_controls(f"    {detail}"))


@click.command("export")
@click.argument("prefix", default="")
@click.option("--format", "shape", type=click.Choice(FORMATS), default="toml", show_default=True, help="Of the file.")
@_users_file
def export_all(prefix: str, shape: str, users_file: Path | None) -> None:
    """Write the queues, groups and schedules whose names start with PREFIX, or all, as a file for `holdfast apply`.

    \b
    holdfast export > topology.toml
    """
    with connected() as client:
        found = export(client, prefix)
    if users_file is not None:
        found = replace(found, users=users_of(users_file))
    sys.stdout.write(write(found, shape))
