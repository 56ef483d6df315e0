"""A queue's minutes in their order: running totals, depths, percentiles. What a Spark task does with its queues.

Imports nothing of Holdfast but the tables' columns: it travels to the executors by value.

A group's depth is what it has yet to do. The journal does not say when a group was made, so one is taken to have begun
with what was stored when it was first seen: exactly right for a queue's first group and for those that start with
everything, too high for a while for one that started at the end of a queue that was not empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa

from holdfast.pipeline.tables import ENDS, MINUTE_COUNTS, QUEUE_MINUTES

BUCKETS_A_DOUBLING = 8
"""A bucket of the histograms is 9 % wide, so a percentile is right within 5 %."""

CARRIED = {
    "carried:enqueued": "enqueued_total",
    "carried:ended": "ended_total",
    "carried:skipped": "skipped",
}
"""What facts of the last row before the first minute are called, and the columns they come from."""

BEGUN = {what.replace("carried", "begun"): column for what, column in CARRIED.items()}
"""The same of the moment before the first row that is there already. It counts for more: the other may be gone."""

SCHEMA = pa.schema(
    [
        pa.field(
            column.name,
            {
                "string": pa.string(),
                "timestamp": pa.timestamp("us", tz="UTC"),
                "bigint": pa.int64(),
                "double": pa.float64(),
                "map<int, bigint>": pa.map_(pa.int32(), pa.int64()),
            }[column.kind],
        )
        for column in QUEUE_MINUTES.columns
    ]
)

Facts = dict[str, int]
Minutes = dict[datetime, Facts]
Row = dict[str, Any]


def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of all queues of one task, from their facts."""
    queues: dict[tuple[str, str], dict[str | None, Minutes]] = {}
    for batch in batches:
        columns = [
            batch.column(name).to_pylist() for name in ("namespace", "queue", "group", "minute", "what", "value")
        ]
        for namespace, queue, group, minute, what, value in zip(*columns, strict=True):
            facts = queues.setdefault((namespace, queue), {}).setdefault(group, {}).setdefault(minute, {})
            facts[what] = facts.get(what, 0) + value
    made = [row for name, groups in sorted(queues.items()) for row in _queue(*name, groups)]
    if made:
        yield from pa.Table.from_pylist(made, SCHEMA).to_batches()


def _queue(namespace: str, queue: str, groups: dict[str | None, Minutes]) -> list[Row]:
    """One queue, first its own minutes, then those of its groups, which need its totals."""
    own: list[Row] = []
    before = _carried(groups.get(None, {}))
    enqueued, gone = before["carried:enqueued"], before["carried:ended"]
    history: list[tuple[datetime, int, int]] = []  # minute, enqueued and gone up to its end
    start = (enqueued, gone)
    for minute, facts in sorted(_minutes(groups.get(None, {})).items()):
        enqueued += facts.get("enqueued", 0)
        gone += facts.get("gone", 0)
        history.append((minute, enqueued, gone))
        own.append(_row(namespace, queue, None, minute, facts, (enqueued, gone, 0), enqueued - gone))
    for group, minutes in sorted((name, found) for name, found in groups.items() if name is not None):
        own += _group(namespace, queue, group, minutes, start, history)
    return own


def _group(
    namespace: str,
    queue: str,
    group: str,
    minutes: Minutes,
    start: tuple[int, int],
    history: list[tuple[datetime, int, int]],
) -> list[Row]:
    before = _carried(minutes)
    seen = before["seen"]
    ended, skipped = before["carried:ended"], before["carried:skipped"]
    made: list[Row] = []
    at, stored, gone = 0, *start
    for minute, facts in sorted(_minutes(minutes).items()):
        while at < len(history) and history[at][0] < minute:
            _, stored, gone = history[at]
            at += 1
        if not seen:
            skipped, seen = gone, 1
        while at < len(history) and history[at][0] <= minute:
            _, stored, gone = history[at]
            at += 1
        ended += sum(facts.get(end, 0) for end in ENDS)
        depth = max(stored - skipped - ended, 0)
        made.append(_row(namespace, queue, group, minute, facts, (stored, ended, skipped), depth))
    return made


def _carried(minutes: Minutes) -> Facts:
    """Where a queue or group stood before its first minute here."""
    found = dict.fromkeys([*CARRIED, "seen"], 0)
    for names in (CARRIED, BEGUN):
        for facts in minutes.values():
            for what in names:
                if what in facts:
                    found[what.replace("begun", "carried")] = facts[what]
                    found["seen"] = 1
    return found


def _minutes(minutes: Minutes) -> Minutes:
    """Those in which something happened."""
    return {
        minute: facts
        for minute, facts in minutes.items()
        if any(what not in CARRIED and what not in BEGUN for what in facts)
    }


def _row(
    namespace: str,
    queue: str,
    group: str | None,
    minute: datetime,
    facts: Facts,
    totals: tuple[int, int, int],
    depth: int,
) -> Row:
    waits, processings = _histogram(facts, "wait:"), _histogram(facts, "processing:")
    row: Row = {
        "namespace": namespace,
        "queue": queue,
        "group": group,
        "minute": minute,
        **{name: facts.get(name, 0) for name in MINUTE_COUNTS},
        "gone": facts.get("gone", 0),
        "depth": depth,
        "waits": sorted(waits.items()),
        "processings": sorted(processings.items()),
        "enqueued_total": totals[0],
        "ended_total": totals[1],
        "skipped": totals[2],
    }
    for percent in (50, 95, 99):
        row[f"wait_p{percent}_ms"] = percentile(waits, percent)
        row[f"processing_p{percent}_ms"] = percentile(processings, percent)
    return row


def _histogram(facts: Facts, prefix: str) -> dict[int, int]:
    return {int(what[len(prefix) :]): value for what, value in facts.items() if what.startswith(prefix)}


def percentile(histogram: dict[int, int], percent: float) -> float | None:
    """The value that `percent` of 100 do not exceed, in milliseconds: the middle of the bucket it falls into."""
    total = sum(histogram.values())
    if total <= 0:
        return None
    passed = 0
    for bucket in sorted(histogram):
        passed += histogram[bucket]
        if passed * 100 >= total * percent:
            return milliseconds(bucket)
    raise AssertionError("a histogram's parts are less than its whole")


def milliseconds(bucket: int) -> float:
    """The middle of a bucket."""
    return float(2 ** ((bucket + 0.5) / BUCKETS_A_DOUBLING)) - 1
