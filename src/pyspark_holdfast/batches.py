"""`spark.read`: a queue as it is when the query is planned. Nothing is leased or changed.

Later messages are not read. Messages that are settled while the query runs may or may not be in it: a queue has no
snapshots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from pyspark_holdfast.filters import Condition, condition_of, narrowed
from pyspark_holdfast.options import Options, Place
from pyspark_holdfast.ranges import Range, RangeTask, assign_ranges
from pyspark_holdfast.schema import shaped
from pyspark_holdfast.wire import READ_ROWS, Refused

DEAD_PREFIX = "dlq/"


class BatchReader(DataSourceReader):
    """See the module."""

    def __init__(self, options: Options, kinds: dict[str, str]) -> None:
        options.need("queue")
        if options.starting == "latest":
            raise ValueError("holdfast: startingOffsets latest would read nothing; it is for streams")
        if options.ending == "earliest":
            raise ValueError("holdfast: endingOffsets earliest would read nothing")
        self._options, self._kinds = options, kinds
        self._queue = options.queue
        self._conditions: list[Condition] = []

    def partitions(self) -> list[InputPartition]:
        options = self._options
        options.check_namespace()
        try:
            if options.view == "dead_letters":
                self._use_dead_queue()
            ranges = self._ranges()
        except Refused as refusal:
            if refusal.code == "queue_not_found" and options.view == "dead_letters" and self._queue != options.queue:
                return []  # there are no dead letters yet
            raise
        works = assign_ranges(narrowed(ranges, self._conditions), options.min_partitions)
        return [BatchTask(work.ranges, self._queue, self._conditions) for work in works]

    def _use_dead_queue(self) -> None:
        """The dead queue of the queue; others may use the same one. For a dead queue, the queue itself."""
        if self._queue.startswith(DEAD_PREFIX):
            return
        queue = self._queue
        self._queue = self._options.server.dead_queue(queue)
        self._conditions.append(("source_queue", "=", queue))

    def _ranges(self) -> list[Range]:
        bounds = self._options.server.bounds(self._queue)
        starts = self._places(self._options.starting)
        ends = self._places(self._options.ending)
        return [
            Range(
                one.partition,
                max(one.first, starts.get(one.partition, 0)),
                min(one.until, ends.get(one.partition, one.until)),
            )
            for one in bounds
        ]

    def _places(self, place: Place) -> dict[int, int]:
        """By partition, the sequence of an offset; a missing partition has no bound."""
        if isinstance(place, dict):
            return place
        if isinstance(place, datetime):
            return {one.partition: one.first for one in self._options.server.bounds(self._queue, place)}
        return {}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes a partition of its own where there is nothing to read
        for one in getattr(partition, "ranges", ()):
            at = one.first
            while at:
                table, at = self._options.server.browse(
                    partition.queue,  # type: ignore[attr-defined]
                    one.partition,
                    view="deliveries" if self._options.view == "deliveries" else "messages",
                    first=at,
                    until=one.until,
                    limit=READ_ROWS,
                    columns=list(self._kinds),
                    where=[c for c in partition.conditions if c[0] != "partition"],  # type: ignore[attr-defined]
                )
                yield from shaped(table, self._kinds)


class BatchTask(RangeTask):
    """What one task reads, of which queue, and the conditions that the server checks."""

    def __init__(self, ranges: list[Range], queue: str, conditions: list[Condition]) -> None:
        super().__init__(ranges)
        self.queue, self.conditions = queue, conditions


class PushingReader(BatchReader):
    """A reader with filter pushdown. A class of its own: Spark refuses a reader that supports it while
    `spark.sql.python.filterPushdown.enabled` is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        for given in filters:
            condition = condition_of(given, self._options.view)
            if condition is None:
                yield given
            else:
                self._conditions.append(condition)
