"""Lease and settle: deliveries are leased to consumers, acked, retried or dead-lettered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from itertools import chain
from typing import Any, NamedTuple

from holdfast.core.codecs import read_keyed, write_delivery, write_leases
from holdfast.core.commands import Ack, DeadLettered, Lease, Leased, Settle, Settled, Settlement, Verb
from holdfast.core.deliveries import Delivery, LeaseBatch, LeasePart, as_leases, first_leases, unleased_delivery
from holdfast.core.effects import DeadLetterCandidate, Effects, Outcome, Read
from holdfast.core.enqueue import place_of, promote
from holdfast.core.groups import PLACE_MAX, LeaseGroup, observe_ages
from holdfast.core.ids import due_stamp
from holdfast.core.journal import EntryKind
from holdfast.core.queue import JournalMode, backoff
from holdfast.core.records import (
    FLAG_EARLY,
    LAST,
    LEASES_PART,
    Message,
    Place,
    ShardHead,
    Table,
    delivery_key,
    expiry_key,
    keyed_key,
    leases_key,
)
from holdfast.core.shard import PlaceColumns, Shard, handles
from holdfast.core.states import Event, JournalEvent, Reason, journal_names
from holdfast.errors import HoldfastError, LeaseLost

KEYED_READ_MAX = 4  # messages of a key that are read at a time to find the next one
DEAD_LETTER_BACKOFF = 5_000_000  # before a dead letter is offered again to a dead queue that refused it

_EXTENDED = journal_names(Event.EXTEND)
_FAILED = journal_names(Event.NACK)
_RELEASED = journal_names(Event.RELEASE)


# --- lease ----------------------------------------------------------------------------------------------------------


@handles(Lease)
def lease(shard: Shard, command: Lease, now: int, effects: Outcome[list[Leased]]) -> None:
    group = shard.lease_group(command.group, "lease")
    effects.reply = []
    if shard.config.paused:
        return
    shard.fill_windows(group, command.limit)
    chosen = group.choose(shard.head.priorities, command.limit)
    if not chosen:
        return
    seqs = [item.seq for item in chosen]
    shard.require_records(seqs)
    chosen = _unexpired(shard, chosen, now)
    if command.max_bytes:
        chosen = _within(chosen, command.max_bytes, command.one_at_least)
    taken = chosen
    if shard.config.throttle.key_rate:
        chosen = _within_key_rates(shard, group, chosen, now, effects)
        seqs = [item.seq for item in chosen]
        if not chosen and taken:
            group.advance(taken)
    if not chosen:
        return
    messages = shard.pop_messages(seqs[: len(chosen)])
    tokens = shard.ids.take(now, len(chosen))
    fresh = [item for item in chosen if isinstance(item, Place)]
    if len(fresh) == len(chosen):
        _lease_first(shard, group, command, fresh, messages, tokens, now, effects)
        attempts = [1] * len(chosen)
    else:
        attempts = []
        for item, message, token in zip(chosen, messages, tokens, strict=True):
            if isinstance(item, Place):
                _lease_first(shard, group, command, [item], [message], [token], now, effects)
                attempts.append(1)
            else:
                _lease_again(shard, group, command, item, token, now, effects)
                attempts.append(item.failures + 1)
        group.count("redelivered", sum([attempt > 1 for attempt in attempts]))
    ids = [message.id for message in messages]
    deadline = now + command.timeout
    group.deadlines.add(deadline, ids, tokens)
    if shard.config.throttle.fair:
        group.expect_more(chosen)
    group.advance(taken)
    group.leased += len(chosen)
    group.head.fresh -= len(fresh)
    group.count("leased", len(chosen))
    if shard.config.journal is not JournalMode.OFF:
        entry = (EntryKind.LEASED, shard.number, group.name, command.consumer, command.protocol, ids, attempts)
        effects.entries.append(entry)
        effects.rows += len(ids)
    partition, name = shard.partition, group.name
    effects.reply = [
        Leased(message, token, attempt, deadline, partition, name, item.stamp)
        for message, token, attempt, item in zip(messages, tokens, attempts, chosen, strict=True)
    ]


def _lease_first(
    shard: Shard,
    group: LeaseGroup,
    command: Lease,
    places: list[Place],
    messages: list[Message],
    tokens: list[int],
    now: int,
    effects: Effects,
) -> None:
    """Lease messages for the first time."""
    leases = first_leases(places, messages, tokens, now, now + command.timeout, command.consumer, command.protocol)
    batch = LeaseBatch(tokens[0], leases)
    group.deliveries.lease(batch)
    key = leases_key(shard.number, group.number, batch.token, LEASES_PART)
    effects.ops.append((Table.LEASES, key, write_leases(leases)))
    if any(leases.keys):
        for key, message_id in zip(leases.keys, leases.ids, strict=True):
            group.hold(key, message_id)
    observe_ages(group.head.delivery_times, now, leases.enqueued_at)


def _lease_again(
    shard: Shard, group: LeaseGroup, command: Lease, delivery: Delivery, token: int, now: int, effects: Effects
) -> None:
    """Lease a delivery that was ready again."""
    group.remove_waiting(delivery)
    if not delivery.first_at:  # it was skipped for its key before
        delivery.first_at = now
        observe_ages(group.head.delivery_times, now, [delivery.enqueued_at])
    delivery.leased_at = now
    delivery.deadline = now + command.timeout
    delivery.token = token
    delivery.ready_at = 0
    delivery.consumer = command.consumer
    delivery.protocol = command.protocol
    group.hold(delivery.key, delivery.id)
    write_own_record(shard, group, delivery, effects)


def _unexpired(shard: Shard, chosen: list[Place | Delivery], now: int) -> list[Place | Delivery]:
    """Those before the first message whose time to live has passed: a sweep that is due moves it to the dead queue."""
    if not (shard.head.next_expiry and shard.head.next_expiry <= now) and not (
        shard.head.next_early and shard.head.next_early <= now
    ):
        return chosen
    kept: list[Place | Delivery] = []
    for item in chosen:
        expires_at = shard.message(item.seq).expires_at
        if expires_at and expires_at <= now:
            break  # those behind it would overtake it; the sweep removes it first
        kept.append(item)
    return kept


def _within(chosen: list[Place | Delivery], max_bytes: int, one_at_least: bool) -> list[Place | Delivery]:
    """As many from the first on as fit."""
    if sum([item.size_bytes for item in chosen]) <= max_bytes:
        return chosen
    total = 0
    for index, item in enumerate(chosen):
        total += item.size_bytes
        if total > max_bytes and (index or not one_at_least):
            return chosen[:index]
    return chosen


def _within_key_rates(
    shard: Shard, group: LeaseGroup, chosen: list[Place | Delivery], now: int, effects: Effects
) -> list[Place | Delivery]:
    """Those whose keys have a token, which is taken. The others back off until theirs has one, without a failure."""
    limits = shard.config.throttle
    allowed: list[Place | Delivery] = []
    for item in chosen:
        at = group.key_buckets.take(item.key, limits.key_rate, limits.key_bucket_size, now) if item.key else 0
        if not at:
            allowed.append(item)
            continue
        shard.postponed += 1
        if isinstance(item, Place):
            group.head.fresh -= 1
            postponed = unleased_delivery(shard.message(item.seq), item)
            group.deliveries[postponed.id] = postponed
        else:
            group.remove_waiting(item)
            postponed = item
        postponed.ready_at = at
        group.requeue(postponed, now)
        write_own_record(shard, group, postponed, effects)
        group.mark_dirty()
    return allowed


# --- settle ---------------------------------------------------------------------------------------------------------


@handles(Ack)
def ack(shard: Shard, command: Ack, now: int, effects: Outcome[Settled]) -> None:
    group = shard.lease_group(command.group, "settle")
    if not _ack_all(shard, group, command.ids, command.tokens, now, effects):
        pairs = zip(command.ids, command.tokens, strict=True)
        _settle(shard, group, [Settlement(message_id, token) for message_id, token in pairs], now, effects)


@handles(Settle)
def settle(shard: Shard, command: Settle, now: int, effects: Outcome[Settled]) -> None:
    group = shard.lease_group(command.group, "settle")
    settlements = command.settlements
    ids = [settlement.id for settlement in settlements if settlement.verb is Verb.ACK and settlement.token]
    tokens = [settlement.token for settlement in settlements]
    if len(ids) < len(settlements) or not _ack_all(shard, group, ids, tokens, now, effects):
        _settle(shard, group, settlements, now, effects)


def _ack_all(
    shard: Shard, group: LeaseGroup, ids: list[int], tokens: list[int], now: int, effects: Outcome[Settled]
) -> bool:
    """Acks by token, none of them twice; False: one is, and nothing was done."""
    if len(set(ids)) < len(ids):
        return False
    parts, lost = group.deliveries.parts(ids, tokens)
    held = _held(parts)
    nexts = _require_for_settle(shard, group, [], held, now)
    results: list[int | HoldfastError | None] = [None] * len(ids)
    for index in lost:
        results[index] = _repeated_settlement(group, Settlement(ids[index], tokens[index]), {})
    _ack(shard, group, held, nexts, now, effects)
    effects.reply = Settled(results)
    return True


def _settle(
    shard: Shard, group: LeaseGroup, settlements: list[Settlement], now: int, effects: Outcome[Settled]
) -> None:
    """Settlements in order, but for the acks, which all come last: no other one depends on them."""
    results: list[int | HoldfastError | None] = []
    work: list[tuple[Settlement, Delivery]] = []
    ending: dict[int, tuple[Verb, int]] = {}  # verb and token, by message id
    for settlement in settlements:
        delivery = group.deliveries.get(settlement.id)
        if delivery is None or settlement.id in ending or not _holds(settlement, delivery):
            results.append(_repeated_settlement(group, settlement, ending))
            continue
        results.append(None)
        if settlement.verb is not Verb.ACK:
            work.append((settlement, group.deliveries.checkout(settlement.id)))
        if settlement.verb is not Verb.EXTEND:
            ending[settlement.id] = (settlement.verb, delivery.token)
    acked = {message_id: token for message_id, (verb, token) in ending.items() if verb is Verb.ACK}
    held = _held(group.deliveries.parts(list(acked), list(acked.values()))[0])
    nexts = _require_for_settle(shard, group, work, held, now)
    deadlines: dict[int, int] = {}
    for settlement, delivery in work:
        if settlement.verb is Verb.EXTEND:
            deadlines[settlement.id] = extend(shard, group, delivery, settlement.timeout, now, effects)
            continue
        group.ended.remember(delivery.token, settlement.verb, delivery.id)
        _return_lease(shard, group, delivery, settlement, now, effects)
        if delivery.key:
            free_key(shard, group, delivery.key, nexts, now, effects)
    for index, settlement in enumerate(settlements):
        if settlement.verb is Verb.EXTEND and results[index] is None:
            results[index] = deadlines[settlement.id]
    _ack(shard, group, held, nexts, now, effects)
    effects.reply = Settled(results)


def _return_lease(
    shard: Shard, group: LeaseGroup, delivery: Delivery, settlement: Settlement, now: int, effects: Effects
) -> None:
    """The holder of a lease ends it without an ack."""
    verb = settlement.verb
    if verb is Verb.RELEASE:
        release(shard, group, delivery, settlement.delay, now, effects)
    elif verb is Verb.REJECT:
        offer_dead_letter(shard, group, delivery, Reason.REJECTED, settlement.error, effects)
    else:
        reason = Reason.NACK if verb is Verb.NACK else Reason.DISCONNECT
        fail(shard, group, delivery, reason, settlement.delay, settlement.error, now, effects)


def _holds(settlement: Settlement, delivery: Delivery) -> bool:
    """Whether the consumer that settles holds the lease: it has its token, or is the one the lease was granted to."""
    if not delivery.token:
        return False
    if settlement.token:
        return settlement.token == delivery.token
    return bool(settlement.consumer) and settlement.consumer == delivery.consumer


def _repeated_settlement(
    group: LeaseGroup, settlement: Settlement, ending: dict[int, tuple[Verb, int]]
) -> HoldfastError | None:
    """Settling twice with the same token has the same reply as the first time, also within one batch (`ending`)."""
    if settlement.token:
        if group.ended.get(settlement.token) == (settlement.verb, settlement.id):
            return None
        if ending.get(settlement.id) == (settlement.verb, settlement.token):
            return None
    return LeaseLost(message_id=settlement.id)


def _require_for_settle(
    shard: Shard, group: LeaseGroup, work: list[tuple[Settlement, Delivery]], acked: Held, now: int
) -> Nexts:
    """Ask for all that settling these will need; returns the next message of each key that is released."""
    with_records: list[int] = []
    keys = [key for key, _ in acked.keyed]
    for settlement, delivery in work:
        if settlement.verb is Verb.EXTEND:
            continue
        if delivery.key:
            keys.append(delivery.key)
        if dead_reason(shard, delivery, settlement.verb, now):
            with_records.append(delivery.seq)
    if with_records:
        shard.require_records(with_records)
    if shard.shared() or any(acked.places.flags):
        shard.require_for_removal(acked.places.rows())
    return next_of_keys(shard, group, keys) if keys else {}


def dead_reason(shard: Shard, delivery: Delivery, verb: Verb, now: int) -> str:
    """Why a delivery goes to the dead queue if it is settled this way now; empty if it does not."""
    if verb is Verb.REJECT:
        return Reason.REJECTED
    if verb is not Verb.RELEASE:
        retry = shard.config.retry
        if delivery.failures + 1 > retry.max_retries:
            return Reason.MAX_RETRIES
        if retry.total_timeout and now - delivery.enqueued_at > retry.total_timeout:
            return Reason.TOTAL_TIMEOUT
    if delivery.expires_at and delivery.expires_at <= now:
        return Reason.EXPIRED
    return ""


class Held(NamedTuple):
    """Deliveries that are leased, columnar."""

    parts: list[LeasePart]
    ids: list[int]
    tokens: list[int]
    leased_at: list[int]
    places: PlaceColumns
    keyed: list[tuple[bytes, int]]  # key and id of those that have a key
    by_consumer: dict[tuple[str, str], tuple[list[int], list[int]]]  # ids and attempts, by consumer and protocol


def _held(parts: list[LeasePart]) -> Held:
    rows: list[list[list[Any]]] = []
    consumers: list[tuple[str, str]] = []
    for whole, first, count in parts:
        attempt = 1 if isinstance(whole, LeaseBatch) else whole.failures + 1
        leases = whole.leases if isinstance(whole, LeaseBatch) else as_leases(whole)
        columns: list[list[Any]] = [
            leases.ids,
            leases.tokens,
            leases.priorities,
            leases.stamps,
            leases.seqs,
            leases.keys,
            leases.flags,
            leases.sizes_bytes,
        ]
        if count < len(leases.ids):
            columns = [column[first : first + count] for column in columns]
        rows.append([[leases.leased_at] * count, [attempt] * count, *columns])
        consumers.append((leases.consumer, leases.protocol))
    joined = rows[0] if len(rows) == 1 else [list(chain.from_iterable(column)) for column in zip(*rows, strict=True)]
    leased_at, attempts, ids, tokens, priorities, stamps, seqs, keys, flags, sizes_bytes = joined or [[]] * 10
    keyed = [(key, message_id) for key, message_id in zip(keys, ids, strict=True) if key] if any(keys) else []
    places = PlaceColumns(priorities, stamps, seqs, keys if keyed else (), flags if any(flags) else (), sizes_bytes)
    by_consumer: dict[tuple[str, str], tuple[list[int], list[int]]] = dict.fromkeys(consumers[:1], (ids, attempts))
    if len(set(consumers)) > 1:
        by_consumer = {consumer: ([], []) for consumer in consumers}
        for consumer, row in zip(consumers, rows, strict=True):
            by_consumer[consumer][0].extend(row[2])
            by_consumer[consumer][1].extend(row[1])
    return Held(parts, ids, tokens, leased_at, places, keyed, by_consumer)


def _ack(shard: Shard, group: LeaseGroup, held: Held, nexts: Nexts, now: int, effects: Effects) -> None:
    if not held.parts:
        return
    shard.forget_deliveries(group, held.parts, effects)
    observe_ages(group.head.processing_times, now, held.leased_at)
    group.ended.remember_acked(held.tokens, held.ids)
    for key, message_id in held.keyed:
        group.release_key(key, message_id)
    shard.mark_settled(group, held.places, effects)
    for key, _ in held.keyed:
        free_key(shard, group, key, nexts, now, effects)
    for (consumer, protocol), (ids, attempts) in held.by_consumer.items():
        group.count("acked", len(ids))
        if shard.config.journal is not JournalMode.OFF:
            effects.entries.append((EntryKind.ACKED, shard.number, group.name, consumer, protocol, ids, attempts))
            effects.rows += len(ids)


def extend(shard: Shard, group: LeaseGroup, delivery: Delivery, timeout: int, now: int, effects: Effects) -> int:
    """Move the deadline; returns the new one."""
    delivery.deadline = now + (timeout if timeout >= 0 else shard.config.delivery_timeout)
    group.deadlines.add(delivery.deadline, [delivery.id], [delivery.token])
    write_own_record(shard, group, delivery, effects)
    group.count("extended")
    journal_one(shard, group, delivery, _EXTENDED, "", "", {"deliver_at": delivery.deadline}, effects)
    return delivery.deadline


def release(shard: Shard, group: LeaseGroup, delivery: Delivery, delay: int, now: int, effects: Effects) -> None:
    """End a lease without spending an attempt: ready in its old place, or after a delay in a later one."""
    if dead_reason(shard, delivery, Verb.RELEASE, now):
        offer_dead_letter(shard, group, delivery, Reason.EXPIRED, "", effects)
        return
    later: dict[str, object] | None = {"deliver_at": now + delay} if delay > 0 else None
    journal_one(shard, group, delivery, _RELEASED, "", "", later, effects)
    group.count("released")
    _end_lease(group, delivery)
    if later is None:
        delivery.stamp = delivery.order
        delivery.ready_at = 0
    else:
        delivery.ready_at = now + delay
        delivery.stamp = _stamp_behind(shard, delivery)
    group.requeue(delivery, now)
    _watch_expiry(shard, delivery)
    write_own_record(shard, group, delivery, effects)


def _watch_expiry(shard: Shard, delivery: Delivery) -> None:
    """The sweep may have passed a leased delivery as expired before the clock went back: have it look again."""
    head, expires_at = shard.head, delivery.expires_at
    if delivery.flags & FLAG_EARLY:
        if expiry_key(shard.number, expires_at, delivery.seq) < head.early_at:
            head.early_at = b""
            head.next_early = min(head.next_early or expires_at, expires_at)
    elif expires_at and delivery.seq < head.expiry_seq:
        head.expiry_seq = delivery.seq
        head.next_expiry = min(head.next_expiry or expires_at, expires_at)


def fail(
    shard: Shard,
    group: LeaseGroup,
    delivery: Delivery,
    reason: Reason,
    delay: int,
    error: str,
    now: int,
    effects: Effects,
) -> None:
    """A lease ended badly: the attempt is spent, and the delivery backs off or goes to the dead queue."""
    end = dead_reason(shard, delivery, Verb.NACK, now)
    delivery.error = error or ("" if reason is Reason.NACK else str(reason))
    group.count(f"failed:{reason}")
    if end:
        offer_dead_letter(shard, group, delivery, end, delivery.error, effects)
        return
    wait = delay if delay >= 0 else backoff(shard.config.retry, delivery.failures + 1, delivery.id)
    journal_one(shard, group, delivery, _FAILED, reason, delivery.error, {"deliver_at": now + wait}, effects)
    delivery.failures += 1
    _end_lease(group, delivery)
    delivery.ready_at = now + wait
    delivery.stamp = _stamp_behind(shard, delivery)
    _watch_expiry(shard, delivery)
    group.requeue(delivery, now)
    write_own_record(shard, group, delivery, effects)


def _stamp_behind(shard: Shard, delivery: Delivery) -> int:
    """The place of a delivery that is ready again later: that of a message enqueued then, and behind all messages there
    are now, even if the clock has gone back since they were enqueued."""
    return max(due_stamp(delivery.id, delivery.ready_at), shard.ids.floor - 1)


def _end_lease(group: LeaseGroup, delivery: Delivery) -> None:
    if delivery.token:
        group.leased -= 1
    delivery.token = 0
    delivery.deadline = 0
    group.mark_dirty()


def write_own_record(shard: Shard, group: LeaseGroup, delivery: Delivery, effects: Effects) -> None:
    """A delivery is no longer as its batch has it: it gets a record of its own."""
    group.detach(delivery)
    effects.ops.append(
        (Table.DELIVERIES, delivery_key(shard.number, group.number, delivery.id), write_delivery(delivery))
    )


def attempts_of(delivery: Delivery) -> int:
    """Attempts made so far, including the current one."""
    return delivery.failures + (1 if delivery.token else 0)


def journal_one(
    shard: Shard,
    group: LeaseGroup,
    delivery: Delivery,
    event: JournalEvent | None,
    reason: str,
    error: str,
    details: dict[str, object] | None,
    effects: Effects,
) -> None:
    if shard.config.journal is JournalMode.OFF:
        return
    effects.entries.append(
        (
            EntryKind.ONE,
            shard.number,
            group.name,
            event,
            delivery.id,
            attempts_of(delivery),
            reason,
            error,
            delivery.consumer,
            delivery.protocol,
            details,
        )
    )
    effects.rows += 1


# --- keys -----------------------------------------------------------------------------------------------------------

Nexts = dict[bytes, list[tuple[Message, Place]]]
"""By key, the first messages that a group has skipped, as many as may be ready: mostly one. Where keys take turns they
may be any that the group has not leased."""


def next_of_keys(shard: Shard, group: LeaseGroup, keys: list[bytes], ending: Container[int] = ()) -> Nexts:
    """For each key with skipped messages, the first of them whose ids are not in `ending`. `keys` has a key as often as
    messages of it end.

    Reads for all keys together, in rounds.
    """
    times = Counter(keys)
    waiting = [key for key in times if (state := group.keys.get(key)) is not None and state.deferred]
    found: Nexts = {key: [] for key in waiting}
    wanted = {key: group.free_slots(key, times[key]) for key in waiting}
    starts = {key: keyed_key(shard.number, key, *group.keys[key].first) for key in waiting}
    while waiting:
        shard.require(_keyed_read(shard, key, starts[key]) for key in waiting)
        rows = {key: shard.scan(*_keyed_read(shard, key, starts[key])) for key in waiting}  # type: ignore[arg-type]
        entries = {key: [read_keyed(*row) for row in rows[key]] for key in waiting}
        shard.require_masks(seq for key in waiting for _, _, seq, _ in entries[key])
        again: list[bytes] = []
        picked: list[tuple[bytes, int, int]] = []
        for key in waiting:
            skipped = _first_skipped(shard, group, entries[key], ending, wanted[key])
            if skipped and not found[key]:
                group.keys[key].first = skipped[0][:2]
            picked += [(key, seq, stamp) for _, stamp, seq in skipped]
            wanted[key] -= len(skipped)
            if wanted[key] and len(rows[key]) == KEYED_READ_MAX:
                starts[key] = rows[key][-1][0] + b"\0"
                again.append(key)
        shard.require_records(seq for _, seq, _ in picked)
        for key, seq, stamp in picked:
            message = shard.message(seq)
            found[key].append((message, place_of(shard, message, stamp)))
        waiting = again
    return found


def _keyed_read(shard: Shard, key: bytes, start: bytes) -> Read:
    return Read(Table.KEYED, start, keyed_key(shard.number, key, 255, LAST), KEYED_READ_MAX)


def _first_skipped(
    shard: Shard,
    group: LeaseGroup,
    entries: list[tuple[int, int, int, int]],
    ending: Container[int],
    wanted: int,
) -> list[tuple[int, int, int]]:
    """The first messages of a key that the group has skipped and not settled, if any: priority, stamp, sequence."""
    found: list[tuple[int, int, int]] = []
    everywhere = group.looks_ahead
    for priority, stamp, seq, message_id in entries:
        if len(found) == wanted:
            break
        if seq < group.head.start or not (everywhere or stamp <= group.frontier(priority)):
            continue
        if message_id in group.deliveries or message_id in ending:
            continue
        if shard.shared() and shard.mask(seq) & group.bit:
            continue
        found.append((priority, stamp, seq))
    return found


def free_key(shard: Shard, group: LeaseGroup, key: bytes, nexts: Nexts, now: int, effects: Effects) -> None:
    """When no delivery of a key is held any more, make its first skipped message ready, unless one before it already
    is. (Of a key of which several may be held: so many.)"""
    state = group.keys.get(key)
    if state is None:
        return  # several of it have ended together, and this was done for the first of them
    if state.deferred and group.open_slots(state):
        if not nexts[key]:
            state.deferred = False
            state.first = PLACE_MAX
        for message, place in nexts[key]:
            if message.id not in group.deliveries and group.is_deliverable(place):
                behind = shard.ids.floor - 1 if shard.config.throttle.fair else 0
                remove_from_window(group, place)
                promote(shard, group, message, place, now, effects, behind)
    group.forget_key(key)


# --- dead letters -----------------------------------------------------------------------------------------------------


def offer_dead_letter(
    shard: Shard, group: LeaseGroup, delivery: Delivery, reason: str, error: str, effects: Effects
) -> None:
    """A delivery must go to the dead queue. It does not change until the engine says what became of it
    (`DeadLettered`)."""
    if error:
        delivery.error = error
    group.pending_dead_letters[delivery.id] = (delivery, reason)
    effects.dead_letter_candidates.append(
        DeadLetterCandidate(group.name, delivery, shard.message(delivery.seq), reason)
    )


@handles(DeadLettered)
def dead_lettered(shard: Shard, command: DeadLettered, now: int, effects: Outcome[None]) -> None:
    if not command.group:
        _orphans_dead_lettered(shard, command, now, effects)
        return
    group = shard.lease_group(command.group, "dead-letter")
    dead_letter_candidates = [group.pending_dead_letters[message_id] for message_id in command.outcomes]
    shard.require_for_removal(delivery.place for delivery, _ in dead_letter_candidates)
    keys = [delivery.key for delivery, _ in dead_letter_candidates if delivery.key]
    nexts = next_of_keys(shard, group, keys, ending=command.outcomes)
    for delivery, reason in dead_letter_candidates:
        del group.pending_dead_letters[delivery.id]
        dead_letter = command.outcomes[delivery.id]
        if dead_letter < 0:
            _wait_for_dead_queue(shard, group, delivery, reason, now, effects)
            continue
        event = _end_of(reason, dead_letter)
        journal_one(shard, group, delivery, event, reason, delivery.error, None, effects)
        group.count(f"{event}:{reason}")
        if delivery.id in group.deliveries:
            if not delivery.token:
                group.remove_waiting(delivery)
            group.release_key(delivery.key, delivery.id)
            shard.forget_deliveries(group, [(delivery, 0, 1)], effects)
        else:
            remove_from_window(group, delivery.place)
        shard.mark_settled(group, PlaceColumns.of([delivery.place]), effects)
        if delivery.key and delivery.key in group.keys:
            free_key(shard, group, delivery.key, nexts, now, effects)


def _orphans_dead_lettered(shard: Shard, command: DeadLettered, now: int, effects: Effects) -> None:
    """Messages that expired before there was a group."""
    orphans = {message_id: shard.orphans[message_id] for message_id in command.outcomes}
    shard.require_for_removal(delivery.place for delivery in orphans.values())
    for message_id, delivery in orphans.items():
        del shard.orphans[message_id]
        dead_letter = command.outcomes[message_id]
        if dead_letter < 0:
            _postpone_expiry(shard.head, now)
            continue
        event = _end_of(Reason.EXPIRED, dead_letter)
        if shard.config.journal is not JournalMode.OFF:
            effects.entries.append(
                (EntryKind.ONE, shard.number, "", event, message_id, 0, Reason.EXPIRED, "", "", "", None)
            )
            effects.rows += 1
        shard.remove(PlaceColumns.of([delivery.place]), effects)


def _postpone_expiry(head: ShardHead, now: int) -> None:
    """The sweeps have not advanced: they find the same messages again."""
    if 0 < head.next_expiry <= now:
        head.next_expiry = now + DEAD_LETTER_BACKOFF
    if 0 < head.next_early <= now:
        head.next_early = now + DEAD_LETTER_BACKOFF


def _end_of(reason: str, dead_letter: int) -> JournalEvent:
    """The journal's name for the end of a delivery. The dead letter's own row says where it comes from."""
    if dead_letter:
        return JournalEvent.DEAD
    return JournalEvent.EXPIRED if reason == Reason.EXPIRED else JournalEvent.DROPPED


def remove_from_window(group: LeaseGroup, place: Place) -> None:
    """Remove a message that the group has not leased. While other groups need it, this one must skip it."""
    group.head.fresh -= 1
    group.mark_dirty()
    window = group.window(place.priority)
    if place.stamp > window.frontier:
        window.drop(place.stamp)
        group.skip(place.seq)


def _wait_for_dead_queue(
    shard: Shard, group: LeaseGroup, delivery: Delivery, reason: str, now: int, effects: Effects
) -> None:
    """The dead queue refused a delivery: it waits here, is not leased, and is offered again later."""
    if delivery.id not in group.deliveries:
        remove_from_window(group, delivery.place)
        group.deliveries[delivery.id] = delivery
    elif not delivery.token:
        group.remove_waiting(delivery)
    delivery.failures = attempts_of(delivery)
    _end_lease(group, delivery)
    delivery.dead_reason = reason
    delivery.ready_at = now + DEAD_LETTER_BACKOFF
    group.requeue(delivery, now)
    write_own_record(shard, group, delivery, effects)
    group.count("burial_refused")  # a name in stored heads
