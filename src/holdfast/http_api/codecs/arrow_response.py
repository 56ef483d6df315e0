"""Messages and deliveries as Arrow IPC streams, as the server sends them: what each column is, and those that were
asked for. What is not asked for is neither built nor sent.

Columns are built from whole lists: no object of Arrow's is made for a row, and a column that no row has is one buffer
of nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from types import ModuleType
from typing import Any

from holdfast.core.commands import DeliveryStatus
from holdfast.core.records import NO_EXTRA, Extra, Message, Origin
from holdfast.error_text import shown
from holdfast.errors import InvalidArgument
from holdfast.http_api.codecs.arrow_request import pyarrow

ArrowRow = tuple[int, Message, DeliveryStatus | None]
"""A message with its partition; in the view of deliveries, with its delivery status in one group."""


class ArrowRows:
    """The rows of a response, and what columns are made from."""

    def __init__(self, rows: Sequence[ArrowRow]) -> None:
        self.rows = rows

    @cached_property
    def messages(self) -> list[Message]:
        return [message for _, message, _ in self.rows]

    @cached_property
    def extras(self) -> list[Extra] | None:
        """None: no message has any."""
        found = [message.extra for message in self.messages]
        return found if any(extra is not NO_EXTRA for extra in found) else None

    @cached_property
    def origins(self) -> list[Origin | None] | None:
        """None: no message has any."""
        found = [extra.origin for extra in self.extras or ()]
        return found if any(found) else None

    @cached_property
    def statuses(self) -> list[DeliveryStatus]:
        return [status for _, _, status in self.rows if status is not None]


Values = list[Any] | None
"""The values of a column; None: all of them are null."""


def _of_message(name: str) -> Callable[[ArrowRows], Values]:
    get = attrgetter(name)
    return lambda rows: list(map(get, rows.messages))


def _time_of_message(name: str) -> Callable[[ArrowRows], Values]:
    get = attrgetter(name)
    return lambda rows: [get(message) or None for message in rows.messages]


def _of_extra(name: str) -> Callable[[ArrowRows], Values]:
    get = attrgetter(name)
    return lambda rows: None if rows.extras is None else list(map(get, rows.extras))


def _properties(rows: ArrowRows) -> Values:
    return None if rows.extras is None else [extra.properties or None for extra in rows.extras]


def _of_origin(name: str, *, zero_is_none: bool = False) -> Callable[[ArrowRows], Values]:
    get = attrgetter(name)

    def values(rows: ArrowRows) -> Values:
        if rows.origins is None:
            return None
        found = [get(origin) if origin is not None else None for origin in rows.origins]
        return [value or None for value in found] if zero_is_none else found

    return values


def _of_status(name: str, *, empty_is_none: bool = False) -> Callable[[ArrowRows], Values]:
    get = attrgetter(name)
    if empty_is_none:
        return lambda rows: [get(status) or None for status in rows.statuses]
    return lambda rows: list(map(get, rows.statuses))


_Column = tuple[str, Callable[[ArrowRows], Values]]

_PLACE: dict[str, _Column] = {
    "id": ("int64", _of_message("id")),
    "sequence": ("int64", _of_message("seq")),
    "partition": ("int32", lambda rows: [partition for partition, _, _ in rows.rows]),
    "priority": ("uint8", _of_message("priority")),
    "enqueued_at": ("instant", _of_message("enqueued_at")),
}

MESSAGES: dict[str, _Column] = {
    **_PLACE,
    "deliver_at": ("instant", _time_of_message("deliver_at")),
    "expires_at": ("instant", _time_of_message("expires_at")),
    "key": ("string", _of_extra("key")),
    "message_id": ("string", _of_extra("message_id")),
    "content_type": ("string", _of_extra("content_type")),
    "correlation_id": ("string", _of_extra("correlation_id")),
    "reply_to": ("string", _of_extra("reply_to")),
    "properties": ("properties", _properties),
    "source_id": ("int64", _of_origin("source_id")),
    "source_queue": ("string", _of_origin("source_queue")),
    "source_group": ("string", _of_origin("source_group")),
    "reason": ("string", _of_origin("reason")),
    "error": ("string", _of_origin("error")),
    "attempts": ("int32", _of_origin("attempts")),
    "first_attempt_at": ("instant", _of_origin("first_attempt_at", zero_is_none=True)),
    "last_attempt_at": ("instant", _of_origin("last_attempt_at", zero_is_none=True)),
    "size_bytes": ("int64", lambda rows: [len(message.payload) for message in rows.messages]),
    "payload": ("large_binary", _of_message("payload")),
}

DELIVERIES: dict[str, _Column] = {
    **_PLACE,
    "key": MESSAGES["key"],
    "message_id": MESSAGES["message_id"],
    "group": ("string", _of_status("group")),
    "state": ("string", _of_status("state")),
    "attempt": ("int32", _of_status("attempt")),
    "consumer": ("string", _of_status("consumer", empty_is_none=True)),
    "lease_deadline": ("instant", _of_status("deadline", empty_is_none=True)),
    "ready_at": ("instant", _of_status("ready_at", empty_is_none=True)),
    "error": ("string", _of_status("error", empty_is_none=True)),
}


def choose(columns: Sequence[str], known: Mapping[str, _Column]) -> list[str]:
    """The columns that were asked for; all of them, if none were named."""
    for name in columns:
        if name not in known:
            raise InvalidArgument(field="columns", problem=f"has no {shown(name)!r}; known are {', '.join(known)}")
    return list(dict.fromkeys(columns)) or list(known)


def write_rows(
    rows: Sequence[ArrowRow], facts: Mapping[str, object], columns: Sequence[str], known: Mapping[str, _Column]
) -> bytes:
    """Rows as an Arrow stream; `facts` go into the schema's metadata."""
    pa = pyarrow()
    whole = ArrowRows(rows)
    arrays = {}
    for name in choose(columns, known):
        kind, values = known[name]
        found = values(whole)
        arrays[name] = pa.nulls(len(rows), _type(pa, kind)) if found is None else pa.array(found, _type(pa, kind))
    batch = pa.record_batch(arrays).replace_schema_metadata({name: str(fact) for name, fact in facts.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def write_messages(rows: Sequence[tuple[int, Message]], facts: Mapping[str, object], columns: Sequence[str]) -> bytes:
    """Messages with their partitions as an Arrow stream."""
    return write_rows([(partition, message, None) for partition, message in rows], facts, columns, MESSAGES)


def _type(pa: ModuleType, kind: str) -> Any:
    match kind:
        case "instant":
            return pa.timestamp("us", "UTC")
        case "properties":
            return pa.map_(pa.string(), pa.string())
        case _:
            return getattr(pa, kind)()
