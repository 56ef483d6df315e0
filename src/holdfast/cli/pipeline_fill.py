"""`holdfast pipeline load` and `replay`: rows into a queue."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.confirm import confirm, dry_run_option, yes_option
from holdfast.cli.connection import Connection
from holdfast.cli.options import output_format
from holdfast.cli.output import show_json, show_note
from holdfast.cli.pipeline_job import Job, instant, running, spark_options
from holdfast.cli.words import plural


@click.command()
@click.argument("path", required=False, default="")
@click.option("--queue", required=True, help="The queue to fill.")
@click.option("--format", "form", default="parquet", show_default=True, help="Any that Spark reads: json, csv, jdbc, …")
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="Of the format. May be repeated.")
@click.option(
    "--dedup", default="", help="The column that is each message's own id: loaded again, it is not stored again."
)
@click.option("--transaction", default="", help="A name for this load: run again under it, nothing is added.")
@yes_option
@dry_run_option
@spark_options
@output_format
@click.pass_context
def load(
    context: click.Context,
    /,
    path: str,
    queue: str,
    form: str,
    options: tuple[str, ...],
    dedup: str,
    transaction: str,
    yes: bool,
    dry_run: bool,
    output: str,
    **said: Any,
) -> None:
    """Load rows from PATH, or any source that Spark reads, into a queue, all at once.

    Columns that messages have (payload or value, key, priority, deliver_at, ttl, properties, …) are taken as they are;
    without a payload it is the whole row as JSON.
    """
    pairs = dict(pair.split("=", 1) for pair in options if "=" in pair)
    if len(pairs) != len(options):
        raise click.UsageError("An option of the format is NAME=VALUE.")
    with running("load", said) as job:
        from holdfast.pipeline.refill import rows_to_load  # noqa: PLC0415

        with job.stages.stage("look at the source"):
            rows = rows_to_load(job.spark, form, path, pairs, dedup)
        _fill(context, job, rows, queue, transaction, yes, dry_run, output)


@click.command()
@click.option("--queue", required=True, help="The queue whose messages are replayed.")
@click.option("--to", default="", help="The queue to fill. [default: the same]")
@click.option("--since", help="Stored from this instant on, or so long ago, as 24h.")
@click.option("--until", help="Stored before this instant, or so long ago.")
@click.option("--where", default="", help="A condition of Spark SQL over events; payload.a.b is a field of JSON.")
@click.option("--transaction", default="", help="A name for this replay: run again under it, nothing is added.")
@yes_option
@dry_run_option
@spark_options
@output_format
@click.pass_context
def replay(
    context: click.Context,
    /,
    queue: str,
    to: str,
    since: str | None,
    until: str | None,
    where: str,
    transaction: str,
    yes: bool,
    dry_run: bool,
    output: str,
    **said: Any,
) -> None:
    """Store messages of the past again, from the lake, all at once, with new ids.

    The property `replayed-from` names the message that each repeats. The queue's journal must have held payloads.
    """
    first, last = instant("--since", since), instant("--until", until)
    with running("replay", said) as job:
        from holdfast.pipeline.refill import rows_to_replay  # noqa: PLC0415

        job.lake.require()
        with job.stages.stage("choose messages"):
            rows = rows_to_replay(job.lake.events.read(job.spark), queue, first, last, where)
        _fill(context, job, rows, to or queue, transaction, yes, dry_run, output)


def _fill(
    context: click.Context, job: Job, rows: Any, queue: str, transaction: str, yes: bool, dry_run: bool, output: str
) -> None:
    from holdfast.pipeline.refill import fill  # noqa: PLC0415

    with job.stages.stage("count"):
        total = rows.count()
    if dry_run or not total:
        show_note(f"Would store {plural(total, 'message')} in {queue}.")
    else:
        confirm(f"Store {plural(total, 'message')} in {queue}?", yes)
        connection: Connection = context.find_root().obj
        options = {
            "url": connection.url,
            "queue": queue,
            "transactionId": transaction,
            "token": connection.secret() or "",
        }
        with job.stages.stage("write"):
            fill(rows, options)
        job.stages.note_wrote("messages", total)
        show_note(f"Stored {plural(total, 'message')} in {queue}.")
    if output != "table":
        show_json({"messages": total, "queue": queue, "stored": bool(total) and not dry_run})
