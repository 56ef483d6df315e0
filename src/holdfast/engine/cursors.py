"""Cursor groups: where each one is in each partition, reading, committing."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from holdfast.core import reading
from holdfast.core.commands import CursorCommit, CursorRange, CursorRead
from holdfast.core.queue import GroupKind
from holdfast.core.records import Message
from holdfast.engine.catalog import QueueName
from holdfast.engine.engine import Engine
from holdfast.engine.groups import ensure_group
from holdfast.engine.wake_ups import Clock

COMMIT_MESSAGES = 4_000  # that a cursor moves past in one step, each of which is synced: about 15 ms


class CursorEnd(msgspec.Struct, frozen=True):
    """Where a cursor group is in one partition, and where the partition ends: sequences `first` to `end - 1` can be
    read. `lost_from..lost_to` were skipped for max_lag since the last commit."""

    partition: int
    first: int
    committed: int
    end: int
    lost_from: int = 0
    lost_to: int = 0


def cursor_ends(engine: Engine, name: QueueName, group: str, now: int, create: bool = True) -> list[CursorEnd]:
    """For every partition, what there is to read. Reads no message. The group is created if it is new, unless `create`
    is false."""
    queue = engine.queue(name, now, create=create)
    if not create:
        queue.group(group)
    ensure_group(engine, queue, group, GroupKind.CURSOR, now)
    ends: list[CursorEnd] = []
    for shard in queue.shards:
        head = shard.cursor_head(group)
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
    """A range of sequences, from `first` or from what the group has not committed (0), up to `until` or the end. The
    group is created if it is new, unless `create` is false.

    In chunks: a step is repeated for every record it lacks, so one for all of a long range would read it many times.
    """
    queue = engine.queue(name, now, create=create)
    if create:
        ensure_group(engine, queue, group, GroupKind.CURSOR, now)
    else:
        queue.group(group)
    shard = queue.shard(partition)
    at = shard.cursor_head(group).committed + 1 if first <= 0 else first
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
    """The group needs nothing of a partition up to and including `seq`. Yields how many messages it moved past: the
    caller makes a step durable before it takes the next."""
    queue = engine.queue(name, clock())
    queue.group(group)
    shard = queue.shard(partition)
    count = 0
    while True:
        reply = engine.step(queue, shard, CursorCommit(group, seq), clock())
        count += reply.count
        if reply.done or count >= COMMIT_MESSAGES:
            yield count
            count = 0
        if reply.done:
            return
