"""A journal segment: its columns, and how rows are written as a Parquet file.

Types are those that Spark and every other reader supports: no unsigned numbers, no dictionaries, no nanoseconds.
`properties` is a list of (name, value) and not a map: MQTT allows a name twice and keeps the order, a replay must
repeat what was sent, and readers disagree on maps with a name twice.

Changing a column: raise SCHEMA, add the column at the end and nullable, so that old and new segments are read together.
The schema's number is in every manifest entry and, as `holdfast.schema`, in every file.

    1   the first one
    2   events of groups, with group_kind and start_after
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.journal.columns import CELLS, RUNS, Columns
from holdfast.journal.manifest import SCHEMA
from holdfast.units import MIB

_INSTANT = pa.timestamp("us", tz="UTC")
_PROPERTY = pa.struct([pa.field("name", pa.string(), nullable=False), pa.field("value", pa.string(), nullable=False)])
_PROPERTIES = pa.list_(pa.field("element", _PROPERTY, nullable=False))


def _always(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


COLUMNS = pa.schema(
    [
        _always("lsn", pa.int64()),
        _always("at", _INSTANT),
        _always("node", pa.int32()),
        _always("namespace", pa.string()),
        _always("queue", pa.string()),
        _always("partition", pa.int32()),
        pa.field("group", pa.string()),
        _always("message_id", pa.int64()),
        pa.field("client_message_id", pa.string()),
        _always("event", pa.string()),
        pa.field("attempt", pa.int32()),
        pa.field("reason", pa.string()),
        pa.field("error", pa.string()),
        pa.field("consumer", pa.string()),
        pa.field("protocol", pa.string()),
        pa.field("priority", pa.int32()),
        pa.field("key", pa.string()),
        pa.field("deliver_at", _INSTANT),
        pa.field("size_bytes", pa.int64()),
        pa.field("source_id", pa.int64()),
        pa.field("source_queue", pa.string()),
        pa.field("correlation_id", pa.string()),
        pa.field("properties", _PROPERTIES),
        pa.field("payload", pa.binary()),
        pa.field("group_kind", pa.string()),
        pa.field("start_after", pa.int64()),
    ],
    metadata={"holdfast.schema": str(SCHEMA)},
)

# Columns with few distinct values, which Parquet dictionary-encodes; for the others the attempt only costs time.
_REPEATED = [
    *("at", "node", "namespace", "queue", "partition", "group", "event", "attempt", "reason", "error", "consumer"),
    *("protocol", "priority", "key", "source_queue", "properties.list.element.name", "group_kind"),
]
# Columns by which readers select row groups. Statistics of payloads would be useless and take space.
_STATISTICS = [
    *("lsn", "at", "node", "namespace", "queue", "partition", "group", "message_id", "event", "attempt", "reason"),
    *("priority", "key", "size_bytes", "source_id"),
]
# Four to a full segment: enough that statistics on queue and time leave some out, few enough to read fast. One is in
# memory while a segment is written.
ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 16 * MIB


def record_batch(columns: Columns, node: int) -> pa.RecordBatch:
    """The rows with the columns of COLUMNS."""
    rows = columns.rows
    ends, *values = zip(*columns.runs, strict=True)
    run_ends = pa.array(ends, pa.int32())
    arrays = {
        "lsn": pa.array(range(columns.first_lsn, columns.first_lsn + rows), pa.int64()),
        "node": pa.repeat(pa.scalar(node, pa.int32()), rows),
        "message_id": pa.array(columns.message_ids, pa.int64()),
    }
    for name, column in zip(RUNS, values, strict=True):
        runs = pa.RunEndEncodedArray.from_arrays(run_ends, pa.array(column, COLUMNS.field(name).type))
        arrays[name] = pc.run_end_decode(runs)
    for name in CELLS:
        kind = COLUMNS.field(name).type
        arrays[name] = pa.nulls(rows, kind) if columns.empty(name) else pa.array(columns.cell(name), kind)
    return pa.RecordBatch.from_arrays([arrays[name] for name in COLUMNS.names], schema=COLUMNS)


def write_segment(path: Path, batches: Iterable[pa.RecordBatch]) -> None:
    """Write a Parquet file, a row group at a time, without syncing or renaming it. Without batches there is no file."""
    with ExitStack() as stack:
        writer: pq.ParquetWriter | None = None
        for rows in _row_groups(batches):
            if writer is None:
                writer = stack.enter_context(
                    pq.ParquetWriter(
                        path,
                        COLUMNS,
                        compression="zstd",
                        version="2.6",
                        use_dictionary=_REPEATED,
                        write_statistics=_STATISTICS,
                    )
                )
            writer.write_table(rows, ROW_GROUP_ROWS)


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The batches, as many together as one row group takes."""
    collected: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        if collected and (rows + batch.num_rows > ROW_GROUP_ROWS or size_bytes + batch.nbytes > ROW_GROUP_BYTES):
            yield pa.Table.from_batches(collected, COLUMNS)
            collected, rows, size_bytes = [], 0, 0
        collected.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
    if collected:
        yield pa.Table.from_batches(collected, COLUMNS)


def digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
