"""A queue's minutes in their order: running totals, depths, percentiles. Each Spark task does it for some queues.

Imports nothing of Holdfast but the tables' columns: it is pickled by value and sent to the executors.

A depth is what came less what left: of a queue, messages enqueued and messages that ended in all groups; of a group,
messages it received and those that ended in it. Both continue from minute to minute.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from holdfast.pipeline.lake.arrow import schema_of
from holdfast.pipeline.lake.tables import ENDS, MINUTE_COUNTS, QUEUE_MINUTES, RECEIVED

BUCKETS_PER_DOUBLING = 8
"""A bucket of the histograms is 9 % wide, so a percentile is accurate to 5 %."""

CARRIED = {
    "carried:enqueued": "enqueued_total",
    "carried:ended": "ended_total",
}
"""Facts that carry the last row before the first minute, and the columns they come from."""

BEGUN = {what.replace("carried", "begun"): column for what, column in CARRIED.items()}
"""The same for the moment before the first old row. It takes precedence: the other row may be gone."""

SCHEMA = schema_of(QUEUE_MINUTES.columns)

Facts = dict[str, int]
Minutes = dict[int, Facts]
Row = dict[str, Any]


Queues = dict[tuple[str, str], dict[str | None, Minutes]]


def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of all queues of one task, from their facts."""
    found = list(batches)
    if found:
        yield from rows_of(pa.Table.from_batches(found)).to_batches()


def rows_of(facts: pa.Table, old: pa.Table | None = None) -> pa.Table:
    """The rows computed from facts and from `old` rows, which they replace. All rows of a queue must be given, from the
    first minute that changes."""
    queues: Queues = {}
    facts = _plain_minutes(facts)
    columns = [facts[name].to_pylist() for name in ("namespace", "queue", "group", "minute", "what", "value")]
    for namespace, queue, group, minute, what, value in zip(*columns, strict=True):
        sums = queues.setdefault((namespace, queue), {}).setdefault(group, {}).setdefault(minute, {})
        sums[what] = sums.get(what, 0) + value
    if old is not None:
        _add_existing(queues, _plain_minutes(old).sort_by("minute").to_pylist())
    made = [row for name, groups in sorted(queues.items()) for row in _queue(*name, groups)]
    return pa.Table.from_pylist(made, SCHEMA)


def _plain_minutes(rows: pa.Table) -> pa.Table:
    """Minutes as integers, which cost a tenth of what datetimes do."""
    return rows.set_column(rows.column_names.index("minute"), "minute", rows["minute"].cast(pa.int64()))


def _add_existing(queues: Queues, old: list[Row]) -> None:
    """Facts of the old rows, in the order of their minutes."""
    begun: set[tuple[str, str, str | None]] = set()
    for row in old:
        key = (row["namespace"], row["queue"], row["group"])
        sums = queues.setdefault(key[:2], {}).setdefault(key[2], {}).setdefault(row["minute"], {})
        pairs = [(name, row[name]) for name in (*MINUTE_COUNTS, "gone")]
        pairs += [(f"wait:{bucket}", count) for bucket, count in row["waits"]]
        pairs += [(f"processing:{bucket}", count) for bucket, count in row["processings"]]
        if key not in begun:  # the totals before it: retention may have removed earlier rows
            begun.add(key)
            ended = row["gone"] if row["group"] is None else sum(row[end] for end in ENDS)
            came = row["enqueued"] if row["group"] is None else row[RECEIVED]
            carried = (row["enqueued_total"] - came, row["ended_total"] - ended)
            pairs += zip(BEGUN, carried, strict=True)
        for what, value in pairs:
            if value or what in BEGUN:
                sums[what] = sums.get(what, 0) + value


def _queue(namespace: str, queue: str, groups: dict[str | None, Minutes]) -> list[Row]:
    """The rows of one queue: its own, then those of its groups."""
    found: list[Row] = []
    for group in sorted(groups, key=lambda name: name or ""):
        before = _carried(groups[group])
        came, left = before["carried:enqueued"], before["carried:ended"]
        for minute, facts in sorted(_minutes(groups[group]).items()):
            came += facts.get("enqueued" if group is None else RECEIVED, 0)
            left += facts.get("gone", 0) if group is None else sum(facts.get(end, 0) for end in ENDS)
            found.append(_row(namespace, queue, group, minute, facts, came, left))
    return found


def _carried(minutes: Minutes) -> Facts:
    """The totals of a queue or group before its first minute here."""
    found = dict.fromkeys(CARRIED, 0)
    for names in (CARRIED, BEGUN):
        for facts in minutes.values():
            for what in names:
                if what in facts:
                    found[what.replace("begun", "carried")] = facts[what]
    return found


def _minutes(minutes: Minutes) -> Minutes:
    """The minutes that have events."""
    return {
        minute: facts
        for minute, facts in minutes.items()
        if any(value and what not in CARRIED and what not in BEGUN for what, value in facts.items())
    }


def _row(
    namespace: str,
    queue: str,
    group: str | None,
    minute: int,
    facts: Facts,
    came: int,
    left: int,
) -> Row:
    waits, processings = _histogram(facts, "wait:"), _histogram(facts, "processing:")
    row: Row = {
        "namespace": namespace,
        "queue": queue,
        "group": group,
        "minute": minute,
        **{name: facts.get(name, 0) for name in MINUTE_COUNTS},
        "gone": facts.get("gone", 0),
        "depth": came - left,
        "waits": sorted(waits.items()),
        "processings": sorted(processings.items()),
        "enqueued_total": came,
        "ended_total": left,
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
    raise AssertionError("a histogram's buckets sum to less than its total")


def milliseconds(bucket: int) -> float:
    """The middle of a bucket."""
    return float(2 ** ((bucket + 0.5) / BUCKETS_PER_DOUBLING)) - 1
