"""The columns of each view, as Spark's and as Arrow's schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_KINDS: dict[str, tuple[DataType, pa.DataType]] = {
    "bigint": (LongType(), pa.int64()),
    "int": (IntegerType(), pa.int32()),
    "timestamp": (TimestampType(), pa.timestamp("us", "UTC")),
    "string": (StringType(), pa.string()),
    "binary": (BinaryType(), pa.binary()),
    "map<string,string>": (MapType(StringType(), StringType()), pa.map_(pa.string(), pa.string())),
}

MESSAGES = {
    "id": "bigint",
    "sequence": "bigint",
    "partition": "int",
    "priority": "int",
    "enqueued_at": "timestamp",
    "deliver_at": "timestamp",
    "expires_at": "timestamp",
    "key": "string",
    "message_id": "string",
    "content_type": "string",
    "correlation_id": "string",
    "reply_to": "string",
    "properties": "map<string,string>",
    "source_id": "bigint",
    "source_queue": "string",
    "source_group": "string",
    "reason": "string",
    "error": "string",
    "attempts": "int",
    "first_attempt_at": "timestamp",
    "last_attempt_at": "timestamp",
    "size_bytes": "bigint",
    "payload": "binary",
}
"""Columns of a queue's messages, of its dead letters, and of a stream."""

DELIVERIES = {
    "id": "bigint",
    "sequence": "bigint",
    "partition": "int",
    "priority": "int",
    "enqueued_at": "timestamp",
    "key": "string",
    "message_id": "string",
    "group": "string",
    "state": "string",
    "attempt": "int",
    "consumer": "string",
    "lease_deadline": "timestamp",
    "ready_at": "timestamp",
    "error": "string",
}
"""Columns of the delivery status of each message in each group."""

VIEWS = {"messages": MESSAGES, "dead_letters": MESSAGES, "deliveries": DELIVERIES}


def schema_of(view: str, columns: Sequence[str], properties: bool) -> StructType:
    """The Spark schema of a view: the requested columns, or all."""
    known = VIEWS[view]
    for name in columns:
        if name not in known:
            raise ValueError(f"holdfast: view {view} has no column {name!r}; it has {', '.join(known)}")
    chosen = columns or [name for name in known if properties or name != "properties"]
    return StructType([StructField(name, _KINDS[known[name]][0]) for name in chosen])


def check_schema(view: str, schema: StructType) -> list[str]:
    """Check a schema that the user gave (`.schema(…)`) against the view."""
    known = VIEWS[view]
    for field in schema.fields:
        kind = known.get(field.name)
        if kind is None:
            raise ValueError(f"holdfast: view {view} has no column {field.name!r}; it has {', '.join(known)}")
        if field.dataType != _KINDS[kind][0]:
            raise ValueError(f"holdfast: column {field.name} is {kind}, not {field.dataType.simpleString()}")
    return schema.fieldNames()


def shaped(view: str, table: pa.Table, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Rows in the types of Spark's schema."""
    known = VIEWS[view]
    wanted = pa.schema([pa.field(name, _KINDS[known[name]][1]) for name in names])
    yield from table.select(list(names)).cast(wanted).to_batches()
