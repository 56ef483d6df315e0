"""`holdfast move`: move the messages of a queue to another one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast import wire
from holdfast.cli.support.confirm import confirm, dry_run_option, yes_option
from holdfast.cli.support.connection import connected
from holdfast.cli.support.numbers import count, plural
from holdfast.cli.support.options import output_format
from holdfast.cli.support.output import progress_bar, show_note, show_one, show_rows
from holdfast.cli.support.queue_names import QUEUE
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.client import SyncClient

POLL_INTERVAL_SECONDS = 0.2  # while it runs


@click.command()
@click.argument("queue", type=QUEUE)
@click.option("--to", type=QUEUE, help="The queue to move them to, which must exist.")
@click.option("--id", "ids", multiple=True, help="This message. May be given several times.")
@click.option("--older-than", help="Only those that were enqueued at least so long ago, as 1h.")
@click.option("--newer-than", help="Only those that were enqueued at most so long ago.")
@click.option(
    "-p", "--property", "properties", multiple=True, metavar="NAME=VALUE", help="Only those with this property."
)
@click.option("--rate", type=click.FloatRange(0), default=0, help="Messages a second at most. [default: no limit]")
@click.option("-n", "--limit", type=click.IntRange(0), default=0, help="How many at most. [default: all that match]")
@click.option("--background", is_flag=True, help="Do not wait: the move goes on in the server.")
@click.option("--jobs", is_flag=True, help="Move nothing: list the moves of QUEUE and their progress.")
@click.option("--cancel", metavar="JOB", default="", help="Move nothing: cancel this one. What it has moved stays.")
@yes_option
@dry_run_option
@output_format
def move(
    queue: str,
    to: str | None,
    ids: tuple[str, ...],
    older_than: str | None,
    newer_than: str | None,
    properties: tuple[str, ...],
    rate: float,
    limit: int,
    background: bool,
    jobs: bool,
    cancel: str,
    yes: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Move the messages of QUEUE that wait to another queue: all, or those that match, in the order they came.

    They keep their priority, key, properties, delivery time and time to live. What consumers hold stays, and so does
    what is sent from now on. The move survives a restart of the server. Ctrl-C while it waits cancels the rest.
    """
    with connected() as client:
        if jobs:
            _list(client, queue, output)
            return
        if cancel:
            ended = client.operations.cancel_move(queue, cancel)
            show_note(f"Move {cancel} is {ended.state}; it moved {plural(ended.moved, 'message')}.")
            return
        if to is None:
            raise click.UsageError("Say where to, with --to QUEUE.")
        which = _filter(ids, older_than, newer_than, properties)
        matched = client.operations.move(queue, to, which, limit=limit, dry_run=True).matched
        if dry_run:
            show_note(f"Would move {plural(matched, 'message')} of {queue} to {to}.")
            return
        if not matched:
            show_note(f"No messages of {queue} match.")
            return
        confirm(f"Move {plural(matched, 'message')} of {queue} to {to}?", yes)
        job = client.operations.move(queue, to, which, rate=rate, limit=limit)
        if not background:
            job = _wait(client, queue, job, matched)
    if output != "table":
        show_one(output, msgspec.to_builtins(job))
    elif background:
        click.echo(job.id)
    else:
        left = f" {job.skipped:,} stay{': ' + job.problem if job.problem else ', leased by consumers.'}"
        show_note(f"Moved {plural(job.moved, 'message')} of {queue} to {to}.{left if job.skipped else ''}")
    if job.state == "failed":
        raise HoldfastError(problem=job.problem)


def _filter(
    ids: tuple[str, ...], older_than: str | None, newer_than: str | None, properties: tuple[str, ...]
) -> wire.MoveFilter:
    pairs = [pair.partition("=") for pair in properties]
    if any(not equals for _, equals, _ in pairs):
        raise click.UsageError("A property is NAME=VALUE.")
    known = {name: value for name, _, value in pairs}
    return wire.MoveFilter(ids=list(ids), older_than=older_than, newer_than=newer_than, properties=known)


def _wait(client: SyncClient, queue: str, job: wire.MoveJob, matched: int) -> wire.MoveJob:
    with progress_bar("Moving", matched, hidden=False) as advance:
        try:
            while job.state == "running":
                time.sleep(POLL_INTERVAL_SECONDS)
                job = client.operations.move_progress(queue, job.id)
                advance(job.moved + job.skipped)
        except KeyboardInterrupt:
            client.operations.cancel_move(queue, job.id)
            raise
    return job


def _list(client: SyncClient, queue: str, output: str) -> None:
    found = [job for job in client.operations.moves(queue) if not job.dry_run]
    if output != "table":
        show_rows(output, [], [msgspec.to_builtins(job) for job in found])
    elif not found:
        show_note(f"No messages of {queue} were moved.")
    else:
        rows: list[dict[str, object]] = [
            {
                **{name: count(getattr(job, name)) for name in ("moved", "matched", "skipped")},
                **{name: getattr(job, name) for name in ("id", "state", "to", "problem")},
                "started": job.started_at,
            }
            for job in found
        ]
        show_rows(output, ["id", "state", "moved", "matched", "skipped", "to", "started", "problem"], rows)
