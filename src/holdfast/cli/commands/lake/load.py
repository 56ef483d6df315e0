"""`holdfast pipeline load`: rows into a queue."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.support.confirm import confirm, dry_run_option, yes_option
from holdfast.cli.support.connection import Connection
from holdfast.cli.support.numbers import plural
from holdfast.cli.support.options import output_format
from holdfast.cli.support.output import show_json, show_note, show_rows
from holdfast.cli.support.pipeline_job import running, spark_options


@click.command()
@click.argument("path", required=False, default="")
@click.option("--queue", required=True, help="The queue to fill.")
@click.option(
    "--format", "form", default="parquet", show_default=True, help="Any that Spark reads: json, csv, jdbc, table, …"
)
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="Of the format. May be repeated.")
@click.option(
    "--dedup",
    default="",
    help="The column with each message's own id: a message that is loaded again is not stored again.",
)
@click.option("--key", default="", help="The column with each message's ordering key.")
@click.option("--transaction", default="", help="A name for this load: a second run with the same name adds nothing.")
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
    key: str,
    transaction: str,
    yes: bool,
    dry_run: bool,
    output: str,
    **job_options: Any,
) -> None:
    """Load rows from PATH, or any source that Spark reads, into a queue, in one transaction.

    With a column payload (or value), columns that messages have (key, priority, deliver_at, ttl, properties, …) are
    taken as they are named; without one the payload is the whole row as JSON. With --format table, PATH is a table of
    Spark's catalog; with --format jdbc, --option says url and dbtable.
    """
    pairs = dict(pair.split("=", 1) for pair in options if "=" in pair)
    if len(pairs) != len(options):
        raise click.UsageError("An option of the format is NAME=VALUE.")
    stored = False
    with running("load", job_options) as job:
        from holdfast.pipeline.jobs.load import fill, read_source, rows_to_load, sample  # noqa: PLC0415 - Spark

        with job.stages.stage("read the source"):
            rows = rows_to_load(read_source(job.spark, form, path, pairs), dedup, key)
            job.stages.explain("messages", rows)
            total = rows.count()
            some = sample(rows) if total else []
        job.stages.count_read("rows", total)
        with job.paused():
            if output == "table" and some:
                show_rows(output, list(some[0]), some)
            if total and not dry_run:
                confirm(f"Store {plural(total, 'message')} in {queue}?", yes)
        if total and not dry_run:
            connection: Connection = context.find_root().obj
            where = {"url": connection.url, "token": connection.secret() or ""}
            with job.stages.stage("write"):
                fill(rows, {**where, "queue": queue, "transactionId": transaction})
            job.stages.count_written("messages", total)
            stored = True
    show_note(f"{'Stored' if stored else 'Would store'} {plural(total, 'message')} in {queue}.")
    if output != "table":
        fields: dict[str, object] = {"messages": total, "queue": queue, "stored": stored, "sample": some}
        show_json({**fields, **job.stages.summary()})
