"""The history of one message: every step of its life, from the journal in the store and the segments in the lake.

It is read on request, on a separate thread: the newest part is blocks in the store, the rest Parquet files, of which
statistics rule out nearly all. Messages of queues with `journal = off` have none.

A message that dies becomes a dead letter, and a dead letter that is redriven becomes a message: each is a new one with
an id of its own, and the journal has the message that each was made of. `read_related` follows these, both ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.codecs import read_message
from holdfast.core.ids import time_of_id
from holdfast.core.journal import Block, Decoded, EntryKind, decoded
from holdfast.core.records import Table, message_key
from holdfast.core.states import JournalEvent
from holdfast.engine.audited_redrive import PROTOCOL_UNDO
from holdfast.engine.catalog import QueueName
from holdfast.engine.dead_lettering import PROTOCOL as PROTOCOL_DEAD
from holdfast.engine.redrive import PROTOCOL as PROTOCOL_REDRIVE
from holdfast.journal.manifest import segment_files
from holdfast.journal.reader import BlockReader
from holdfast.store.contract import Reader, Store

FILES_MAX = 2_000  # segments that are read, the oldest first: a day and a half of them
ENQUEUE_TIME_SLACK = 5_000_000  # a message's id says when it was enqueued, to within this
COLUMNS = ["lsn", "at", "group", "event", "attempt", "reason", "error", "consumer", "protocol"]
RELATED_COLUMNS = ["queue", "message_id", "source_queue", "source_id"]
RELATED_MAX = 200  # messages that one message is followed through
ROUNDS_MAX = 50  # a round finds what was made of the messages found in the one before
MOVED = frozenset((PROTOCOL_DEAD, PROTOCOL_REDRIVE, PROTOCOL_UNDO))
"""The protocols of messages that the server itself has made of others."""

MessageName = tuple[str, int]
"""Queue and id."""


class HistoryEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the life of a message. `source_id` is set where it was made of another one: in `source_queue`."""

    lsn: int
    at: int
    event: str
    queue: str = ""
    message_id: int = 0
    group: str = ""
    attempt: int = 0
    reason: str = ""
    error: str = ""
    consumer: str = ""
    protocol: str = ""
    source_queue: str = ""
    source_id: int = 0

    @property
    def name(self) -> MessageName:
        return self.queue, self.message_id

    @property
    def source(self) -> MessageName:
        return self.source_queue, self.source_id


class History(msgspec.Struct, frozen=True):
    """Steps in the order in which they happened. Not `complete`: there were more segments than are read."""

    steps: list[HistoryEvent]
    complete: bool = True


class Wanted(msgspec.Struct, frozen=True):
    """The messages whose steps are looked for. `related`: also the first step of what was made of them."""

    namespace: str
    messages: AbstractSet[MessageName]
    related: bool = False

    @property
    def ids(self) -> list[int]:
        return sorted({message_id for _, message_id in self.messages})


def read_history(store: Store, journal: Path, after_block: int, name: QueueName, message_id: int) -> History:
    """All steps of a message; blocks until done, so call it on a thread. Journal blocks up to `after_block` are in the
    lake."""
    return _read(store, journal, after_block, Wanted(name[0], {(name[1], message_id)}))


def read_related(store: Store, journal: Path, after_block: int, name: QueueName, message_id: int) -> History:
    """All steps of a message, of those it was made of, and of those that were made of them: its whole life, across
    death, redrive and undo. Blocks as `read_history` does."""
    known: set[MessageName] = {(name[1], message_id)}
    new: set[MessageName] = set(known)
    steps: dict[int, HistoryEvent] = {}
    complete = True
    for _ in range(ROUNDS_MAX):
        found = _read(store, journal, after_block, Wanted(name[0], new, related=True))
        complete = complete and found.complete
        steps |= {step.lsn: step for step in found.steps}
        relatives = {step.name for step in found.steps} | {step.source for step in found.steps if step.source_queue}
        new = relatives - known
        known |= new
        if not new or len(known) > RELATED_MAX:
            break
    return History([steps[lsn] for lsn in sorted(steps)], complete and not new)


def _read(store: Store, journal: Path, after_block: int, wanted: Wanted) -> History:
    # The store first: what is deleted from it meanwhile is in the lake before.
    with store.reader() as reader:
        fresh = list(_in_store(reader, after_block, wanted))
    exported, complete = _in_lake(journal, wanted)
    steps = {step.lsn: step for step in [*exported, *fresh]}
    return History([steps[lsn] for lsn in sorted(steps)], complete)


# --- the lake -------------------------------------------------------------------------------------------------------


def _in_lake(journal: Path, wanted: Wanted) -> tuple[list[HistoryEvent], bool]:
    import pyarrow.parquet as pq  # noqa: PLC0415 - takes half a second, and few nodes need it

    ids = wanted.ids
    enqueued_after = datetime.fromtimestamp((time_of_id(ids[0]) - ENQUEUE_TIME_SLACK) / 1_000_000, UTC)
    first = f"date={enqueued_after:%Y-%m-%d}"
    files = [path for _, path in segment_files(journal) if path.parent.name >= first] if journal.exists() else []
    fields = ("message_id", "source_id") if wanted.related else ("message_id",)
    filters = [
        # Statistics rule out files by the bounds.
        [(field, ">=", ids[0]), (field, "<=", ids[-1]), (field, "in", ids), ("namespace", "=", wanted.namespace)]
        for field in fields
    ]
    steps: list[HistoryEvent] = []
    for path in files[:FILES_MAX]:
        try:
            rows = pq.read_table(path, columns=[*COLUMNS, *RELATED_COLUMNS], filters=filters).to_pylist()
        except FileNotFoundError:
            continue  # it was deleted meanwhile
        steps += [step for step in map(_step, rows) if step.name in wanted.messages or step.source in wanted.messages]
    return steps, len(files) <= FILES_MAX


def _step(row: dict[str, Any]) -> HistoryEvent:
    at = row.pop("at")
    known = {field: value for field, value in row.items() if value is not None}
    return HistoryEvent(at=int(at.timestamp() * 1_000_000), **known)


# --- the store ------------------------------------------------------------------------------------------------------


def _in_store(store: Reader, after_block: int, wanted: Wanted) -> Iterator[HistoryEvent]:
    queues = {queue for queue, _ in wanted.messages}
    for _, block, _ in BlockReader(store).blocks(after_block + 1):
        ours = {shard: of.queue for shard, of in block.names.items() if of.namespace == wanted.namespace}
        if not wanted.related:
            ours = {shard: queue for shard, queue in ours.items() if queue in queues}
        if not ours:
            continue
        lsn = block.first_lsn
        for entry in decoded(block):
            if entry[0] == EntryKind.REMOVABLE:
                continue
            count = _rows(entry)
            queue = ours.get(entry[1])
            if queue is not None:
                yield from _match(store, block, entry, lsn, queue, wanted)
            lsn += count


def _rows(entry: Decoded) -> int:
    match entry[0]:
        case EntryKind.ENQUEUED:
            return int(entry[3])
        case EntryKind.ONE:
            return 1
        case _:
            return len(entry[5])


def _match(store: Reader, block: Block, entry: Decoded, lsn: int, queue: str, wanted: Wanted) -> Iterator[HistoryEvent]:
    """The steps of wanted messages in an entry of `queue`. `lsn` is that of the entry's first row."""
    match entry[0]:
        case EntryKind.ENQUEUED:
            yield from _enqueued(store, block, entry, lsn, queue, wanted)
        case EntryKind.LEASED | EntryKind.ACKED:
            _, _, group, consumer, protocol, ids, attempts = entry
            event = JournalEvent.LEASED if entry[0] == EntryKind.LEASED else JournalEvent.ACKED
            for at, message_id in _places(ids, queue, wanted):
                yield HistoryEvent(
                    lsn=lsn + at,
                    at=block.at,
                    event=event,
                    queue=queue,
                    message_id=message_id,
                    group=group,
                    attempt=attempts[at],
                    consumer=consumer,
                    protocol=protocol,
                )
        case EntryKind.ONE:
            _, _, group, event, known, attempt, reason, error, consumer, protocol, _ = entry
            if (queue, known) in wanted.messages:
                yield HistoryEvent(
                    lsn=lsn,
                    at=block.at,
                    event=event,
                    queue=queue,
                    message_id=known,
                    group=group,
                    attempt=attempt,
                    reason=reason,
                    error=error,
                    consumer=consumer,
                    protocol=protocol,
                )
        case EntryKind.MANY:
            _, _, group, event, reason, ids = entry
            for at, message_id in _places(ids, queue, wanted):
                yield HistoryEvent(
                    lsn=lsn + at,
                    at=block.at,
                    event=event,
                    queue=queue,
                    message_id=message_id,
                    group=group,
                    reason=reason,
                )


def _places(ids: list[int], queue: str, wanted: Wanted) -> Iterator[tuple[int, int]]:
    """Where the wanted messages of `queue` are among these."""
    for of, message_id in wanted.messages:
        if of == queue and message_id in ids:
            yield ids.index(message_id), message_id


def _enqueued(
    store: Reader, block: Block, entry: Decoded, lsn: int, queue: str, wanted: Wanted
) -> Iterator[HistoryEvent]:
    """The wanted messages among those that an entry names, and those that were made of wanted ones. Their records exist
    as long as the block does."""
    _, shard, first, count, protocol, _ = entry
    near = any(
        of == queue and abs(block.at - time_of_id(message_id)) <= ENQUEUE_TIME_SLACK
        for of, message_id in wanted.messages
    )
    if not near and not (wanted.related and protocol in MOVED):
        return
    rows = store.scan(Table.MESSAGES, message_key(shard, first), message_key(shard, first + count), count)
    for at, (_, value) in enumerate(rows):
        message = read_message(first + at, value)
        origin = message.extra.origin
        source = (origin.source_queue, origin.source_id) if origin is not None else ("", 0)
        if (queue, message.id) in wanted.messages or (wanted.related and source in wanted.messages):
            yield HistoryEvent(
                lsn=lsn + at,
                at=block.at,
                event=JournalEvent.ENQUEUED,
                queue=queue,
                message_id=message.id,
                protocol=protocol,
                source_queue=source[0],
                source_id=source[1],
            )
