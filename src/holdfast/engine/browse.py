"""Looking at the messages of a queue: nothing is leased, nothing changes."""

from __future__ import annotations

import msgspec

from holdfast.core import reading
from holdfast.core.commands import Bounds, Browse, Browsed, DeliveryStatus
from holdfast.core.records import Message
from holdfast.core.shard import Shard
from holdfast.engine.catalog import Queue, QueueName
from holdfast.engine.engine import Engine
from holdfast.errors import InvalidArgument

BROWSE_BYTES = 8 << 20  # payloads of one partition that one call reads
BROWSE_RECORDS = 10_000  # and records of one partition, live or not: about 50 ms

FoundMessage = tuple[Message, list[DeliveryStatus]]
"""A live message with its status in each group."""


class Page(msgspec.Struct, frozen=True):
    """Messages, each with its partition and its status in each group. The next page begins at `cursor`; empty: there
    is none."""

    messages: list[tuple[int, Message, list[DeliveryStatus]]]
    cursor: str


class SequenceRange(msgspec.Struct, frozen=True):
    """Messages of one partition in the order of sequences. The next range begins at `next_seq`; 0: there is none."""

    messages: list[FoundMessage]
    next_seq: int


class PartitionBounds(msgspec.Struct, frozen=True):
    """Sequences `first` to `end - 1` of a partition; which of them are live is not known."""

    partition: int
    first: int
    end: int


def head_message(engine: Engine, name: QueueName, group: str, now: int) -> Message | None:
    """What a leasing group would be given next; None if there is nothing for it now. It costs the same at any depth.

    A group that does not exist yet would begin with all that is stored if it were the first, else with nothing."""
    queue = engine.queue(name, now)
    known = queue.record.group(group) is not None
    if not known and queue.record.groups:
        return None
    best: tuple[tuple[int, int], Shard, int] | None = None
    for shard in queue.shards:
        for place in engine.heads(shard, group) if known else engine.oldest_places(shard):
            order = (place.priority, place.stamp)
            if best is None or order < best[0]:
                best = (order, shard, place.seq)
    if best is None:
        return None
    found = _browse_shard(engine, queue, best[1], best[2], 1, now).messages
    return found[0][0] if found else None


def browse_messages(engine: Engine, name: QueueName, limit: int, cursor: str, state: str, group: str, now: int) -> Page:
    """Live messages over all partitions, oldest first."""
    queue = engine.queue(name, now)
    if group:
        queue.group(group)
    starts = _read_cursor(cursor, queue.partitions)
    found: list[tuple[int, Message, list[DeliveryStatus]]] = []
    nexts = list(starts)
    for shard in queue.shards:
        if not starts[shard.partition]:
            continue
        reply = _browse_shard(engine, queue, shard, starts[shard.partition], limit, now)
        nexts[shard.partition] = reply.next_seq
        found += [(shard.partition, message, statuses) for message, statuses in reply.messages]
    found.sort(key=lambda item: item[1].id)
    for partition, message, _ in reversed(found[limit:]):
        nexts[partition] = message.seq
    page = [item for item in found[:limit] if _matches(item[2], state, group)]
    return Page(page, ",".join(map(str, nexts)) if any(nexts) else "")


def _browse_shard(engine: Engine, queue: Queue, shard: Shard, first: int, limit: int, now: int) -> Browsed:
    """Live messages of a shard. In chunks, because a step is repeated for every record it lacks, and a bounded number
    of records: those that are kept until the journal is exported may be many more than are live."""
    found: list[FoundMessage] = []
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


def _matches(statuses: list[DeliveryStatus], state: str, group: str) -> bool:
    if not state and not group:
        return True
    return any((not group or s.group == group) and (not state or s.state == state) for s in statuses)


def browse_range(
    engine: Engine, name: QueueName, partition: int, first: int, until: int, limit: int, max_bytes: int, now: int
) -> SequenceRange:
    """Live messages of one partition, sequences `first` up to and without `until` (0: the end).

    Reads no more than `limit` records, live or not, and in chunks: a step is repeated for every record it lacks.
    """
    queue = engine.queue(name, now)
    shard = queue.shard(partition)
    found: list[FoundMessage] = []
    at, left, left_bytes = max(first, 1), limit, max_bytes
    while at and left > 0 and left_bytes > 0:
        chunk = min(left, reading.CHUNK)
        reply = engine.step(queue, shard, Browse(at, chunk, left_bytes, until, chunk), now)
        found += reply.messages
        left -= chunk
        left_bytes -= sum([len(message.payload) for message, _ in reply.messages])
        at = reply.next_seq
    return SequenceRange(found, at)


def partition_bounds(engine: Engine, name: QueueName, since: int, now: int) -> list[PartitionBounds]:
    """By partition, where its messages begin, or those enqueued at `since` or later."""
    queue = engine.queue(name, now)
    found: list[PartitionBounds] = []
    for shard in queue.shards:
        reply = engine.step(queue, shard, Bounds(since), now)
        found.append(PartitionBounds(shard.partition, reply.first, reply.end))
    return found
