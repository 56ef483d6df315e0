"""Messages as Arrow IPC streams, as producers send them. What the server sends is in arrow_response.py.

Columns become lists once for the whole request, and rows are built from those: no object of Arrow's is made for a row.
What comes in is untrusted: it is validated in full, and may be neither compressed nor in a layout where values share
bytes (views, dictionaries, runs), because a few bytes of it could then be all of the memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any

from msgspec.structs import replace

from holdfast.core.commands import NO_ID, Draft, HomogeneousDrafts
from holdfast.core.enqueue import PROPERTIES_MAX
from holdfast.core.queue import PRIORITY_DEFAULT
from holdfast.core.records import NO_EXTRA, REPLAYED, Extra, Origin
from holdfast.core.runs import BytesColumn
from holdfast.error_text import shown
from holdfast.errors import ArrowMissing, InvalidArgument, MalformedRequest

MEDIA_TYPE = "application/vnd.apache.arrow.stream"
BATCHES_MAX = 10_000
METADATA_BYTES_MAX = 64 << 10  # of a schema or batch: what is taken has some 15 columns
ROWS_CONVERTED = 1_000  # at a time: other threads run in between

COLUMNS = {
    "payload": "binary or string; required",
    "key": "string",
    "message_id": "string",
    "priority": "integer, 0 to 255",
    "deliver_at": "timestamp, or integer milliseconds since 1970",
    "ttl": "duration, or integer seconds",
    "properties": "map of string to string",
    "correlation_id": "string",
    "content_type": "string",
    "reply_to": "string",
}
"""What an enqueue takes. Nulls are absent values."""

SOURCES = {
    "source_id": "integer, the message that this one repeats",
    "source_queue": "string",
}
"""What a stage takes as well: its messages may be replays."""


def pyarrow() -> ModuleType:
    """The library, or an error that says how to get it."""
    try:
        import pyarrow as found  # noqa: PLC0415 - it takes half a second, and only Arrow needs it
    except ImportError:
        raise ArrowMissing from None
    return found  # type: ignore[no-any-return]


# --- in -------------------------------------------------------------------------------------------------------------


def read_drafts(body: bytes, correlation_id: str | None, rows_max: int, *, sourced: bool = False) -> Sequence[Draft]:
    """The messages of an Arrow stream. `sourced`: they may say which they repeat."""
    return drafts_of(read_table(body, rows_max, sourced=sourced), correlation_id)


def read_table(body: bytes, rows_max: int, *, sourced: bool = False) -> Any:
    """The rows of an Arrow stream, which is sound and has known columns in plain layouts."""
    pa = pyarrow()
    known_columns = {**COLUMNS, **SOURCES} if sourced else COLUMNS
    try:
        _refuse_compression(pa, body)
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            _check_schema(pa, reader.schema, known_columns)
            table = pa.Table.from_batches(_batches(reader, rows_max), reader.schema)
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        raise MalformedRequest(problem=f"the body is not an Arrow IPC stream ({shown(error)})") from None
    if table.nbytes > len(body):  # columns lie in the same bytes: those of one were sent for many
        problem = f"has columns of {table.nbytes} bytes in a body of {len(body)}; send each value with its own bytes"
        raise InvalidArgument(field="The stream", problem=problem)
    return table


def drafts_of(table: Any, correlation_id: str | None, made_ids: Sequence[str] | None = None) -> Sequence[Draft]:
    """The messages that rows are. If they have payloads alone, nothing is done for each of them. `made_ids`, one for
    each row, are for those that bring no message id."""
    pa = pyarrow()
    payloads = _payloads(pa, table)
    if table.num_columns == 1 and made_ids is None:
        return HomogeneousDrafts(payloads, NO_EXTRA if correlation_id is None else Extra(correlation_id=correlation_id))
    return _with_fields(pa, table, payloads[:], correlation_id, made_ids)


def _check_schema(pa: ModuleType, schema: Any, known_columns: dict[str, str]) -> None:
    unknown = sorted(set(schema.names) - set(known_columns))
    if unknown or "payload" not in schema.names or len(set(schema.names)) != len(schema.names):
        known = ", ".join(f"{name} ({kind})" for name, kind in known_columns.items())
        problem = (
            f"has the unknown columns {shown(', '.join(unknown))}" if unknown else "has no column payload, or one twice"
        )
        raise InvalidArgument(field="The stream", problem=f"{problem}; known are {known}")
    for field in schema:
        if not _is_plain(pa.types, field.name, field.type):
            wanted = known_columns[field.name].removesuffix("; required")
            advice = f"send it as {wanted}, in a plain layout (no views, dictionaries or runs)"
            problem = f"has the type {shown(field.type)}; {advice}"
            raise InvalidArgument(field=f"Column {field.name}", problem=problem)


def _is_plain(types: ModuleType, name: str, kind: Any) -> bool:
    """Whether a column is of a type in which every value has bytes of its own, and that can be what it says. A column
    without a value may have the type null. Floating numbers are integers that had gaps, as pandas writes them."""
    if types.is_null(kind):
        return True
    is_number = bool(types.is_integer(kind) or types.is_floating(kind))
    match name:
        case "payload":
            return _is_bytes(types, kind)
        case "priority" | "source_id":
            return is_number
        case "deliver_at":
            return is_number or bool(types.is_timestamp(kind))
        case "ttl":
            return is_number or bool(types.is_duration(kind))
        case "properties":
            return bool(types.is_map(kind)) and all(_is_string(types, of) for of in (kind.key_type, kind.item_type))
        case _:
            return _is_bytes(types, kind) or bool(types.is_integer(kind))


def _is_bytes(types: ModuleType, kind: Any) -> bool:
    stored = getattr(kind, "storage_type", kind)  # of an extension, such as JSON or UUID
    return _is_string(types, stored) or bool(types.is_fixed_size_binary(stored))


def _is_string(types: ModuleType, kind: Any) -> bool:
    """Of any length, and with its bounds: in a map, values of a fixed length of 0 would be as many as one likes."""
    return (
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_string(kind)
        or bool(types.is_large_string(kind))
    )


def _batches(reader: Any, rows_max: int) -> Iterator[Any]:
    """A batch whose columns need no bytes can claim any number of rows: it is refused before it is read."""
    rows = 0
    for batch in reader:
        rows += batch.num_rows
        if rows > rows_max:
            problem = f"has {rows} rows, or more; send at most {rows_max} in one request"
            raise InvalidArgument(field="The stream", problem=problem)
        yield batch


def _refuse_compression(pa: ModuleType, body: bytes) -> None:
    """Look at the head of every message: a record batch whose `compression` is set is not read. Nor is a stream behind
    which there is something else: that would be lost without a word."""
    source = pa.BufferReader(body)
    reader = pa.ipc.MessageReader.open_stream(source)
    for _ in range(BATCHES_MAX):
        try:
            message = reader.read_next_message()
        except StopIteration:
            if source.tell() != len(body):
                problem = "there is something behind the end of the Arrow stream; send one stream with all batches"
                raise MalformedRequest(problem=problem) from None
            return
        if message.metadata.size > METADATA_BYTES_MAX:
            raise MalformedRequest(problem=f"the Arrow stream describes itself in more than {METADATA_BYTES_MAX} bytes")
        if message.type == "record batch" and _has_compression(message.metadata.to_pybytes()):
            raise MalformedRequest(problem="the Arrow stream is compressed; write it without compression")
        if message.type == "dictionary":
            raise MalformedRequest(problem="the Arrow stream has dictionaries; write plain columns")
    raise MalformedRequest(problem=f"the Arrow stream has more than {BATCHES_MAX} batches")


def _has_compression(metadata: bytes) -> bool:
    """Flatbuffers by hand: table Message{version, header_type, header, …}, table RecordBatch{…, compression as 4th}."""
    message = struct.unpack_from("<I", metadata)[0]
    header = _field(metadata, message, 2)
    if not header:
        return False
    batch = header + struct.unpack_from("<I", metadata, header)[0]
    return _field(metadata, batch, 3) != 0


def _field(metadata: bytes, table: int, index: int) -> int:
    """Where a table's field is, 0 if it is not set."""
    vtable = table - struct.unpack_from("<i", metadata, table)[0]
    size = struct.unpack_from("<H", metadata, vtable)[0]
    at = 4 + 2 * index
    offset = struct.unpack_from("<H", metadata, vtable + at)[0] if at + 2 <= size else 0
    return table + offset if offset else 0


def _column(pa: ModuleType, table: Any, name: str, kind: Any) -> Any:
    """A column as one array of a type."""
    column = table.column(name)
    try:
        if column.type != kind:
            column = column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidArgument(
            field=f"Column {name}", problem=f"is {COLUMNS.get(name) or SOURCES[name]}: {shown(error)}"
        ) from None
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _payloads(pa: ModuleType, table: Any) -> BytesColumn:
    """The payloads where they are: in the body of the request."""
    array = _column(pa, table, "payload", pa.large_binary())
    if array.null_count:
        raise InvalidArgument(field="Column payload", problem="has nulls; an empty value is an empty payload")
    if not len(array):
        return BytesColumn(b"", [0])
    _, offsets, data = array.buffers()
    bounds = memoryview(offsets).cast("q")[array.offset : array.offset + len(array) + 1].tolist()
    return BytesColumn(b"" if data is None else memoryview(data), bounds)


def _with_fields(
    pa: ModuleType,
    table: Any,
    payloads: list[bytes],
    correlation_id: str | None,
    made_ids: Sequence[str] | None,
) -> list[Draft]:
    count = len(payloads)

    def values(name: str, kind: Any) -> list[Any]:
        if name not in table.column_names:
            return [None] * count
        column = _column(pa, table, name, kind)
        if name == "properties":
            _check_properties(column)
        found: list[Any] = []
        for start in range(0, count, ROWS_CONVERTED):
            found += column.slice(start, ROWS_CONVERTED).to_pylist()
        return found

    text = pa.string()
    extras = _extras(
        values("key", text),
        _ids(values("message_id", text), made_ids),
        values("properties", pa.map_(text, text)),
        values("correlation_id", text),
        values("content_type", text),
        values("reply_to", text),
        correlation_id,
    )
    if "source_id" in table.column_names:
        extras = _sourced(extras, values("source_id", pa.int64()), values("source_queue", text))
    priorities = values("priority", pa.int64())
    instants = _microseconds(pa, table, "deliver_at", pa.types.is_timestamp, pa.timestamp("us"), 1_000)
    ttls = _microseconds(pa, table, "ttl", pa.types.is_duration, pa.duration("us"), 1_000_000)
    return [
        Draft(
            payload,
            PRIORITY_DEFAULT if priority is None else priority,
            0 if instant is None else instant,
            -1 if ttl is None else ttl,
            extra,
        )
        for payload, priority, instant, ttl, extra in zip(payloads, priorities, instants, ttls, extras, strict=True)
    ]


def _check_properties(column: Any) -> None:
    """Refuse more properties than a message may have before an object is made of each."""
    bounds = column.offsets.to_pylist()
    if any(end - start > PROPERTIES_MAX for start, end in pairwise(bounds)):
        raise InvalidArgument(field="properties", problem=f"are at most {PROPERTIES_MAX}")


def _microseconds(
    pa: ModuleType, table: Any, name: str, is_native: Callable[[Any], bool], native: Any, factor: int
) -> list[int | None]:
    """A column of times: Arrow's own in whatever unit, or numbers of which one is `factor` microseconds."""
    if name not in table.column_names:
        return [None] * int(table.num_rows)
    kind = table.schema.field(name).type
    if not is_native(kind):
        numbers = _column(pa, table, name, pa.int64()).to_pylist()
        return [None if number is None else number * factor for number in numbers]
    zoned = pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else native
    found: list[int | None] = _column(pa, table, name, zoned).cast(pa.int64()).to_pylist()
    return found


def _ids(own: list[str | None], made: Sequence[str] | None) -> list[str | None]:
    if "" in own:
        raise InvalidArgument(field="Column message_id", problem=NO_ID)
    if made is None:
        return own
    return [instead if given is None else given for given, instead in zip(own, made, strict=True)]


def _extras(
    keys: list[str | None],
    ids: list[str | None],
    properties: list[list[tuple[str, str | None]] | None],
    correlations: list[str | None],
    content_types: list[str | None],
    replies: list[str | None],
    correlation_id: str | None,
) -> list[Extra]:
    others: tuple[list[Any], ...] = (ids, properties, correlations, content_types, replies)
    if correlation_id is None and all(column.count(None) == len(column) for column in others):  # keys, or nothing
        shared = {key: NO_EXTRA if key is None else Extra(key) for key in set(keys)}
        return [shared[key] for key in keys]
    found: list[Extra] = []
    for key, message_id, pairs, correlation, content_type, reply_to in zip(
        keys, ids, properties, correlations, content_types, replies, strict=True
    ):
        known = correlation if correlation is not None else correlation_id
        if key is message_id is known is content_type is reply_to is None and not pairs:
            found.append(NO_EXTRA)
            continue
        named = tuple([(name, value) for name, value in pairs or () if value is not None])
        found.append(Extra(key, message_id, named, known, content_type, reply_to))
    return found


def _sourced(extras: list[Extra], ids: list[int | None], queues: list[str | None]) -> list[Extra]:
    return [
        extra if source is None else replace(extra, origin=Origin(source, queue or "", "", REPLAYED))
        for extra, source, queue in zip(extras, ids, queues, strict=True)
    ]
