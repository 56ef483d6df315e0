"""`holdfast dlq`: list, redrive and delete dead letters."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from holdfast import wire
from holdfast.cli.support.confirm import confirm, dry_run_option, yes_option
from holdfast.cli.support.connection import connected
from holdfast.cli.support.deliveries import document, row
from holdfast.cli.support.numbers import count, plural
from holdfast.cli.support.options import output_format
from holdfast.cli.support.output import progress_bar, show_note, show_one, show_rows
from holdfast.cli.support.queue_names import QUEUE
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.client import SyncClient

Command = TypeVar("Command", bound=Callable[..., object])

POLL_INTERVAL_SECONDS = 0.2  # while a redrive runs

_FILTERS = (
    click.option("--id", "ids", multiple=True, help="This dead letter. May be given several times."),
    click.option(
        "--reason",
        type=click.Choice(["max_retries", "total_timeout", "rejected", "expired"]),
        help="Only those with this reason.",
    ),
    click.option("--error", default="", help="Only those whose last error contains this text."),
    click.option("-g", "--group", default="", help="Only those that died in this group."),
    click.option("--older-than", help="Only those that died at least so long ago, as 1h."),
    click.option("--newer-than", help="Only those that died at most so long ago."),
    click.option(
        "-p", "--property", "properties", multiple=True, metavar="NAME=VALUE", help="Only those with this property."
    ),
)


def _filter_options(command: Command) -> Command:
    for option in reversed(_FILTERS):
        command = option(command)
    return command


def _group_options(command: Command) -> Command:
    command = click.option(
        "--all-groups", is_flag=True, help="Redrive them to all groups of the queue, not only to the one they died in."
    )(command)
    return click.option("--to-group", default="", help="Redrive them to this group. [default: the one each died in]")(
        command
    )


def _filter(filters: dict[str, Any]) -> wire.DeadFilter:
    pairs = [pair.partition("=") for pair in filters["properties"]]
    if any(not equals for _, equals, _ in pairs):
        raise click.UsageError("A property is NAME=VALUE.")
    return wire.DeadFilter(
        ids=list(filters["ids"]),
        reason=filters["reason"] or "",
        error=filters["error"],
        group=filters["group"],
        older_than=filters["older_than"],
        newer_than=filters["newer_than"],
        properties={name: value for name, _, value in pairs},
    )


@click.group()
def dlq() -> None:
    """List, redrive and delete dead letters.

    QUEUE is the queue whose messages died, or a dead queue itself.
    """


@dlq.command("list")
@click.argument("queue", type=QUEUE)
@click.option(
    "--reason",
    type=click.Choice(["max_retries", "total_timeout", "rejected", "expired"]),
    help="Only those with this reason.",
)
@click.option("--error", default="", help="Only those whose last error contains this text.")
@click.option("-g", "--group", default="", help="Only those that died in this group.")
@click.option("-n", "--limit", type=click.IntRange(1), default=20, show_default=True, help="How many at most.")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@output_format
def list_all(queue: str, reason: str | None, error: str, group: str, limit: int, everything: bool, output: str) -> None:
    """List the dead letters of QUEUE, oldest first."""
    with connected() as client:
        found = client.dead_letters(
            queue, reason=reason or "", error=error, group=group, limit=None if everything else limit + 1
        )
        if output == "jsonl":
            for index, each in enumerate(found):
                if everything or index < limit:
                    show_rows(output, [], [document(each)])
            return
        dead_letters = list(found)
    more = not everything and len(dead_letters) > limit
    dead_letters = dead_letters if everything else dead_letters[:limit]
    if output == "json":
        show_rows(output, [], [document(each) for each in dead_letters])
        return
    if dead_letters:
        show_rows(output, ["id", "age", "reason", "attempts", "error", "payload"], [row(each) for each in dead_letters])
    else:
        show_note(f"No dead letters of {queue}.")
    if more:
        show_note(f"There are more than {limit:,}; --all shows all, --limit more.")


@dlq.command()
@click.argument("queue", type=QUEUE)
@click.argument("message_id", metavar="ID")
@output_format
def show(queue: str, message_id: str, output: str) -> None:
    """Show one dead letter of QUEUE in full."""
    with connected() as client:
        found = _dead_letter(client, queue, message_id)
    fields = document(found)
    if output == "table":
        fields |= {f"origin.{name}": value for name, value in fields.pop("origin", {}).items()}
        fields.pop("deliveries", None)
        body = fields.get("payload", fields.get("text"))
        if not isinstance(body, str | None):
            fields["payload"] = msgspec.json.encode(body).decode()
    show_one(output, fields)


def _dead_letter(client: SyncClient, queue: str, message_id: str) -> wire.MessageView:
    """A dead letter by its id. QUEUE is its source queue or the dead queue."""
    if queue.startswith("dlq/"):
        return client.message(queue, message_id)
    return client.message(client.queue(queue).config.dlq.queue or f"dlq/{queue}", message_id)


@dlq.command()
@click.argument("queue", type=QUEUE)
@click.argument("message_ids", metavar="ID...", nargs=-1, required=True)
@click.option("--to", default="", help="The queue to redrive it to. [default: its source queue]")
@_group_options
@dry_run_option
@output_format
def retry(
    queue: str, message_ids: tuple[str, ...], to: str, to_group: str, all_groups: bool, dry_run: bool, output: str
) -> None:
    """Redrive single dead letters of QUEUE. Prints the new id and queue of each."""
    with connected() as client:
        if dry_run:
            for message_id in message_ids:
                origin = _dead_letter(client, queue, message_id).origin
                show_note(f"Would redrive {message_id} to {to or (origin.source_queue if origin else '?')}.")
            return
        for message_id in message_ids:
            moved = client.retry_dead(queue, message_id, to=to, group=to_group, all_groups=all_groups)
            show_note(f"Redrove {message_id} to {moved.queue}.")
            if output == "table":
                click.echo(moved.id)
            else:
                show_rows("jsonl", [], [{"dead_letter": message_id, "queue": moved.queue, "id": moved.id}])


@dlq.command()
@click.argument("queue", type=QUEUE)
@_filter_options
@click.option("--to", default="", help="The queue to redrive them to. [default: each to its source queue]")
@_group_options
@click.option("--rate", type=click.FloatRange(0), default=0, help="Dead letters a second at most. [default: no limit]")
@click.option("-n", "--limit", type=click.IntRange(0), default=0, help="How many at most. [default: all that match]")
@click.option("--background", is_flag=True, help="Do not wait: the redrive runs in the server.")
@yes_option
@dry_run_option
@output_format
def redrive(
    queue: str,
    to: str,
    to_group: str,
    all_groups: bool,
    rate: float,
    limit: int,
    background: bool,
    yes: bool,
    dry_run: bool,
    output: str,
    **filters: Any,
) -> None:
    """Redrive dead letters of QUEUE: all, or those that match, in the order they died.

    Ctrl-C while it waits cancels the rest; what was moved stays moved.
    """
    which = _filter(filters)
    with connected() as client:
        matched = client.redrive(queue, which, to=to, limit=limit, dry_run=True).matched
        where = (to or "their source queue") + (f", group {to_group}" if to_group else "")
        if dry_run:
            show_note(f"Would redrive {plural(matched, 'dead letter')} of {queue} to {where}.")
            return
        if not matched:
            show_note(f"No dead letters of {queue} match.")
            return
        confirm(f"Redrive {plural(matched, 'dead letter')} of {queue} to {where}?", yes)
        job = client.redrive(queue, which, to=to, group=to_group, all_groups=all_groups, rate=rate, limit=limit)
        if not background:
            job = _wait(client, queue, job, matched)
    if output != "table":
        show_one(output, msgspec.to_builtins(job))
    elif background:
        click.echo(job.id)
    else:
        left = f" {job.skipped:,} stay: {job.problem}" if job.skipped else ""
        show_note(f"Redrove {plural(job.moved, 'dead letter')} of {queue}.{left}")
    if job.state == "failed":
        raise HoldfastError(problem=job.problem)


def _wait(client: SyncClient, queue: str, job: wire.RedriveJob, matched: int) -> wire.RedriveJob:
    with progress_bar("Redriving", matched, hidden=False) as advance:
        try:
            while job.state == "running":
                time.sleep(POLL_INTERVAL_SECONDS)
                job = client.redrive_progress(queue, job.id)
                advance(job.moved + job.skipped)
        except KeyboardInterrupt:
            client.cancel_redrive(queue, job.id)
            raise
    return job


@dlq.command()
@click.argument("queue", type=QUEUE)
@_filter_options
@yes_option
@dry_run_option
@output_format
def purge(queue: str, yes: bool, dry_run: bool, output: str, **filters: Any) -> None:
    """Delete dead letters of QUEUE: all, or those that match."""
    which = _filter(filters)
    with connected() as client:
        matched = client.redrive(queue, which, dry_run=True).matched
        if dry_run:
            show_note(f"Would throw away {plural(matched, 'dead letter')} of {queue}.")
            return
        if not matched:
            show_note(f"No dead letters of {queue} match.")
            return
        confirm(f"Throw away {plural(matched, 'dead letter')} of {queue} for ever?", yes)
        gone = client.purge_dead(queue, which)
    show_note(f"Threw away {plural(gone, 'dead letter')} of {queue}.")
    if output != "table":
        show_one(output, {"queue": queue, "messages": gone})


@dlq.command()
@click.argument("queue", type=QUEUE)
@output_format
def jobs(queue: str, output: str) -> None:
    """List the redrives of QUEUE, newest first, with their progress: those that run and the last that ended."""
    with connected() as client:
        found = [job for job in client.redrives(queue) if not job.dry_run]
    if output != "table":
        show_rows(output, [], [msgspec.to_builtins(job) for job in found])
    elif not found:
        show_note(f"There are no redrives of {queue}.")
    else:
        show_rows(
            output,
            ["id", "state", "moved", "matched", "skipped", "to", "started", "problem"],
            [_job_row(job) for job in found],
        )


def _job_row(job: wire.RedriveJob) -> dict[str, object]:
    numbers = {name: count(getattr(job, name)) for name in ("moved", "matched", "skipped")}
    return {
        "id": job.id,
        "state": job.state,
        **numbers,
        "to": job.to,
        "started": job.started_at,
        "problem": job.problem,
    }


@dlq.command()
@click.argument("queue", type=QUEUE)
@click.argument("job")
def cancel(queue: str, job: str) -> None:
    """Cancel the redrive JOB of QUEUE. What it has moved stays moved."""
    with connected() as client:
        ended = client.cancel_redrive(queue, job)
    show_note(f"Redrive {job} is {ended.state}; it moved {plural(ended.moved, 'dead letter')}.")
