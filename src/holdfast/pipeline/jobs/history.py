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
        rows = _relatives(lake, spark, message_id)
    if not rows:
        raise MessageNotInLake(message_id=message_id, path=lake.path)
    ids = sorted({row["message_id"] for row in rows})
    with stages.stage("collect events"):
        timeline, payload = _events(lake, spark, stages, ids, message_id)
    stages.count_read("events", len(timeline))
    rows.sort(key=lambda row: (row["message_id"], row["group"] or ""))
    return MessageHistory(message_id=message_id, chain=rows, timeline=timeline, payload=payload)


def relatives(messages: DataFrame, ids: list[int]) -> DataFrame:
    """The rows of these messages, and of those that were made from them: one generation of a chain."""
    return messages.where(F.col("message_id").isin(ids) | F.col("source_id").isin(ids))


def _relatives(lake: Lake, spark: SparkSession, message_id: int) -> list[Row]:
    """The rows of a message's whole chain. Ids grow with time, and a message is younger than its source: so the search
    for sources reads the files of one id, and the search for what was made from it reads no older files."""
    first = message_id
    seen = {message_id}
    while len(seen) < CHAIN_MAX:
        files = [file for file in lake.messages.files() if file.may_hold("message_id", first, first)]
        own = lake.messages.read(spark, files).where(F.col("message_id") == first).select("source_id").limit(1)
        source = next((row[0] for row in own.collect()), None)
        if source is None or source in seen:
            break
        seen.add(source)
        first = source
    rows: dict[tuple[int, str | None], Row] = {}
    newest = sorted(seen)
    while newest and len(seen) < CHAIN_MAX:
        files = [file for file in lake.messages.files() if file.may_hold("message_id", newest[0], None)]
        found: list[Row] = relatives(lake.messages.read(spark, files), newest).limit(EVENTS_MAX).toArrow().to_pylist()
        rows |= {(row["message_id"], row["group"]): row for row in found}
        newest = sorted({row["message_id"] for row in found} - seen)
        seen |= set(newest)
    return list(rows.values())


def _events(
    lake: Lake, spark: SparkSession, stages: Stages, ids: list[int], asked: int
) -> tuple[list[TimelineEvent], bytes | None]:
    """All events of these messages, in order, and the payload of the requested one."""
    since = datetime.fromtimestamp(time_of_id(min(ids)) / 1_000_000, UTC)
    files = [file for file in lake.events.files() if file.may_hold("at", since, None)]
    names = list(TimelineEvent.__struct_fields__)
    wanted = lake.events.read(spark, files).where(F.col("message_id").isin(ids))
    rows = wanted.select(*[f"`{name}`" for name in names], "payload").orderBy("at", "node", "lsn").limit(EVENTS_MAX)
    stages.explain("events", rows)
    timeline: list[TimelineEvent] = []
    payload: bytes | None = None
    for row in rows.toArrow().to_pylist():
        timeline.append(TimelineEvent(*(row[name] for name in names)))
        if row["payload"] is not None and row["message_id"] == asked:
            payload = row["payload"]
    return timeline, payload
