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
from holdfast.cli.support.times import INSTANT
from holdfast.errors import GroupNotFound, InvalidArgument
from holdfast.wire import CursorEnd, GroupStats


@click.group()
def group() -> None:
    """Create, list, move and delete the groups of a queue."""


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


@group.command()
@click.argument("queue", type=QUEUE)
@click.argument("name", metavar="GROUP")
@click.option("--to-end", is_flag=True, help="Behind the last message: the group begins with what comes from now on.")
@click.option("--since", type=INSTANT, help="To the first message that was enqueued at this instant or later.")
@click.option("--sequence", type=click.IntRange(1), help="To this sequence of the partition of --partition.")
@click.option("--partition", type=click.IntRange(0), default=0, show_default=True, help="For --sequence.")
@yes_option
@dry_run_option
@output_format
def move(
    queue: str,
    name: str,
    to_end: bool,
    since: str | None,
    sequence: int | None,
    partition: int,
    yes: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Move the position of the cursor group GROUP of QUEUE: it goes on reading there.

    A group moves forward only: what it has passed may not be stored any more. To read from the oldest message again,
    create another group with --start earliest. What a leasing group is to skip is purged or moved.
    """
    if [to_end, since is not None, sequence is not None].count(True) != 1:
        raise click.UsageError("Say where to, with one of --to-end, --since and --sequence.")
    with connected() as client:
        ends = {each.partition: each for each in client.operations.ends(queue, name)}
        if sequence is not None:
            if partition not in ends:
                raise InvalidArgument(field="--partition", problem=f"is 0 to {len(ends) - 1}, not {partition}")
            positions = {partition: sequence}
        elif since is not None:
            positions = {each.partition: each.first for each in client.operations.partitions(queue, since=since)}
        else:
            positions = {each.partition: each.end for each in ends.values()}
        for number, first in positions.items():
            _check_move(name, ends[number], first, exact=sequence is not None)
        moves = {number: first for number, first in positions.items() if first > ends[number].committed + 1}
        skipped = sum(first - 1 - ends[number].committed for number, first in moves.items())
        about = f"group {name} of {queue} past {plural(skipped, 'message')}"
        if dry_run:
            show_note(f"Would move {about}.")
            return
        confirm(f"Move {about}?", yes)
        if moves:
            client.commit(queue, name, {number: first - 1 for number, first in moves.items()})
        rows = [
            {"partition": number, "from": ends[number].committed + 1, "to": max(first, ends[number].committed + 1)}
            for number, first in sorted(positions.items())
        ]
    show_rows(output, ["partition", "from", "to"], [dict(each) for each in rows])


def _check_move(name: str, end: CursorEnd, first: int, *, exact: bool) -> None:
    """Raises if a group cannot go there. Without `exact`, a partition that it has read further stays as it is."""
    if exact and first <= end.committed:
        raise InvalidArgument(
            field="--sequence",
            problem=f"is behind {end.committed}, which {name} has passed: a group moves forward only. Create another"
            " one with --start earliest to read from the oldest message again",
        )
    if first > end.end:
        raise InvalidArgument(field="--sequence", problem=f"is at most {end.end}, where the next message will be")
