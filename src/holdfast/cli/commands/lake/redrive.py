"""`holdfast pipeline redrive` and `runs`: redrive dead letters by SQL, undo that, and list who did it."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli.support.confirm import confirm, dry_run_option, yes_option
from holdfast.cli.support.connection import connected
from holdfast.cli.support.numbers import count, plural, shortened
from holdfast.cli.support.options import output_format
from holdfast.cli.support.output import progress_bar, show_json, show_note, show_one, show_rows, show_table
from holdfast.cli.support.pipeline_job import (
    EXIT_BROKEN,
    PipelineJob,
    lake_option,
    location_options,
    namespace_of_server,
    parsed,
    require_spark,
    running,
    show_time,
    spark_options,
)
from holdfast.errors import AuditNotFound, HoldfastError
from holdfast.units import SECOND, parse_duration

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.pipeline.lake.job_runs import JobRun, Unmoved

NAMED = 20  # of what was not moved, on a terminal; JSON has more


@click.command()
@click.option("--queue", default="", help="The dead queue, as dlq/orders, or the queue it belongs to, as orders.")
@click.option("--where", default="", help="A condition of Spark SQL over dead_letters; payload.a.b is a field of JSON.")
@click.option("--to", default="", help="The queue to redrive them to. [default: each to its source queue]")
@click.option(
    "--set", "sets", multiple=True, metavar="FIELD=SQL", help='Change payloads: "payload.a = SQL". May be repeated.'
)
@click.option("--transform", default="", metavar="MODULE:FUNCTION", help="Change payloads by f(payload, dead_letter).")
@click.option("--rate", type=click.FloatRange(0), default=0, help="Dead letters a second at most. [default: no limit]")
@click.option("-n", "--limit", type=click.IntRange(0), default=0, help="How many at most. [default: all that match]")
@click.option(
    "--canary", type=click.IntRange(0), default=0, help="Redrive so many first; continue only if none dies again."
)
@click.option("--canary-wait", default="60s", show_default=True, help="How long the canaries may take to be done.")
@click.option("--audit", default="", metavar="ID", help="Id of this redrive, or of one to continue. [default: new]")
@click.option("--undo", default="", metavar="ID", help="Undo that redrive, for messages that nobody has consumed.")
@yes_option
@dry_run_option
@spark_options
@output_format
@click.pass_context
def redrive(
    context: click.Context,
    /,
    queue: str,
    where: str,
    to: str,
    sets: tuple[str, ...],
    transform: str,
    rate: float,
    limit: int,
    canary: int,
    canary_wait: str,
    audit: str,
    undo: str,
    yes: bool,
    dry_run: bool,
    output: str,
    **job_options: Any,
) -> None:
    """Redrive dead letters that match a condition, as of the last build.

    Every redrive has an audit id: in the lake, in the broker, and in each message (`holdfast-redrive`). Under its id a
    redrive that was killed continues with the dead letters it had selected, and moves none twice. Exit code 1 if some
    were not moved, or not undone.
    """
    if undo:
        _undo(context, job_options["lake_dir"], undo, queue, yes, dry_run, output, quiet=job_options["quiet"])
        return
    wait_seconds = parsed("--canary-wait", parse_duration, canary_wait) / SECOND
    require_spark()
    from holdfast.pipeline.lake.job_runs import JobRun, RunStore  # noqa: PLC0415 - not without the extra

    kept = RunStore(job_options["lake_dir"])
    wanted = JobRun(
        id=audit or kept.new_id("redrive"),
        job="redrive",
        began_at=datetime.now(UTC),
        namespace=namespace_of_server(dry_run),
        queue=queue,
        to=to,
        where=where,
        sets=list(sets),
        transform=transform,
        canary=canary,
    )
    before = kept.find(wanted.id)
    if before is None and not queue:
        raise click.UsageError("Say which dead queue: --queue NAME.")
    if transform:
        sys.path.insert(0, "")  # functions of the directory that the command is run in
    with running("redrive", job_options) as job:
        job.lake.require()
        has_selection = bool(queue or where or sets or transform)
        run, dead_letters, sample = _chosen(job, wanted, before, limit, has_selection=has_selection, dry_run=dry_run)
        with job.paused():
            if output == "table" and sample:
                after = ["after"] if sets or transform else []
                show_rows(output, ["letter_id", "source_queue", "reason", "error", "before", *after], sample)
            if not dry_run and run.chosen:
                where_to = run.to or "their source queue"
                confirm(f"Redrive {plural(run.chosen, 'dead letter')} of {run.queue} to {where_to}?", yes)
                continue_with = f"holdfast pipeline redrive --audit {run.id}{location_options(job_options['lake_dir'])}"
                show_note(f"Audit id {run.id}. If this is interrupted, continue with: {continue_with}")
        if not dry_run and run.chosen:
            if dead_letters is not None:
                kept.begin(run, dead_letters)
            _move(job, run, rate, wait_seconds)
    result: dict[str, object] = {**msgspec.to_builtins(run, builtin_types=(datetime,)), **job.stages.summary()}
    if dry_run or not run.chosen:
        _show_plan(run, output, is_new=before is None)
        result |= {"sample": sample, "dry_run": dry_run}
    elif output == "table":
        show_note(f"Redrove {run.moved:,} of {plural(run.chosen, 'dead letter')}. {run.stopped}".strip())
        _show_rest(run.not_moved, run.unmoved)
    if output != "table":
        show_json(result)
    if not dry_run and run.moved < run.chosen:
        context.exit(EXIT_BROKEN)


def _show_plan(run: JobRun, output: str, *, is_new: bool) -> None:
    stay = sum(run.not_moved.values()) if is_new else 0
    show_note(f"Would redrive {plural(run.chosen - stay, 'dead letter')} of {run.queue}.")
    if output == "table" and stay:
        _show_rest(run.not_moved, run.unmoved)


def _chosen(
    job: PipelineJob, wanted: JobRun, before: JobRun | None, limit: int, *, has_selection: bool, dry_run: bool
) -> tuple[JobRun, pa.Table | None, list[dict[str, object]]]:
    """The run with its dead letters and a sample of them, or an earlier run to continue."""
    from holdfast.pipeline.jobs import redrive  # noqa: PLC0415 - Spark
    from holdfast.pipeline.jobs.payload_changes import changes  # noqa: PLC0415

    table = job.lake.dead_letters
    if wanted.queue:
        wanted.queue = redrive.dead_queue_of(table.read(job.spark), wanted.queue, wanted.namespace)
    if before is not None:
        if has_selection:
            redrive.check_same(before, wanted)
        if before.state == "undone":
            raise click.UsageError(f"Redrive {before.id} was undone. Leave --audit out to redrive again.")
        return before, None, []
    change = changes(wanted.sets, wanted.transform)
    with job.stages.stage("select dead letters"):
        chosen = redrive.choose(table.read(job.spark), wanted.queue, wanted.where, wanted.namespace)
        chosen = chosen.limit(limit) if limit else chosen
        job.stages.explain("dead_letters", chosen)
        dead_letters = chosen.select("letter_id").toArrow()
        job.stages.count_read("dead_letters", sum(file.rows for file in table.files()))
        wanted.chosen = dead_letters.num_rows
        sample = redrive.sample(chosen, change) if wanted.chosen else []
        if dry_run and change and wanted.chosen:
            redrive.keep_unchangeable(chosen, change, wanted)
    return wanted, dead_letters, sample


def _move(job: PipelineJob, run: JobRun, rate: float, wait_seconds: float) -> None:
    from holdfast.pipeline.jobs import redrive  # noqa: PLC0415 - Spark

    with connected() as client:
        redrive.redrive(
            client,
            job.lake,
            job.spark,
            job.stages,
            run,
            rate=rate,
            wait_seconds=wait_seconds,
            progress=lambda done: job.progress(done, run.chosen, "dead letters"),
        )


def _undo(
    context: click.Context,
    lake_dir: Path,
    name: str,
    queue: str,
    yes: bool,
    dry_run: bool,
    output: str,
    *,
    quiet: bool,
) -> None:
    require_spark()
    from holdfast.pipeline.jobs.redrive import undo  # noqa: PLC0415 - not without the extra
    from holdfast.pipeline.lake.job_runs import JobRun, RunStore  # noqa: PLC0415

    kept = RunStore(lake_dir)
    with connected() as client:
        run = kept.find(name)
        if run is None:
            if not queue:
                run = kept.get(name)  # raises that it is not known
                return
            known = client.redrive_audit(queue, name)
            run = JobRun(
                id=name, job="redrive", began_at=datetime.now(UTC), queue=queue, to=known.to, moved=known.moved
            )
        if dry_run:
            summary = Counter[str](outcome.outcome for outcome in client.redriven(run.queue, run.id))
            show_note(f"Would undo redrive {run.id} for {plural(summary['waiting'], 'message')}.")
            if output != "table":
                show_json({"audit": run.id, "statuses": dict(summary)})
            return
        confirm(f"Undo redrive {run.id} for its unconsumed messages?", yes)
        with progress_bar("Undoing", run.moved, hidden=quiet) as advance:
            rest = undo(client, kept, run, advance)
    if output == "table":
        show_note(f"Undid redrive {run.id} for {run.undone:,} of {plural(run.undone + len(rest), 'message')}.")
        _show_rest(run.not_undone, rest)
    else:
        show_json({"audit": run.id, "undone": run.undone, "not_undone": run.not_undone, "rest": rest})
    if rest:
        context.exit(EXIT_BROKEN)


_WHY = {
    "leased": "a consumer has it",
    "gone": "it is done, or was removed",
    "partly": "some groups have done it",
    "dead": "it died again",
    "kept": "its payload could not be changed",
    "refused": "its queue refused it",
}


def _show_rest(counts: dict[str, int], rest: list[Unmoved]) -> None:
    """What was not moved: counts, and the first of it by name."""
    for why, number in sorted(counts.items()):
        show_note(f"{number:,} not: {_WHY.get(why, why)}")
    rows = [
        [str(one.id), str(one.message or "-"), one.queue or "-", one.problem or _WHY.get(one.why, one.why)]
        for one in rest[:NAMED]
    ]
    if rows:
        show_table(["dead letter", "message", "queue", "why"], rows)
    if len(rest) > NAMED:
        show_note(f"… and {len(rest) - NAMED:,} more; -o json names them")


@click.command()
@click.argument("run", required=False, default="")
@lake_option
@output_format
def runs(run: str, lake_dir: Path, output: str) -> None:
    """List redrives and replays: who ran what, when, with which selection and result.

    With the id of a redrive, also the status of its messages now, if the server still knows.
    """
    require_spark()
    from holdfast.pipeline.lake.job_runs import RunStore  # noqa: PLC0415 - not without the extra

    kept = RunStore(lake_dir)
    if run:
        found = kept.get(run)
        fields: dict[str, object] = msgspec.to_builtins(found, builtin_types=(datetime,))
        fields["unmoved"] = [f"{one.id}: {one.problem or _WHY.get(one.why, one.why)}" for one in found.unmoved]
        states = _message_states(found)
        if output == "table":
            summary = {name: value for name, value in fields.items() if value not in (None, "", 0, False, [], {})}
            fields = summary | {name: _counts(fields[name]) for name in ("not_moved", "not_undone") if name in summary}
            show_one(output, {**fields, "statuses": _counts(states)})
        else:
            show_one(output, {**fields, "statuses": states})
        return
    found_all = kept.all()
    if output != "table":
        rows: list[dict[str, object]] = [msgspec.to_builtins(one, builtin_types=(datetime,)) for one in found_all]
        show_rows(output, [], rows)
        return
    show_table(
        ["run", "began", "by", "queue", "chosen", "moved", "undone", "state", "what"],
        [
            [
                one.id,
                show_time(one.began_at),
                one.by or "-",
                one.queue,
                count(one.chosen),
                count(one.moved),
                count(one.undone),
                one.state,
                shortened(one.note, 60) or "-",
            ]
            for one in found_all
        ],
    )


def _counts(counted: object) -> str:
    """Counts by name, for people."""
    assert isinstance(counted, dict)
    return ", ".join(f"{number:,} {name}" for name, number in counted.items())


def _message_states(run: JobRun) -> dict[str, int]:
    """The status of the messages of a redrive now. Empty if the server cannot be reached."""
    if run.job != "redrive":
        return {}
    try:
        with connected() as client:
            return Counter[str](outcome.outcome for outcome in client.redriven(run.queue, run.id))
    except AuditNotFound:
        return {}
    except HoldfastError as error:
        show_note(f"The status of its messages is not known: {error}")
        return {}
