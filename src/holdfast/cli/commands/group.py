"""`holdfast queue group`: the groups of a queue."""

from __future__ import annotations

from typing import Literal

import click
import msgspec

from holdfast.cli.support.confirm import confirm, dry_run_option, yes_option
from holdfast.cli.support.connection import connected
from holdfast.cli.support.numbers import age, count, plural
from holdfast.cli.support.options import output_format
from holdfast.cli.support.output import show_note, show_one, show_rows
from holdfast.cli.support.queue_names import QUEUE
from holdfast.errors import GroupNotFound
from holdfast.wire import GroupStats


@click.group()
def group() -> None:
    """Create, list and delete the groups of a queue."""


@group.command("list")
@click.argument("queue", type=QUEUE)
@output_format
def list_all(queue: str, output: str) -> None:
    """List the groups of QUEUE: what each has not settled, and who consumes it."""
    with connected() as client:
        groups = client.stats(queue).groups
    if output != "table":
        show_rows(output, [], [msgspec.to_builtins(each) for each in groups])
        return
    columns = ["group", "kind", "backlog", "consumers", "unattended for"]
    show_rows(output, columns, [_row(each) for each in groups])


def _row(stats: GroupStats) -> dict[str, object]:
    return {
        "group": stats.name,
        "kind": stats.kind,
        "backlog": count(_backlog(stats)),
        "consumers": count(stats.consumers),
        "unattended for": age(stats.unattended_seconds),
    }


def _backlog(stats: GroupStats) -> int:
    return stats.lag if stats.kind == "cursor" else stats.ready + stats.scheduled + stats.leased


@group.command()
@click.argument("queue", type=QUEUE)
@click.argument("name", metavar="GROUP")
@click.option(
    "--kind",
    type=click.Choice(["lease", "cursor"]),
    default="lease",
    show_default=True,
    help="Whether its consumers share the messages (lease) or read all of them as a log (cursor).",
)
@click.option(
    "--start",
    type=click.Choice(["earliest", "latest"]),
    help="With the oldest message or the next one. [default: the first group with the oldest, others with the next]",
)
@dry_run_option
@output_format
def create(
    queue: str,
    name: str,
    kind: Literal["lease", "cursor"],
    start: Literal["earliest", "latest"] | None,
    dry_run: bool,
    output: str,
) -> None:
    """Create GROUP of QUEUE, and the queue if it does not exist."""
    if dry_run:
        show_note(f"Would create group {name} of {queue}.")
        return
    with connected() as client:
        made = client.create_group(queue, name, kind=kind, start=start)
    show_note(f"Created group {name} of {queue}.")
    if output != "table":
        show_one(output, msgspec.to_builtins(made))


@group.command()
@click.argument("queue", type=QUEUE)
@click.argument("name", metavar="GROUP")
@yes_option
@dry_run_option
def delete(queue: str, name: str, yes: bool, dry_run: bool) -> None:
    """Delete GROUP of QUEUE, with the messages that only it has not settled."""
    with connected() as client:
        found = next((each for each in client.stats(queue).groups if each.name == name), None)
        if found is None:
            raise GroupNotFound(group=name, queue=queue)
        about = f"group {name} of {queue}, which has not settled {plural(_backlog(found), 'message')}"
        if dry_run:
            show_note(f"Would delete {about}.")
            return
        confirm(f"Delete {about}?", yes)
        client.delete_group(queue, name)
    show_note(f"Deleted group {name} of {queue}.")
