"""The history of one message: every step of its life, from the journal in the store and the segments in the lake.

It is read on request, on a separate thread: the newest part is blocks in the store, the rest Parquet files, of which
statistics rule out nearly all. Messages of queues with `journal = off` have none.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.codecs import read_message
from holdfast.core.ids import time_of_id
from holdfast.core.journal import Block, Decoded, EntryKind, decoded
from holdfast.core.records import Table, message_key
from holdfast.core.states import JournalEvent
from holdfast.engine.catalog import QueueName
from holdfast.journal.manifest import segment_files
from holdfast.journal.reader import BlockReader
from holdfast.store.contract import Reader, Store

FILES_MAX = 2_000  # segments that are read, the oldest first: a day and a half of them
ENQUEUE_TIME_SLACK = 5_000_000  # a message's id says when it was enqueued, to within this
COLUMNS = ["lsn", "at", "group", "event", "attempt", "reason", "error", "consumer", "protocol"]


class HistoryEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a message's life."""

    lsn: int
    at: int
    event: str
    group: str = ""
    attempt: int = 0
    reason: str = ""
    error: str = ""
    consumer: str = ""
    protocol: str = ""


class History(msgspec.Struct, frozen=True):
    """Steps in the order in which they happened. Not `complete`: there were more segments than are read."""

    steps: list[HistoryEvent]
    complete: bool = True


def read_history(store: Store, journal: Path, after_block: int, name: QueueName, message_id: int) -> History:
    """All steps of a message; blocks until done, so call it on a thread. Journal blocks up to `after_block` are in the
    lake."""
    # The store first: what is deleted from it meanwhile is in the lake before.
    with store.reader() as reader:
        fresh = list(_in_store(reader, after_block, name, message_id))
    exported, complete = _in_lake(journal, name, message_id)
    steps = {step.lsn: step for step in [*exported, *fresh]}
    return History([steps[lsn] for lsn in sorted(steps)], complete)


# --- the lake -------------------------------------------------------------------------------------------------------


def _in_lake(journal: Path, name: QueueName, message_id: int) -> tuple[list[HistoryEvent], bool]:
    import pyarrow.parquet as pq  # noqa: PLC0415 - takes half a second, and few nodes need it

    enqueued_after = datetime.fromtimestamp((time_of_id(message_id) - ENQUEUE_TIME_SLACK) / 1_000_000, UTC)
    first = f"date={enqueued_after:%Y-%m-%d}"
    files = [path for _, path in segment_files(journal) if path.parent.name >= first] if journal.exists() else []
    wanted = [("message_id", "=", message_id), ("queue", "=", name[1]), ("namespace", "=", name[0])]
    steps: list[HistoryEvent] = []
    for path in files[:FILES_MAX]:
        try:
            rows = pq.read_table(path, columns=COLUMNS, filters=wanted).to_pylist()
        except FileNotFoundError:
            continue  # it was deleted meanwhile
        steps += [_step(row) for row in rows]
    return steps, len(files) <= FILES_MAX


def _step(row: dict[str, Any]) -> HistoryEvent:
    at = row.pop("at")
    known = {field: value for field, value in row.items() if value is not None}
    return HistoryEvent(at=int(at.timestamp() * 1_000_000), **known)


# --- the store ------------------------------------------------------------------------------------------------------


def _in_store(store: Reader, after_block: int, name: QueueName, message_id: int) -> Iterator[HistoryEvent]:
    for _, block, _ in BlockReader(store).blocks(after_block + 1):
        ours = {shard for shard, of in block.names.items() if (of.namespace, of.queue) == name}
        if not ours:
            continue
        lsn = block.first_lsn
        for entry in decoded(block):
            if entry[0] == EntryKind.REMOVABLE:
                continue
            count = _rows(entry)
            if entry[1] in ours:
                yield from _match(store, block, entry, lsn, message_id)
            lsn += count


def _rows(entry: Decoded) -> int:
    match entry[0]:
        case EntryKind.ENQUEUED:
            return int(entry[3])
        case EntryKind.ONE:
            return 1
        case _:
            return len(entry[5])


def _match(store: Reader, block: Block, entry: Decoded, lsn: int, message_id: int) -> Iterator[HistoryEvent]:
    """The steps of the message in an entry. `lsn` is that of the entry's first row."""
    match entry[0]:
        case EntryKind.ENQUEUED:
            at = _enqueued_at(store, block, entry, message_id)
            if at >= 0:
                yield HistoryEvent(lsn=lsn + at, at=block.at, event=JournalEvent.ENQUEUED, protocol=entry[4])
        case EntryKind.LEASED | EntryKind.ACKED:
            _, _, group, consumer, protocol, ids, attempts = entry
            event = JournalEvent.LEASED if entry[0] == EntryKind.LEASED else JournalEvent.ACKED
            if message_id in ids:
                at = ids.index(message_id)
                yield HistoryEvent(
                    lsn=lsn + at,
                    at=block.at,
                    event=event,
                    group=group,
                    attempt=attempts[at],
                    consumer=consumer,
                    protocol=protocol,
                )
        case EntryKind.ONE:
            _, _, group, event, known, attempt, reason, error, consumer, protocol, _ = entry
            if known == message_id:
                yield HistoryEvent(
                    lsn=lsn,
                    at=block.at,
                    event=event,
                    group=group,
                    attempt=attempt,
                    reason=reason,
                    error=error,
                    consumer=consumer,
                    protocol=protocol,
                )
        case EntryKind.MANY:
            _, _, group, event, reason, ids = entry
            if message_id in ids:
                at = ids.index(message_id)
                yield HistoryEvent(lsn=lsn + at, at=block.at, event=event, group=group, reason=reason)


def _enqueued_at(store: Reader, block: Block, entry: Decoded, message_id: int) -> int:
    """The index of the message among those that an entry names, -1 if it is not there. Their records exist as long as
    the block does."""
    if abs(block.at - time_of_id(message_id)) > ENQUEUE_TIME_SLACK:
        return -1
    _, shard, first, count, _, _ = entry
    rows = store.scan(Table.MESSAGES, message_key(shard, first), message_key(shard, first + count), count)
    for at, (_, value) in enumerate(rows):
        if read_message(first + at, value).id == message_id:
            return at
    return -1
