"""Facts of a batch about each queue, group and minute, from its events and the rows that were folded from them.

A fact is a row of namespace, queue, group, minute, what, value. `what` is a count of `queue_minutes` (`acked`, `gone`,
…) or a bucket of one of its histograms (`wait:31`); values of the same key are added up.

Pure, and imports nothing of Holdfast but the tables' columns: it is pickled by value and sent to the executors.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.build.fold import CODES, NOTHING, Ints, coded, codes_of, numbers_of
from holdfast.pipeline.build.timeline import BUCKETS_PER_DOUBLING
from holdfast.pipeline.lake.tables import RECEIVED

MINUTE = 60_000_000

SCHEMA = pa.schema(
    [
        pa.field("namespace", pa.string()),
        pa.field("queue", pa.string()),
        pa.field("group", pa.string()),
        pa.field("minute", pa.timestamp("us", tz="UTC")),
        pa.field("what", pa.string()),
        pa.field("value", pa.int64()),
    ]
)

_NAMES = ["duplicates" if name == "duplicate" else name for name in CODES]


def facts(events: pa.Table, changes: pa.Table) -> pa.Table:
    """All facts; each key appears at most once for events and once for rows."""
    parts = [_of_events(events)] if events.num_rows else []
    parts += _of_messages(changes) if changes.num_rows else []
    return pa.concat_tables(parts) if parts else SCHEMA.empty_table()


class _Places:
    """Namespace, queue and group of some rows, as one number each."""

    def __init__(self, rows: pa.Table) -> None:
        self._columns = [coded(rows[name]) for name in ("namespace", "queue")]
        group = rows["group"] if "group" in rows.column_names else pa.nulls(len(rows), pa.string())
        self._columns.append(coded(group))
        namespace, queue, group = map(codes_of, self._columns)
        self._widths = [len(column.dictionary) + 1 for column in self._columns]
        self.own = (namespace * self._widths[1] + queue) * self._widths[2] + self._widths[2] - 1
        """The code of the queue itself, which has no group."""
        self.of = np.where(group >= 0, self.own - self._widths[2] + 1 + group, self.own)

    def count(self, places: Ints, minutes: Ints, what: Ints, values: Ints, name: Callable[[int], str]) -> pa.Table:
        """Values added up by place, minute and code; `name` is the name of a code."""
        if not len(places):
            return SCHEMA.empty_table()
        first, things = int(minutes.min()), int(what.max()) + 1
        span = int(minutes.max()) - first + 1
        key = (places * span + (minutes - first)) * things + what
        found = pa.table({"key": key, "value": values}).group_by("key", use_threads=False).aggregate([("value", "sum")])
        key, value = found["key"].to_numpy(), found["value_sum"]
        place, minute, what = key // things // span, key // things % span + first, key % things
        namespace, queue, group = (
            place // self._widths[2] // self._widths[1],
            place // self._widths[2] % self._widths[1],
            place % self._widths[2],
        )
        return pa.Table.from_arrays(
            [
                self._columns[0].dictionary.take(pa.array(namespace)),
                self._columns[1].dictionary.take(pa.array(queue)),
                self._columns[2].dictionary.take(pa.array(group, mask=group == self._widths[2] - 1)),
                pa.array(minute * MINUTE).cast(SCHEMA.field("minute").type),
                pa.array([name(thing) for thing in range(things)]).take(pa.array(what)),
                value,
            ],
            schema=SCHEMA,
        )


def _of_events(events: pa.Table) -> pa.Table:
    """Counts of events by kind, and the bytes that were stored. That a message waits without a group is no count."""
    places = _Places(events)
    kinds = coded(events["event"])
    what = numbers_of(pc.index_in(kinds.dictionary, pa.array(CODES)))[codes_of(kinds)]
    minutes = numbers_of(events["at"]) // MINUTE
    some = np.flatnonzero((what != CODES.index(RECEIVED)) | (places.of != places.own))
    ones = np.ones(len(some), np.int64)
    counted = places.count(places.of[some], minutes[some], what[some], ones, _NAMES.__getitem__)
    if "size_bytes" not in events.column_names:
        return counted
    stored = np.flatnonzero(what == CODES.index("enqueued"))
    sizes = numbers_of(events["size_bytes"])[stored]
    bytes_of = places.count(
        places.own[stored],
        minutes[stored],
        np.zeros(len(stored), np.int64),
        np.where(sizes == NOTHING, 0, sizes),
        lambda _: "enqueued_bytes",
    )
    return pa.concat_tables([counted, bytes_of])


def _of_messages(changes: pa.Table) -> list[pa.Table]:
    """Waiting and processing times of deliveries, and when messages had ended in all groups."""
    places = _Places(changes)
    in_batch, leads = (changes[name].to_numpy(zero_copy_only=False) for name in ("in_batch", "leads"))
    was_leased, was_out = (changes[name].is_null().to_numpy() for name in ("was_leased_at", "was_outcome"))
    was_gone, gone = numbers_of(changes["was_gone_at"]), numbers_of(changes["gone_at"])
    moved = leads & (was_gone != gone) & changes["enqueued_at"].is_valid().to_numpy()  # else it was never counted
    return [
        _times("wait", changes, places, in_batch & was_leased, "first_leased_at"),
        _times("processing", changes, places, in_batch & was_out, "ended_at"),
        _gone(places, moved, gone, 1),
        _gone(places, moved, was_gone, -1),
    ]


def _times(name: str, changes: pa.Table, places: _Places, mask: Ints, instant: str) -> pa.Table:
    """A histogram of durations, by the minute of an instant."""
    taken = changes[f"{name}_ms"]
    chosen = np.flatnonzero(mask & taken.is_valid().to_numpy())
    milliseconds = pc.fill_null(taken, 0.0).to_numpy()[chosen]
    bucket = np.floor(np.log2(np.maximum(milliseconds, 0) + 1) * BUCKETS_PER_DOUBLING).astype(np.int64)
    minutes = numbers_of(changes[instant])[chosen] // MINUTE
    return places.count(
        places.of[chosen], minutes, bucket, np.ones(len(chosen), np.int64), lambda bucket: f"{name}:{bucket}"
    )


def _gone(places: _Places, moved: Ints, instants: Ints, sign: int) -> pa.Table:
    chosen = np.flatnonzero(moved & (instants != NOTHING))
    ones = np.full(len(chosen), sign, np.int64)
    return places.count(places.own[chosen], instants[chosen] // MINUTE, ones * 0, ones, lambda _: "gone")
