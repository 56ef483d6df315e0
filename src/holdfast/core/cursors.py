"""Cursor groups: they read a shard as a log and move forward, by a commit or because they lag too far behind.

Messages that no group needs after a cursor has moved are removed. Most of them are neighbours in the order of delivery,
so that its rows are read rather than the messages: a row has all that removing a message takes, and a range of rows is
one deletion. Message records are read only of those that were delayed, were settled by leasing groups before, or have
further records elsewhere.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Final, NamedTuple

from holdfast.core.codecs import read_listed, read_mask, read_message
from holdfast.core.commands import CursorCommit, CursorRange, CursorRead, Progress
from holdfast.core.effects import Effects, Outcome, Read, deletions
from holdfast.core.enqueue import place_of
from holdfast.core.groups import CursorGroup
from holdfast.core.ids import UNKEYED
from holdfast.core.journal import EntryKind
from holdfast.core.queue import JournalMode
from holdfast.core.reading import CHUNK, GONE_STATE, Live, chunk_for, liveness, log, unschedule
from holdfast.core.records import (
    FLAG_DUE,
    FLAG_EARLY,
    FLAG_SOURCED,
    GONE,
    KEPT,
    LAST,
    NO_KEY_HASH,
    Listed,
    Message,
    Table,
    message_key,
    ready_key,
    seq_of,
    settled_key,
    shard_key,
)
from holdfast.core.shard import PlaceColumns, Shard, handles
from holdfast.core.states import Event, JournalEvent, journal_names
from holdfast.errors import CursorOutOfRange

SPAN = 4_000  # sequences a cursor moves past in one step: about 15 ms
MOVE_BYTES = 8 << 20  # about how many bytes of messages are read for it, at most

# The columns of a Listed.
PRIORITY: Final = 1
STAMP: Final = 2
SEQ: Final = 3
KEY: Final = 4
FLAGS: Final = 5
SIZE: Final = 6


class ReadAhead(NamedTuple):
    """What lies ahead of a cursor, up to and including `last`."""

    last: int
    settled: dict[int, int]
    listed: list[Listed]  # in the order of delivery, and never delayed, by sequence
    alone: bool  # no other row is between these
    others: list[Message]  # the other messages, by sequence


# --- reading ----------------------------------------------------------------------------------------------------------


@handles(CursorRead)
def cursor_read(shard: Shard, command: CursorRead, _now: int, effects: Outcome[CursorRange]) -> None:
    cursor = shard.cursor_group(command.group, "be read as a log")
    head = cursor.head
    high = shard.head.next_seq
    if not head.committed < command.first <= high:
        raise CursorOutOfRange(
            sequence=command.first,
            group=command.group,
            action="read",
            partition=shard.partition,
            low=head.committed + 1,
            high=high,
        )
    found: list[Message] = []
    size = 0
    at = command.first
    end = min(high, command.until) if command.until else high
    while at < end and len(found) < command.limit and size < command.max_bytes:
        chunk = chunk_for(shard, command.limit - len(found), command.max_bytes - size)
        require_log(shard, at, end - 1, chunk)
        messages = log(shard, at, end - 1, chunk)
        if not messages:
            at = end
            break
        settled = masks(shard, at, max(min(end, at + chunk) - 1, messages[-1].seq))
        seen = visible(shard, cursor, messages, settled)
        seen_bytes = sum([len(message.payload) for message in seen])
        fitting = len(seen)
        if size + seen_bytes > command.max_bytes:
            fitting = _fitting(seen, command.max_bytes - size, command.one_at_least and not found)
        found += seen[:fitting]
        if fitting < len(seen):
            at = seen[fitting].seq
            break
        size += seen_bytes
        at = messages[-1].seq + 1 if len(messages) == chunk else end
    effects.reply = CursorRange(found, at, head.committed, high, head.lost_from, head.lost_to)


def _fitting(messages: list[Message], room: int, one_at_least: bool) -> int:
    """How many of these fit, from the first on; `one_at_least`: the first does, whatever its size."""
    total = 0
    for index, message in enumerate(messages):
        total += len(message.payload)
        if total > room and (index or not one_at_least):
            return index
    return len(messages)


def visible(shard: Shard, cursor: CursorGroup, messages: list[Message], settled: dict[int, int]) -> list[Message]:
    """The messages a cursor group may see: none that was removed, and of those older than the group the live ones."""
    seen = [message for message in messages if settled.get(message.seq) != GONE] if settled else messages
    old: list[Message] = []
    if seen and seen[0].seq < cursor.head.made_at:
        old = [message for message in seen if message.seq < cursor.head.made_at and message.seq not in settled]
    if old:
        live = liveness(shard, old)
        seen = [message for message in seen if message.seq not in live or live[message.seq].live is not Live.GONE]
    return seen


def masks(shard: Shard, first: int, last: int) -> dict[int, int]:
    """The groups that have settled messages, for a range of sequences."""
    rows = shard.scan(*_masks_read(shard, first, last))  # type: ignore[arg-type]
    return {seq_of(key): read_mask(value) for key, value in rows}


def _masks_read(shard: Shard, first: int, last: int) -> Read:
    number = shard.number
    return Read(Table.SETTLED, settled_key(number, first), settled_key(number, last + 1), last - first + 1)


def require_log(shard: Shard, first: int, last: int, limit: int) -> None:
    """Require message records and who has settled them together: a step that lacks either starts again."""
    number = shard.number
    messages = Read(Table.MESSAGES, message_key(number, first), message_key(number, last + 1), limit)
    shard.require([messages, _masks_read(shard, first, min(last, first + limit - 1))])


# --- committing -------------------------------------------------------------------------------------------------------


@handles(CursorCommit)
def cursor_commit(shard: Shard, command: CursorCommit, _now: int, effects: Outcome[Progress]) -> None:
    cursor = shard.cursor_group(command.group, "commit")
    head = cursor.head
    if command.seq >= shard.head.next_seq:
        raise CursorOutOfRange(
            sequence=command.seq,
            group=command.group,
            action="commit",
            partition=shard.partition,
            low=head.committed,
            high=shard.head.next_seq - 1,
        )
    count = 0
    if command.seq > head.committed:
        count = advance_cursor(shard, cursor, command.seq, journal_names(Event.COMMIT), "", effects)
        head.lost_from = head.lost_to = 0
    effects.reply = Progress(count, done=head.committed >= command.seq, at=head.committed)


def advance_cursor(
    shard: Shard, cursor: CursorGroup, target: int, event: JournalEvent | None, reason: str, effects: Effects
) -> int:
    """Move a cursor towards `target`, by at most SPAN sequences, and remove the messages that no group needs."""
    last, settled, listed, alone, others = _read_ahead(shard, cursor.head.committed + 1, target)
    passed = visible(shard, cursor, others, settled)
    free = min([other.head.committed for other in shard.cursors.values() if other is not cursor], default=last)

    def goes(seq: int) -> bool:
        return seq <= free and _settled_by_all(shard, seq, settled.get(seq, 0))

    leaving = [row for row in listed if goes(row[SEQ])] if free < last or shard.groups else listed
    ending = [message for message in passed if goes(message.seq)]
    live = liveness(shard, [message for message in ending if settled.get(message.seq) != KEPT])
    cursor.head.committed = last
    cursor.mark_dirty()
    shard.release_kept([len(message.payload) for message in ending if settled.get(message.seq) == KEPT])
    shard.unlist(_columns(leaving), effects, adjacent=alone and not shard.groups)
    for message in ending:
        live_state = live.get(message.seq, GONE_STATE)
        if live_state.live is Live.SCHEDULED:
            unschedule(shard, message, effects)
            shard.remove_extras(place_of(shard, message, 0), effects)
        elif live_state.live is Live.READY:
            shard.unlist(PlaceColumns.of([place_of(shard, message, live_state.stamp)]), effects)
    shard.removable += sorted([row[SEQ] for row in leaving] + [message.seq for message in ending])
    _forget_settled(shard, settled, effects)
    ids = sorted([row[STAMP] for row in listed] + [message.id for message in passed])  # that is by sequence
    if ids:
        cursor.count(str(event), len(ids))
        if shard.config.journal is not JournalMode.OFF:
            effects.entries.append((EntryKind.MANY, shard.number, cursor.name, event, reason, ids))
            effects.rows += len(ids)
    return len(ids)


def unneeded(shard: Shard, seq: int, mask: int) -> bool:
    """Whether no group needs a message that the groups of `mask` have settled."""
    return _settled_by_all(shard, seq, mask) and not shard.kept_by_cursor(seq)


def _settled_by_all(shard: Shard, seq: int, mask: int) -> bool:
    """Whether no leasing group needs it."""
    needed = shard.needed(seq)
    return mask == GONE or mask & needed == needed


# --- what lies ahead --------------------------------------------------------------------------------------------------


def _read_ahead(shard: Shard, first: int, target: int) -> ReadAhead:
    """The messages from `first` on, as far as at most a chunk of message records must be read for them."""
    number, last = shard.number, min(target, first - 1 + SPAN)
    front, behind = settled_key(number, first), settled_key(number, last + 1)
    marks = Read(Table.SETTLED, front, behind, CHUNK)
    shard.require([marks, Read(Table.MESSAGES, front, behind, 1)])
    there = log(shard, first, last, 1)
    rows = shard.scan(*marks)  # type: ignore[arg-type]
    settled = {seq_of(key): read_mask(value) for key, value in rows}
    if len(rows) == CHUNK:
        last = seq_of(rows[-1][0])
    if not there or there[0].seq > last:
        return ReadAhead(last, settled, [], alone=True, others=[])
    listed, alone = _listed(shard, there[0].id, last, 2 * SPAN)
    rest: list[int] = []
    if len(listed) <= last - there[0].seq:
        known = {row[SEQ] for row in listed}
        rest = [seq for seq in range(there[0].seq, last + 1) if seq not in known and settled.get(seq) != GONE]
    lookups = sorted(rest + [row[SEQ] for row in listed if row[FLAGS] & (FLAG_SOURCED | FLAG_EARLY)])
    limit = chunk_for(shard, CHUNK, MOVE_BYTES)
    if len(lookups) > limit:
        last = lookups[limit] - 1
        settled = {seq: mask for seq, mask in settled.items() if seq <= last}
        listed = [row for row in listed if row[SEQ] <= last]
        rest = [seq for seq in rest if seq <= last]
    shard.require_records(lookups[:limit])
    records = [(seq, shard.find_record(seq)) for seq in rest]
    others = [read_message(seq, value) for seq, value in records if value is not None]
    return ReadAhead(last, settled, listed, alone, others)


def _listed(shard: Shard, first_id: int, last: int, limit: int) -> tuple[list[Listed], bool]:
    """The rows of the order of delivery of messages from `first_id` to the sequence `last`, without those that were
    delayed; and whether there are no other rows between them. Nothing is found where there are too many others."""
    number, head = shard.number, shard.head
    beyond = log(shard, last + 1, head.next_seq - 1, 1) if last + 1 < head.next_seq else []
    end = beyond[0].id if beyond else LAST
    reads = [
        Read(Table.READY, ready_key(number, priority, first_id), ready_key(number, priority, end), limit)
        for priority in head.priorities
    ]
    shard.require(reads)
    found = [shard.scan(*read) for read in reads]  # type: ignore[arg-type]
    if any(len(rows) == limit for rows in found):
        return [], False
    stand = read_listed([row for rows in found for row in rows])
    listed = [row for row in stand if not row[FLAGS] & FLAG_DUE]
    if len(found) > 1:
        listed.sort(key=itemgetter(SEQ))
    return listed, len(listed) == len(stand)


# --- what goes --------------------------------------------------------------------------------------------------------


def _columns(rows: list[Listed]) -> PlaceColumns:
    if not rows:
        return PlaceColumns.of([])
    _, priorities, stamps, seqs, keys, flags, sizes_bytes = zip(*rows, strict=True)
    keys = tuple([UNKEYED if key == NO_KEY_HASH else key for key in keys])
    return PlaceColumns(priorities, stamps, seqs, keys, flags, sizes_bytes)


def _forget_settled(shard: Shard, settled: dict[int, int], effects: Effects) -> None:
    """Delete the records of who has settled messages that no group needs."""
    lowest = min([cursor.head.committed for cursor in shard.cursors.values()])
    over = [seq for seq, mask in settled.items() if seq <= lowest and _settled_by_all(shard, seq, mask)]
    for seq in over:
        shard.masks.drop(seq)
    effects.ops += deletions(Table.SETTLED, shard_key(shard.number), over)
