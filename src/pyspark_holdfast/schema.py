"""The columns of each view, as Spark's and as Arrow's schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
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

PROPERTY_LIST = "array<struct<name:string,value:string>>"
"""Properties as a list, which keeps names that occur several times. A map of Spark's has each name once."""

_PROPERTY = StructType([StructField("name", StringType()), StructField("value", StringType())])

_KINDS: dict[str, tuple[DataType, pa.DataType]] = {
    "bigint": (LongType(), pa.int64()),
    "int": (IntegerType(), pa.int32()),
    "timestamp": (TimestampType(), pa.timestamp("us", "UTC")),
    "string": (StringType(), pa.string()),
    "binary": (BinaryType(), pa.binary()),
    "map<string,string>": (MapType(StringType(), StringType()), pa.map_(pa.string(), pa.string())),
    PROPERTY_LIST: (ArrayType(_PROPERTY), pa.list_(pa.struct({"name": pa.string(), "value": pa.string()}))),
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


def schema_of(view: str, columns: Sequence[str], properties: str) -> StructType:
    """The Spark schema of a view: the requested columns, or all. `properties`: as a `map` or an `array`, or `none`."""
    known = VIEWS[view]
    for name in columns:
        if name not in known:
            raise ValueError(f"holdfast: view {view} has no column {name!r}; it has {', '.join(known)}")
    chosen = columns or [name for name in known if properties != "none" or name != "properties"]
    kinds = {**known, "properties": PROPERTY_LIST} if properties == "array" else known
    return StructType([StructField(name, _KINDS[kinds[name]][0]) for name in chosen])


def check_schema(view: str, schema: StructType) -> dict[str, str]:
    """Check a schema, which may be the user's (`.schema(…)`), against the view. Returns the kind of each column."""
    known = VIEWS[view]
    found: dict[str, str] = {}
    for field in schema.fields:
        kind = known.get(field.name)
        if kind is None:
            raise ValueError(f"holdfast: view {view} has no column {field.name!r}; it has {', '.join(known)}")
        if field.name == "properties" and is_property_list(field.dataType):
            kind = PROPERTY_LIST
        elif field.dataType != _KINDS[kind][0]:
            raise ValueError(f"holdfast: column {field.name} is {kind}, not {field.dataType.simpleString()}")
        found[field.name] = kind
    return found


def is_property_list(kind: DataType) -> bool:
    return kind.simpleString() == PROPERTY_LIST


def shaped(table: pa.Table, kinds: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """Rows in the types of Spark's schema."""
    wanted = pa.schema([pa.field(name, _KINDS[kind][1]) for name, kind in kinds.items()])
    table = table.select(list(kinds))
    if kinds.get("properties") == PROPERTY_LIST:
        table = with_properties(table, _listed)
    yield from table.cast(wanted).to_batches()


def with_properties(table: pa.Table, convert: Callable[[pa.Array], pa.Array]) -> pa.Table:
    """The table with its properties in the other form."""
    index = table.column_names.index("properties")
    columns = [convert(chunk) for chunk in table["properties"].chunks]
    return table.set_column(index, "properties", pa.chunked_array(columns) if columns else table["properties"])


def _listed(column: pa.Array) -> pa.Array:
    """Maps as lists."""
    offsets, (names, values) = _plain(column, column.keys, column.items)
    pairs = pa.StructArray.from_arrays([names, values], ["name", "value"])
    return pa.ListArray.from_arrays(offsets, pairs, mask=column.is_null())


def mapped(column: pa.Array) -> pa.Array:
    """Lists as maps, which in Arrow may have a name several times."""
    offsets, (pairs,) = _plain(column, column.values)
    names = pairs.field("name")
    if pairs.null_count or names.null_count:
        raise ValueError("holdfast: a property has no name")
    return pa.MapArray.from_arrays(offsets, names, pairs.field("value"), mask=column.is_null())


def _plain(column: pa.Array, *values: pa.Array) -> tuple[pa.Array, list[pa.Array]]:
    """Offsets and values of lists or maps, from 0 on also if they are a slice of others."""
    offsets = column.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    return pc.subtract(offsets, offsets[0]), [each.slice(first, last - first) for each in values]
