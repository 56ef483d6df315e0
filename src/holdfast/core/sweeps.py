"""What is due at a time: deadlines, backoffs, delays, expiry, ends of deduplication, and cursors that lag.

A `Tick` does a bounded chunk of the first sweep that is due: at most `SWEEP_CHUNK` deliveries, and about `SWEEP_BYTES`
of payloads. A sweep returns about how many it has acted on, at least 1, or 0 if it was not due; large messages count
for more.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.admin import journal_purged
from holdfast.core.codecs import read_dedup, read_mask, read_message, read_scheduled
from holdfast.core.commands import Tick, Verb
from holdfast.core.cursors import MOVE_BYTES, advance_cursor, unneeded
from holdfast.core.deliveries import unleased_delivery
from holdfast.core.effects import DeadLetterCandidate, Effects, Outcome, Read
from holdfast.core.enqueue import make_ready, place_of
from holdfast.core.groups import LeaseGroup
from holdfast.core.leasing import dead_reason, fail, free_key, next_of_keys, offer_dead_letter
from holdfast.core.reading import CHUNK, Live, chunk_for, liveness, log, unschedule
from holdfast.core.records import (
    FLAG_DUE,
    FLAG_EARLY,
    GONE,
    KEPT,
    LAST,
    Message,
    Place,
    Table,
    dedup_end_key,
    dedup_key,
    expiry_key,
    scheduled_key,
    seq_of,
    settled_key,
)
from holdfast.core.shard import DEDUP_PAUSE, PlaceColumns, Shard, handles
from holdfast.core.states import JournalEvent, Reason
from holdfast.units import NEVER

SWEEP_CHUNK = 128  # deliveries that one step acts on: those that go to the dead queue cost about 60 µs each
SWEEP_BYTES = 4 << 20  # about how many bytes of payloads it reads, at most
DEDUP_CHUNK = 512  # producers' ids that it forgets
RECORDS_PER_DELIVERY = 4  # records that are only read or deleted in the time that one delivery takes


@handles(Tick)
def tick(shard: Shard, _command: Tick, now: int, effects: Outcome[int]) -> None:
    effects.reply = 0
    for sweep in SWEEPS:
        effects.reply = sweep(shard, now, effects)
        if effects.reply:
            return


def _messages_max(shard: Shard) -> int:
    """How many messages one step acts on, where each concerns all leasing groups."""
    return chunk_for(shard, max(SWEEP_CHUNK // max(len(shard.groups), 1), 1), SWEEP_BYTES)


def _work(count: int, limit: int) -> int:
    """What a sweep returns that acted on `count` of the `limit` messages that it may act on."""
    return max(count * SWEEP_CHUNK // limit, 1)


def end_leases(shard: Shard, now: int, effects: Effects) -> int:
    """Leases past their deadline fail."""
    limit = chunk_for(shard, SWEEP_CHUNK, SWEEP_BYTES)
    for group in shard.groups.values():
        overdue = group.overdue(now, limit)
        if overdue:
            shard.require_records(d.seq for d in overdue if dead_reason(shard, d, Verb.NACK, now))
            keys = [delivery.key for delivery in overdue if delivery.key]
            nexts = next_of_keys(shard, group, keys)
            group.expiring = []
            for delivery in overdue:
                fail(shard, group, delivery, Reason.TIMEOUT, -1, "", now, effects)
            for key in keys:
                free_key(shard, group, key, nexts, now, effects)
            return _work(len(overdue), limit)
    return 0


def end_backoffs(shard: Shard, now: int, effects: Effects) -> int:
    """Backoffs that ended make deliveries ready; those a dead queue refused are offered to it again."""
    limit = chunk_for(shard, SWEEP_CHUNK, SWEEP_BYTES)
    for group in shard.groups.values():
        backoff_ended = group.collect_due(now, limit)
        if backoff_ended:
            rejected_by_dead_queue = [delivery for delivery in backoff_ended if delivery.dead_reason]
            shard.require_records(delivery.seq for delivery in rejected_by_dead_queue)
            keys = [delivery.key for delivery in backoff_ended if delivery.key and not delivery.dead_reason]
            nexts = next_of_keys(shard, group, keys)
            group.backoff_ended = []
            for delivery in backoff_ended:
                if not delivery.dead_reason:
                    group.requeue(delivery, now)
            for key in keys:
                free_key(shard, group, key, nexts, now, effects)
            for delivery in rejected_by_dead_queue:
                offer_dead_letter(shard, group, delivery, delivery.dead_reason, "", effects)
            return _work(len(backoff_ended), limit)
    return 0


def end_delays(shard: Shard, now: int, effects: Effects) -> int:
    """Messages whose delay has ended become ready."""
    head, limit = shard.head, _messages_max(shard)
    if not head.next_due or head.next_due > now:
        return 0
    rows = shard.scan(
        Table.SCHEDULED, scheduled_key(shard.number, 0, 0), scheduled_key(shard.number, NEVER, 0), limit + 1
    )
    entries = [read_scheduled(*row) for row in rows]
    due = [entry for entry in entries[:limit] if entry[0] <= now]
    stamps = shard.ids.take(now, len(due))
    for (due_at, message_id, place), stamp in zip(due, stamps, strict=True):
        effects.ops.append((Table.SCHEDULED, scheduled_key(shard.number, due_at, place.seq), None))
        head.scheduled -= 1
        make_ready(shard, message_id, replace(place, stamp=stamp, flags=place.flags | FLAG_DUE), now, effects)
    head.next_due = entries[len(due)][0] if len(entries) > len(due) else 0
    return _work(len(due), limit)


def expire_in_order(shard: Shard, now: int, effects: Effects) -> int:
    """Messages that expire in the order in which they were enqueued: most of them."""
    head, limit = shard.head, _messages_max(shard)
    if not head.next_expiry or head.next_expiry > now:
        return 0
    messages = log(shard, head.expiry_seq, head.next_seq - 1, limit + 1)
    expired: list[Message] = []
    head_seq, next_expiry = head.next_seq, 0
    for index, message in enumerate(messages):
        in_order = message.expires_at and not message.extra.flags & FLAG_EARLY
        if index == limit or (in_order and message.expires_at > now):
            head_seq = message.seq
            next_expiry = head.next_expiry if index == limit else message.expires_at
            break
        if message.expires_at and message.expires_at <= now:
            expired.append(message)
    if expire(shard, expired, now, effects):
        # And advance only when they are dead-lettered: after a crash before that they are found again.
        return _work(len(expired), limit)
    head.expiry_seq = head_seq
    head.next_expiry = next_expiry
    return _work(len(messages) // RECORDS_PER_DELIVERY, limit)


def expire_early(shard: Shard, now: int, effects: Effects) -> int:
    """Messages that expire before older ones do."""
    head, number, limit = shard.head, shard.number, _messages_max(shard)
    if not head.next_early or head.next_early > now:
        return 0
    start = head.early_at or expiry_key(number, 0, 0)
    rows = shard.scan(Table.EXPIRIES, start, expiry_key(number, NEVER, 0), limit + 1)
    entries = [(int.from_bytes(key[4:12], "big"), int.from_bytes(key[12:20], "big")) for key, _ in rows]
    due = [entry for entry in entries[:limit] if entry[0] <= now]
    shard.require_records(seq for _, seq in due)
    messages = [shard.message(seq) for _, seq in due]
    if expire(shard, messages, now, effects):
        return _work(len(due), limit)  # as in `expire_in_order`
    if due:  # those that are left are leased: their EXPIRIES records are deleted with the messages
        head.early_at = rows[len(due) - 1][0] + b"\0"
    head.next_early = entries[len(due)][0] if len(entries) > len(due) else 0
    return _work(len(due) // RECORDS_PER_DELIVERY, limit)


def expire(shard: Shard, messages: list[Message], now: int, effects: Effects) -> bool:
    """Expire messages in every group that has not leased them. False: there was none to expire."""
    if not messages:
        return False
    live_states = liveness(shard, messages)
    messages = [message for message in messages if live_states[message.seq].live is not Live.GONE]
    shard.require_masks(message.seq for message in messages)
    shard.require_records(message.seq for message in messages)
    for message in messages:
        seq = message.seq
        if not shard.needed(seq) and shard.kept_by_cursor(seq):
            continue  # cursor groups read messages however old they are; max_lag bounds that
        stamp = live_states[seq].stamp
        if live_states[seq].live is Live.SCHEDULED:
            # It becomes ready first, so that there is only one way to expire.
            (stamp,) = shard.ids.take(now)
            unschedule(shard, message, effects)
            shard.head.size_bytes += len(message.payload)
            make_ready(shard, message.id, place_of(shard, message, stamp), now, effects)
        place = place_of(shard, message, stamp)
        mask = shard.mask(seq) if shard.shared() else 0
        needing = [g for g in shard.groups.values() if g.head.start <= seq and not mask & g.bit]
        for group in needing:
            _expire_in(shard, group, message, place, effects)
        if not shard.needed(seq):
            orphan = unleased_delivery(message, place)
            shard.orphans[message.id] = orphan
            effects.dead_letter_candidates.append(DeadLetterCandidate("", orphan, message, Reason.EXPIRED))
    return bool(effects.dead_letter_candidates)


def _expire_in(shard: Shard, group: LeaseGroup, message: Message, place: Place, effects: Effects) -> None:
    delivery = group.deliveries.get(message.id)
    if delivery is None:
        offer_dead_letter(shard, group, unleased_delivery(message, place), Reason.EXPIRED, "", effects)
    elif not delivery.token and not delivery.dead_reason:
        offer_dead_letter(shard, group, delivery, Reason.EXPIRED, "", effects)


def forget_ids(shard: Shard, now: int, effects: Effects) -> int:
    """Delete producers' message ids whose deduplication window has ended."""
    head, number = shard.head, shard.number
    if not head.dedup_end or head.dedup_end + DEDUP_PAUSE > now:  # as in Shard.wake_at
        return 0
    low = dedup_end_key(number, 0, "")
    rows = shard.scan(Table.DEDUP_ENDS, low, dedup_end_key(number, NEVER, ""), DEDUP_CHUNK + 1)
    ended = [key for key, _ in rows[:DEDUP_CHUNK] if int.from_bytes(key[4:12], "big") <= now]
    names = {key: dedup_key(number, key[12:].decode()) for key in ended}
    shard.require(Read(Table.DEDUP, name) for name in names.values())
    for key, name in names.items():
        value = shard.get(Table.DEDUP, name)
        # The id may have been used again since, after its window: then it ends later and has another end record.
        if value is not None and read_dedup(value)[1] <= now:
            effects.ops.append((Table.DEDUP, name, None))
        effects.ops.append((Table.DEDUP_ENDS, key, None))
    head.dedup_end = int.from_bytes(rows[len(ended)][0][4:12], "big") if len(rows) > len(ended) else 0
    return len(ended) // RECORDS_PER_DELIVERY + 1


def enforce_max_lag(shard: Shard, now: int, effects: Effects) -> int:
    """Move cursor groups that exceed max_lag forward; their next read says what they lost."""
    for cursor in shard.cursors.values():
        target = cursor.lags(shard.head.next_seq)
        if not target and cursor.max_lag_age and cursor.age_check_at <= now:
            first, span = cursor.head.committed + 1, chunk_for(shard, CHUNK, MOVE_BYTES)
            oldest = log(shard, first, shard.head.next_seq - 1, span)
            for message in oldest:
                if message.enqueued_at + cursor.max_lag_age > now:
                    break
                target = message.seq
            if not target:
                cursor.age_check_at = oldest[0].enqueued_at + cursor.max_lag_age if oldest else NEVER
        if target:
            head = cursor.head
            first = head.committed + 1
            near = min(target, head.committed + CHUNK)  # in small steps: many may be done in one turn
            if advance_cursor(shard, cursor, near, JournalEvent.DROPPED, Reason.MAX_LAG, effects):
                head.lost_from = head.lost_from or first
                head.lost_to = head.committed
            return near - first + 1
    return 0


def drop_unneeded(shard: Shard, _now: int, effects: Effects) -> int:
    """Remove messages that only a removed group needed: those that all other groups have settled."""
    head, number = shard.head, shard.number
    if not head.unneeded_seq:
        return 0
    limit = chunk_for(shard, SWEEP_CHUNK, SWEEP_BYTES)
    rows = shard.scan(Table.SETTLED, settled_key(number, head.unneeded_seq), settled_key(number, LAST), limit)
    masks = {seq_of(key): read_mask(value) for key, value in rows}
    free = [seq for seq, mask in masks.items() if unneeded(shard, seq, mask)]
    shard.require_records(free)
    records = {seq: shard.find_record(seq) for seq in free}
    messages = {seq: read_message(seq, value) for seq, value in records.items() if value is not None}
    live_states = liveness(shard, list(messages.values()))
    bits = sum(group.bit for group in shard.groups.values())
    journal_purged(
        shard, "", [messages[seq].id for seq in messages if masks[seq] != GONE], effects, Reason.GROUP_DELETED
    )
    for seq, mask in masks.items():
        if seq in messages:
            if live_states[seq].live is Live.READY:
                shard.unlist(PlaceColumns.of([place_of(shard, messages[seq], live_states[seq].stamp)]), effects)
            if mask != GONE:
                shard.removable.append(seq)
            if mask == KEPT:
                shard.release_kept([len(messages[seq].payload)])
        # A record of groups none of which exists any more is of no use.
        if seq in records or (not mask & bits and not shard.kept_by_cursor(seq)):
            shard.masks.drop(seq)
            effects.ops.append((Table.SETTLED, settled_key(number, seq), None))
    head.unneeded_seq = seq_of(rows[-1][0]) + 1 if len(rows) == limit else 0
    return _work(len(rows), limit)


SWEEPS = (
    end_leases,
    end_backoffs,
    end_delays,
    expire_in_order,
    expire_early,
    enforce_max_lag,
    drop_unneeded,
    forget_ids,
)
