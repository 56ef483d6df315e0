"""One partition of one queue, as a state machine: `step(command, now)` returns the reply and what must be written.

The shard has in memory what is leased, what waits for another attempt, and windows on what is delivered next; all the
rest is in the store. It reads nothing by itself: a step that lacks records returns `reads` and has changed nothing but
its windows; the engine supplies the records and steps the same command again.

This module has the state, and the reading and removing that all commands share. The commands themselves are in
enqueue.py, leasing.py, workflow.py, sweeps.py, admin.py, reading.py and cursors.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any, NamedTuple, TypeVar

from holdfast.core.codecs import (
    dedup_value,
    read_cursor_head,
    read_delivery,
    read_group_head,
    read_leases,
    read_mask,
    read_message,
    read_messages,
    read_places,
    read_ready,
    read_shard_head,
    ready_flags,
    write_bits,
    write_head,
    write_mask,
)
from holdfast.core.commands import AddGroup, Command
from holdfast.core.deliveries import Deliveries, Delivery, LeaseBatch, LeasePart
from holdfast.core.effects import Effects, Missing, Op, Outcome, Read, deletions
from holdfast.core.groups import CursorGroup, GroupCounts, GroupIndex, LeaseGroup
from holdfast.core.ids import UNKEYED, IdGenerator
from holdfast.core.journal import EntryKind
from holdfast.core.memory import CellMemory, Masks
from holdfast.core.queue import GroupKind, GroupRecord, QueueConfig
from holdfast.core.records import (
    ENDED_PART,
    FLAG_CHOSEN,
    FLAG_DUE,
    FLAG_EARLY,
    FLAG_SOURCED,
    FLAG_STATE,
    KEPT,
    LAST,
    LEASES_PART,
    CursorHead,
    GroupHead,
    Message,
    Place,
    ShardHead,
    Table,
    due_key,
    expiry_key,
    group_key,
    keyed_prefix,
    leases_key,
    message_key,
    ready_key,
    ready_prefix,
    seq_of,
    settled_key,
    shard_key,
    source_key,
)
from holdfast.core.windows import WINDOW, PriorityWindow
from holdfast.errors import GroupNotFound, WrongGroupKind
from holdfast.units import NEVER

Rows = list[tuple[bytes, bytes]]

C = TypeVar("C")
R = TypeVar("R")

RANGE_READ_MIN = 4  # from so many neighbours on, one read of their range costs less than a read of each
# Messages skipped for their keys in one step, before other shards are served: about 25 ms.
SKIP_BLOCKED_MAX = 20_000
SKIP_BLOCKED_WINDOW = 4_000  # messages read at a time while skipping
# Messages for which the groups that have settled them are cached, where several groups share a queue.
MASKS_MAX = 20_000
# Producers' ids past their window are deleted together, at most this late; they no longer count anyway.
DEDUP_PAUSE = 10_000_000


class PlaceColumns(NamedTuple):
    """Places, columnar. `keys` and `flags` may be empty where none of them has any."""

    priorities: Sequence[int]
    stamps: Sequence[int]
    seqs: Sequence[int]
    keys: Sequence[bytes]
    flags: Sequence[int]
    sizes_bytes: Sequence[int]

    @classmethod
    def of(cls, places: list[Place]) -> PlaceColumns:
        return cls(
            [place.priority for place in places],
            [place.stamp for place in places],
            [place.seq for place in places],
            [place.key for place in places],
            [place.flags for place in places],
            [place.size_bytes for place in places],
        )

    def rows(self) -> list[Place]:
        keys, flags = self.keys or [UNKEYED] * len(self.seqs), self.flags or [0] * len(self.seqs)
        columns = zip(self.stamps, self.seqs, keys, flags, self.priorities, self.sizes_bytes, strict=True)
        return [Place(*row) for row in columns]

    def take(self, indexes: list[int]) -> PlaceColumns:
        """Those with these indexes."""
        rows = self.rows()
        return PlaceColumns.of([rows[index] for index in indexes])

    def by_priority(self) -> dict[int, PlaceColumns]:
        """The places of each priority."""
        priorities = self.priorities
        if priorities and priorities.count(priorities[0]) == len(priorities):
            return {priorities[0]: self}
        found: dict[int, list[int]] = {}
        for index, priority in enumerate(priorities):
            found.setdefault(priority, []).append(index)
        return {priority: self.take(indexes) for priority, indexes in found.items()}


class ShardRecords(NamedTuple):
    """What a shard is opened with: its head, its groups, their deliveries. Not the backlog."""

    head: bytes | None
    groups: Rows
    deliveries: Rows
    leases: Rows


class Shard:
    """See the module. One writer: steps of one shard never overlap."""

    def __init__(
        self,
        number: int,
        partition: int,
        queue: str,
        config: QueueConfig,
        ids: IdGenerator,
        memory: CellMemory,
    ) -> None:
        self.number = number
        self.partition = partition
        self.queue = queue
        self.config = config
        self.ids = ids
        self.memory = memory
        self._clear()

    def _clear(self) -> None:
        """Have nothing in memory, as one that was never opened."""
        self.head = ShardHead(priorities={})
        self.index = GroupIndex(self.head, self.config.throttle)
        self.groups: dict[str, LeaseGroup] = {}
        self.cursors: dict[str, CursorGroup] = {}
        self.cached_records: dict[int, bytes] = {}
        self.masks = Masks(self.memory.masks)
        self.removable: list[int] = []
        self.orphans: dict[int, Delivery] = {}  # expired where there is no group, until `DeadLettered`
        self.dirty = False
        self.postponed = 0  # for the rates of their keys, since the engine last looked
        self.skipped_blocked = 0  # since the engine last merged the heads of a group
        self._have: dict[Read, bytes | Rows | None] = {}
        self._scanned: list[Rows] = []  # of MESSAGES; `_spread` enters each row into `_have`
        self._run: tuple[int, Rows] = (0, [])  # the last such rows without a gap, and their first sequence
        self.logs: dict[Read, list[Message]] = {}  # such rows, decoded

    # --- opening ----------------------------------------------------------------------------------------------------

    def reopen(self, groups: Iterable[GroupRecord], stored: ShardRecords, now: int) -> None:
        """Restore what is stored instead of what is in memory, which may be half of a step."""
        self.close()
        self._clear()
        self.open(groups, stored, now)

    def open(self, groups: Iterable[GroupRecord], stored: ShardRecords, now: int) -> None:
        """Restore what was stored."""
        if stored.head is not None:
            self.head = self.index.shard_head = read_shard_head(stored.head)
        heads = {int.from_bytes(key[4:8], "big"): value for key, value in stored.groups}
        by_number: dict[int, LeaseGroup] = {}
        for record in groups:
            value = heads[record.number]
            if record.kind is GroupKind.CURSOR:
                self.add_cursor(record, read_cursor_head(value))
            else:
                group = self.add_lease_group(record, read_group_head(value))
                by_number[record.number] = group
        for key, value in stored.deliveries:
            by_number[int.from_bytes(key[4:8], "big")].restore(read_delivery(key, value), now)
        for number, token, leases, ended in read_leases(stored.leases):
            by_number[number].restore_batch(LeaseBatch(token, leases, ended))

    def configure(self, config: QueueConfig) -> None:
        """Take over a configuration. It is valid from the next step on."""
        self.config = config
        self.index.limits = config.throttle

    def add_lease_group(self, record: GroupRecord | AddGroup, head: GroupHead) -> LeaseGroup:
        group = LeaseGroup(record.number, record.name, head, self.config.strict, self.memory, self.index)
        self.groups[record.name] = group
        self.index.add(group)
        return group

    def add_cursor(self, record: GroupRecord | AddGroup, head: CursorHead) -> None:
        self.cursors[record.name] = CursorGroup(
            record.number, record.name, head, record.max_lag_messages, record.max_lag_age, self.index
        )

    # --- stepping ---------------------------------------------------------------------------------------------------

    def step(self, command: Command[R], now: int) -> Outcome[R]:
        """Execute `command` at `now`, or return what must be read first."""
        effects: Outcome[R] = Outcome()
        try:
            COMMANDS[type(command)](self, command, now, effects)
        except Missing as missing:
            effects.reads = missing.reads
            return effects
        except Exception:
            self.forget()  # what was read for a command that is refused, or fails, is stale for the next one
            raise
        if self.removable:
            effects.entries.append((EntryKind.REMOVABLE, self.number, self.removable))
            self.removable = []
        if self._have:
            self.forget()
        # Here and not when something is added: a step relies on what it has required.
        masks = self.masks
        if masks.wide or len(masks.known) > MASKS_MAX:
            masks.clear()
        self.memory.enforce()
        self.dirty = True
        return effects

    def supply(self, reads: list[Read], results: list[bytes | Rows | None]) -> None:
        """Supply the records that a step lacked."""
        for read, result in zip(reads, results, strict=True):
            self._have[read] = result
            if read.table is Table.MESSAGES and isinstance(result, list):
                self._scanned.append(result)
                if result and seq_of(result[-1][0]) - seq_of(result[0][0]) == len(result) - 1:
                    self._run = (seq_of(result[0][0]), result)

    def forget(self) -> None:
        """Drop what was read for one command: it is stale for the next one."""
        self._have, self._scanned, self._run, self.logs = {}, [], (0, []), {}

    def _spread(self) -> None:
        """Enter scanned messages one by one. Reading a log does not need that."""
        have = self._have
        for rows in self._scanned:
            for key, value in rows:
                have.setdefault(Read(Table.MESSAGES, key), value)  # one that this step has rewritten stays
        self._scanned = []

    def heads(self, group: str, limit: int) -> tuple[list[Place | Delivery], list[Read]]:
        """Up to `limit` messages or deliveries that `group` may lease next, or what must be read first."""
        lease_group = self.groups[group]
        if self.config.paused:
            return [], []
        try:
            self.fill_windows(lease_group, limit)
        except Missing as missing:
            return [], missing.reads
        except Exception:
            self.forget()
            raise
        self.forget()
        return lease_group.choose(self.head.priorities, limit), []

    def lease_reads(self, group: str, limit: int) -> list[Read]:
        """What a lease of the next `limit` deliveries lacks. Lease, or `forget`, before anything else is done."""
        lease_group = self.groups[group]
        try:
            self.fill_windows(lease_group, limit)
            self.require_records([item.seq for item in lease_group.choose(self.head.priorities, limit)])
        except Missing as missing:
            return missing.reads
        return []

    def has_next(self, group: str) -> bool:
        """Whether a leasing group may have something to deliver, now or when a key or a lease is released."""
        lease_group = self.groups.get(group)
        if lease_group is None:
            return False
        head = lease_group.head
        return bool(lease_group.ready) or head.fresh + self.head.arrived != head.arrived

    def next_place(self, group: str) -> Place | None:
        """The first of `heads`, if it is known without a search; None: call `heads`."""
        return None if self.config.paused else self.groups[group].next_place(self.head.priorities)

    def horizon(self, group: str) -> tuple[int, int] | None:
        """The place beyond which `heads` does not know the order of delivery; None if it knows all of it."""
        return self.groups[group].horizon(self.head.priorities)

    def flush(self, ops: list[Op]) -> None:
        """Write the heads that have changed since the last flush: once a commit, not once a step."""
        if not self.dirty:
            return
        self.dirty = False
        ops.append((Table.SHARDS, shard_key(self.number), write_head(self.head)))
        index = self.index
        for group in index.dirty.values():
            ops.append((Table.GROUPS, group_key(self.number, group.number), write_head(group.snapshot())))
            if group.changed:
                self._flush_batches(group, ops)
        index.holding |= index.dirty
        index.dirty.clear()
        if index.dirty_cursors:
            cursors = index.dirty_cursors.values()
            ops += [(Table.GROUPS, group_key(self.number, one.number), write_head(one.head)) for one in cursors]
            index.dirty_cursors.clear()

    def _flush_batches(self, group: LeaseGroup, ops: list[Op]) -> None:
        """Write which leases of a batch have ended, or delete its record if all have."""
        number = self.number
        for batch in group.changed.values():
            ended_key = leases_key(number, group.number, batch.token, ENDED_PART)
            if batch.left:
                ops.append((Table.LEASES, ended_key, write_bits(batch.ended)))
                batch.ended_stored = True
                continue
            ops.append((Table.LEASES, leases_key(number, group.number, batch.token, LEASES_PART), None))
            if batch.ended_stored:
                ops.append((Table.LEASES, ended_key, None))
        group.changed = {}

    def wake_at(self) -> int:
        """When the next sweep is due; NEVER if none is."""
        head = self.head
        if head.unneeded_seq:
            return 0
        wake = NEVER
        holding = self.index.holding
        for group in list(holding.values()):
            at = group.wake_at()
            if at < wake:
                wake = at
            elif at == NEVER:
                del holding[group.name]  # until it changes again
        for cursor in self.cursors.values():
            wake = 0 if cursor.lags(head.next_seq) else min(wake, cursor.age_check_at)
        for at in (head.next_due, head.next_expiry, head.next_early):
            if at and at < wake:
                wake = at
        return min(wake, head.dedup_end + DEDUP_PAUSE) if head.dedup_end else wake

    @property
    def unsaved(self) -> bool:
        """Whether a group has moved that `flush` has not written: a step may do that without any other record."""
        return bool(self.index.dirty or self.index.dirty_cursors)

    def counted(self) -> tuple[int, int]:
        """Messages that some group may still need, and the bytes of their payloads."""
        head = self.head
        return head.ready + head.scheduled + head.kept, head.size_bytes + head.kept_bytes

    @property
    def live(self) -> int:
        """Messages that some group may still need."""
        return self.counted()[0]

    # --- queries of the engine --------------------------------------------------------------------------------------

    def deliveries_of(self, group: str) -> Deliveries:
        """What a leasing group has leased or will retry, to be read; nothing if there is no such group."""
        lease_group = self.groups.get(group)
        return Deliveries() if lease_group is None else lease_group.deliveries

    def ended_among(self, group: str, tokens: Set[int]) -> set[int]:
        """Those of these tokens of leases whose end is remembered."""
        lease_group = self.groups.get(group)
        return set() if lease_group is None else lease_group.ended.among(tokens)

    def ended_message(self, group: str, token: int) -> int | None:
        """The message of a lease whose end is remembered."""
        lease_group = self.groups.get(group)
        ended = None if lease_group is None else lease_group.ended.get(token)
        return None if ended is None else ended[1]

    def cursor_head(self, group: str) -> CursorHead:
        """Where a cursor group is."""
        return self.cursors[group].head

    def backlog(self, group: str) -> int:
        """Messages that a group has not settled; of a cursor group, sequences that it has not committed."""
        cursor = self.cursors.get(group)
        if cursor is not None:
            return self.head.next_seq - 1 - cursor.head.committed
        return self.groups[group].backlog + self.head.scheduled

    def leased(self, group: str) -> int:
        """Messages that consumers of a group hold; those of a cursor group hold none."""
        lease_group = self.groups.get(group)
        return 0 if lease_group is None else lease_group.leased

    def group_counts(self, group: str) -> GroupCounts:
        """The statistics of a leasing group."""
        return self.groups[group].counts()

    def unloaded(self, group: str) -> list[tuple[int, int]]:
        """The priorities of which no window of a leasing group shows the next message, and the stamps behind which it
        is."""
        return self.groups[group].unloaded(self.head.priorities)

    def counters(self) -> list[dict[str, int]]:
        """The counters of every leasing group."""
        return [group.head.counters for group in self.groups.values()]

    # --- reading ----------------------------------------------------------------------------------------------------

    def get(self, table: Table, key: bytes) -> bytes | None:
        read = Read(table, key)
        if read not in self._have:
            raise Missing([read])
        value = self._have[read]
        assert not isinstance(value, list)
        return value

    def scan(self, table: Table, start: bytes, end: bytes, limit: int) -> Rows:
        read = Read(table, start, end, limit)
        if read not in self._have:
            raise Missing([read])
        rows = self._have[read]
        assert isinstance(rows, list)
        return rows

    def require(self, reads: Iterable[Read]) -> None:
        """Make sure that all of these were read; those that were not are requested together."""
        lacking = [read for read in dict.fromkeys(reads) if read not in self._have]
        if lacking:
            raise Missing(lacking)

    def require_records(self, seqs: Iterable[int]) -> None:
        """Make sure that the message records of these sequences were read or are cached."""
        shard, cached, have = self.number, self.cached_records, self._have
        lacking = [seq for seq in seqs if seq not in cached]
        if not lacking:
            return
        first, last = min(lacking), max(lacking)
        if self._run[0] <= first and last < self._run[0] + len(self._run[1]):
            return
        self._spread()
        lacking = [seq for seq in lacking if Read(Table.MESSAGES, message_key(shard, seq)) not in have]
        if not lacking:
            return
        first, last = min(lacking), max(lacking)
        span = last - first + 1
        if len(lacking) >= RANGE_READ_MIN and span <= 2 * len(lacking):
            # Neighbours, as when a backlog is leased: a range costs a third of a lookup each.
            range_read = Read(Table.MESSAGES, message_key(shard, first), message_key(shard, last + 1), span)
            if range_read not in have:
                raise Missing([range_read])
            have.update((Read(Table.MESSAGES, message_key(shard, seq)), None) for seq in lacking)  # they do not exist
            return
        raise Missing([Read(Table.MESSAGES, message_key(shard, seq)) for seq in lacking])

    def find_record(self, seq: int) -> bytes | None:
        """The record of a message that was required; None if it does not exist."""
        value = self.cached_records.get(seq)
        if value is not None:
            return value
        self._spread()
        return self.get(Table.MESSAGES, message_key(self.number, seq))

    def record(self, seq: int) -> bytes:
        """The record of a live message, which exists."""
        value = self.find_record(seq)
        assert value is not None, f"message record {seq} of shard {self.number} is missing"
        return value

    def message(self, seq: int) -> Message:
        """A live message."""
        return read_message(seq, self.record(seq))

    def pop_messages(self, seqs: list[int]) -> list[Message]:
        """Messages that are leased now. With one group they are not needed again soon, and are no longer cached."""
        cached = self.cached_records
        if len(self.groups) == 1:
            known = [cached.pop(seq, None) for seq in seqs]
            self.memory.cache_used_bytes -= sum([len(value) for value in known if value is not None])
        else:
            known = [cached.get(seq) for seq in seqs]
        first, rows = self._run
        end = first + len(rows)
        values = [
            value if value is not None else rows[seq - first][1] if first <= seq < end else self.record(seq)
            for seq, value in zip(seqs, known, strict=True)
        ]
        return read_messages(seqs, values)

    def lease_group(self, name: str, action: str) -> LeaseGroup:
        group = self.groups.get(name)
        if group is None:
            if name in self.cursors:
                raise WrongGroupKind(group=name, kind="cursor", action=action)
            raise GroupNotFound(group=name, queue=self.queue)
        return group

    def cursor_group(self, name: str, action: str) -> CursorGroup:
        group = self.cursors.get(name)
        if group is None:
            if name in self.groups:
                raise WrongGroupKind(group=name, kind="lease", action=action)
            raise GroupNotFound(group=name, queue=self.queue)
        return group

    def fill_windows(self, group: LeaseGroup, limit: int) -> None:
        """Fill windows that have run out, until the next `limit` messages are known."""
        while True:
            empty = group.unfilled(self.head.priorities, limit)
            if empty is None or self.skipped_blocked >= SKIP_BLOCKED_MAX:
                return
            priority, window = empty
            self._fill(group, priority, window)

    def _fill(self, group: LeaseGroup, priority: int, window: PriorityWindow) -> None:
        number = self.number
        limit = WINDOW if not self.skipped_blocked else SKIP_BLOCKED_WINDOW
        start = ready_key(number, priority, window.reached + 1)
        rows = self.scan(Table.READY, start, ready_key(number, priority, LAST), limit)
        unneeded = self._not_for(group, rows)
        del self._have[Read(Table.READY, start, ready_key(number, priority, LAST), limit)]
        more = len(rows) == limit
        reached = read_ready(*rows[-1]).stamp if rows else window.reached
        if group.keys and not window.loaded:
            skipped = group.skip_blocked_rows(window, priority, rows)
            self.skipped_blocked += skipped
            rows = rows[skipped:]
        places = read_places(rows)
        if group.skips:
            places = [place for place in places if place.seq not in group.skips]
        if unneeded:
            places = [place for place in places if place.seq not in unneeded]
            self.skipped_blocked += len(unneeded)
            if not places and not window.loaded:  # no message up to here is for this group
                window.frontier = reached
                group.mark_dirty()
        window.fill(places, reached, more)
        group.places.add(len(places))
        if window.complete:
            group.follow()

    def _not_for(self, group: LeaseGroup, rows: Rows) -> set[int]:
        """The sequences of READY rows whose messages are for other groups only."""
        if not self.shared():
            return set()
        chosen = [read_ready(*row).seq for row in rows if ready_flags(row[1]) & FLAG_CHOSEN]
        self.require_masks(chosen)
        return {seq for seq in chosen if self.mask(seq) & group.bit}

    # --- who still needs a message ----------------------------------------------------------------------------------

    def needed(self, seq: int) -> int:
        """Bits of the leasing groups that messages with this sequence are for."""
        if seq >= self.index.last_start:
            return self.index.bits
        return sum([group.bit for group in self.groups.values() if group.head.start <= seq])

    def shared(self) -> bool:
        """Whether several groups must settle a message, or one was removed and `drop_unneeded` is not done."""
        return len(self.groups) + len(self.cursors) > 1 or self.head.unneeded_seq > 0

    def kept_by_cursor(self, seq: int) -> bool:
        return any(cursor.needs(seq) for cursor in self.cursors.values())

    def require_masks(self, seqs: Iterable[int]) -> None:
        """Make sure that it is known who has settled these messages. With one group there is nothing to know."""
        if self.shared():
            number, masks = self.number, self.masks
            self.require(Read(Table.SETTLED, settled_key(number, seq)) for seq in seqs if seq not in masks)

    def mask(self, seq: int) -> int:
        """Bits of the groups that have settled a message."""
        known = self.masks.get(seq)
        if known is not None:
            return known
        value = self.get(Table.SETTLED, settled_key(self.number, seq))
        return 0 if value is None else read_mask(value)

    def mark_settled(self, group: LeaseGroup, places: PlaceColumns, effects: Effects) -> None:
        """`group` has settled messages: they are removed, unless another group still needs them."""
        if not self.shared():
            self.remove(places, effects)
            return
        unneeded: list[int] = []
        kept: list[int] = []  # for cursor groups only
        for index, seq in enumerate(places.seqs):
            mask = self.mask(seq) | group.bit
            needed = self.needed(seq)
            if mask & needed != needed:
                self.set_mask(seq, mask, effects)
            elif self.kept_by_cursor(seq):
                self.set_mask(seq, KEPT, effects)
                kept.append(index)
            else:
                unneeded.append(index)
        self.remove(places.take(unneeded), effects)
        if kept:
            held = places.take(kept)
            self.unlist(held, effects)
            self.head.kept += len(kept)
            self.head.kept_bytes += sum(held.sizes_bytes)

    def release_kept(self, sizes_bytes: Sequence[int]) -> None:
        """Messages that only cursor groups needed are needed no more. Heads of before they were counted have fewer."""
        head = self.head
        head.kept = max(head.kept - len(sizes_bytes), 0)
        head.kept_bytes = max(head.kept_bytes - sum(sizes_bytes), 0)

    def set_mask(self, seq: int, mask: int, effects: Effects) -> None:
        self.masks.put(seq, mask)
        effects.ops.append((Table.SETTLED, settled_key(self.number, seq), write_mask(mask)))

    # --- removing ---------------------------------------------------------------------------------------------------

    def require_for_removal(self, places: Iterable[Place]) -> None:
        """Require what `mark_settled` and `remove` need for these."""
        places = list(places)
        self.require_masks(place.seq for place in places)
        self.require_records(place.seq for place in places if place.flags & (FLAG_SOURCED | FLAG_EARLY))

    def unlist(self, places: PlaceColumns, effects: Effects, adjacent: bool = False) -> None:
        """No leasing group needs these messages any more: they leave the order of delivery.

        `adjacent`: they ascend, and in each priority no other message stands between the first and the last of them.
        """
        head, seqs = self.head, places.seqs
        for priority, (_, stamps, _, keys, *_) in places.by_priority().items():
            effects.ops += deletions(Table.READY, ready_prefix(self.number, priority), stamps, adjacent)
            by_key: dict[bytes, list[int]] = {}
            if any(keys):
                for key, stamp in zip(keys, stamps, strict=True):
                    by_key.setdefault(key, []).append(stamp)
                by_key.pop(UNKEYED, None)
            for key, own in by_key.items():
                effects.ops += deletions(Table.KEYED, keyed_prefix(self.number, key, priority), own, adjacent)
            left = head.priorities[priority] - len(stamps)
            if left:
                head.priorities[priority] = left
            else:
                del head.priorities[priority]
        head.ready -= len(seqs)
        head.size_bytes -= sum(places.sizes_bytes)
        if any(places.flags):
            for place in places.rows():
                self.remove_extras(place, effects)
        for group in list(self.index.skipping.values()):
            group.unskip(seqs)
        if self.cached_records:
            take = self.cached_records.pop
            self.memory.cache_used_bytes -= sum([len(take(seq, b"")) for seq in seqs])

    def remove(self, places: PlaceColumns, effects: Effects) -> None:
        """No group needs these messages any more. Their records are deleted when the journal that refers to them has
        been exported."""
        self.unlist(places, effects)
        if self.shared():
            for seq in places.seqs:
                self.masks.drop(seq)
            effects.ops += deletions(Table.SETTLED, shard_key(self.number), list(places.seqs))
        self.removable += places.seqs

    def remove_extras(self, place: Place, effects: Effects) -> None:
        """Delete the records that only messages with flags have."""
        if place.flags & FLAG_DUE:
            effects.ops.append((Table.DUE, due_key(self.number, place.seq), None))
        if not place.flags & (FLAG_SOURCED | FLAG_EARLY):
            return
        message = self.message(place.seq)
        origin = message.extra.origin
        if place.flags & FLAG_SOURCED and origin is not None:
            key = source_key(self.number, origin.source_id, origin.source_group)
            effects.ops.append((Table.SOURCES, key, None))
        if place.flags & FLAG_EARLY:
            effects.ops.append((Table.EXPIRIES, expiry_key(self.number, message.expires_at, place.seq), None))

    def restore_extras(self, message: Message, place: Place, effects: Effects) -> None:
        """Write again what `unlist` deleted for a message that only moves."""
        origin = message.extra.origin
        if place.flags & FLAG_SOURCED and origin is not None:
            key = source_key(self.number, origin.source_id, origin.source_group)
            effects.ops.append((Table.SOURCES, key, dedup_value(message.id, 0)))
        if place.flags & FLAG_EARLY:
            effects.ops.append((Table.EXPIRIES, expiry_key(self.number, message.expires_at, message.seq), b""))

    def replace_body(self, seq: int, value: bytes) -> None:
        """A message record was rewritten in this step, which reads the new one from now on."""
        self._have[Read(Table.MESSAGES, message_key(self.number, seq))] = value

    def close(self) -> None:
        """The shard is deleted: of what it keeps in memory nothing counts any more."""
        self.evict_records()
        self.memory.masks.forget(self.masks)
        for group in self.groups.values():
            self.memory.ended_leases.forget(group.ended)
            self.memory.places.forget(group.places)

    def evict_records(self) -> None:
        """Cache no message records: with one group less, they may never be leased again."""
        self.memory.cache_used_bytes -= sum(map(len, self.cached_records.values()))
        self.cached_records.clear()

    def forget_deliveries(self, group: LeaseGroup, parts: list[LeasePart], effects: Effects) -> None:
        """Deliveries have ended: their records are deleted."""
        own: list[int] = []
        stateful: list[int] = []
        for part, first, count in parts:
            if isinstance(part, LeaseBatch):
                ids = part.leases.ids
                group.deliveries.remove(ids if count == len(ids) else ids[first : first + count])
                group.leased -= count
                group.end_in_batch(part, first, count)
                continue
            group.deliveries.remove([part.id])
            if part.token:
                group.leased -= 1
            if part.batch is None:
                own.append(part.id)
            if part.flags & FLAG_STATE:
                stateful.append(part.id)
            group.detach(part)
        if own:
            effects.ops += deletions(Table.DELIVERIES, group_key(self.number, group.number), own)
        if stateful:
            effects.ops += deletions(Table.STATES, group_key(self.number, group.number), stateful)
        group.mark_dirty()


COMMANDS: dict[type[Command[Any]], Callable[[Shard, Any, int, Outcome[Any]], None]] = {}


def handles(
    kind: type[Command[R]],
) -> Callable[[Callable[[Shard, C, int, Outcome[R]], None]], Callable[[Shard, C, int, Outcome[R]], None]]:
    """Registers the function that executes a command; its outcome must have that command's reply. The modules of
    commands are imported by core/__init__.py."""

    def register(handler: Callable[[Shard, C, int, Outcome[R]], None]) -> Callable[[Shard, C, int, Outcome[R]], None]:
        COMMANDS[kind] = handler
        return handler

    return register


def new_cursor_head(shard: Shard, earliest: bool) -> CursorHead:
    made_at = shard.head.next_seq
    return CursorHead(made_at=made_at, committed=0 if earliest else made_at - 1)


def new_group_head(shard: Shard, earliest: bool) -> GroupHead:
    """Where a new leasing group starts: with all that is stored, or after it."""
    arrived = shard.head.arrived
    if earliest:
        return GroupHead(start=1, base=0, frontiers={}, fresh=shard.head.ready, arrived=arrived)
    return GroupHead(start=shard.head.next_seq, base=shard.ids.floor - 1, frontiers={}, fresh=0, arrived=arrived)
