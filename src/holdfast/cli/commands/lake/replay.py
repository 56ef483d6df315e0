"""`holdfast pipeline replay`: store past messages again."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli.support.confirm import confirm, dry_run_option, yes_option
from holdfast.cli.support.connection import Connection, connected
from holdfast.cli.support.numbers import plural
from holdfast.cli.support.options import output_format
from holdfast.cli.support.output import show_json, show_note, show_rows
from holdfast.cli.support.pipeline_job import (
    EXIT_BROKEN,
    PipelineJob,
    instant,
    location_options,
    namespace_of_server,
    require_spark,
    running,
    spark_options,
)
from holdfast.units import SECOND, format_duration

if TYPE_CHECKING:
    from holdfast.pipeline.jobs.replay import Chosen
    from holdfast.pipeline.lake.job_runs import JobRun


@click.command()
@click.option("--queue", default="", help="The queue whose messages are replayed.")
@click.option("--to", default="", help="The queue to fill. [default: the same]")
@click.option("--since", help="Stored from this instant on, or so long ago, as 24h.")
@click.option("--until", help="Stored before this instant, or so long ago.")
@click.option("--where", default="", help="A condition of Spark SQL over events; payload.a.b is a field of JSON.")
@click.option(
    "--pace", type=click.Choice(["original"]), help="At their original pace. [default: all in one transaction]"
)
@click.option("--speed", metavar="TIMESx", help="With --pace: so many times as fast, as 10x.")
@click.option("--rate", metavar="COUNT/s", help="So many messages a second, as 50/s.")
@click.option("--audit", default="", metavar="ID", help="Id of this replay, or of one to continue. [default: new]")
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
    pace: str | None,
    speed: str | None,
    rate: str | None,
    audit: str,
    yes: bool,
    dry_run: bool,
    output: str,
    **job_options: Any,
) -> None:
    """Store past messages again, from the lake, with new ids; each names the one it repeats.

    All in one transaction, or paced (--pace, --rate). Under its audit id a replay that was killed continues and stores
    no message twice; under a new id it stores all of them again. The queue's journal must have held payloads. Exit code
    1 if some were not stored.
    """
    require_spark()
    from holdfast.pipeline.lake.job_runs import JobRun, RunStore  # noqa: PLC0415 - not without the extra

    kept = RunStore(job_options["lake_dir"])
    speed_, rate_ = _pace(pace, speed, rate)
    before = kept.find(audit) if audit else None
    if before is None and not queue:
        raise click.UsageError("Say whose messages: --queue NAME.")
    if before is not None and (queue or where or since or until or pace or rate):
        raise click.UsageError(f"Replay {audit} continues with its own options. Give --audit alone, or another id.")
    run = before or JobRun(
        id=audit or kept.new_id("replay"),
        job="replay",
        began_at=datetime.now(UTC),
        namespace=namespace_of_server(dry_run),
        queue=queue,
        to=to or queue,
        where=where,
        since=instant("--since", since),
        until=instant("--until", until),
        speed=speed_,
        rate=rate_,
    )
    chosen: Any = None
    seen: Chosen | None = None
    with running("replay", job_options) as job:
        job.lake.require()
        if before is None:
            chosen, seen = _choose(job, run)
        todo = not dry_run and run.chosen > 0 and run.state != "done"
        with job.paused():
            if output == "table" and seen is not None and seen.sample:
                show_rows(output, ["at", "message_id", "key", "text"], seen.sample)
            if todo:
                confirm(f"Store {plural(run.chosen, 'message')} of {run.queue} in {run.to}{_lasting(run, seen)}?", yes)
                continue_with = f"holdfast pipeline replay --audit {run.id}{location_options(job_options['lake_dir'])}"
                show_note(f"Audit id {run.id}. If this is interrupted, continue with: {continue_with}")
        if todo:
            _replay(context, job, run, chosen)
    if dry_run or not run.chosen:
        show_note(f"Would store {plural(run.chosen, 'message')} of {run.queue} in {run.to}{_lasting(run, seen)}.")
    elif output == "table":
        show_note(f"Stored {run.moved:,} of {plural(run.chosen, 'message')} in {run.to}. {run.stopped}".strip())
    if output != "table":
        fields: dict[str, object] = msgspec.to_builtins(run, builtin_types=(datetime,))
        show_json({**fields, "dry_run": dry_run, "sample": seen.sample if seen else [], **job.stages.summary()})
    if not dry_run and run.moved < run.chosen:
        context.exit(EXIT_BROKEN)


def _pace(pace: str | None, speed: str | None, rate: str | None) -> tuple[float, float]:
    """The speed relative to the original pace, and the rate a second. 0 and 0: all in one transaction."""
    if speed and not pace:
        raise click.UsageError("--speed goes with --pace original.")
    if pace and rate:
        raise click.UsageError("--pace and --rate are two ways to pace it. Choose one.")
    times = (_number("--speed", speed, r"x?") if speed else 1.0) if pace else 0.0
    return times, _number("--rate", rate, r"(/s)?") if rate else 0.0


def _number(option: str, text: str, unit: str) -> float:
    match = re.fullmatch(rf"(\d+(?:\.\d+)?)(?:{unit})", text.strip())
    if match is None or float(match[1]) <= 0:
        raise click.UsageError(f"{option} is a number above 0, not {text!r}.")
    return float(match[1])


def _choose(job: PipelineJob, run: JobRun) -> tuple[Any, Chosen]:
    from holdfast.pipeline.jobs import replay  # noqa: PLC0415 - Spark

    events = job.lake.events
    files = [file for file in events.files() if file.may_hold("at", run.since, run.until)]
    with job.stages.stage("select messages"):
        frame = events.read(job.spark, files)
        chosen = replay.choose(frame, run.queue, run.since, run.until, run.where, run.namespace)
        job.stages.explain("events", chosen)
        seen = replay.preview(chosen)
    job.stages.count_read("events", sum(file.rows for file in files))
    run.chosen = seen.messages
    return chosen, seen


def _lasting(run: JobRun, seen: Chosen | None) -> str:
    """How long it will take, where that is known."""
    if run.rate:
        seconds = run.chosen / run.rate
    elif run.speed and seen is not None and seen.first_at is not None and seen.last_at is not None:
        seconds = (seen.last_at - seen.first_at).total_seconds() / run.speed
    else:
        return ""
    return f" in {format_duration(round(seconds) * SECOND)}"


def _replay(context: click.Context, job: PipelineJob, run: JobRun, chosen: Any) -> None:
    """Store the selection, unless that was done before, and replay it."""
    from holdfast.pipeline.jobs import replay  # noqa: PLC0415 - Spark
    from holdfast.pipeline.lake.job_runs import RunStore  # noqa: PLC0415

    if chosen is not None:
        with job.stages.stage("store the selection"):
            replay.begin(RunStore(job.lake.path), run, chosen)
    connection: Connection = context.find_root().obj
    with connected() as client:
        if run.speed or run.rate:
            replay.replay_paced(
                client,
                job.lake,
                job.spark,
                job.stages,
                run,
                lambda done: job.progress(done, run.chosen, "messages"),
            )
        else:
            options = {"url": connection.url, "token": connection.secret() or ""}
            replay.replay_in_transaction(client, job.lake, job.spark, job.stages, run, options)
