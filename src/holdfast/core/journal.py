"""Journal entries and blocks: every change, written in the same batch as the change itself.

A *row* is one event of one message, as readers of the journal see it; it has an lsn, gapless per cell. An *entry* may
stand for many rows (a batch that was enqueued, leased or acked together), because one record a message would cost as
much as the change. A *block* is all entries of one commit, one record in the store. journal/columns.py turns blocks
back into rows for the exporter, columnar. `rows` and `removable` are the reference implementation, a row at a time:
tests compare journal/columns.py with it.

An `enqueued` entry has no payload: it refers to the MESSAGES records, which therefore stay until the block is exported,
and keep what an edit has changed (`as_enqueued`).
The REMOVABLE entry names those that are deleted with it. Blocks are numbered, because a block of only REMOVABLE entries
has no rows.

What happens to a group is an event too (`group_entry`), of no message: its `message_id` is 0. Every partition of a
queue has its own, since each has its own order of events. Readers learn from it for whom a message is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.queue import JournalMode
from holdfast.core.records import Message
from holdfast.core.states import JournalEvent
from holdfast.errors import FormatUnknown

BLOCK_VERSION = 1


class EntryKind(IntEnum):
    ENQUEUED = 1  # shard, first seq, count, protocol, bytes of payload
    LEASED = 2  # shard, group, consumer, protocol, ids, attempts
    ACKED = 3  # shard, group, consumer, protocol, ids, attempts
    ONE = 4  # shard, group, event, id, attempt, reason, error, consumer, protocol, details
    MANY = 5  # shard, group, event, reason, ids
    REMOVABLE = 6  # shard, sequences


class ShardName(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Which partition a shard number stands for, kept in the block so that it can be read after the queue is gone."""

    namespace: str
    queue: str
    partition: int
    mode: JournalMode


class Block(msgspec.Struct, frozen=True, array_like=True, gc=False):
    version: int
    first_lsn: int
    rows: int
    at: int
    names: dict[int, ShardName]
    entries: list[msgspec.Raw]
    size_bytes: int = 0  # payloads of the messages that its `enqueued` entries refer to


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One event, as the journal's readers see it (SPEC: the columns of a segment)."""

    lsn: int
    at: int
    node: int  # the number of the cell; of a node on embedded storage, its id
    namespace: str
    queue: str
    partition: int
    group: str | None = None
    message_id: int
    client_message_id: str | None = None
    event: JournalEvent
    attempt: int | None = None
    reason: str | None = None
    error: str | None = None
    consumer: str | None = None
    protocol: str | None = None
    priority: int | None = None
    key: str | None = None
    deliver_at: int | None = None
    size_bytes: int | None = None
    source_id: int | None = None
    source_queue: str | None = None
    correlation_id: str | None = None
    properties: tuple[tuple[str, str], ...] | None = None
    payload: bytes | None = None
    group_kind: str | None = None
    start_after: int | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode_block = msgspec.msgpack.Decoder(Block).decode
_decode_entry = msgspec.msgpack.Decoder().decode

Fetch = Callable[[int, int, int], list[Message]]
"""(shard, first seq, count) -> the messages, in order. They exist: they are deleted after this export."""

Decoded = list[Any]
"""An entry as it was read; `EntryKind` says what its fields are."""


def group_entry(
    shard: int, event: JournalEvent, group: str = "", details: dict[str, object] | None = None, reason: str = ""
) -> tuple[object, ...]:
    """What happens to a group, or, without a name, to all groups of a shard. `details` of one that is created:
    `group_kind`, and `start_after`: no message with this id or a lower one is for it; 0: all that are live are."""
    return (EntryKind.ONE, shard, group, event, 0, 0, reason, "", "", "", details)


def write_block(
    first_lsn: int, rows: int, at: int, names: dict[int, ShardName], entries: list[tuple[object, ...]]
) -> bytes:
    size_bytes = 0
    for entry in entries:
        if entry[0] == EntryKind.ENQUEUED:
            size_bytes += entry[5]  # type: ignore[operator]
    return _encode((BLOCK_VERSION, first_lsn, rows, at, names, entries, size_bytes))


def read_block(value: bytes) -> Block:
    block = _decode_block(value)
    if block.version != BLOCK_VERSION:
        raise FormatUnknown(path="a journal block", found=block.version, known=BLOCK_VERSION)
    return block


def removable(block: Block) -> Iterator[tuple[int, list[int]]]:
    """The message records that may be removed once the block is exported: shard, sequences."""
    for entry in decoded(block):
        if entry[0] == EntryKind.REMOVABLE:
            yield entry[1], entry[2]


def decoded(block: Block) -> Iterator[Decoded]:
    """The entries of a block, in order."""
    return map(_decode_entry, block.entries)


def rows(block: Block, node: int, fetch: Fetch) -> Iterator[Row]:
    """The rows of a block, in the order of their lsn. The server itself uses journal/columns.py."""
    lsn = block.first_lsn
    for entry in decoded(block):
        kind = entry[0]
        if kind == EntryKind.REMOVABLE:
            continue
        name = block.names[entry[1]]
        for fields in _EXPAND[kind](entry, name, fetch):
            yield Row(
                lsn=lsn,
                at=block.at,
                node=node,
                namespace=name.namespace,
                queue=name.queue,
                partition=name.partition,
                **fields,
            )
            lsn += 1


def _enqueued(entry: Decoded, name: ShardName, fetch: Fetch) -> Iterator[dict[str, Any]]:
    _, shard, first, count, protocol, _ = entry
    for message in fetch(shard, first, count):
        yield {"event": JournalEvent.ENQUEUED, "protocol": protocol or None, **describe(message, name.mode)}


def describe(message: Message, mode: JournalMode) -> dict[str, Any]:
    """The columns that say what a message is."""
    message = as_enqueued(message)
    extra = message.extra
    origin = extra.origin
    return {
        "message_id": message.id,
        "client_message_id": extra.message_id,
        "priority": message.priority,
        "key": extra.key,
        "deliver_at": message.deliver_at or None,
        "size_bytes": len(message.payload),
        "source_id": origin.source_id if origin else None,
        "source_queue": origin.source_queue if origin else None,
        "correlation_id": extra.correlation_id,
        "properties": extra.properties or None,
        "payload": message.payload if mode is JournalMode.PAYLOAD else None,
    }


def as_enqueued(message: Message) -> Message:
    """A message as it was before it was edited: its record has what it is now."""
    if message.extra.enqueued_as is None:
        return message
    priority, deliver_at = message.extra.enqueued_as
    return replace(message, priority=priority, deliver_at=deliver_at)


def _batch(event: JournalEvent) -> Callable[[Decoded, ShardName, Fetch], Iterator[dict[str, Any]]]:
    def expand(entry: Decoded, _name: ShardName, _fetch: Fetch) -> Iterator[dict[str, Any]]:
        _, _, group, consumer, protocol, ids, attempts = entry
        for message_id, attempt in zip(ids, attempts, strict=True):
            yield {
                "event": event,
                "group": group,
                "consumer": consumer or None,
                "protocol": protocol or None,
                "message_id": message_id,
                "attempt": attempt,
            }

    return expand


def _one(entry: Decoded, _name: ShardName, _fetch: Fetch) -> Iterator[dict[str, Any]]:
    _, _, group, event, message_id, attempt, reason, error, consumer, protocol, details = entry
    yield {
        "event": JournalEvent(event),
        "group": group or None,
        "message_id": message_id,
        "attempt": attempt or None,
        "reason": reason or None,
        "error": error or None,
        "consumer": consumer or None,
        "protocol": protocol or None,
        **(details or {}),
    }


def _many(entry: Decoded, _name: ShardName, _fetch: Fetch) -> Iterator[dict[str, Any]]:
    _, _, group, event, reason, ids = entry
    for message_id in ids:
        yield {
            "event": JournalEvent(event),
            "group": group or None,
            "message_id": message_id,
            "reason": reason or None,
        }


_EXPAND: dict[int, Callable[[Decoded, ShardName, Fetch], Iterator[dict[str, Any]]]] = {
    EntryKind.ENQUEUED: _enqueued,
    EntryKind.LEASED: _batch(JournalEvent.LEASED),
    EntryKind.ACKED: _batch(JournalEvent.ACKED),
    EntryKind.ONE: _one,
    EntryKind.MANY: _many,
}
