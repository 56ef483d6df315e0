"""`spark.readStream`: a queue as a log, through a cursor group.

An offset is, by partition, the next sequence to read. A range can be read again until it is committed, so a batch that
Spark runs again has the same messages.

The order in which Spark calls, for each batch:

    latestOffset(start) · offset log · commit(end of the batch before) · partitions · read · sink · commit log

So everything before `start` is in Spark's commit log when `latestOffset` is called, also when idle and at the end of
AvailableNow, whereas `commit` is called only when there is more data: both commit to the broker. This does not hold
with asynchronous progress tracking, which must stay off. A test checks this order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from pyspark_holdfast.options import Options
from pyspark_holdfast.ranges import Range, RangeTask, assign_ranges
from pyspark_holdfast.schema import shaped
from pyspark_holdfast.wire import READ_ROWS, Refused

Offset = dict[str, int]
"""By partition, the next sequence to read. (JSON has no other keys than text.)"""

Ends = dict[str, dict[str, int]]
"""By partition, the group's `first` and `end` at the server."""

WITHOUT_LIMIT = 1 << 62


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module. Spark keeps one of these for a query, and makes others for planning: the constructor does
    nothing."""

    def __init__(self, options: Options, kinds: dict[str, str]) -> None:
        options.need("queue", "group")
        if options.view != "messages":
            raise ValueError("holdfast: a stream reads messages; for dead letters stream the dead queue, as dlq/orders")
        if options.ending != "latest":
            raise ValueError("holdfast: option endingOffsets is for batch reads; a stream does not end")
        self._options, self._kinds = options, kinds
        self._target: Offset | None = None
        self._committed: Offset = {}

    # --- initial offset ---------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name, as those below
        """Spark calls it twice, so it depends on the group's committed position only."""
        options = self._options
        options.check_namespace()
        options.server.make_cursor(
            options.queue, options.group, "latest" if options.starting == "latest" else "earliest"
        )
        ends = self._ends()
        wanted: dict[int, int] = {}
        if isinstance(options.starting, dict):
            wanted = options.starting
            self._check_there(wanted, ends)
        elif isinstance(options.starting, datetime):
            wanted = {one.partition: one.first for one in options.server.bounds(options.queue, options.starting)}
        return {name: max(end["first"], wanted.get(int(name), 0)) for name, end in ends.items()}

    def _check_there(self, wanted: dict[int, int], ends: Ends) -> None:
        for partition, sequence in wanted.items():
            end = ends.get(str(partition))
            if end is None:
                raise ValueError(f"holdfast: startingOffsets names partition {partition}, the queue has {len(ends)}")
            if sequence > end["end"]:
                raise ValueError(
                    f"holdfast: startingOffsets says {sequence} for partition {partition}, which ends at {end['end']}"
                )
            if sequence < end["first"] and self._options.fail_on_loss:
                raise RuntimeError(self._loss(partition, sequence, end["first"] - 1))

    def _ends(self) -> Ends:
        found = self._options.server.ends(self._options.queue, self._options.group)
        return {str(partition): end for partition, end in found.items()}

    # --- latest offset ----------------------------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.max_messages)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = {name: end["end"] for name, end in self._ends().items()}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """The end of the next batch. Everything before `start` is in Spark's commit log, so it is committed to the
        broker."""
        ends = self._ends()
        self._check(start, ends)
        self._commit(start)
        reach = self._target if self._target is not None else {name: end["end"] for name, end in ends.items()}
        if isinstance(limit, ReadAllAvailable):
            return advance(start, reach, WITHOUT_LIMIT)
        room = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_messages
        end = advance(start, reach, room)
        return self._within_bytes(start, end) if self._options.max_bytes else end

    def _check(self, start: Offset, ends: Ends) -> None:
        """Check that the messages that Spark reads next still exist."""
        for name, first in start.items():
            end = ends.get(name)
            if end is None or first > end["end"]:
                raise RuntimeError(
                    f"holdfast: the query has read queue {self._options.queue!r} up to sequence {first - 1} of "
                    f"partition {name}, but there are no such messages: the queue was deleted and created again. "
                    "Start with a new checkpoint and a new group"
                )
            if first < end["first"] and self._options.fail_on_loss:
                raise RuntimeError(self._loss(int(name), first, end["first"] - 1))

    def _loss(self, partition: int, first: int, last: int) -> str:
        return (
            f"holdfast: sequences {first} to {last} of partition {partition} of queue {self._options.queue!r} are not "
            f"kept for group {self._options.group!r} any more: it was too far behind (its max_lag), or somebody else "
            "committed for it. Set failOnDataLoss to false to continue without them"
        )

    def _within_bytes(self, start: Offset, end: Offset) -> Offset:
        """Lower the end, so that payloads stay below `maxBytesPerTrigger`: the same bytes for each partition, at least
        one message. The server counts; only sizes are sent."""
        open_ones = [name for name, until in end.items() if until > start.get(name, 1)]
        found = dict(end)
        left = self._options.max_bytes
        for index, name in enumerate(sorted(open_ones, key=int)):
            share = left // (len(open_ones) - index)
            found[name], used = self._reach(int(name), start.get(name, 1), end[name], share)
            left = max(left - used, 0)
        return found

    def _reach(self, partition: int, first: int, until: int, share: int) -> tuple[int, int]:
        """The end of a range from `first` within a number of bytes, and the bytes it uses."""
        at, used = first, 0
        while at < until and (used < share or at == first):
            request = {
                "partition": partition,
                "first": at,
                "until": until,
                "limit": READ_ROWS,
                "max_bytes": max(share - used, 1),
                "columns": ["sequence", "size_bytes"],
            }
            table, facts = self._read(request)
            sizes = table["size_bytes"].to_pylist()
            if at != first and sizes and used + sizes[0] > share:
                break  # the server returns at least one message, even if it is too large
            used += sum(sizes)
            at = max(facts["next"], at + 1)
        return at, used

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """Metrics that Spark shows in the query's progress."""
        return {name: end["end"] for name, end in self._ends().items()}

    # --- commit -----------------------------------------------------------------------------------------------------

    def commit(self, end: Offset) -> None:
        self._commit(end)

    def _commit(self, offset: Offset) -> None:
        """Commit everything before `offset` for the group."""
        positions = {
            int(name): first - 1 for name, first in offset.items() if first > 1 and self._committed.get(name, 1) < first
        }
        if positions:
            self._options.server.commit(self._options.queue, self._options.group, positions)
            self._committed.update(offset)

    # --- reading ----------------------------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> Sequence[RangeTask]:
        ranges = [Range(int(name), start.get(name, 1), until) for name, until in end.items()]
        return assign_ranges(sorted(ranges, key=lambda one: one.partition), self._options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for one in getattr(partition, "ranges", ()):
            at = one.first
            while at < one.until:
                request = {
                    "partition": one.partition,
                    "first": at,
                    "until": one.until,
                    "limit": READ_ROWS,
                    "columns": list(self._kinds),
                }
                table, facts = self._read(request)
                yield from shaped(table, self._kinds)
                at = max(facts["next"], at + 1)

    def _read(self, request: dict[str, Any]) -> tuple[pa.Table, dict[str, int]]:
        """Read a range of the group. Messages that are no longer kept are skipped if `failOnDataLoss` is off."""
        options = self._options
        try:
            return options.server.read(options.queue, options.group, request)
        except Refused as refusal:
            if refusal.code != "cursor_out_of_range":
                raise
            first = self._ends()[str(request["partition"])]["first"]
            if first <= request["first"]:
                raise
            if options.fail_on_loss:
                raise RuntimeError(self._loss(request["partition"], request["first"], first - 1)) from None
        if first >= request["until"]:
            return pa.table({name: [] for name in request["columns"]}), {"next": request["until"]}
        return self._read({**request, "first": first})


def advance(start: Offset, reach: Offset, room: int) -> Offset:
    """The end of a batch of at most `room` sequences, evenly from each partition that has some."""
    end = {name: start.get(name, 1) for name in reach} | start
    open_ones = {name: max(reach.get(name, 0) - first, 0) for name, first in end.items()}
    while room > 0 and any(open_ones.values()):
        left = [name for name, count in open_ones.items() if count]
        share = max(room // len(left), 1)
        for name in left:
            taken = min(share, open_ones[name], room)
            end[name] += taken
            open_ones[name] -= taken
            room -= taken
    return end
