"""The rows of journal blocks in columnar form: the same as `journal.rows`, a few times faster.

Most columns of a segment have one value for a whole entry: a thousand messages acked together share time, queue, group
and consumer. So those columns are run-length encoded (one value for each entry, and where its run ends), and only the
others are kept by row, as *cells*. A cell column without values in an entry is not written for it: `cell` fills the
gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.codecs import HomogeneousBatch
from holdfast.core.journal import Block, Decoded, EntryKind, ShardName, as_enqueued
from holdfast.core.queue import JournalMode
from holdfast.core.records import NO_EXTRA, Message
from holdfast.core.states import JournalEvent

RUNS = ("at", "namespace", "queue", "partition", "group", "event", "reason", "error", "consumer", "protocol")
CELLS = (
    "client_message_id",
    "attempt",
    "priority",
    "key",
    "deliver_at",
    "size_bytes",
    "source_id",
    "source_queue",
    "correlation_id",
    "properties",
    "payload",
    "group_kind",
    "start_after",
)


Fetch = Callable[[int, int, int], list[list[Message] | HomogeneousBatch]]
"""(shard, first seq, count) -> the messages, in order. They exist: they are deleted only after this export."""

RunLength = tuple[int, int, str, str, int, str | None, str, str | None, str | None, str | None, str | None]
"""The number of rows up to and including it, and the values that they share, in the order of RUNS."""


class Columns:
    """Rows of consecutive blocks. The lsn needs no column: it is `first_lsn` and counts up by one."""

    __slots__ = ("_cells", "first_lsn", "message_ids", "removable", "rows", "runs")

    def __init__(self) -> None:
        self.first_lsn = 0
        self.rows = 0
        self.runs: list[RunLength] = []
        self.message_ids: list[int] = []  # a cell that every row has
        self.removable: dict[int, list[int]] = {}  # message records that may be deleted after the export, by shard
        self._cells: dict[str, list[Any]] = {name: [] for name in CELLS}

    def add(self, block: Block, entries: list[Decoded], fetch: Fetch) -> None:
        """Append the rows of `block`; `entries` are its entries, decoded."""
        if not self.rows:
            self.first_lsn = block.first_lsn
        before = self.rows
        for entry in entries:
            kind = entry[0]
            if kind == EntryKind.REMOVABLE:
                self.removable.setdefault(entry[1], []).extend(entry[2])
            else:
                _ADD[kind](self, entry, block.at, block.names[entry[1]], fetch)
        if self.rows - before != block.rows:
            raise ValueError(f"the block from lsn {block.first_lsn} has {self.rows - before} rows, not {block.rows}")

    @property
    def at(self) -> int:
        """When the first row happened."""
        return self.runs[0][1]

    def cell(self, name: str) -> list[Any]:
        """A column that is kept by row, with its gaps filled."""
        column = self._cells[name]
        missing = self.rows - len(column)
        if missing:
            column.extend([None] * missing)
        return column

    def empty(self, name: str) -> bool:
        """Whether a column that is kept by row has no values."""
        return not self._cells[name]

    def append(
        self,
        ids: Sequence[int],
        at: int,
        name: ShardName,
        group: str,
        event: str,
        reason: str,
        error: str,
        consumer: str,
        protocol: str,
    ) -> None:
        """Append rows with the values that they share. Their cells must have been appended before."""
        self.message_ids += ids
        self.rows = rows = self.rows + len(ids)
        self.runs.append(
            (
                rows,
                at,
                name.namespace,
                name.queue,
                name.partition,
                group or None,
                event,
                reason or None,
                error or None,
                consumer or None,
                protocol or None,
            )
        )


def _enqueued(columns: Columns, entry: Decoded, at: int, name: ShardName, fetch: Fetch) -> None:
    _, shard, first, count, protocol, _ = entry
    end = columns.rows + count
    for messages in fetch(shard, first, count):
        ids = (
            _append_homogeneous(columns, messages, name)
            if isinstance(messages, HomogeneousBatch)
            else _each(columns, messages, name)
        )
        columns.append(ids, at, name, "", JournalEvent.ENQUEUED, "", "", "", protocol)
    if columns.rows != end:
        raise ValueError(f"shard {shard} lacks messages of the sequences {first} to {first + count - 1}")


def _append_homogeneous(columns: Columns, messages: HomogeneousBatch, name: ShardName) -> Sequence[int]:
    """As `_each`, for a homogeneous batch: only the payload is read for each message."""
    first, payloads = as_enqueued(messages.first), messages.payloads
    count, cell = len(payloads), columns.cell
    cell("priority").extend([first.priority] * count)
    cell("size_bytes").extend(payloads.sizes())
    if first.deliver_at:
        cell("deliver_at").extend([first.deliver_at] * count)
    if name.mode is JournalMode.PAYLOAD:
        cell("payload").extend(payloads[:])
    if first.extra is not NO_EXTRA:
        _extras(columns, [first] * count)
    return range(first.id, first.id + count)


def _each(columns: Columns, messages: list[Message], name: ShardName) -> list[int]:
    """The cells of messages. Returns their ids."""
    cell = columns.cell
    plain = all([message.extra is NO_EXTRA for message in messages])  # noqa: C419 - a list is faster than a generator
    if not plain:
        messages = [as_enqueued(message) for message in messages]
    cell("priority").extend([message.priority for message in messages])
    cell("size_bytes").extend([len(message.payload) for message in messages])
    if any([message.deliver_at for message in messages]):  # noqa: C419
        cell("deliver_at").extend([message.deliver_at or None for message in messages])
    if name.mode is JournalMode.PAYLOAD:
        cell("payload").extend([message.payload for message in messages])
    if not plain:
        _extras(columns, messages)
    return [message.id for message in messages]


def _extras(columns: Columns, messages: list[Message]) -> None:
    extras = [message.extra for message in messages]
    origins = [extra.origin for extra in extras]
    columns.cell("client_message_id").extend([extra.message_id for extra in extras])
    columns.cell("key").extend([extra.key for extra in extras])
    columns.cell("correlation_id").extend([extra.correlation_id for extra in extras])
    columns.cell("properties").extend([extra.properties or None for extra in extras])
    if any(origins):
        columns.cell("source_id").extend([origin.source_id if origin else None for origin in origins])
        columns.cell("source_queue").extend([origin.source_queue if origin else None for origin in origins])


def _leased(columns: Columns, entry: Decoded, at: int, name: ShardName, _: Fetch) -> None:
    _batch(columns, entry, at, name, JournalEvent.LEASED)


def _acked(columns: Columns, entry: Decoded, at: int, name: ShardName, _: Fetch) -> None:
    _batch(columns, entry, at, name, JournalEvent.ACKED)


def _batch(columns: Columns, entry: Decoded, at: int, name: ShardName, event: JournalEvent) -> None:
    _, _, group, consumer, protocol, ids, attempts = entry
    if len(ids) != len(attempts):
        raise ValueError(f"a journal entry has {len(ids)} ids and {len(attempts)} attempts")
    columns.cell("attempt").extend(attempts)
    columns.append(ids, at, name, group, event, "", "", consumer, protocol)


def _one(columns: Columns, entry: Decoded, at: int, name: ShardName, _: Fetch) -> None:
    _, _, group, event, message_id, attempt, reason, error, consumer, protocol, details = entry
    columns.cell("attempt").append(attempt or None)
    for field, value in (details or {}).items():
        columns.cell(field).append(value)
    columns.append([message_id], at, name, group, event, reason, error, consumer, protocol)


def _many(columns: Columns, entry: Decoded, at: int, name: ShardName, _: Fetch) -> None:
    _, _, group, event, reason, ids = entry
    columns.append(ids, at, name, group, event, reason, "", "", "")


_ADD: dict[int, Callable[[Columns, Decoded, int, ShardName, Fetch], None]] = {
    EntryKind.ENQUEUED: _enqueued,
    EntryKind.LEASED: _leased,
    EntryKind.ACKED: _acked,
    EntryKind.ONE: _one,
    EntryKind.MANY: _many,
}
