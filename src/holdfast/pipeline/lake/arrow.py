"""The tables' schemas in Arrow. Imports nothing of Holdfast but the columns: it is pickled by value."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from holdfast.pipeline.lake.tables import EVENTS, GROUPS, MESSAGES, Column

KINDS: dict[str, pa.DataType] = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<int, bigint>": pa.map_(pa.int32(), pa.int64()),
    "array<struct<name: string, value: string>>": pa.list_(
        pa.field("element", pa.struct([pa.field("name", pa.string()), pa.field("value", pa.string())]))
    ),
}


def schema_of(columns: Iterable[Column]) -> pa.Schema:
    """The Arrow schema of a table."""
    return pa.schema([pa.field(column.name, KINDS[column.kind]) for column in columns])


EVENTS_SCHEMA = schema_of(EVENTS.columns)
MESSAGES_SCHEMA = schema_of(MESSAGES.columns)
GROUPS_SCHEMA = schema_of(GROUPS.columns)
