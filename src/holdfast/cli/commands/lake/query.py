"""`holdfast pipeline history`, `report` and `triage`: queries of the lake."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli.support.numbers import count, plural, shortened
from holdfast.cli.support.options import output_format
from holdfast.cli.support.output import show_json, show_note, show_rows, show_table
from holdfast.cli.support.pipeline_job import instant, location_options, running, show_time, spark_options

if TYPE_CHECKING:
    from holdfast.pipeline.jobs.report import Report


_MADE = {"broker": "the dead letter", "redrive": "redriven", "undo": "a dead letter again", "http": "replayed"}
"""How a message with a source was made, by its protocol."""


@click.command()
@click.argument("message", type=click.IntRange(1))
@spark_options
@output_format
def history(message: int, output: str, **job_options: Any) -> None:
    """Show the whole life of MESSAGE (its id), across dead letters, redrives and replays."""
    with running("history", job_options) as job:
        from holdfast.pipeline.jobs import history  # noqa: PLC0415

        message_history = history.history(job.lake, job.spark, job.stages, message)
    if output != "table":
        fields: dict[str, object] = msgspec.to_builtins(message_history, builtin_types=(datetime, bytes))
        show_json({**fields, **job.stages.summary()})
        return
    rows = []
    for one in message_history.timeline:
        detail = ": ".join(part for part in (one.reason, one.error) if part)
        attempt = str(one.attempt) if one.attempt else "-"
        rows.append(
            [
                show_time(one.at),
                str(one.message_id),
                one.queue,
                one.group or "-",
                one.event,
                attempt,
                one.consumer or "-",
                detail or "-",
            ]
        )
    show_table(["at", "message", "queue", "group", "event", "attempt", "consumer", "detail"], rows)
    for row in message_history.chain:
        outcome = row["outcome"] or f"still {row['state']}"
        attempts = plural(row["attempts"], "attempt")
        made = f", {_MADE.get(row['protocol'], 'made')} from {row['source_id']}" if row["source_id"] else ""
        show_note(f"{row['message_id']} in {row['queue']}, group {row['group'] or '-'}: {outcome}, {attempts}{made}")


@click.command()
@click.option("--since", help="From this instant, or so long ago, as 24h. [default: the first minute there is]")
@click.option("--until", help="Up to this instant, or so long ago. [default: the last]")
@click.option("--queue", default="", help="Only this queue.")
@click.option(
    "--targets",
    "targets_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A TOML file of targets for waits, processing times and failures: whether they are met.",
)
@click.option("--compare", is_flag=True, help="Also compare with the same length of time before.")
@click.option("--anomalies", is_flag=True, help="Also find what is unlike other days or weeks, with its messages.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Also write one HTML page, with plots.")
@click.option("--console", default="", metavar="URL", help="With --html: the server's console, to which it links.")
@spark_options
@output_format
def report(
    since: str | None,
    until: str | None,
    queue: str,
    targets_file: Path | None,
    compare: bool,
    anomalies: bool,
    html: Path | None,
    console: str,
    output: str,
    **job_options: Any,
) -> None:
    """Show throughput, depth, waits, retries, dead letters and slow consumers in a range of time, and when backlogs
    will be done. With targets, also what is left of each error budget."""
    if console and not console.startswith(("http://", "https://")):
        raise click.BadParameter("is http://host:port or https://host:port", param_hint="--console")
    first, last = instant("--since", since), instant("--until", until)
    with running("report", job_options) as job:
        from holdfast.pipeline.jobs import report  # noqa: PLC0415
        from holdfast.pipeline.jobs.objectives import read_targets  # noqa: PLC0415
        from holdfast.pipeline.jobs.report_page import page  # noqa: PLC0415

        targets = read_targets(targets_file) if targets_file is not None else []
        lake, spark = job.lake, job.spark
        lake.require()
        found = report.report(
            lake.queue_minutes.read(spark),
            lake.messages.read(spark),
            lake.dead_letters.read(spark),
            job.stages,
            since=first,
            until=last,
            queue=queue,
            targets=targets,
            compare=compare,
            unusual=anomalies,
        )
        found.quarantined = lake.quarantine.rows().num_rows
        for table in (lake.queue_minutes, lake.messages, lake.dead_letters):
            job.stages.count_read(table.spec.name, sum(file.rows for file in table.files()))
        if html is not None:
            html.parent.mkdir(parents=True, exist_ok=True)
            html.write_text(page(found, datetime.now(UTC), console))
    if html is not None:
        show_note(f"wrote {html}")
    if found.quarantined:
        what = f"{plural(found.quarantined, 'row')} of the journal in quarantine: what follows is not in the tables"
        show_note(f"{what}. See the table `quarantine`, and `holdfast pipeline build`.")
    if found.left_out:
        show_note(f"{plural(found.left_out, 'queue')} left out, in which less happened: name one with --queue.")
    if output == "table":
        _show_report(found)
    else:
        fields: dict[str, object] = msgspec.to_builtins(found, builtin_types=(datetime,))
        show_json({**fields, **job.stages.summary()})


def _show_report(found: Report) -> None:
    from holdfast.pipeline.jobs.charts import show_ms  # noqa: PLC0415

    click.echo(f"{show_time(found.since)} to {show_time(found.until)} UTC\n")
    rows = [
        [
            one.queue,
            one.group or "-",
            count(queue.counts["enqueued"]),
            count(one.counts["acked"]),
            count(one.counts["failed"]),
            count(one.counts["dead"]),
            count(one.depth),
            *(show_ms(value) for value in (one.wait.p50, one.wait.p95, one.wait.p99)),
            *(show_ms(value) for value in (one.processing.p50, one.processing.p95, one.processing.p99)),
        ]
        for queue in found.queues
        for one in found.groups_of(queue) or [queue]
    ]
    titles = ["queue", "group", "enqueued", "acked", "failed", "dead", "depth"]
    show_table([*titles, "wait p50", "p95", "p99", "work p50", "p95", "p99"], rows)
    _show_outlook(found)
    if found.deaths:
        click.echo("\nDead letters")
        deaths = [
            [one.queue, one.reason, shortened(one.error_pattern, 60) or "-", count(one.count), count(one.waiting)]
            for one in found.deaths
        ]
        show_table(["queue", "reason", "error", "deaths", "waiting"], deaths)
    if found.consumers:
        click.echo("\nSlowest consumers")
        slow = [
            [one.consumer, one.queue, one.group or "-", count(one.acked), show_ms(one.p50), show_ms(one.p95)]
            for one in found.consumers
        ]
        show_table(["consumer", "queue", "group", "acked", "p50", "p95"], slow)


def _show_outlook(found: Report) -> None:
    """Backlogs, targets, and the time before."""
    from holdfast.pipeline.jobs import outlook  # noqa: PLC0415

    for title, (columns, rows) in (
        ("Backlogs, if it goes on like this", outlook.forecasts(found.forecasts)),
        ("Targets", outlook.objectives(found.objectives)),
        ("Against the same time before", outlook.changes(found.changes)),
        ("Unlike other times", outlook.anomalies(found.anomalies)),
    ):
        if rows:
            click.echo(f"\n{title}")
            show_table(columns, rows)


@click.command()
@click.option("--since", help="Deaths since this instant, or so long ago, as 24h. [default: all]")
@click.option("--queue", default="", help="Only this queue, or dead queue.")
@click.option("--waiting", is_flag=True, help="Only dead letters that are still in their dead queue.")
@spark_options
@output_format
def triage(since: str | None, queue: str, waiting: bool, output: str, **job_options: Any) -> None:
    """Group dead letters by cause, with examples and a command that redrives each group."""
    first = instant("--since", since)
    with running("triage", job_options) as job:
        from holdfast.pipeline.jobs import triage  # noqa: PLC0415

        job.lake.require()
        with job.stages.stage("group deaths"):
            dead_letters = job.lake.dead_letters.read(job.spark)
            found = triage.triage(dead_letters, first, queue, waiting)
            job.stages.explain("dead_letters", triage.clusters(dead_letters))
        job.stages.count_read("dead_letters", sum(file.rows for file in job.lake.dead_letters.files()))
    for cluster in found:
        if cluster.redrive:
            cluster.redrive += location_options(job_options["lake_dir"])
    rows: list[dict[str, object]] = [msgspec.to_builtins(cluster, builtin_types=(datetime,)) for cluster in found]
    if output != "table":
        show_rows(output, [], rows)
        return
    if not found:
        show_note("No dead letters.")
        return
    for cluster in found:
        click.echo(
            f"{cluster.fingerprint}  {cluster.source_queue} → {cluster.dead_queue or '-'}  {cluster.reason}\n"
            f"  {plural(cluster.deaths, 'death')}, {cluster.waiting:,} waiting,"
            f" {show_time(cluster.first_seen)} to {show_time(cluster.last_seen)}\n"
            f"  error    {cluster.error_pattern or '-'}\n"
            f"  payload  {shortened(cluster.payload_shape, 100)}\n"
            f"  example  {' '.join(map(str, cluster.examples)) or '-'}\n"
            f"  redrive  {cluster.redrive or '-'}\n"
        )
