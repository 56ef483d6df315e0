"""Messages to send: any payload, and its encoding on the wire."""

from __future__ import annotations

import math
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from holdfast import wire
from holdfast.client.times import Duration, Instant, instant, optional_duration
from holdfast.errors import InvalidArgument

JSON = "application/json"

Properties = Mapping[str, str | Sequence[str]]
Item = TypeVar("Item", bound=wire.Draft)


def draft(
    payload: object = b"",
    *,
    key: str | None = None,
    priority: int = 128,
    delay: Duration | None = None,
    deliver_at: Instant | None = None,
    ttl: Duration | None = None,
    message_id: str | None = None,
    content_type: str | None = None,
    properties: Properties | None = None,
    correlation_id: str | None = None,
    reply_to: str | None = None,
) -> wire.Draft:
    """A message to send.

    Bytes are sent as they are, a str as text, anything else as JSON: what `json` knows, dataclasses, msgspec structs,
    pydantic models, dates, UUIDs. Without a `message_id` it gets a new one, so that sending it again stores nothing
    twice.
    """
    as_json: Raw | UnsetType = UNSET
    text: str | UnsetType = UNSET
    base64: bytes | UnsetType = UNSET
    match payload:
        case bytes() | bytearray() | memoryview():
            base64 = bytes(payload)
        case str():
            text = _written(payload)
        case _:
            as_json, content_type = Raw(encode_json(payload)), content_type or JSON
    return wire.Draft(
        payload=as_json,
        text=text,
        base64=base64,
        content_type=content_type,
        key=key,
        message_id=message_id if message_id is not None else uuid.uuid4().hex,
        priority=priority,
        delay=optional_duration(delay),
        deliver_at=instant(deliver_at),
        ttl=optional_duration(ttl),
        properties={name: each if isinstance(each, str) else list(each) for name, each in (properties or {}).items()},
        correlation_id=correlation_id,
        reply_to=reply_to,
    )


def as_draft(item: object) -> wire.Draft:
    """An item of a batch: a draft, or a bare payload. A draft without a message id gets one."""
    if not isinstance(item, wire.Draft):
        return draft(item)
    return item if item.message_id is not None else msgspec.structs.replace(item, message_id=uuid.uuid4().hex)


def size_of(item: wire.Draft) -> int:
    """The approximate size on the wire, in bytes."""
    match item:
        case wire.Draft(payload=Raw() as raw):
            return len(bytes(raw)) + 100
        case wire.Draft(text=str() as text):
            return len(text) + 100
        case wire.Draft(base64=bytes() as data):
            return len(data) * 4 // 3 + 100
        case _:
            return 100


async def chunks(
    messages: Iterable[object] | AsyncIterable[object], count: int, size_bytes: int
) -> AsyncIterator[list[wire.Draft]]:
    """Makes drafts of the items, in chunks as of `grouped`."""
    async for part in grouped(_drafts(messages), count, size_bytes):
        yield part


async def grouped(items: AsyncIterable[Item], count: int, size_bytes: int) -> AsyncIterator[list[Item]]:
    """Chunks of at most `count` items and, except for a single large item, of limited bytes."""
    part: list[Item] = []
    size = 0
    async for item in items:
        this = size_of(item)
        if part and (len(part) >= count or size + this > size_bytes):
            yield part
            part, size = [], 0
        part.append(item)
        size += this
    if part:
        yield part


async def _drafts(messages: Iterable[object] | AsyncIterable[object]) -> AsyncIterator[wire.Draft]:
    if isinstance(messages, AsyncIterable):
        async for message in messages:
            yield as_draft(message)
    else:
        for message in messages:
            yield as_draft(message)


async def each(items: Iterable[Item]) -> AsyncIterator[Item]:
    for item in items:
        yield item


def _written(text: str) -> str:
    """The text, if it can be encoded: half of a surrogate pair cannot."""
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(field="payload", problem=f"is not text that can be written as UTF-8: {error}") from None
    return text


def encode_json(value: object) -> bytes:
    """Encode as JSON. NaN and infinity, which msgspec would write as null, are refused."""
    try:
        encoded = msgspec.json.encode(value, enc_hook=_plain)
        if b"null" in encoded and _has_no_number(msgspec.to_builtins(value, enc_hook=_plain)):
            raise ValueError("it contains NaN or infinity, which JSON does not have")
        return encoded
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidArgument(field="payload", problem=f"cannot be written as JSON: {error}") from None


def _has_no_number(value: object) -> bool:
    """Whether it contains a float that is NaN or infinite."""
    match value:
        case float():
            return not math.isfinite(value)
        case dict():
            return any(map(_has_no_number, value.values()))
        case list() | tuple() | set() | frozenset():
            return any(map(_has_no_number, value))
        case _:
            return False


def _plain(value: object) -> object:
    """pydantic's models, without importing pydantic."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"{type(value).__name__} is neither bytes, str, nor anything JSON has")
    return dump(mode="json")
