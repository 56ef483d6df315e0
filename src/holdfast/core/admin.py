"""Administration of a shard: groups are added and removed, messages purged, edited and deleted."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.codecs import read_mask, read_message, read_ready, read_scheduled, write_mask, write_message
from holdfast.core.commands import (
    PURGE_START,
    AddGroup,
    Delete,
    Edit,
    Purge,
    Purged,
    RecordGroups,
    RemoveGroup,
    Withdraw,
)
from holdfast.core.cursors import MOVE_BYTES
from holdfast.core.effects import DeleteUntil, Effects, Outcome
from holdfast.core.enqueue import make_ready, place_of, schedule
from holdfast.core.journal import EntryKind, group_entry
from holdfast.core.leasing import free_key, next_of_keys, remove_from_window
from holdfast.core.queue import PRIORITY_MAX, GroupKind, JournalMode
from holdfast.core.reading import CHUNK, Live, chunk_for, liveness, locate, log, unschedule
from holdfast.core.records import (
    FLAG_STATE,
    GONE,
    KEPT,
    LAST,
    Message,
    Place,
    Table,
    delivery_key,
    group_key,
    leases_key,
    message_key,
    ready_key,
    scheduled_key,
    seq_of,
    settled_key,
)
from holdfast.core.shard import PlaceColumns, Shard, handles, new_cursor_head, new_group_head
from holdfast.core.states import DeliveryState, Event, JournalEvent, Reason, journal_names
from holdfast.errors import InvalidArgument, MessageNotWaiting

_EDITED = journal_names(Event.EDIT)
_PURGED = journal_names(Event.REMOVE)
IMMEDIATELY = 1  # an instant that has passed, whatever the clock does


# --- groups ---------------------------------------------------------------------------------------------------------


@handles(AddGroup)
def add_group(shard: Shard, command: AddGroup, _now: int, effects: Outcome[None]) -> None:
    """Add a group. Adding one that exists already (again after a crash) changes nothing."""
    if command.name in shard.groups or command.name in shard.cursors:
        return
    kind = GroupKind.CURSOR if command.cursor else GroupKind.LEASE
    _journal_created(shard, command.name, kind, 0 if command.earliest else shard.ids.floor - 1, effects)
    if command.cursor:
        shard.add_cursor(command, new_cursor_head(shard, command.earliest))
        shard.cursors[command.name].mark_dirty()
    else:
        shard.add_lease_group(command, new_group_head(shard, command.earliest)).mark_dirty()
        if command.earliest:
            _rewind_expiry(shard)


def _journal_created(
    shard: Shard, name: str, kind: GroupKind, start_after: int, effects: Effects, reason: str = ""
) -> None:
    if shard.config.journal is not JournalMode.OFF:
        details: dict[str, object] = {"group_kind": kind.value, "start_after": start_after}
        effects.entries.append(group_entry(shard.number, JournalEvent.GROUP_CREATED, name, details, reason))
        effects.rows += 1


@handles(RecordGroups)
def record_groups(shard: Shard, _command: RecordGroups, _now: int, effects: Outcome[None]) -> None:
    """Journal every group with where it began; of a cursor group that is not known, so where it is."""
    starts: dict[str, int] = {}
    for name, cursor in shard.cursors.items():
        following = log(shard, cursor.head.committed + 1, shard.head.next_seq - 1, 1)
        starts[name] = following[0].id - 1 if following else shard.ids.floor - 1
    for name, group in shard.groups.items():
        _journal_created(shard, name, GroupKind.LEASE, group.head.base, effects, Reason.RECORDED)
    for name, start_after in starts.items():
        _journal_created(shard, name, GroupKind.CURSOR, start_after, effects, Reason.RECORDED)


@handles(RemoveGroup)
def remove_group(shard: Shard, command: RemoveGroup, _now: int, effects: Outcome[None]) -> None:
    """Delete the records of a group. Messages that only it needed are removed later (`sweeps.drop_unneeded`)."""
    group = shard.groups.get(command.name)
    cursor = shard.cursors.get(command.name)
    number = shard.number
    leaving = group or cursor
    if leaving is not None:
        shard.groups.pop(command.name, None)
        if group is not None:
            shard.memory.ended_leases.forget(group.ended)
            shard.memory.places.forget(group.places)
            shard.index.remove(group)
        shard.cursors.pop(command.name, None)
        shard.index.dirty_cursors.pop(command.name, None)
        effects.ops.append((Table.GROUPS, group_key(number, leaving.number), None))
        if shard.config.journal is not JournalMode.OFF:
            effects.entries.append(group_entry(number, JournalEvent.GROUP_DELETED, command.name))
            effects.rows += 1
        if group is not None and (group.deliveries or group.changed):  # in most partitions nothing is leased
            low, high = delivery_key(number, group.number, 0), delivery_key(number, group.number + 1, 0)
            effects.ops += [(Table.DELIVERIES, low, DeleteUntil(high)), (Table.STATES, low, DeleteUntil(high))]
            low, high = leases_key(number, group.number, 0, 0), leases_key(number, group.number + 1, 0, 0)
            effects.ops.append((Table.LEASES, low, DeleteUntil(high)))
        shard.head.unneeded_seq = 1
        shard.evict_records()
        _rewind_expiry(shard)


def _rewind_expiry(shard: Shard) -> None:
    """The sweep has skipped messages that were leased, or kept for a cursor group, when they expired. With other groups
    than before it must look at them again: a new group must not get them, and the one that held them may be gone."""
    head = shard.head
    if head.expiry_high:
        head.expiry_seq, head.next_expiry = 1, IMMEDIATELY
    if head.early_at or head.next_early:
        head.early_at, head.next_early = b"", IMMEDIATELY


# --- removing messages ----------------------------------------------------------------------------------------------


@handles(Purge)
def purge(shard: Shard, command: Purge, now: int, effects: Outcome[Purged]) -> None:
    """Remove waiting messages, a chunk at a time: the delayed, those that are ready, those that only a cursor group
    holds. That is the way a message goes, so that none escapes which becomes ready, or is acked, meanwhile."""
    table, start = command.after
    low, high, following = _purge_range(shard, table)
    chunk = chunk_for(shard, CHUNK, MOVE_BYTES)
    rows = shard.scan(table, start or low, high, chunk)
    if table is Table.SCHEDULED:
        entries = [entry for entry in (read_scheduled(*row) for row in rows) if entry[2].seq < command.below]
        count = _purge_delayed(shard, entries, effects)
    elif table is Table.READY:
        places = [read_ready(*row) for row in rows]
        count = _purge_places(shard, [p for p in places if p.seq < command.below], command.everything, now, effects)
    else:
        kept = [seq_of(key) for key, value in rows if read_mask(value) == KEPT]
        count = _purge_kept(shard, [seq for seq in kept if seq < command.below], effects)
    after = (table, rows[-1][0] + b"\0") if len(rows) == chunk else following
    effects.reply = Purged(count, done=after is None, after=after or PURGE_START)


def _purge_range(shard: Shard, table: Table) -> tuple[bytes, bytes, tuple[Table, bytes] | None]:
    """The keys of a table that a purge goes through, and where it goes on after them; None: it is done."""
    number = shard.number
    if table is Table.SCHEDULED:
        return scheduled_key(number, 0, 0), scheduled_key(number, LAST, LAST), (Table.READY, b"")
    if table is Table.READY:
        return ready_key(number, 0, 0), ready_key(number, PRIORITY_MAX, LAST), (Table.SETTLED, b"")
    return settled_key(number, 0), settled_key(number, LAST), None


def _purge_kept(shard: Shard, seqs: list[int], effects: Effects) -> int:
    """Remove messages that every leasing group has settled and cursor groups have not read."""
    shard.require_records(seqs)
    purged: dict[str, list[int]] = {}
    for seq in seqs:
        message = shard.message(seq)
        shard.release_kept([len(message.payload)])
        _mark_removed(shard, seq, effects)
        for cursor in shard.cursors.values():
            if cursor.needs(seq):
                purged.setdefault(cursor.name, []).append(message.id)
    for name, ids in purged.items():
        journal_purged(shard, name, ids, effects)
    return len(seqs)


def _purge_delayed(shard: Shard, entries: list[tuple[int, int, Place]], effects: Effects, reason: str = "") -> int:
    """Remove delayed messages, given as due time, id and place. Returns how many."""
    shard.require_for_removal(place for _, _, place in entries)
    purged: dict[str, list[int]] = {}
    for due_at, message_id, place in entries:
        effects.ops.append((Table.SCHEDULED, scheduled_key(shard.number, due_at, place.seq), None))
        shard.head.scheduled -= 1
        shard.head.size_bytes -= place.size_bytes
        shard.remove_extras(place, effects)
        _mark_removed(shard, place.seq, effects)
        names = [group.name for group in shard.groups.values() if group.head.start <= place.seq]
        names += [cursor.name for cursor in shard.cursors.values() if cursor.needs(place.seq)]
        for name in names or [""]:
            purged.setdefault(name, []).append(message_id)
    for name, ids in purged.items():
        journal_purged(shard, name, ids, effects, reason)
    return len(entries)


def _purge_places(
    shard: Shard, places: list[Place], everything: bool, now: int, effects: Effects, reason: str = ""
) -> int:
    shard.require_for_removal(places)
    shard.require_records(place.seq for place in places)  # for their ids
    messages = [(place, shard.message(place.seq)) for place in places]
    if not everything:
        messages = [(p, m) for p, m in messages if not _leased_in(shard, m.id)]
    ending = {message.id for _, message in messages}
    keys = sorted({place.key for place, _ in messages if place.key})
    nexts = {name: next_of_keys(shard, group, keys, ending) for name, group in shard.groups.items()}
    purged: dict[str, list[int]] = {}
    for place, message in messages:
        for name in _remove_everywhere(shard, place, message, effects):
            purged.setdefault(name, []).append(message.id)
    for name, group in shard.groups.items():
        for key in keys:
            if key in group.keys:
                free_key(shard, group, key, nexts[name], now, effects)
    for name, ids in purged.items():
        journal_purged(shard, name, ids, effects, reason)
    return len(messages)


def _leased_in(shard: Shard, message_id: int) -> str:
    """The name of a group in which a message is leased, or an empty one."""
    for group in shard.groups.values():
        delivery = group.deliveries.get(message_id)
        if delivery is not None and delivery.token:
            return group.name
    return ""


def _remove_everywhere(shard: Shard, place: Place, message: Message, effects: Effects) -> list[str]:
    """Remove a message that is in the order of delivery. Returns the groups that had not settled it."""
    mask = shard.mask(place.seq) if shard.shared() else 0
    names: list[str] = []
    for group in shard.groups.values():
        if group.head.start > place.seq or mask & group.bit:
            continue
        names.append(group.name)
        delivery = group.deliveries.get(message.id)
        if delivery is None:
            remove_from_window(group, place)
        else:
            group.remove_waiting(delivery)
            shard.forget_deliveries(group, [(delivery, 0, 1)], effects)
    names += [cursor.name for cursor in shard.cursors.values() if cursor.needs(place.seq)]
    shard.unlist(PlaceColumns.of([place]), effects)
    _mark_removed(shard, place.seq, effects)
    return names or [""]


def _mark_removed(shard: Shard, seq: int, effects: Effects) -> None:
    """The message record is deleted with the journal; cursor groups that have not read it must not see it."""
    shard.removable.append(seq)
    if shard.shared():
        shard.masks.drop(seq)
        mark = write_mask(GONE) if shard.kept_by_cursor(seq) else None
        effects.ops.append((Table.SETTLED, settled_key(shard.number, seq), mark))
    elif shard.kept_by_cursor(seq):
        effects.ops.append((Table.SETTLED, settled_key(shard.number, seq), write_mask(GONE)))


def journal_purged(shard: Shard, group: str, ids: list[int], effects: Effects, reason: str = "") -> None:
    if group:
        who = shard.groups.get(group) or shard.cursors[group]
        who.count("purged", len(ids))
    if ids and shard.config.journal is not JournalMode.OFF:
        effects.entries.append((EntryKind.MANY, shard.number, group, _PURGED, reason, ids))
        effects.rows += len(ids)


@handles(Delete)
def delete(shard: Shard, command: Delete, now: int, effects: Outcome[None]) -> None:
    """Remove one message, for all groups."""
    message, live_state = locate(shard, command.id)
    place = place_of(shard, message, live_state.stamp)
    if not command.leased:
        _check_waiting(shard, message.id)
    if live_state.live is Live.SCHEDULED:
        _purge_delayed(shard, [(message.deliver_at, message.id, place)], effects)
    else:
        _purge_places(shard, [place], command.leased, now, effects)


@handles(Withdraw)
def withdraw(shard: Shard, command: Withdraw, now: int, effects: Outcome[int]) -> None:
    """Remove many waiting messages in one step, but none that is leased; the reply is how many were removed."""
    shard.require_records(command.seqs)
    records = [(seq, shard.find_record(seq)) for seq in command.seqs]
    messages = [read_message(seq, value) for seq, value in records if value is not None]
    live_states = liveness(shard, messages)
    delayed: list[tuple[int, int, Place]] = []
    places: list[Place] = []
    for message in messages:
        live_state = live_states[message.seq]
        place = place_of(shard, message, live_state.stamp)
        if live_state.live is Live.SCHEDULED:
            delayed.append((message.deliver_at, message.id, place))
        elif live_state.live is Live.READY:
            places.append(place)
    shard.require_for_removal(place for _, _, place in delayed)  # before the first change
    count = _purge_places(shard, places, False, now, effects, command.reason)
    effects.reply = count + _purge_delayed(shard, delayed, effects, command.reason)


def _check_waiting(shard: Shard, message_id: int) -> None:
    holder = _leased_in(shard, message_id)
    if holder:
        raise MessageNotWaiting(message_id=message_id, state=DeliveryState.LEASED, group=holder)


# --- editing --------------------------------------------------------------------------------------------------------


@handles(Edit)
def edit(shard: Shard, command: Edit, now: int, effects: Outcome[Message]) -> None:
    """Change priority or delivery time of a message that no group has leased yet."""
    message, live_state = locate(shard, command.id)
    _check_editable(shard, command, message)
    old = place_of(shard, message, live_state.stamp)
    priority = message.priority if command.priority is None or shard.config.strict else command.priority
    delayed = live_state.live is Live.SCHEDULED
    deliver_at = message.deliver_at if command.deliver_at is None else command.deliver_at
    later = deliver_at > now and (delayed or command.deliver_at is not None)
    if not later:  # it is ready immediately: in the place it has, or in a new one
        deliver_at = now if delayed else message.deliver_at
    extra = message.extra
    if extra.enqueued_as is None:  # the row of its enqueueing may not be exported yet
        extra = replace(extra, enqueued_as=(message.priority, message.deliver_at))
    edited = replace(message, priority=priority, deliver_at=deliver_at, extra=extra)
    shard.require_for_removal([old])
    shard.require_records([message.seq])
    keys = [old.key] if old.key else []
    nexts = {name: next_of_keys(shard, group, keys, (message.id,)) for name, group in shard.groups.items()}
    if delayed:
        unschedule(shard, message, effects)
    else:
        _remove_from_ready(shard, old, message.id, effects)
    stamp = 0 if later else live_state.stamp or shard.ids.take(now)[0]
    place = place_of(shard, edited, stamp)
    value = write_message(
        message.id, message.enqueued_at, deliver_at, message.expires_at, priority, extra, message.payload
    )
    effects.ops.append((Table.MESSAGES, message_key(shard.number, message.seq), value))
    shard.replace_body(message.seq, value)
    shard.head.size_bytes += place.size_bytes
    if later:
        schedule(shard, edited.id, deliver_at, place, effects)
    else:
        make_ready(shard, message.id, place, now, effects)
    if place.flags:
        shard.restore_extras(edited, place, effects)
    for name, group in shard.groups.items():
        for key in keys:
            if key in group.keys:
                free_key(shard, group, key, nexts[name], now, effects)
    _journal_edit(shard, edited, effects)
    effects.reply = edited


def _check_editable(shard: Shard, command: Edit, message: Message) -> None:
    if command.priority is not None and not 0 <= command.priority <= PRIORITY_MAX:
        raise InvalidArgument(field="priority", problem=f"is 0 to {PRIORITY_MAX}, not {command.priority}")
    shard.require_masks([message.seq])
    mask = shard.mask(message.seq) if shard.shared() else 0
    for group in shard.groups.values():
        if mask & group.bit:
            raise MessageNotWaiting(message_id=message.id, state="settled", group=group.name)
        delivery = group.deliveries.get(message.id)
        if delivery is not None and (
            delivery.token
            or delivery.failures
            or delivery.ready_at  # released with a delay
            or delivery.dead_reason
            or delivery.flags & FLAG_STATE
        ):
            state = (
                DeliveryState.LEASED
                if delivery.token
                else "being dead-lettered"
                if delivery.dead_reason
                else "being retried"
            )
            raise MessageNotWaiting(message_id=message.id, state=state, group=group.name)


def _remove_from_ready(shard: Shard, place: Place, message_id: int, effects: Effects) -> None:
    """Take a message out of the order of delivery in every group, to enter it again elsewhere."""
    for group in shard.groups.values():
        if group.head.start > place.seq:
            continue
        delivery = group.deliveries.get(message_id)
        if delivery is None:
            remove_from_window(group, place)
        else:
            group.remove_waiting(delivery)
            shard.forget_deliveries(group, [(delivery, 0, 1)], effects)
    shard.unlist(PlaceColumns.of([place]), effects)


def _journal_edit(shard: Shard, message: Message, effects: Effects) -> None:
    if shard.config.journal is JournalMode.OFF:
        return
    details: dict[str, object] = {"priority": message.priority, "deliver_at": message.deliver_at or None}
    effects.entries.append((EntryKind.ONE, shard.number, "", _EDITED, message.id, 0, "", "", "", "", details))
    effects.rows += 1
