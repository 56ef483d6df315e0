"""Enqueue and publish: limits, deduplication, delay, sequence, and the records of new messages.

`_store` writes new messages, whatever they are. A homogeneous batch is stored columnar instead (`_enqueue_columnar`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from msgspec.structs import replace

from holdfast.core.codecs import (
    dedup_value,
    due_value,
    homogeneous_messages,
    homogeneous_ready_values,
    keyed_value,
    message_head,
    read_dedup,
    ready_value,
    scheduled_value,
    write_delivery,
    write_message,
)
from holdfast.core.commands import (
    Draft,
    Enqueue,
    Enqueued,
    FindIds,
    HomogeneousDrafts,
    PublishStaged,
    RememberIds,
)
from holdfast.core.deliveries import unleased_delivery
from holdfast.core.effects import Effects, Op, Outcome, Read, puts
from holdfast.core.groups import LeaseGroup
from holdfast.core.ids import UNKEYED, key_hash
from holdfast.core.journal import EntryKind
from holdfast.core.queue import PRIORITY_DEFAULT, PRIORITY_MAX, JournalMode
from holdfast.core.records import (
    FLAG_CHOSEN,
    FLAG_DUE,
    FLAG_EARLY,
    FLAG_SOURCED,
    NO_EXTRA,
    NO_KEY_HASH,
    Extra,
    Message,
    Place,
    ShardHead,
    Table,
    dedup_end_key,
    dedup_key,
    delivery_key,
    due_key,
    expiry_key,
    keyed_key,
    message_key,
    ready_key,
    ready_prefix,
    scheduled_key,
    shard_key,
    source_key,
)
from holdfast.core.runs import BytesColumn, HomogeneousRun
from holdfast.core.shard import Shard, handles
from holdfast.core.states import JournalEvent, Reason
from holdfast.core.windows import WINDOW, WINDOW_MAX
from holdfast.errors import HoldfastError, InvalidArgument, MessageTooLarge, QueueFull

COLUMNAR_MIN = 8  # in smaller batches, to find out that they are homogeneous costs more than it saves
FAR_FUTURE = 253_402_300_800_000_000  # the year 9999, in epoch microseconds
KEY_BYTES_MAX = 1_024
MESSAGE_ID_BYTES_MAX = 1_024  # it is part of a key in the store
PROPERTIES_MAX = 256
PROPERTIES_BYTES_MAX = 65_535  # an MQTT string is no longer either


@handles(Enqueue)
def enqueue(shard: Shard, command: Enqueue, now: int, effects: Outcome[Enqueued]) -> None:
    if _enqueue_columnar(shard, command, now, effects):
        return
    drafts = command.drafts
    if type(drafts) is HomogeneousDrafts:
        drafts = list(drafts)
        command = replace(command, drafts=drafts)
    _require_known(shard, drafts)
    reply = Enqueued([], {}, {}, shard.head.next_seq)
    accepted = _accept(shard, command, reply)
    if command.dry_run:
        reply.ids = [0] * len(drafts)
        effects.reply = reply
        return
    only = _only(shard, command) if command.group else None
    given = command.ids
    fresh = [given[index] for index in accepted] if given else shard.ids.take(now, len(accepted))
    if len(accepted) == len(drafts):
        reply.ids = fresh
    else:
        reply.ids = [0] * len(drafts)
        for index, message_id in zip(accepted, fresh, strict=True):
            reply.ids[index] = message_id
        for index, original in reply.duplicates.items():
            # A negative number is the index of an earlier draft of this batch.
            reply.ids[index] = reply.duplicates[index] = reply.ids[-1 - original] if original < 0 else original
    if accepted:
        stored = [drafts[index] for index in accepted]
        if only is not None:
            stored = _keep_from_others(shard, only, stored, effects)
        values, places = _encode(shard, stored, fresh, now, effects)
        size_bytes = sum([len(draft.payload) for draft in stored])
        _store(shard, values, places, size_bytes, command.protocol, now, effects, only)
        if only is not None:
            _journal_unneeded(shard, only, fresh, effects)
    if reply.duplicates or reply.errors:
        _journal_duplicates(shard, command, reply, effects)
    effects.reply = reply


@handles(PublishStaged)
def publish(shard: Shard, command: PublishStaged, now: int, effects: Outcome[Enqueued]) -> None:
    """Store staged messages. They were checked when they were staged, and their records are encoded but for the head:
    this costs 0.8 µs each, an enqueue of the same messages 2.0."""
    head, config, packed, ids = shard.head, shard.config, command.messages, command.ids
    expires_at = now + config.message_ttl if config.message_ttl else 0
    if not _expires_in_order(head, expires_at):
        enqueue(shard, Enqueue(packed.drafts(), -1, command.protocol, ids, validated=True), now, effects)
        return
    priority = PRIORITY_DEFAULT if config.strict else packed.priority
    first = head.next_seq
    values = [
        message_head(message_id, now, 0, expires_at, priority, extra_size) + tail
        for message_id, extra_size, tail in zip(ids, packed.extra_sizes, packed.tails, strict=True)
    ]
    keyed = config.keyed
    places = [
        Place(stamp, seq, key if keyed and key != NO_KEY_HASH else UNKEYED, 0, priority, size)
        for seq, (stamp, key, size) in enumerate(zip(ids, packed.keys, packed.sizes, strict=True), first)
    ]
    size_bytes, cache = sum(packed.sizes), bool(shard.groups)  # without a group, none is leased soon
    _store(shard, values, places, size_bytes, command.protocol, now, effects, cache=cache)
    effects.reply = Enqueued(ids, {}, {}, first)


def _expires_in_order(head: ShardHead, expires_at: int) -> bool:
    """Whether a message that is enqueued now expires no earlier than those before it; the head then covers it too."""
    if expires_at:
        if expires_at < head.expiry_high:
            return False
        head.expiry_high = expires_at
        head.next_expiry = head.next_expiry or expires_at
    return True


def _enqueue_columnar(shard: Shard, command: Enqueue, now: int, effects: Outcome[Enqueued]) -> bool:
    """`enqueue` for a homogeneous batch: messages of one priority that have nothing but a payload, or one and the same
    extra that only travels with them (a content type), and fit into the queue. They are stored columnar and not looked
    at one by one, which costs 1.6 instead of 2.4 µs each with the store's part (256 bytes, batches of 100). It changes
    exactly what `enqueue` would have changed: tests/core/test_fast_paths.py compares both.

    False: this is not such a batch, and nothing was done.
    """
    drafts, head, config, number = command.drafts, shard.head, shard.config, shard.number
    count = len(drafts)
    if count < COLUMNAR_MIN or command.dry_run or command.group or command.ids or 0 <= command.room < count:
        return False
    priority, extra = drafts[0].priority, drafts[0].extra
    if extra is not NO_EXTRA and (not extra.metadata_only or oversized(extra)):
        return False
    payloads = drafts.payloads if type(drafts) is HomogeneousDrafts else _homogeneous_payloads(drafts, priority, extra)
    if payloads is None or not _fit(payloads, config.max_message_size):
        return False
    if not 0 <= priority <= PRIORITY_MAX or (config.strict and priority != PRIORITY_DEFAULT):
        return False
    expires_at = now + config.message_ttl if config.message_ttl else 0
    if not _expires_in_order(head, expires_at):
        return False
    first, ids = head.next_seq, shard.ids.ranges(now, count)
    sizes, wanted = payloads.packed_sizes(), _window_room(shard, priority)
    start, places = 0, []
    cached: list[tuple[int, HomogeneousRun]] = []
    for row in ids:
        end, seq = start + len(row), first + start
        records = homogeneous_messages(row[0], now, expires_at, priority, extra, payloads.part(start, end))
        ready = homogeneous_ready_values(seq, sizes[4 * start : 4 * end])
        effects.ops.append((Table.MESSAGES, message_key(number, seq), records))
        effects.ops.append((Table.READY, ready_key(number, priority, row[0]), ready))
        if start <= wanted:
            few = records.column.part(0, min(wanted + 1 - start, len(row))).sizes()
            places += [
                Place(stamp, at, UNKEYED, 0, priority, size)
                for at, (stamp, size) in enumerate(zip(row, few, strict=False), seq)
            ]
        if start < WINDOW_MAX:
            cached.append((seq, records.part(0, min(len(row), WINDOW_MAX - start))))
        start = end
    if _reserve_cache(shard, count, sum([records.size_bytes for _, records in cached])):
        for seq, records in cached:
            shard.cached_records.update(enumerate(records[:], seq))
    _count(shard, count, payloads.size_bytes, {priority: (count, places)}, command.protocol, now, effects)
    effects.reply = Enqueued(list(chain.from_iterable(ids)), {}, {}, first)
    return True


def _homogeneous_payloads(drafts: Sequence[Draft], priority: int, extra: Extra) -> BytesColumn | None:
    """The payloads of drafts that differ in nothing else, have no delay and no time to live; None: some do."""
    for draft in drafts:
        if draft.extra is not extra or draft.deliver_at or draft.ttl != -1 or draft.priority != priority:
            return None
    return BytesColumn.of([draft.payload for draft in drafts])


def _fit(payloads: BytesColumn, limit: int) -> bool:
    """Whether none is larger than `limit`."""
    return payloads.size_bytes <= limit or max(payloads.sizes()) <= limit


def _window_room(shard: Shard, priority: int) -> int:
    """How many new messages a window takes, at most. With one more in sight it knows that the store has others."""
    empty = priority not in shard.head.priorities
    return max([group.window(priority, empty).room for group in shard.index.following.values()], default=0)


def _reserve_cache(shard: Shard, count: int, size_bytes: int) -> bool:
    """Whether records of a batch of `count` messages are kept in memory until they are leased, those that a window can
    take: if there is room for all of them. Of a large batch in a shard without a group, none is leased soon."""
    memory = shard.memory
    if (not shard.groups and count > WINDOW) or memory.cache_used_bytes + size_bytes > memory.cache_limit_bytes:
        return False
    memory.cache_used_bytes += size_bytes
    return True


def _only(shard: Shard, command: Enqueue) -> LeaseGroup | None:
    """The group that messages are for; None: it is the only one."""
    group = shard.lease_group(command.group, "be sent messages of its own")
    return group if len(shard.groups) > 1 else None


def _keep_from_others(shard: Shard, only: LeaseGroup, drafts: list[Draft], effects: Effects) -> list[Draft]:
    """Mark the messages made of these drafts as settled by all other groups from the beginning."""
    others = sum([group.bit for group in shard.groups.values() if group is not only])
    for seq in range(shard.head.next_seq, shard.head.next_seq + len(drafts)):
        shard.set_mask(seq, others, effects)
    return [replace(draft, deliver_at=0, extra=replace(draft.extra, flags=FLAG_CHOSEN)) for draft in drafts]


def _journal_unneeded(shard: Shard, only: LeaseGroup, ids: list[int], effects: Effects) -> None:
    """Journal that new messages are not for the other leasing groups."""
    if shard.config.journal is not JournalMode.OFF:
        for group in shard.groups.values():
            if group is not only:
                entry = (EntryKind.MANY, shard.number, group.name, JournalEvent.PURGED, Reason.OTHER_GROUP, ids)
                effects.entries.append(entry)
                effects.rows += len(ids)


def _journal_duplicates(shard: Shard, command: Enqueue, reply: Enqueued, effects: Effects) -> None:
    shard.head.duplicates += len(reply.duplicates)
    shard.head.refused += len(reply.errors)
    if shard.config.journal is JournalMode.OFF:
        return
    for index, original in reply.duplicates.items():
        extra = command.drafts[index].extra
        details = {"client_message_id": extra.message_id}
        effects.entries.append(
            (
                EntryKind.ONE,
                shard.number,
                "",
                JournalEvent.DUPLICATE,
                original,
                0,
                "",
                "",
                "",
                command.protocol,
                details,
            )
        )
        effects.rows += 1


def _require_known(shard: Shard, drafts: Sequence[Draft]) -> None:
    """Require the records of sources. Of producers' ids the engine has told what is known."""
    reads: list[Read] = []
    for draft in drafts:
        if draft.extra is NO_EXTRA:
            continue
        origin = draft.extra.origin
        if origin is not None and origin.once:
            reads.append(Read(Table.SOURCES, source_key(shard.number, origin.source_id, origin.source_group)))
    if reads:
        shard.require(reads)


def _accept(shard: Shard, command: Enqueue, reply: Enqueued) -> list[int]:
    """Indexes of the drafts to store; the others are in `reply` as duplicates or errors."""
    limit = FAR_FUTURE if command.validated else shard.config.max_message_size
    room = command.room if command.room >= 0 else len(command.drafts)
    accepted: list[int] = []
    seen: dict[bytes, int] = {}
    for index, draft in enumerate(command.drafts):
        plain = draft.extra is NO_EXTRA  # as most are: there is nothing else to check
        if len(draft.payload) > limit or out_of_range(draft) or (not plain and oversized(draft.extra)):
            reply.errors[index] = refusal(shard, draft)
            continue
        known = 0 if plain else command.known.get(index) or _known(shard, draft, seen, index)
        if not known and len(accepted) < room:
            accepted.append(index)
            continue
        if known:
            reply.duplicates[index] = known
        else:
            reply.errors[index] = refusal(shard, draft)
        for name in [name for name, at in seen.items() if at == index]:
            del seen[name]  # it is not stored: another one may have its source
    return accepted


def out_of_range(draft: Draft) -> bool:
    """Whether priority, delivery time or time to live of a draft is out of range."""
    return not (
        0 <= draft.priority <= PRIORITY_MAX and 0 <= draft.deliver_at < FAR_FUTURE and -1 <= draft.ttl < FAR_FUTURE
    )


def oversized(extra: Extra) -> str:
    """Which field of the extras is too large or out of range; empty if none is."""
    for name, text, limit in (
        ("key", extra.key, KEY_BYTES_MAX),
        ("message_id", extra.message_id, MESSAGE_ID_BYTES_MAX),
        ("correlation_id", extra.correlation_id, PROPERTIES_BYTES_MAX),
        ("content_type", extra.content_type, PROPERTIES_BYTES_MAX),
        ("reply_to", extra.reply_to, PROPERTIES_BYTES_MAX),
    ):
        if text is not None and len(text.encode()) > limit:
            return f"{name} is at most {limit} bytes"
    if extra.correlation_data is not None and len(extra.correlation_data) > PROPERTIES_BYTES_MAX:
        return f"correlation_data is at most {PROPERTIES_BYTES_MAX} bytes"
    if len(extra.properties) > PROPERTIES_MAX:
        return f"properties are at most {PROPERTIES_MAX}"
    if sum(len(name.encode()) + len(value.encode()) for name, value in extra.properties) > PROPERTIES_BYTES_MAX:
        return f"properties are at most {PROPERTIES_BYTES_MAX} bytes in all"
    if extra.origin is not None and not 0 < extra.origin.source_id < 1 << 63:
        return f"source_id is 1 to {(1 << 63) - 1}"
    return ""


def draft_error(shard: Shard, draft: Draft) -> HoldfastError | None:
    """Why a draft cannot be stored here, apart from the depth of the queue; None if it can."""
    if len(draft.payload) > shard.config.max_message_size or out_of_range(draft) or oversized(draft.extra):
        return refusal(shard, draft)
    return None


def refusal(shard: Shard, draft: Draft) -> HoldfastError:
    if len(draft.payload) > shard.config.max_message_size:
        return MessageTooLarge(
            size_bytes=len(draft.payload), limit_bytes=shard.config.max_message_size, queue=shard.queue
        )
    # The engine completes QueueFull: a shard knows neither the depth nor all groups.
    return invalid(draft) or QueueFull(queue=shard.queue)


def invalid(draft: Draft) -> InvalidArgument | None:
    """Why no queue takes a draft; None if one may."""
    if not 0 <= draft.priority <= PRIORITY_MAX:
        return InvalidArgument(field="priority", problem=f"is 0 to {PRIORITY_MAX}, not {draft.priority}")
    if out_of_range(draft):
        return InvalidArgument(
            field="deliver_at and ttl", problem="are microseconds of an instant before the year 9999"
        )
    problem = oversized(draft.extra)
    if problem:
        field, _, rest = problem.partition(" ")
        return InvalidArgument(field=field, problem=rest)
    return None


def _known(shard: Shard, draft: Draft, seen: dict[bytes, int], index: int) -> int:
    """The id of the message of the same source, -1 - index if that is in this batch, 0 if there is none."""
    origin = draft.extra.origin
    if origin is None or not origin.once:
        return 0
    key = source_key(shard.number, origin.source_id, origin.source_group)
    earlier = seen.setdefault(key, index)
    if earlier != index:
        return -1 - earlier
    value = shard.get(Table.SOURCES, key)
    return 0 if value is None else int(read_dedup(value)[0])


def _encode(
    shard: Shard, drafts: list[Draft], ids: list[int], now: int, effects: Effects
) -> tuple[list[bytes], list[Place]]:
    """The records of new messages, and the places of those that are not delayed. What else they need is written."""
    ops, number, head, config = effects.ops, shard.number, shard.head, shard.config
    strict, keyed = config.strict, config.keyed
    values: list[bytes] = []
    places: list[Place] = []
    seq = head.next_seq
    for draft, message_id in zip(drafts, ids, strict=True):
        extra, payload = draft.extra, draft.payload
        priority = PRIORITY_DEFAULT if strict else draft.priority
        ttl = config.message_ttl if draft.ttl < 0 else draft.ttl
        expires_at = now + ttl if ttl else 0
        deliver_at = draft.deliver_at if draft.deliver_at > now else 0
        flags = extra.flags
        key = UNKEYED
        if extra is not NO_EXTRA:
            if keyed and extra.key is not None:
                key = key_hash(extra.key)
            if extra.origin is not None and extra.origin.once:
                flags |= FLAG_SOURCED
                source = source_key(number, extra.origin.source_id, extra.origin.source_group)
                ops.append((Table.SOURCES, source, dedup_value(message_id, 0)))
        if not _expires_in_order(head, expires_at):
            flags |= FLAG_EARLY
            extra = replace(extra, flags=extra.flags | FLAG_EARLY)
            _expire_early(head, expiry_key(number, expires_at, seq), expires_at, ops)
        values.append(write_message(message_id, now, deliver_at, expires_at, priority, extra, payload))
        place = Place(0 if deliver_at else message_id, seq, key, flags, priority, len(payload))
        if deliver_at:
            schedule(shard, message_id, deliver_at, place, effects)
        else:
            places.append(place)
        seq += 1
    return values, places


def _expire_early(head: ShardHead, key: bytes, expires_at: int, ops: list[Op]) -> None:
    """A message expires before an older one does: EXPIRIES has it."""
    ops.append((Table.EXPIRIES, key, b""))
    if key < head.early_at:  # the clock went back
        head.early_at = b""
    if not head.next_early or expires_at < head.next_early:
        head.next_early = expires_at


def schedule(shard: Shard, message_id: int, deliver_at: int, place: Place, effects: Effects) -> None:
    """A message is delayed until `deliver_at`."""
    key = scheduled_key(shard.number, deliver_at, place.seq)
    value = scheduled_value(message_id, place.priority, place.key, place.flags, place.size_bytes)
    effects.ops.append((Table.SCHEDULED, key, value))
    shard.head.scheduled += 1
    if not shard.head.next_due or deliver_at < shard.head.next_due:
        shard.head.next_due = deliver_at


def _store(
    shard: Shard,
    values: list[bytes],
    places: list[Place],
    size_bytes: int,
    protocol: str,
    now: int,
    effects: Effects,
    only: LeaseGroup | None = None,
    *,
    cache: bool = True,
) -> None:
    """Write new messages in sequence, and the places of those that are not delayed. `cache`: keep them in memory, too,
    if there is room."""
    first, count, ops = shard.head.next_seq, len(values), effects.ops
    ops += puts(Table.MESSAGES, shard_key(shard.number), range(first, first + count), values)
    by_priority: dict[int, list[Place]] = {}
    for place in places:
        by_priority.setdefault(place.priority, []).append(place)
    arrivals: Arrivals = {}
    for priority, some in by_priority.items():
        stamps = [place.stamp for place in some]
        _list(shard, priority, some, stamps, stamps, ops)
        arrivals[priority] = (len(some), some)
    cached = {place.seq: values[place.seq - first] for place in places[:WINDOW_MAX]} if cache else {}
    if cached and _reserve_cache(shard, count, sum(map(len, cached.values()))):
        shard.cached_records.update(cached)
    _count(shard, count, size_bytes, arrivals, protocol, now, effects, only)


def _list(shard: Shard, priority: int, places: list[Place], stamps: list[int], ids: list[int], ops: list[Op]) -> None:
    """Enter messages of one priority into the order of delivery."""
    number = shard.number
    values = [ready_value(place.seq, place.key, place.flags, place.size_bytes) for place in places]
    ops += puts(Table.READY, ready_prefix(number, priority), stamps, values)
    keyed = Table.KEYED  # a local name: to look it up costs as much as to pack a key
    for place, message_id in zip(places, ids, strict=True):
        if place.key:
            key = keyed_key(number, place.key, priority, place.stamp)
            ops.append((keyed, key, keyed_value(place.seq, message_id)))


Arrivals = dict[int, tuple[int, list[Place]]]
"""New messages by priority: how many, and the places of the first of them, in the order of delivery."""


def _count(
    shard: Shard,
    count: int,
    size_bytes: int,
    arrivals: Arrivals,
    protocol: str,
    now: int,
    effects: Effects,
    only: LeaseGroup | None = None,
) -> None:
    """New messages are in the shard: count and journal them; those that are not delayed arrive."""
    head = shard.head
    if shard.config.journal is not JournalMode.OFF:
        effects.entries.append((EntryKind.ENQUEUED, shard.number, head.next_seq, count, protocol, size_bytes))
        effects.rows += count
    for cursor in shard.cursors.values():
        cursor.arrive(now)
    head.next_seq += count
    head.enqueued += count
    head.size_bytes += size_bytes
    if arrivals:
        arrive(shard, arrivals, only)


def arrive(shard: Shard, arrivals: Arrivals, only: LeaseGroup | None = None) -> None:
    """New messages are counted for all leasing groups, or for one, and enter the windows of those that follow."""
    head = shard.head
    priorities = head.priorities
    count = sum([arrived for arrived, _ in arrivals.values()])
    following = list(shard.index.following.values())
    if only is None:
        head.arrived += count
    else:
        only.head.fresh += count
        only.mark_dirty()
        following = [only] if only.follows else []
    for group in following:
        for priority, (_, places) in arrivals.items():
            group.arrive(priority, places, empty=priority not in priorities)
    for priority, (arrived, _) in arrivals.items():
        priorities[priority] = priorities.get(priority, 0) + arrived
    head.ready += count


def make_ready(shard: Shard, message_id: int, place: Place, now: int, effects: Effects) -> None:
    """Enter a message into the order of delivery later than it was enqueued: it fell due, or was edited.

    For a group whose frontier is beyond that place already (only after an edit), the message becomes a delivery that is
    ready; its record must have been read.
    """
    ops, number, head = effects.ops, shard.number, shard.head
    _list(shard, place.priority, [place], [place.stamp], [message_id], ops)
    if place.flags & FLAG_DUE:
        ops.append((Table.DUE, due_key(number, place.seq), due_value(place.stamp)))
    empty = place.priority not in head.priorities
    head.priorities[place.priority] = head.priorities.get(place.priority, 0) + 1
    head.ready += 1
    for group in shard.groups.values():
        if place.seq < group.head.start:
            continue
        group.mark_dirty()
        window = group.window(place.priority, empty=empty and group.follows)
        if place.stamp > window.frontier:
            group.head.fresh += 1
            window.insert(place)
            group.places.add(1)
        else:
            promote(shard, group, shard.message(place.seq), place, now, effects)


def promote(
    shard: Shard, group: LeaseGroup, message: Message, place: Place, now: int, effects: Effects, stamp: int = 0
) -> None:
    """A message that is in no window of a group becomes a delivery that is ready. `stamp`: in another place than its
    own."""
    delivery = unleased_delivery(message, place)
    delivery.stamp = stamp or delivery.stamp
    group.deliveries[message.id] = delivery
    group.requeue(delivery, now)
    effects.ops.append(
        (Table.DELIVERIES, delivery_key(shard.number, group.number, message.id), write_delivery(delivery))
    )
    group.mark_dirty()


def place_of(shard: Shard, message: Message, stamp: int) -> Place:
    """The place of a message with this stamp; 0: it is delayed and has none yet."""
    extra = message.extra
    key = key_hash(extra.key) if shard.config.keyed and extra.key is not None else UNKEYED
    flags = extra.flags | (FLAG_SOURCED if extra.origin is not None and extra.origin.once else 0)
    if stamp and message.deliver_at:
        flags |= FLAG_DUE
    return Place(stamp, message.seq, key, flags, message.priority, len(message.payload))


# --- producers' message ids -----------------------------------------------------------------------------------------
#
# They are remembered for the queue, whatever the key or partition of a message: in its first shard, which is the same
# however many partitions are added. The engine asks it before an enqueue, and has it remember what was stored. What has
# an origin is known by its source instead: a message keeps its message id through death, redrive and replay, and is no
# repetition of the first.


def dedup_name(draft: Draft) -> str | None:
    """The message id by which a draft may be found to repeat another; None: it has none."""
    extra = draft.extra
    return extra.message_id if extra.origin is None else None


@handles(FindIds)
def find_ids(shard: Shard, command: FindIds, now: int, effects: Outcome[dict[str, int]]) -> None:
    keys = {name: dedup_key(shard.number, name) for name in command.names}
    shard.require([Read(Table.DEDUP, key) for key in keys.values()])
    effects.reply = {}
    for name, key in keys.items():
        value = shard.get(Table.DEDUP, key)
        if value is not None:
            message_id, end = read_dedup(value)
            if end > now:
                effects.reply[name] = message_id


@handles(RememberIds)
def remember_ids(shard: Shard, command: RememberIds, now: int, effects: Outcome[None]) -> None:
    ops, number, head = effects.ops, shard.number, shard.head
    end = now + shard.config.dedup_window
    for name, message_id in command.ids.items():
        ops.append((Table.DEDUP, dedup_key(number, name), dedup_value(message_id, end)))
        ops.append((Table.DEDUP_ENDS, dedup_end_key(number, end, name), b""))
    head.dedup_end = min(head.dedup_end or end, end)
