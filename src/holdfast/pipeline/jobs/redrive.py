"""`redrive`: moves dead letters, selected by SQL, back to their queues under an audit id.

Spark selects: by any column of `dead_letters`, and by the payload where it is JSON (`payload.order.amount > 100`). The
broker moves: each dead letter is stored in its queue and leaves the dead queue in one step, once under the run's id.
The selection is stored in the lake before the first dead letter moves (job_runs.py). So a redrive that is killed and
run again under its id moves the same dead letters, each once, and its counts are exact.

Canaries go first, if requested: some dead letters whose outcome is awaited; if one dies again, the rest stays. As long
as nobody has consumed the messages, a redrive can be undone.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast import wire
from holdfast.client import SyncClient
from holdfast.core.queue import DEAD_PREFIX
from holdfast.errors import InvalidArgument
from holdfast.pipeline.jobs.payload_changes import PayloadChanges, TransformError, changed, changes, with_values
from holdfast.pipeline.jobs.payload_fields import matching, with_text
from holdfast.pipeline.lake.delta import spark_path
from holdfast.pipeline.lake.job_runs import JobRun, RunStore, Unmoved
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.spark.stages import Stages

DEAD_LETTERS_PER_REQUEST = 500
BYTES_PER_REQUEST = 4 << 20
REQUESTS_PER_SECOND = 10  # of a redrive with a rate: small requests instead of bursts
POLL_INTERVAL_SECONDS = 0.2
FULL_SECONDS = 600.0  # how long a destination may be full before the redrive stops
SAMPLE = 5
SAMPLE_TEXT_CHARS = 200
DECLINED = "the function declined it"

MoveItem = tuple[int, bytes | None]
"""A dead letter, and its new payload; None: its own."""


# --- choosing -------------------------------------------------------------------------------------------------------


def choose(dead_letters: DataFrame, queue: str, where: str = "", namespace: str = "default") -> DataFrame:
    """The waiting dead letters of a dead queue that match, oldest first."""
    waiting = dead_letters.where(
        F.col("outcome").isNull()
        & (F.col("namespace") == namespace)
        & (F.col("dead_queue") == queue)
        & F.col("letter_id").isNotNull()
    )
    return matching(waiting, where).orderBy("letter_id")


def sample(chosen: DataFrame, wanted: PayloadChanges) -> list[dict[str, object]]:
    """A few of the selected dead letters with their new payloads, as a preview."""
    few = chosen.limit(SAMPLE)
    columns = ("letter_id", "source_queue", "source_group", "died_at", "reason", "error")
    rows = {
        row["letter_id"]: {**row, "before": (row.pop("text") or "")[:SAMPLE_TEXT_CHARS]}
        for row in few.select(*columns, "text").toArrow().to_pylist()
    }
    if wanted:
        for dead_letter, new in changed(with_values(few, wanted), wanted):
            rows[dead_letter["letter_id"]]["after"] = _preview(new)
    return list(rows.values())


def keep_unchangeable(chosen: DataFrame, wanted: PayloadChanges, run: JobRun) -> None:
    """Count in the run, for a dry run, the dead letters that would stay because their payloads cannot be changed."""
    for dead_letter, new in changed(with_values(chosen, wanted), wanted):
        if new is None or isinstance(new, TransformError):
            run.skip(Unmoved(dead_letter["letter_id"], "kept", str(new or DECLINED)))


def dead_queue_of(dead_letters: DataFrame, name: str, namespace: str = "default") -> str:
    """The dead queue that a person means by its own name or by the name of its queue, as `orders`."""
    known = dead_letters.where(
        (F.col("namespace") == namespace) & ((F.col("dead_queue") == name) | (F.col("source_queue") == name))
    )
    found = {row[0] for row in known.select("dead_queue").distinct().collect()}
    own = f"{DEAD_PREFIX}{name}"
    if name in found or name.startswith(DEAD_PREFIX):
        return name
    shared = sorted(found - {own})
    if shared:
        problem = f"has dead letters in {', '.join(shared)}, with those of other queues perhaps"
        condition = f"--queue {shared[0]} --where \"source_queue = '{name}'\""
        raise InvalidArgument(field="--queue", problem=f"{name!r} {problem}: use {condition}")
    return own


def _preview(payload: bytes | TransformError | None) -> str:
    if payload is None or isinstance(payload, TransformError):
        return f"(it stays: {payload or DECLINED})"
    return payload.decode(errors="replace")[:SAMPLE_TEXT_CHARS]


def plan(lake: Lake, spark: SparkSession, run: JobRun) -> JobRun:
    """Select the dead letters of a run and store the selection in the lake, for `redrive`. A run that was planned
    before under the same id is unchanged."""
    runs = RunStore(lake.path)
    before = runs.find(run.id)
    if before is not None:
        check_same(before, run)
        return before
    chosen = choose(lake.dead_letters.read(spark), run.queue, run.where, run.namespace)
    dead_letters = chosen.select("letter_id").toArrow()
    run.chosen = dead_letters.num_rows
    runs.begin(run, dead_letters)
    return run


def items_to_move(
    lake: Lake, spark: SparkSession, runs: RunStore, run: JobRun
) -> Iterator[tuple[int, bytes | TransformError | None]]:
    """The dead letters of a run, oldest first, each with its new payload; None: its own."""
    wanted = changes(run.sets, run.transform)
    if not wanted:
        yield from ((dead_letter, None) for dead_letter in runs.chosen(run)["letter_id"].to_pylist())
        return
    ids = spark.read.schema("letter_id bigint").parquet(spark_path(runs.chosen_path(run)))
    dead_letters = with_text(lake.dead_letters.read(spark).join(ids, "letter_id", "left_semi")).orderBy("letter_id")
    for dead_letter, new in changed(with_values(dead_letters, wanted), wanted):
        stays = TransformError(DECLINED) if new is None else new
        yield dead_letter["letter_id"], stays


# --- moving ---------------------------------------------------------------------------------------------------------


class Redriver:
    """Moves the dead letters of one run, and updates its record."""

    def __init__(
        self, client: SyncClient, runs: RunStore, run: JobRun, progress: Callable[[int], None] | None = None
    ) -> None:
        self._client = client
        self._runs = runs
        self.run = run
        self._progress = progress
        self._moved: set[int] = set()
        self._seen = 0
        run.unmoved, run.not_moved, run.stopped, run.state, run.ended_at = [], {}, "", "running", None
        run.moved = 0

    def go(
        self,
        dead_letters: Iterable[tuple[int, bytes | TransformError | None]],
        *,
        rate: float = 0.0,
        wait_seconds: float = 60.0,
        full_seconds: float = FULL_SECONDS,
    ) -> JobRun:
        """Move all dead letters, the canaries first. Those that were moved before under the run's id count as moved."""
        run, left = self.run, iter(dead_letters)
        try:
            first = list(islice(left, run.canary))
            if first:
                moved = self._move(first, 0.0, full_seconds)
                if not run.stopped and not run.canary_passed:
                    self._watch(moved, wait_seconds)
            if not run.stopped:
                run.canary_passed = run.canary > 0
                self._move(left, rate, full_seconds)
            if run.moved:
                run.by = self._client.redrive_audit(run.queue, run.id).by
            run.state, run.ended_at = "stopped" if run.stopped else "done", datetime.now(UTC)
        finally:
            self._runs.save(run)  # also after an error: the run stays `running` and can be continued
        return run

    def _move(
        self, dead_letters: Iterable[tuple[int, bytes | TransformError | None]], rate: float, full_seconds: float
    ) -> dict[str, wire.RedriveOutcome]:
        """Move dead letters, request by request. Returns the results of those that were moved."""
        size = (
            max(min(int(rate / REQUESTS_PER_SECOND), DEAD_LETTERS_PER_REQUEST), 1) if rate else DEAD_LETTERS_PER_REQUEST
        )
        gone: dict[str, wire.RedriveOutcome] = {}
        began, sent = time.monotonic(), 0
        for batch in self._batches(dead_letters, size):
            outcomes = self._send(batch, full_seconds)
            gone |= {outcome.dead_letter: outcome for outcome in outcomes if outcome.outcome in {"moved", "repeated"}}
            if self.run.stopped:
                break
            sent += sum(outcome.outcome == "moved" for outcome in outcomes)
            if rate:
                time.sleep(max(began + sent / rate - time.monotonic(), 0))
        return gone

    def _batches(
        self, dead_letters: Iterable[tuple[int, bytes | TransformError | None]], size: int
    ) -> Iterator[dict[int, bytes | None]]:
        batch: dict[int, bytes | None] = {}
        payloads = 0
        for dead_letter, payload in dead_letters:
            if isinstance(payload, TransformError):
                self.run.skip(Unmoved(dead_letter, "kept", str(payload)))
                continue
            batch[dead_letter] = payload
            payloads += len(payload or b"")
            if len(batch) >= size or payloads >= BYTES_PER_REQUEST:
                yield batch
                batch, payloads = {}, 0
        if batch:
            yield batch

    def _send(self, batch: dict[int, bytes | None], full_seconds: float) -> list[wire.RedriveOutcome]:
        """One request. Dead letters whose queue is full are retried for a while."""
        run, until = self.run, time.monotonic() + full_seconds
        outcomes: list[wire.RedriveOutcome] = []
        wanted = {str(dead_letter): payload for dead_letter, payload in batch.items()}
        while wanted:
            answered = self._client.audited_redrive(run.queue, run.id, wanted, to=run.to, note=run.note)
            later = [outcome for outcome in answered if outcome.retryable]
            outcomes += [outcome for outcome in answered if not outcome.retryable]
            if later and time.monotonic() > until:
                outcomes += later
                run.stopped = f"{later[0].problem} Run it again with --audit {run.id}"
                break
            wanted = {outcome.dead_letter: wanted[outcome.dead_letter] for outcome in later}
            if wanted:
                time.sleep(POLL_INTERVAL_SECONDS)
        for outcome in outcomes:
            if outcome.outcome in {"moved", "repeated"}:
                run.moved += 1
            else:
                run.skip(Unmoved(int(outcome.dead_letter), outcome.outcome, outcome.problem))
        self._seen += len(outcomes)
        if self._progress is not None:
            self._progress(self._seen)
        return outcomes

    def _watch(self, canaries: dict[str, wire.RedriveOutcome], wait_seconds: float) -> None:
        """Wait until the canaries are done or have died again."""
        run, until = self.run, time.monotonic() + wait_seconds
        while canaries:
            statuses = {
                outcome.dead_letter: outcome
                for outcome in self._client.redriven(run.queue, run.id)
                if outcome.dead_letter in canaries
            }
            counted = Counter(outcome.outcome for outcome in statuses.values())
            if counted["dead"]:
                names = ", ".join(
                    sorted(outcome.message for outcome in statuses.values() if outcome.outcome == "dead")[:SAMPLE]
                )
                run.stopped = f"of {len(canaries)} canaries {counted['dead']} died again: {names}"
                return
            undone = sum(counted[state] for state in ("waiting", "leased", "partly"))
            if not undone:
                return
            if time.monotonic() > until:
                run.stopped = f"of {len(canaries)} canaries {undone} were not done in {wait_seconds:g} s"
                return
            time.sleep(POLL_INTERVAL_SECONDS)


def redrive(
    client: SyncClient,
    lake: Lake,
    spark: SparkSession,
    stages: Stages,
    run: JobRun,
    *,
    rate: float = 0.0,
    wait_seconds: float = 60.0,
    progress: Callable[[int], None] | None = None,
) -> JobRun:
    """Move the dead letters of a planned run, the canaries first."""
    runs = RunStore(lake.path)
    with stages.stage("move dead letters"):
        mover = Redriver(client, runs, run, progress)
        mover.go(items_to_move(lake, spark, runs, run), rate=rate, wait_seconds=wait_seconds)
    stages.count_written("messages", run.moved)
    return run


# --- undo -----------------------------------------------------------------------------------------------------------


def undo(
    client: SyncClient, runs: RunStore, run: JobRun, progress: Callable[[int], None] | None = None
) -> list[Unmoved]:
    """Make dead letters again of messages that nobody has consumed. Returns those that could not be undone."""
    kept: list[Unmoved] = []
    counted: Counter[str] = Counter()
    undone = 0
    for number, outcome in enumerate(client.undo_redrive(run.queue, run.id), 1):
        if outcome.outcome == "undone":
            undone += 1
        else:
            counted[outcome.outcome] += 1
            kept.append(
                Unmoved(
                    int(outcome.dead_letter), outcome.outcome, outcome.problem, int(outcome.message or 0), outcome.queue
                )
            )
        if progress is not None:
            progress(number)
    run.undone, run.not_undone = undone, dict(counted)
    run.state, run.ended_at = "undone", datetime.now(UTC)
    runs.save(run)
    return kept


def check_same(before: JobRun, now: JobRun) -> None:
    """Check that a run is continued with the options it was started with."""
    different = before.differs(now)
    if different:
        raise InvalidArgument(
            field="--audit",
            problem=f"{now.id!r} was started with another {different}: leave the options out to continue it, "
            "or give another id",
        )
