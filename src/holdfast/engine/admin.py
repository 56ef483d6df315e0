"""Administration of queues, groups and single messages, on the engine.

What may touch many messages (purge, deletion, the commit of a cursor) is a generator: each step is a bounded piece of
work, and between two steps the caller commits and lets others have their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from holdfast.core import reading
from holdfast.core.commands import (
    Bounds,
    Browse,
    Browsed,
    CursorCommit,
    CursorRange,
    CursorRead,
    Delete,
    DeliveryStatus,
    Edit,
    Find,
    Leased,
    Purge,
    RemoveGroup,
    Tick,
)
from holdfast.core.deadletter import check_dead_queue, check_unused
from holdfast.core.queue import (
    GroupKind,
    GroupRecord,
    QueueRecord,
    check_name,
    from_fields,
)
from holdfast.core.records import Message
from holdfast.core.shard import Shard
from holdfast.engine.catalog import Queue, QueueName
from holdfast.engine.engine import Engine
from holdfast.errors import (
    GroupExists,
    InvalidArgument,
    MessageNotFound,
    QueueExists,
)

BROWSE_BYTES = 8 << 20  # payloads looked at in one piece of browsing
BROWSE_RECORDS = 10_000  # and records of one partition, live or not: about 50 ms

COMMIT_MESSAGES = 4_000  # that a cursor moves past in one piece, each of which is synced: about 15 ms

Clock = Callable[[], int]


# --- queues ---------------------------------------------------------------------------------------------------------


def queues_in(engine: Engine, namespace: str) -> dict[str, QueueRecord]:
    """The queues of a namespace by name."""
    return {
        name: queue.record for (queue_namespace, name), queue in engine.queues.items() if queue_namespace == namespace
    }


def create_queue(engine: Engine, name: QueueName, fields: Mapping[str, object], now: int) -> QueueRecord:
    check_name(name[0], "namespace")
    check_name(name[1])
    if name in engine.queues:
        raise QueueExists(queue=name[1])
    config = from_fields(fields)
    check_dead_queue(name[1], config, queues_in(engine, name[0]))
    return engine.add_queue(*name, config, now).record


def update_queue(engine: Engine, name: QueueName, fields: Mapping[str, object], now: int) -> QueueRecord:
    """Change the configuration. More partitions start empty, with every group from their beginning."""
    queue = engine.queue(name, now)
    config = from_fields(fields, queue.config)
    check_dead_queue(name[1], config, queues_in(engine, name[0]))
    engine.reconfigure(queue, config, now)
    return queue.record


def delete_queue(engine: Engine, name: QueueName, clock: Clock) -> Iterator[int]:
    """Purge everything, leased or not, and forget the queue. Taken up again after a crash: it is marked first."""
    queue = engine.queue(name, clock())
    check_unused(name[1], queues_in(engine, name[0]))
    queue.change(replace(queue.record, closing=True))
    engine.save_queue(queue)
    yield 0
    yield from finish_deletion(engine, queue, clock)


def finish_deletion(engine: Engine, queue: Queue, clock: Clock) -> Iterator[int]:
    yield from _purge(engine, queue, clock, everything=True)
    engine.forget_queue(queue)
    yield 0


def purge_queue(engine: Engine, name: QueueName, clock: Clock) -> Iterator[int]:
    """Remove the messages that wait now; what is leased stays until it is settled."""
    yield from _purge(engine, engine.queue(name, clock()), clock, everything=False)


def _purge(engine: Engine, queue: Queue, clock: Clock, everything: bool) -> Iterator[int]:
    for shard in queue.shards:
        command = Purge(shard.head.next_seq, everything=everything)
        while True:
            reply = engine.step(queue, shard, command, clock())
            yield reply.count
            if reply.done:
                break
            command = replace(command, after=reply.after)


# --- groups ---------------------------------------------------------------------------------------------------------


def create_group(
    engine: Engine,
    name: QueueName,
    group: str,
    kind: GroupKind,
    now: int,
    earliest: bool | None,
    max_lag_messages: int,
    max_lag_age: int,
) -> GroupRecord:
    queue = engine.queue(name, now, create=True)
    existing = queue.record.group(group)
    if existing is not None:
        raise GroupExists(group=group, queue=name[1], kind=existing.kind.value)
    if kind is GroupKind.LEASE and (max_lag_messages or max_lag_age):
        raise InvalidArgument(field="max_lag", problem="is for cursor groups only")
    if max_lag_messages < 0 or max_lag_age < 0:
        raise InvalidArgument(field="max_lag", problem="cannot be negative")
    first = not queue.record.groups if earliest is None else earliest
    return engine.add_group(queue, group, kind, now, first, max_lag_messages, max_lag_age)


def delete_group(engine: Engine, name: QueueName, group: str, clock: Clock) -> Iterator[int]:
    """Forget a group; messages that only it still needed go in the ticks that follow."""
    queue = engine.queue(name, clock())
    record = engine.group(queue, group)
    left = tuple(other for other in queue.record.groups if other.number != record.number)
    queue.change(replace(queue.record, groups=left))
    engine.save_queue(queue)
    # Every shard forgets the group before the first commit, so that no half of it is ever seen.
    for shard in queue.shards:
        engine.step(queue, shard, RemoveGroup(group), clock())
    yield 0
    # What only it needed goes by and by (the shards remember to do it, also over a crash); it is done here and now.
    for shard in queue.shards:
        while engine.step(queue, shard, Tick(), clock()):
            yield 0


# --- messages -------------------------------------------------------------------------------------------------------


class Page(msgspec.Struct, frozen=True):
    """Messages with how they stand in each group; `cursor` goes on where this page ends, empty at the end."""

    messages: list[tuple[int, Message, list[DeliveryStatus]]]
    cursor: str


def head(engine: Engine, name: QueueName, group: str, now: int) -> Message | None:
    """What a leasing group would be given next; None if there is nothing for it now. It costs the same at any depth.

    A group that is not there yet would begin with all that is stored if it were the first, else with nothing."""
    queue = engine.queue(name, now)
    known = queue.record.group(group) is not None
    if not known and queue.record.groups:
        return None
    best: tuple[tuple[int, int], Shard, int] | None = None
    for shard in queue.shards:
        for place in engine.heads(shard, group) if known else engine.fronts(shard):
            order = (place.priority, place.stamp)
            if best is None or order < best[0]:
                best = (order, shard, place.seq)
    if best is None:
        return None
    found = _browse_shard(engine, queue, best[1], best[2], 1, now).messages
    return found[0][0] if found else None


def browse(engine: Engine, name: QueueName, limit: int, cursor: str, state: str, group: str, now: int) -> Page:
    """Live messages over all partitions, oldest first."""
    queue = engine.queue(name, now)
    if group:
        engine.group(queue, group)
    starts = _read_cursor(cursor, len(queue.shards))
    found: list[tuple[int, Message, list[DeliveryStatus]]] = []
    nexts = list(starts)
    for shard in queue.shards:
        if not starts[shard.partition]:
            continue
        reply = _browse_shard(engine, queue, shard, starts[shard.partition], limit, now)
        nexts[shard.partition] = reply.next_seq
        found += [(shard.partition, message, delivery_statuses) for message, delivery_statuses in reply.messages]
    found.sort(key=lambda item: item[1].id)
    for partition, message, _ in reversed(found[limit:]):
        nexts[partition] = message.seq
    page = [item for item in found[:limit] if _matches(item[2], state, group)]
    return Page(page, ",".join(map(str, nexts)) if any(nexts) else "")


def _browse_shard(engine: Engine, queue: Queue, shard: Shard, first: int, limit: int, now: int) -> Browsed:
    """Live messages of a shard. In pieces, because a step begins anew for every record it lacks, and only so many
    records: those that lie about until the journal is exported may be many more than are live."""
    found: list[tuple[Message, list[DeliveryStatus]]] = []
    at, left, left_bytes = first, BROWSE_RECORDS, BROWSE_BYTES
    while at and left > 0 and left_bytes > 0 and len(found) < limit:
        reply = engine.step(queue, shard, Browse(at, limit - len(found), left_bytes, scan_limit=reading.CHUNK), now)
        found += reply.messages
        left -= reading.CHUNK
        left_bytes -= sum([len(message.payload) for message, _ in reply.messages])
        at = reply.next_seq
    return Browsed(found, at)


def _read_cursor(cursor: str, partitions: int) -> list[int]:
    if not cursor:
        return [1] * partitions
    try:
        starts = [int(part) for part in cursor.split(",")]
    except ValueError:
        starts = []
    if not starts or len(starts) > partitions or min(starts) < 0:
        raise InvalidArgument(field="cursor", problem="is not one that this queue gave; start again without it")
    return starts + [1] * (partitions - len(starts))


def _matches(delivery_statuses: list[DeliveryStatus], state: str, group: str) -> bool:
    if not state and not group:
        return True
    return any((not group or s.group == group) and (not state or s.state == state) for s in delivery_statuses)


class SequenceRange(msgspec.Struct, frozen=True):
    """A range of one partition, in the order of sequences. Go on at `next_seq`; 0: there are no more."""

    messages: list[tuple[Message, list[DeliveryStatus]]]
    next_seq: int


def browse_range(
    engine: Engine, name: QueueName, partition: int, first: int, until: int, limit: int, max_bytes: int, now: int
) -> SequenceRange:
    """Live messages of one partition, sequences `first` up to and without `until` (0: the end).

    Looks at no more than `limit` records, whether they are live or not, and in pieces: a step begins anew for every
    record it lacks.
    """
    queue = engine.queue(name, now)
    shard = _shard_of(queue, partition)
    found: list[tuple[Message, list[DeliveryStatus]]] = []
    at, left, left_bytes = max(first, 1), limit, max_bytes
    while at and left > 0 and left_bytes > 0:
        chunk = min(left, reading.CHUNK)
        reply = engine.step(queue, shard, Browse(at, chunk, left_bytes, until, chunk), now)
        found += reply.messages
        left -= chunk
        left_bytes -= sum([len(message.payload) for message, _ in reply.messages])
        at = reply.next_seq
    return SequenceRange(found, at)


class PartitionBounds(msgspec.Struct, frozen=True):
    """Sequences `first` to `end - 1` of a partition; which of them are live is not known."""

    partition: int
    first: int
    end: int


def bounds(engine: Engine, name: QueueName, since: int, now: int) -> list[PartitionBounds]:
    """By partition, where its messages begin, or those enqueued at `since` or later."""
    queue = engine.queue(name, now)
    found: list[PartitionBounds] = []
    for shard in queue.shards:
        reply = engine.step(queue, shard, Bounds(since), now)
        found.append(PartitionBounds(shard.partition, reply.first, reply.end))
    return found


def find(engine: Engine, name: QueueName, message_id: int, now: int) -> tuple[int, Message, list[DeliveryStatus]]:
    """A live message by its id: partition, message, how it stands."""
    found = find_live(engine, engine.queue(name, now), message_id, now)
    if found is None:
        raise MessageNotFound(message_id=message_id, queue=name[1])
    shard, message, delivery_statuses = found
    return shard.partition, message, delivery_statuses


def find_live(
    engine: Engine, queue: Queue, message_id: int, now: int
) -> tuple[Shard, Message, list[DeliveryStatus]] | None:
    """A live message by its id, wherever it is in a queue; None if it is not."""
    for shard in queue.shards:
        try:
            reply = engine.step(queue, shard, Find(message_id), now)
        except MessageNotFound:
            continue
        return (shard, *reply)
    return None


def leases_of(engine: Engine, name: QueueName, group: str, consumer: str, protocol: str, now: int) -> list[Leased]:
    """What a consumer has under lease, in the order it was leased."""
    queue = engine.queues.get(name)
    found: list[Leased] = []
    for shard in queue.shards if queue is not None else ():
        here = shard.groups.get(group)
        for delivery in here.deliveries.leased_to(consumer, protocol) if here is not None else ():
            if delivery.deadline <= now:
                continue  # the tick that is due ends it
            assert queue is not None
            reply = engine.step(queue, shard, Find(delivery.id), now)
            found.append(
                Leased(
                    reply[0],
                    delivery.token,
                    delivery.failures + 1,
                    delivery.deadline,
                    shard.partition,
                    group,
                    delivery.stamp,
                )
            )
    return sorted(found, key=lambda leased: leased.token)


def of_token(engine: Engine, name: QueueName, group: str, token: int) -> tuple[int, int] | None:
    """Message id and partition of the delivery that a lease token is or was for, as far back as is remembered."""
    queue = engine.queues.get(name)
    groups = [(shard.partition, shard.groups.get(group)) for shard in queue.shards] if queue is not None else []
    for partition, here in groups:
        known = here.remembered(token) if here is not None else None
        if known is not None:
            return known[1], partition
    for partition, here in groups:
        message_id = here.deliveries.of_token(token) if here is not None else None
        if message_id is not None:
            return message_id, partition
    return None


def edit(
    engine: Engine, name: QueueName, message_id: int, priority: int | None, deliver_at: int | None, now: int
) -> Message:
    partition, _, _ = find(engine, name, message_id, now)
    queue = engine.queue(name, now)
    reply = engine.step(queue, queue.shards[partition], Edit(message_id, priority, deliver_at), now)
    engine.dirty_queues.add(name)
    return reply


def delete(engine: Engine, name: QueueName, message_id: int, now: int) -> None:
    partition, _, _ = find(engine, name, message_id, now)
    queue = engine.queue(name, now)
    engine.step(queue, queue.shards[partition], Delete(message_id), now)
    engine.dirty_queues.add(name)


# --- cursor groups --------------------------------------------------------------------------------------------------


class CursorEnd(msgspec.Struct, frozen=True):
    """Where a cursor group stands in one partition, and where the partition ends: sequences `first` to `end - 1` can be
    read. `lost_from..lost_to` were given up for max_lag since the last commit."""

    partition: int
    first: int
    committed: int
    end: int
    lost_from: int = 0
    lost_to: int = 0


def cursor_ends(engine: Engine, name: QueueName, group: str, now: int) -> list[CursorEnd]:
    """For every partition, what there is to read. Looks at nothing but the heads."""
    queue = engine.queue(name, now, create=True)
    engine.ensure_group(queue, group, GroupKind.CURSOR, now)
    ends: list[CursorEnd] = []
    for shard in queue.shards:
        head = shard.cursors[group].head
        done = head.committed
        ends.append(CursorEnd(shard.partition, done + 1, done, shard.head.next_seq, head.lost_from, head.lost_to))
    return ends


def cursor_read(
    engine: Engine,
    name: QueueName,
    group: str,
    partition: int,
    first: int,
    limit: int,
    max_bytes: int,
    now: int,
    until: int = 0,
    one_at_least: bool = True,
    create: bool = True,
) -> CursorRange:
    """A range of sequences, from `first` or where the cursor stands, up to `until` or the end. The group appears if it
    is new, unless `create` is false.

    In pieces: a step begins anew for every record it lacks, so one for all of a long range would read it many times.
    """
    queue = engine.queue(name, now, create=create)
    if create:
        engine.ensure_group(queue, group, GroupKind.CURSOR, now)
    else:
        engine.group(queue, group)
    shard = _shard_of(queue, partition)
    at = shard.cursors[group].head.committed + 1 if first <= 0 else first
    found: list[Message] = []
    left = max_bytes
    while True:
        chunk = min(limit - len(found), reading.CHUNK)
        command = CursorRead(group, at, chunk, left, until, one_at_least and not found)
        reply = engine.step(queue, shard, command, now)
        found += reply.messages
        left -= sum([len(message.payload) for message in reply.messages])
        stuck = reply.next_seq == at
        at = reply.next_seq
        if stuck or left <= 0 or len(found) >= limit:
            return replace(reply, messages=found)


def cursor_commit(engine: Engine, name: QueueName, group: str, partition: int, seq: int, clock: Clock) -> Iterator[int]:
    queue = engine.queue(name, clock())
    engine.group(queue, group)
    shard = _shard_of(queue, partition)
    count = 0
    while True:
        reply = engine.step(queue, shard, CursorCommit(group, seq), clock())
        count += reply.count
        if reply.done or count >= COMMIT_MESSAGES:
            yield count
            count = 0
        if reply.done:
            return


def _shard_of(queue: Queue, partition: int) -> Shard:
    if not 0 <= partition < len(queue.shards):
        raise InvalidArgument(field="partition", problem=f"is 0 to {len(queue.shards) - 1}, not {partition}")
    return queue.shards[partition]
