"""`history`: the whole life of a message as a timeline, across deaths, redrives and replays.

A dead letter, a redriven and a replayed message are new messages that name their source. The chain is followed in both
directions: to the first message, and to all messages that were made from it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast.core.ids import time_of_id
from holdfast.errors import MessageNotInLake
from holdfast.pipeline.lake.delta import DataFile
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.spark.stages import Stages

CHAIN_MAX = 1_000
"""Messages of one chain that are followed: a message that is redriven every minute and dies again makes many."""

EVENTS_MAX = 10_000

Row = dict[str, Any]


class TimelineEvent(msgspec.Struct, frozen=True):
    """An event of the timeline."""

    at: datetime
    message_id: int
    queue: str
    group: str | None
    event: str
    attempt: int | None
    reason: str | None
    error: str | None
    consumer: str | None
    protocol: str | None
    node: int
    lsn: int


class MessageHistory(msgspec.Struct, kw_only=True):
    """A message and its chain."""

    message_id: int
    chain: list[Row]
    """Rows of `messages`, oldest first: the message, its sources, and the messages made from it."""
    timeline: list[TimelineEvent]
    payload: bytes | None = None


def history(lake: Lake, spark: SparkSession, stages: Stages, message_id: int) -> MessageHistory:
    """See the module."""
    lake.require()
    with stages.stage("follow the chain"):
        rows = _relatives(lake, spark, stages, message_id)
    if not rows:
        raise MessageNotInLake(message_id=message_id, path=lake.path)
    with stages.stage("collect events"):
        timeline, payload = _events(lake, spark, stages, rows, message_id)
    stages.count_read("events", len(timeline))
    rows.sort(key=lambda row: (row["message_id"], row["group"] or ""))
    return MessageHistory(message_id=message_id, chain=rows, timeline=timeline, payload=payload)


def relatives(messages: DataFrame, ids: list[int]) -> DataFrame:
    """The rows of these messages, and of those that were made from them: one generation of a chain."""
    return messages.where(F.col("message_id").isin(ids) | F.col("source_id").isin(ids))


def _relatives(lake: Lake, spark: SparkSession, stages: Stages, message_id: int) -> list[Row]:
    """The rows of a message's whole chain. Files are read that by their statistics may have one of its ids, or messages
    made from one of them: few messages name a source."""
    first = message_id
    seen = {message_id}
    while len(seen) < CHAIN_MAX:
        files = [file for file in lake.messages.files() if file.may_hold("message_id", first, first)]
        stages.count_read("files of messages", len(files))
        own = lake.messages.read(spark, files).where(F.col("message_id") == first).select("source_id").limit(1)
        source = next((row[0] for row in own.collect()), None)
        if source is None or source in seen:
            break
        seen.add(source)
        first = source
    rows: dict[tuple[int, str | None], Row] = {}
    newest = sorted(seen)
    while newest and len(seen) < CHAIN_MAX:
        files = [file for file in lake.messages.files() if _may_have(file, newest)]
        stages.count_read("files of messages", len(files))
        found: list[Row] = relatives(lake.messages.read(spark, files), newest).limit(EVENTS_MAX).toArrow().to_pylist()
        rows |= {(row["message_id"], row["group"]): row for row in found}
        newest = sorted({row["message_id"] for row in found} - seen)
        seen |= set(newest)
    return list(rows.values())


def _may_have(file: DataFile, ids: list[int]) -> bool:
    """Whether a file of `messages` may have one of these, or a message made from one."""
    return any(file.may_hold(column, number, number) for column in ("message_id", "source_id") for number in ids)


def _lsns(rows: list[Row]) -> tuple[int | None, int | None]:
    """Between which lsns the events of some rows of `messages` are. A duplicate may come after the last event of every
    row."""
    known = [row[name] for row in rows for name in ("enqueued_lsn", "first_lsn") if row[name] is not None]
    last = [row[name] for row in rows for name in ("last_lsn", "planned_lsn", "ended_lsn") if row[name] is not None]
    open_end = any(row["duplicates"] for row in rows)
    return min(known, default=None), None if open_end else max(last, default=None)


def _events(
    lake: Lake, spark: SparkSession, stages: Stages, rows: list[Row], asked: int
) -> tuple[list[TimelineEvent], bytes | None]:
    """All events of these messages, in order, and the payload of the requested one."""
    ids = sorted({row["message_id"] for row in rows})
    since = datetime.fromtimestamp(time_of_id(ids[0]) / 1_000_000, UTC)
    low, high = _lsns(rows)
    files = [
        file
        for file in lake.events.files()
        if file.may_hold("at", since, None)
        and file.may_hold("lsn", low, high)
        and any(file.may_hold("message_id", number, number) for number in ids)
    ]
    stages.count_read("files of events", len(files))
    names = list(TimelineEvent.__struct_fields__)
    wanted = lake.events.read(spark, files).where(F.col("message_id").isin(ids))
    found = wanted.select(*[f"`{name}`" for name in names], "payload").orderBy("at", "node", "lsn").limit(EVENTS_MAX)
    stages.explain("events", found)
    timeline: list[TimelineEvent] = []
    payload: bytes | None = None
    for row in found.toArrow().to_pylist():
        timeline.append(TimelineEvent(*(row[name] for name in names)))
        if row["payload"] is not None and row["message_id"] == asked:
            payload = row["payload"]
    return timeline, payload
