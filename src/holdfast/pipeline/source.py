"""The data source `holdfast`: live queues as DataFrames and streams.

    spark.read         what waits in a queue, or its dead letters; nothing is leased or changed
    spark.readStream   a queue as a log, through a cursor group: offsets are sequences, a range can be read again until
                       it is committed, so a checkpointed query is exactly-once into an idempotent sink
    df.write           all rows in one transaction: seen all at once or never, however often tasks are tried
    df.writeStream     a transaction for each batch, named after query and batch: a batch that runs again is there once

A batch of a stream is committed to the broker when the next one is planned: Spark calls `commit` only with data, but
`latestOffset` after every batch, also when idle and at the end of AvailableNow, so both commit.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from holdfast.pipeline.wire import Server

SCHEMA = (
    "id bigint, sequence bigint, partition int, priority int, enqueued_at timestamp, deliver_at timestamp, "
    "expires_at timestamp, key string, message_id string, content_type string, correlation_id string, "
    "reply_to string, properties map<string,string>, source_id bigint, source_queue string, source_group string, "
    "reason string, error string, payload binary"
)
_TEXT = pa.string()
_ARROW = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "string": _TEXT,
    "binary": pa.binary(),
    "map<string,string>": pa.map_(_TEXT, _TEXT),
}
COLUMNS = {name: _ARROW[kind] for name, kind in (field.split() for field in SCHEMA.split(", "))}

WRITABLE = (
    *("payload", "key", "message_id", "priority", "deliver_at", "ttl", "properties", "correlation_id", "content_type"),
    "reply_to",
)
"""Columns that a message can be written from, beside `queue` and `value` (another name of `payload`)."""

OPTIONS = {
    "url": "http://127.0.0.1:8080",
    "token": "",
    "queue": "",
    "view": "messages",
    "group": "",
    "startingoffsets": "earliest",
    "maxmessagespertrigger": "100000",
    "minpartitions": "0",
    "failondataloss": "true",
    "transactionid": "",
    "batchrows": "10000",
    "retrytimeout": "120",
}
_SPARKS_OWN = {"path", "checkpointlocation", "queryname"}

PAGE_ROWS = 1_000
READ_ROWS = 10_000


class Options:
    """What the user said, checked."""

    def __init__(self, given: Mapping[str, str]) -> None:
        said = {name.lower(): value for name, value in given.items()}
        unknown = sorted(set(said) - set(OPTIONS) - _SPARKS_OWN)
        if unknown:
            raise ValueError(f"holdfast: unknown option {unknown[0]!r}; known are {', '.join(sorted(OPTIONS))}")
        chosen = {**OPTIONS, **said}
        self.queue = chosen["queue"] or chosen.get("path", "")
        self.group = chosen["group"]
        self.view = _one_of("view", chosen["view"], ("messages", "dead_letters"))
        self.starting = chosen["startingoffsets"]
        self.max_messages = _number("maxMessagesPerTrigger", chosen["maxmessagespertrigger"], 1)
        self.min_partitions = _number("minPartitions", chosen["minpartitions"], 0)
        self.batch_rows = _number("batchRows", chosen["batchrows"], 1)
        self.fail_on_loss = _one_of("failOnDataLoss", chosen["failondataloss"].lower(), ("true", "false")) == "true"
        self.transaction = chosen["transactionid"]
        retry = _number("retryTimeout (seconds)", chosen["retrytimeout"], 0)
        self.server = Server(chosen["url"], chosen["token"] or None, retry)

    def need(self, *names: str) -> None:
        for name in names:
            if not getattr(self, name):
                raise ValueError(f"holdfast: option {name!r} is needed here: .option({name!r}, …)")


def _number(name: str, value: str, low: int) -> int:
    if not value.isdecimal() or int(value) < low:
        raise ValueError(f"holdfast: option {name} is a whole number from {low}, not {value!r}")
    return int(value)


def _one_of(name: str, value: str, words: tuple[str, ...]) -> str:
    if value not in words:
        raise ValueError(f"holdfast: option {name} is {' or '.join(words)}, not {value!r}")
    return value


class HoldfastSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return "holdfast"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(Options(self.options), schema.fieldNames())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return StreamReader(Options(self.options), schema.fieldNames())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return BatchWriter(_writing(self.options, schema, overwrite), uuid.uuid4().hex)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return StreamWriter(_writing(self.options, schema, overwrite))


def _writing(given: Mapping[str, str], schema: StructType, overwrite: bool) -> Options:
    """The options of a write whose columns can be written."""
    options, names = Options(given), set(schema.fieldNames())
    if overwrite:
        raise ValueError("holdfast: messages are added, not overwritten: use mode('append')")
    if len(names & {"payload", "value"}) != 1:
        raise ValueError("holdfast: one column must be named payload (or value): the message's bytes or text")
    unknown = sorted(names - {*WRITABLE, "queue", "value"})
    if unknown:
        raise ValueError(f"holdfast: no message has a {unknown[0]!r}; columns are queue, value, {', '.join(WRITABLE)}")
    if "queue" not in names:
        options.need("queue")
    return options


def _shaped(table: pa.Table, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The columns that were asked for, in the types that Spark was told."""
    chosen = table.select(list(names))
    yield from chosen.cast(pa.schema([pa.field(name, COLUMNS[name]) for name in names])).to_batches()


# --- reading --------------------------------------------------------------------------------------------------------


class BatchReader(DataSourceReader):
    """What waits in a queue now."""

    def __init__(self, options: Options, names: list[str]) -> None:
        options.need("queue")
        self._options, self._names = options, names

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - Spark's contract
        queue = self._options.queue
        if self._options.view == "dead_letters" and not queue.startswith("dlq/"):
            queue = f"dlq/{queue}"
        for table in self._options.server.browse(queue, PAGE_ROWS):
            yield from _shaped(table, self._names)


@dataclass
class Range(InputPartition):
    """Sequences of one partition: from `first`, before `until`."""

    partition: int
    first: int
    until: int


Offset = dict[str, int]
"""By partition, the next sequence to read. (JSON has no other keys than text.)"""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A queue as a log, through a cursor group."""

    def __init__(self, options: Options, names: list[str]) -> None:
        options.need("queue", "group")
        self._options, self._names = options, names
        self._target: Offset | None = None
        self._committed: Offset = {}

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name, as those below
        starting = self._options.starting
        if starting in ("earliest", "latest"):
            self._options.server.make_cursor(self._options.queue, self._options.group, starting)
            return {str(partition): end["first"] for partition, end in self._ends().items()}
        try:
            given = json.loads(starting)
            return {str(int(partition)): int(sequence) for partition, sequence in given.items()}
        except (ValueError, AttributeError, TypeError) as error:
            raise ValueError(
                "holdfast: option startingOffsets is earliest, latest or JSON of partition to sequence, "
                f'as {{"0": 17}}, not {starting!r}'
            ) from error

    def _ends(self) -> dict[int, dict[str, int]]:
        return self._options.server.ends(self._options.queue, self._options.group)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.max_messages)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = {str(partition): end["end"] for partition, end in self._ends().items()}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """How far the next batch goes. All before `start` is in Spark's log of commits, so the broker may let it go."""
        self._commit(start)
        room = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_messages
        if isinstance(limit, ReadAllAvailable):
            room = 1 << 62
        return _advance(start, self._reach(), room)

    def _reach(self) -> Offset:
        if self._target is not None:
            return self._target
        return {str(partition): end["end"] for partition, end in self._ends().items()}

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        return {str(partition): end["end"] for partition, end in self._ends().items()}

    def commit(self, end: Offset) -> None:
        self._commit(end)

    def _commit(self, offset: Offset) -> None:
        """The group needs nothing before `offset`."""
        positions = {
            int(partition): first - 1
            for partition, first in offset.items()
            if first - 1 > 0 and self._committed.get(partition) != first
        }
        if positions:
            self._options.server.commit(self._options.queue, self._options.group, positions)
            self._committed.update(offset)

    def partitions(self, start: Offset, end: Offset) -> Sequence[Range]:
        ranges = [
            Range(int(name), start.get(name, 1), until)
            for name, until in sorted(end.items())
            if until > start.get(name, 1)
        ]
        return _split(ranges, self._options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        options, at = self._options, partition.first
        while at < partition.until:
            wish = {"partition": partition.partition, "first": at, "until": partition.until, "limit": READ_ROWS}
            table, facts = options.server.read(options.queue, options.group, wish)
            lost = range(max(facts["lost-from"], partition.first), min(facts["lost-to"] + 1, partition.until))
            if facts["lost-to"] and lost and options.fail_on_loss:
                raise RuntimeError(
                    f"holdfast: group {options.group!r} was too far behind; lost are sequences {lost[0]} to {lost[-1]} "
                    f"of partition {partition.partition} (max_lag); set failOnDataLoss to false to go on without them"
                )
            yield from _shaped(table, self._names)
            at = max(facts["next"], at + 1)


def _advance(start: Offset, reach: Offset, room: int) -> Offset:
    """The end of a batch of at most `room` sequences, an even share for each partition that has some."""
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


def _split(ranges: list[Range], wanted: int) -> list[Range]:
    """At least `wanted` ranges, if there are so many sequences."""
    total = sum(one.until - one.first for one in ranges)
    if len(ranges) >= wanted or not total:
        return ranges
    size = max(total // wanted, 1)
    return [
        Range(one.partition, first, min(first + size, one.until))
        for one in ranges
        for first in range(one.first, one.until, size)
    ]


# --- writing --------------------------------------------------------------------------------------------------------


@dataclass
class Staged(WriterCommitMessage):
    """What one task has staged."""

    transaction: str
    part: str
    attempt: str
    rows: int


def _stage(options: Options, transaction: str, batches: Iterator[pa.RecordBatch]) -> Staged:
    """Stage a task's rows, under its own name: what another attempt of the same task staged does not count."""
    context = TaskContext.get()
    assert context is not None
    part, attempt = str(context.partitionId()), str(context.taskAttemptId())
    chunk = rows = 0
    for batch in batches:
        for queue, table in _by_queue(pa.Table.from_batches([batch]), options.queue):
            for piece in range(0, table.num_rows, options.batch_rows):
                options.server.stage(transaction, queue, table.slice(piece, options.batch_rows), part, attempt, chunk)
                chunk += 1
        rows += batch.num_rows
    return Staged(transaction, part, attempt, rows)


def _by_queue(table: pa.Table, queue: str) -> Iterator[tuple[str, pa.Table]]:
    if "value" in table.column_names:
        table = table.rename_columns(["payload" if name == "value" else name for name in table.column_names])
    if "queue" not in table.column_names:
        yield queue, table
        return
    names, rest = table["queue"], table.drop_columns(["queue"])
    for name in pa.compute.unique(names).to_pylist():
        if name is None:
            raise ValueError("holdfast: a row has no queue")
        yield name, rest.filter(pa.compute.equal(names, name))


def _publish(options: Options, transaction: str, staged: Sequence[WriterCommitMessage | None]) -> None:
    parts = {one.part: one.attempt for one in staged if isinstance(one, Staged) and one.rows}
    if parts:
        options.server.publish(transaction, parts)


class BatchWriter(DataSourceArrowWriter):
    """All rows of a job in one transaction."""

    def __init__(self, options: Options, name: str) -> None:
        self._options = options
        self._transaction = options.transaction or f"spark-{name}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _stage(self._options, self._transaction, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _publish(self._options, self._transaction, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark's contract
        self._options.server.abort(self._transaction)


class StreamWriter(DataSourceStreamArrowWriter):
    """A transaction for each batch of a query."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        return _stage(self._options, f"spark-{query}-{batch}", iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002 - Spark's
        for transaction in {one.transaction for one in messages if isinstance(one, Staged)}:
            _publish(self._options, transaction, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        for transaction in {one.transaction for one in messages if isinstance(one, Staged)}:
            self._options.server.abort(transaction)
