"""`replay`: stores past messages of a queue again, from the lake, as new messages that name their sources.

Unpaced: Spark writes all of them in one transaction, in parallel, and consumers see everything or nothing. Paced, at
their original pace or at a rate: the driver cuts them into slices, each a transaction of its own that is published when
it is due.

The selection is stored in the lake before the first message (job_runs.py), and so are the slices. Transactions are
published once under their name. So a replay that is killed and run again under its id stores each message once; under
another id it stores all of them again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast import wire
from holdfast.client import SyncClient
from holdfast.core.audits import OWN_PROPERTIES
from holdfast.errors import HoldfastError, TransactionNotFound, TransactionPublished
from holdfast.pipeline.jobs.load import fill
from holdfast.pipeline.jobs.payload_fields import matching
from holdfast.pipeline.lake.delta import spark_path
from holdfast.pipeline.lake.job_runs import JobRun, RunStore
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.spark.stages import Stages

REPLAY_PROPERTY = "holdfast-replay"
"""The property of a replayed message: the run's id."""

SLICE_SECONDS = 0.1  # messages that are due within this time are one slice
SLICE_ROWS = 500
FULL_SECONDS = 600.0  # how long the queue may be full before the replay stops
POLL_INTERVAL_SECONDS = 0.2
SAMPLE = 5
SAMPLE_TEXT_CHARS = 200

_PAIRS = "array<struct<name: string, value: string>>"
_EVENT_ORDER = ("at", "node", "lsn")


# --- choosing -------------------------------------------------------------------------------------------------------


def choose(
    events: DataFrame,
    queue: str,
    since: datetime | None = None,
    until: datetime | None = None,
    where: str = "",
    namespace: str = "default",
) -> DataFrame:
    """Messages that were stored in a queue and whose payload is in the journal, oldest first."""
    stored = events.where(
        (F.col("event") == "enqueued")
        & (F.col("namespace") == namespace)
        & (F.col("queue") == queue)
        & F.col("payload").isNotNull()
    )
    if since is not None:
        stored = stored.where(F.col("at") >= F.lit(since))
    if until is not None:
        stored = stored.where(F.col("at") < F.lit(until))
    return matching(stored, where).orderBy(*_EVENT_ORDER)


def messages(chosen: DataFrame, run: str) -> DataFrame:
    """New messages that repeat the selected ones, with the columns that the data source `holdfast` writes."""
    # Spark's maps cannot hold a name twice: the last one counts (session.LAKE_SETTINGS).
    own = F.filter(
        F.coalesce("properties", F.array().cast(_PAIRS)),
        lambda one: ~one["name"].isin(*OWN_PROPERTIES, REPLAY_PROPERTY),
    )
    replay = F.create_map(F.lit(REPLAY_PROPERTY), F.lit(run))
    return chosen.select(
        "payload",
        "key",
        F.col("client_message_id").alias("message_id"),
        "priority",
        "correlation_id",
        F.map_concat(F.map_from_entries(own), replay).alias("properties"),
        F.col("message_id").alias("source_id"),
        F.col("queue").alias("source_queue"),
    )


class Chosen(msgspec.Struct, frozen=True):
    """What a replay would store."""

    messages: int
    first_at: datetime | None
    last_at: datetime | None
    sample: list[dict[str, object]]


def preview(chosen: DataFrame) -> Chosen:
    """Count the selected messages, and take a sample."""
    counted = chosen.agg(F.count("*").alias("messages"), F.min("at").alias("first"), F.max("at").alias("last"))
    row = counted.toArrow().to_pylist()[0]
    sample: list[dict[str, object]] = []
    if row["messages"]:
        excerpt = F.substring(F.coalesce("text", F.lit("")), 1, SAMPLE_TEXT_CHARS).alias("text")
        sample = chosen.select("at", "message_id", "key", "priority", excerpt).limit(SAMPLE).toArrow().to_pylist()
    return Chosen(row["messages"], row["first"], row["last"], sample)


def begin(runs: RunStore, run: JobRun, chosen: DataFrame) -> None:
    """Store the selection before the replay starts."""
    runs.begin_with(run, lambda path: chosen.select(*_EVENT_ORDER).write.mode("overwrite").parquet(spark_path(path)))


def kept(lake: Lake, spark: SparkSession, runs: RunStore, run: JobRun) -> DataFrame:
    """The events of a run's selection."""
    places = spark.read.schema("at timestamp, node int, lsn bigint").parquet(spark_path(runs.chosen_path(run)))
    files = lake.events.files()
    since = run.since
    if since is not None:
        files = [file for file in files if file.may_hold("at", since, None)]
    return lake.events.read(spark, files).join(places.select("node", "lsn"), ["node", "lsn"], "left_semi")


# --- unpaced --------------------------------------------------------------------------------------------------------


def replay_in_transaction(
    client: SyncClient, lake: Lake, spark: SparkSession, stages: Stages, run: JobRun, options: dict[str, str]
) -> JobRun:
    """All messages in one transaction, which is named after the run."""
    runs = RunStore(lake.path)
    with stages.stage("write"):
        transaction = client.transaction(run.id)
        try:
            done = transaction.look()
        except TransactionNotFound:
            done = None
        if done is None or done.state != "published":
            frame = messages(kept(lake, spark, runs, run).orderBy(*_EVENT_ORDER), run.id)
            stages.explain("messages", frame)
            fill(frame, {**options, "queue": run.to, "transactionId": run.id})
            done = transaction.look()
    run.moved, run.state, run.ended_at = done.published, "done", datetime.now(UTC)
    runs.save(run)
    stages.count_written("messages", run.moved)
    return run


# --- paced ----------------------------------------------------------------------------------------------------------


class Slice(msgspec.Struct, frozen=True):
    """Messages from `first` to `end` (exclusive), due after `seconds`."""

    first: int
    end: int
    seconds: float


def slices(instants: Sequence[int], speed: float = 0.0, rate: float = 0.0) -> list[Slice]:
    """Cut messages, given by their times in microseconds, into slices: at their original pace times `speed`, or at a
    rate.

    The same times and pace give the same slices.
    """
    count = len(instants)
    if not count:
        return []
    past = np.asarray(instants, np.int64)
    seconds = (past - past[0]) / 1e6 / speed if speed else np.arange(count) / rate
    window = (seconds / SLICE_SECONDS).astype(np.int64)
    starts = [0, *(np.flatnonzero(np.diff(window)) + 1).tolist(), count]
    return [
        Slice(first, min(first + SLICE_ROWS, high), float(seconds[first]))
        for low, high in pairwise(starts)
        for first in range(low, high, SLICE_ROWS)
    ]


class Replayer:
    """Publishes the slices of one run when they are due, and updates its record."""

    def __init__(
        self, client: SyncClient, runs: RunStore, run: JobRun, progress: Callable[[int], None] | None = None
    ) -> None:
        self._client = client
        self._runs = runs
        self._run = run
        self._progress = progress
        run.state, run.stopped, run.ended_at = "running", "", None

    def play(self, rows: Iterator[dict[str, Any]], full_seconds: float = FULL_SECONDS) -> JobRun:
        """`rows` are the run's events in their order; some may have been removed from the lake since."""
        run = self._run
        table = self._runs.chosen(run).sort_by([(name, "ascending") for name in _EVENT_ORDER])
        instants = table["at"].cast("int64").to_numpy()
        nodes, lsns = table["node"].to_numpy(), table["lsn"].to_numpy()
        cut = slices(instants, run.speed, run.rate)
        began: float | None = None
        following = next(rows, None)
        for number, part in enumerate(cut):
            batch: list[dict[str, Any]] = []
            for at in range(part.first, part.end):
                if following is not None and (following["node"], following["lsn"]) == (nodes[at], lsns[at]):
                    batch.append(following)
                    following = next(rows, None)
            if number < run.slices_done:
                continue
            if began is None:
                began = time.monotonic() - part.seconds
            time.sleep(max(began + part.seconds - time.monotonic(), 0))
            run.moved += self._store(f"{run.id}.{number}", batch, full_seconds)
            if run.stopped:
                break
            missing = part.end - part.first - len(batch)
            if missing:
                run.not_moved["gone from the lake"] = run.not_moved.get("gone from the lake", 0) + missing
            run.slices_done = number + 1
            self._runs.save(run)
            if self._progress is not None:
                self._progress(part.end)
        run.state = "stopped" if run.stopped else "done"
        run.ended_at = datetime.now(UTC)
        self._runs.save(run)
        return run

    def _store(self, name: str, batch: list[dict[str, Any]], full_seconds: float) -> int:
        """Stage and publish one slice, unless that was done before. Returns how many messages it has."""
        if not batch:
            return 0
        transaction = self._client.transaction(name)
        until = time.monotonic() + full_seconds
        while True:
            try:
                transaction.stage_many(self._run.to, [_draft(row, self._run.id) for row in batch])
                return transaction.publish().published
            except TransactionPublished:  # by an attempt that was killed before it recorded that
                return transaction.look().published
            except HoldfastError as error:
                if not error.retryable:
                    raise
                if time.monotonic() > until:
                    self._run.stopped = f"{error} Run it again with --audit {self._run.id}"
                    return 0
            time.sleep(POLL_INTERVAL_SECONDS)
            transaction = self._client.transaction(name)  # its chunks are numbered from the start, and not stored twice


def _draft(row: dict[str, Any], run: str) -> wire.StagedMessage:
    properties: dict[str, str | list[str]] = {}
    for pair in row["properties"] or ():
        name, value = pair["name"], pair["value"]
        if name in OWN_PROPERTIES or name == REPLAY_PROPERTY:
            continue
        before = properties.get(name)
        if before is None:
            properties[name] = value
        else:
            properties[name] = [*(before if isinstance(before, list) else [before]), value]
    return wire.StagedMessage(
        message_id=row["client_message_id"],
        base64=bytes(row["payload"]),
        key=row["key"],
        priority=row["priority"],
        correlation_id=row["correlation_id"],
        properties={**properties, REPLAY_PROPERTY: run},
        source_id=str(row["message_id"]),
        source_queue=row["queue"],
    )


def replay_paced(
    client: SyncClient,
    lake: Lake,
    spark: SparkSession,
    stages: Stages,
    run: JobRun,
    progress: Callable[[int], None] | None = None,
) -> JobRun:
    """Publish slice by slice, each when it is due."""
    runs = RunStore(lake.path)
    texts = ("client_message_id", "key", "correlation_id")
    columns = (*_EVENT_ORDER, "message_id", "queue", "payload", "priority", "properties", *texts)
    frame = kept(lake, spark, runs, run).orderBy(*_EVENT_ORDER).select(*columns)
    stages.explain("messages", frame)
    with stages.stage("replay"):
        rows = (row.asDict(recursive=True) for row in frame.toLocalIterator(prefetchPartitions=True))
        Replayer(client, runs, run, progress).play(rows)
    stages.count_written("messages", run.moved)
    return run
