"""`df.write` and `df.writeStream`: rows become messages.

transactional   tasks stage, the driver publishes: all rows are visible together or never, and once however often
                tasks or batches are retried
idempotent      tasks enqueue directly; a row that is sent again within the queue's dedup_window, by its `message_id`,
                is not stored again
atLeastOnce     tasks enqueue directly; a task that is retried enqueues again
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pyspark_holdfast.options import Options
from pyspark_holdfast.schema import PROPERTY_LIST, is_property_list, mapped, with_properties

_NUMBERS = (LongType, IntegerType, ShortType, ByteType)
_COLUMNS: dict[str, tuple[str, tuple[type[DataType], ...]]] = {
    "payload": ("binary or string", (BinaryType, StringType)),
    "value": ("binary or string", (BinaryType, StringType)),
    "queue": ("string", (StringType,)),
    "key": ("string", (StringType,)),
    "message_id": ("string", (StringType,)),
    "priority": ("a whole number", _NUMBERS),
    "deliver_at": ("timestamp, or bigint milliseconds since 1970", (TimestampType, TimestampNTZType, LongType)),
    "ttl": ("interval day to second, or a whole number of seconds", (DayTimeIntervalType, *_NUMBERS)),
    "properties": (f"map<string,string>, or {PROPERTY_LIST}", (MapType, ArrayType)),
    "correlation_id": ("string", (StringType,)),
    "content_type": ("string", (StringType,)),
    "reply_to": ("string", (StringType,)),
    "source_id": ("a whole number, the message that this one repeats", _NUMBERS),
    "source_queue": ("string", (StringType,)),
}

WRITABLE = tuple(name for name in _COLUMNS if name not in ("queue", "value"))
"""Columns that a message can be written from, beside `queue` and `value` (another name of `payload`)."""

REQUEST_BYTES = 8 << 20
"""About how large a request may be: its overhead does not matter, and it is well below a server's limit."""


def check_writing(options: Options, schema: StructType, overwrite: bool) -> Options:
    """Check that rows of a schema can be written with these options."""
    names = set(schema.fieldNames())
    if overwrite:
        raise ValueError("holdfast: messages are added, not overwritten: use mode('append')")
    if len(names & {"payload", "value"}) != 1:
        raise ValueError("holdfast: one column must be named payload (or value): the message's bytes or text")
    for field in schema.fields:
        if field.name not in _COLUMNS:
            raise ValueError(f"holdfast: no message has a {field.name!r}; columns are {', '.join(_COLUMNS)}")
        words, kinds = _COLUMNS[field.name]
        if not isinstance(field.dataType, kinds) or not _is_text(field.dataType):
            raise ValueError(f"holdfast: column {field.name} is {words}, not {field.dataType.simpleString()}")
    if "queue" not in names:
        options.need("queue")
    if options.delivery != "transactional" and names & {"source_id", "source_queue"}:
        raise ValueError("holdfast: messages that name a source are replays, which need transactional delivery")
    if options.delivery == "idempotent" and "message_id" not in names:
        raise ValueError("holdfast: delivery idempotent needs a column message_id, by which duplicates are recognised")
    return options


def _is_text(kind: DataType) -> bool:
    """Whether properties are text."""
    if isinstance(kind, ArrayType):
        return is_property_list(kind)
    if not isinstance(kind, MapType):
        return True
    return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)


# --- in the tasks ---------------------------------------------------------------------------------------------------


@dataclass
class Written(WriterCommitMessage):
    """What one task has written, and if it is staged, under which attempt. `done_before`: an earlier run of the same
    job, or of the same batch of a query, has published the transaction, and these rows were not staged."""

    transaction: str
    part: str
    attempt: str
    rows: int
    done_before: bool = False


def stage(options: Options, transaction: str, batches: Iterator[pa.RecordBatch], *, run_again: bool) -> Written:
    """Stage a task's rows under an attempt of its own: what another attempt of the same task staged, even for an
    earlier driver, does not count. `run_again`: the transaction is named after a job that may have run before."""
    context = TaskContext.get()
    assert context is not None
    written = Written(transaction, str(context.partitionId()), f"{context.taskAttemptId()}-{uuid.uuid4().hex}", 0)
    pace = _pace(options.rate)
    for chunk, (queue, table) in enumerate(_requests(batches, options)):
        if not options.server.stage(transaction, queue, table, written.part, written.attempt, chunk):
            if not run_again:
                raise RuntimeError(
                    f"holdfast: transaction {transaction} was published by somebody else, without rows of this job"
                )
            written.done_before = True
        written.rows += table.num_rows
        pace(table.num_rows)
    return written


def enqueue(options: Options, batches: Iterator[pa.RecordBatch]) -> Written:
    """Enqueue a task's rows directly."""
    written = Written("", "", "", 0)
    pace = _pace(options.rate)
    for queue, table in _requests(batches, options):
        if options.delivery == "idempotent" and table["message_id"].null_count:
            raise ValueError("holdfast: a row has no message_id; delivery idempotent needs one in each")
        options.server.enqueue(queue, table)
        written.rows += table.num_rows
        pace(table.num_rows)
    return written


def _pace(rate: int) -> Callable[[int], None]:
    """Called with how many rows were sent; waits until more may be sent."""
    began, sent = time.monotonic(), 0

    def wait(rows: int) -> None:
        nonlocal sent
        sent += rows
        if rate:
            time.sleep(max(began + sent / rate - time.monotonic(), 0))

    return wait


def _requests(batches: Iterator[pa.RecordBatch], options: Options) -> Iterator[tuple[str, pa.Table]]:
    """Slices of rows for requests: of one queue, within the limits of rows and bytes."""
    rows = min(options.batch_rows, max(options.rate, 1)) if options.rate else options.batch_rows
    for batch in batches:
        rows_of_batch = pa.Table.from_batches([batch])
        if "properties" in batch.schema.names and pa.types.is_list(batch.schema.field("properties").type):
            rows_of_batch = with_properties(rows_of_batch, mapped)
        for queue, table in _by_queue(rows_of_batch, options.queue):
            for start, end in _row_slices(table, rows):
                yield queue, table.slice(start, end - start)


def _by_queue(table: pa.Table, queue: str) -> Iterator[tuple[str, pa.Table]]:
    """Rows by queue, in their order."""
    if "value" in table.column_names:
        table = table.rename_columns(["payload" if name == "value" else name for name in table.column_names])
    if "queue" not in table.column_names:
        yield queue, table
        return
    if table["queue"].null_count:
        raise ValueError("holdfast: a row has no queue")
    ordered = table.take(pc.sort_indices(table["queue"]))  # a stable sort
    names, rest = ordered["queue"], ordered.drop_columns(["queue"])
    at = 0
    for run in pc.run_end_encode(names.combine_chunks()).run_ends.to_pylist() if len(names) else ():
        yield names[at].as_py(), rest.slice(at, run - at)
        at = run


def _row_slices(table: pa.Table, rows_max: int) -> Iterator[tuple[int, int]]:
    """The bounds of each request."""
    if table.num_rows <= rows_max and table.nbytes <= REQUEST_BYTES:
        if table.num_rows:
            yield 0, table.num_rows
        return
    start = size = 0
    for at, length in enumerate(pc.binary_length(table["payload"]).to_pylist()):
        if at - start >= rows_max or (size and size + (length or 0) > REQUEST_BYTES):
            yield start, at
            start, size = at, 0
        size += length or 0
    yield start, table.num_rows


# --- in the driver --------------------------------------------------------------------------------------------------


def publish(options: Options, transaction: str, written: Sequence[WriterCommitMessage | None]) -> None:
    """Publish a transaction. Also one without rows, so that it is known as done.

    If it was published before, that was an earlier run, as the tasks were told; or this request, whose response was
    lost; or somebody else while the tasks staged. Their rows are then not in it, and the write has failed.
    """
    tasks = [one for one in written if isinstance(one, Written)]
    found = options.server.publish(transaction, {one.part: one.attempt for one in tasks if one.rows})
    rows = sum(one.rows for one in tasks)
    if found.get("repeated") and found["published"] != rows and not any(one.done_before for one in tasks):
        raise RuntimeError(
            f"holdfast: transaction {transaction} was published by somebody else, with {found['published']} messages "
            f"instead of the {rows} rows of this job: use an id and a token that nobody else uses"
        )


class BatchWriter(DataSourceArrowWriter):
    """All rows of a job."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._transaction = options.transaction or f"spark-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self._options.delivery != "transactional":
            return enqueue(self._options, iterator)
        return stage(self._options, self._transaction, iterator, run_again=bool(self._options.transaction))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._options.delivery == "transactional":
            publish(self._options, self._transaction, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark's contract
        if self._options.delivery == "transactional":
            self._options.server.abort(self._transaction)


class StreamWriter(DataSourceStreamArrowWriter):
    """The rows of each batch of a query."""

    def __init__(self, options: Options) -> None:
        if options.transaction:
            raise ValueError(
                "holdfast: option transactionId is for batch writes; a stream's are named after its batches"
            )
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self._options.delivery != "transactional":
            return enqueue(self._options, iterator)
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        return stage(self._options, f"spark-{query}-{batch}", iterator, run_again=True)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002 - Spark's
        for transaction in _transactions(messages):
            publish(self._options, transaction, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        for transaction in _transactions(messages):
            self._options.server.abort(transaction)


def _transactions(written: Sequence[WriterCommitMessage | None]) -> set[str]:
    return {one.transaction for one in written if one is not None and one.transaction}  # type: ignore[attr-defined]
