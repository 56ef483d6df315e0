"""`history`: one message's whole life as a timeline, across deaths, redrives and replays.

A dead letter, a redriven and a replayed message are new messages that name their source. The chain is followed both
ways: up to where it began, and down to everything that was made of it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast.core.ids import born_at
from holdfast.errors import MessageNotInLake
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.stages import Stages

CHAIN_MAX = 1_000
"""Messages of one chain that are followed: a letter that is redriven every minute and dies again makes many."""

EVENTS_MAX = 10_000


class Happening(msgspec.Struct, frozen=True):
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


class Life(msgspec.Struct, kw_only=True):
    """What is known of a message and its relatives."""

    message_id: int
    chain: list[dict[str, Any]]
    """Rows of `messages`, oldest first: the message, what it came from, what was made of it."""
    timeline: list[Happening]
    payload: bytes | None = None


def history(lake: Lake, spark: SparkSession, stages: Stages, message_id: int) -> Life:
    """See the module."""
    lake.require()
    with stages.stage("follow the chain"):
        ids = _chain(lake, spark, message_id)
        rows = [row for one in ids for row in _rows(lake, spark, one)]
    if not rows:
        raise MessageNotInLake(message_id=message_id, path=lake.path)
    with stages.stage("collect events"):
        timeline, payload = _events(lake, spark, ids, message_id)
    rows.sort(key=lambda row: (row["message_id"], row["group"] or ""))
    return Life(message_id=message_id, chain=rows, timeline=timeline, payload=payload)


def _rows(lake: Lake, spark: SparkSession, message_id: int) -> list[dict[str, Any]]:
    """The rows of one message. Ids grow with time, so few files can hold them."""
    files = [file for file in lake.messages.files() if file.may_hold("message_id", message_id, message_id)]
    found = lake.messages.read(spark, files).where(F.col("message_id") == message_id)
    rows: list[dict[str, Any]] = found.toArrow().to_pylist()
    return rows


def _chain(lake: Lake, spark: SparkSession, message_id: int) -> list[int]:
    """All relatives of a message, by id. Children are younger than their parents."""
    first = message_id
    seen = {message_id}
    while rows := _rows(lake, spark, first):
        source = rows[0]["source_id"]
        if source is None or source in seen or len(seen) >= CHAIN_MAX:
            break
        seen.add(source)
        first = source
    found, newest = [first], [first]
    while newest and len(found) < CHAIN_MAX:
        files = [file for file in lake.messages.files() if file.may_hold("message_id", min(newest), None)]
        born = lake.messages.read(spark, files).where(F.col("source_id").isin(newest)).select("message_id").distinct()
        newest = sorted({row[0] for row in born.limit(CHAIN_MAX).collect()} - set(found))
        found += newest
    return found


def _events(lake: Lake, spark: SparkSession, ids: list[int], asked: int) -> tuple[list[Happening], bytes | None]:
    """Everything that happened to these, in order, and the payload of the one that was asked for."""
    since = datetime.fromtimestamp(born_at(min(ids)) / 1_000_000, UTC)
    files = [file for file in lake.events.files() if file.may_hold("at", since, None)]
    names = list(Happening.__struct_fields__)
    wanted = lake.events.read(spark, files).where(F.col("message_id").isin(ids))
    rows = wanted.select(*[f"`{name}`" for name in names], "payload").orderBy("at", "node", "lsn").limit(EVENTS_MAX)
    timeline: list[Happening] = []
    payload: bytes | None = None
    for row in rows.toArrow().to_pylist():
        timeline.append(Happening(*(row[name] for name in names)))
        if row["payload"] is not None and row["message_id"] == asked:
            payload = row["payload"]
    return timeline, payload
