"""Looking at the messages of a queue: nothing is leased, nothing changes.

What may concern many records or partitions is an iterator of None for each step that is not the last, then of the
result: a step is a bounded amount of work, so that others have their turns in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, TypeVar

import msgspec

from holdfast.core import reading
from holdfast.core.commands import Bounds, Browse, Browsed, DeliveryStatus, Peek
from holdfast.core.deliveries import Delivery
from holdfast.core.records import Message, Place
from holdfast.core.shard import Shard
from holdfast.engine.catalog import QueueName
from holdfast.engine.wake_ups import Clock
from holdfast.errors import InvalidArgument

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

BROWSE_BYTES = 8 << 20  # about how many bytes of payloads a page has, at most
BROWSE_RECORDS = 10_000  # records that are read for a page, live or not
READ_MIN = 4  # records that are read of a partition at a time, at least
STEP_RECORDS = 512  # records that one step reads: about 5 ms
RECORD_BYTES = 8 << 10  # payloads of this size take as long as a record
BOUNDS_SHARDS = 16  # partitions of which one step finds the bounds, by binary search

T = TypeVar("T")


def finish(work: Iterator[T | None]) -> T:
    """The result of such an iterator, with all steps in one turn."""
    return next(result for result in work if result is not None)


FoundMessage = tuple[Message, list[DeliveryStatus]]
"""A live message with its status in each group."""


class BrowsedPage(msgspec.Struct, frozen=True):
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
    known = queue.find_group(group) is not None
    if not known and queue.record.groups:
        return None
    best: tuple[tuple[int, int], Shard, int] | None = None
    heads: Sequence[Sequence[Place | Delivery]] = (
        engine.heads(queue.shards, group) if known else engine.oldest_places(queue.shards)
    )
    for shard, places in zip(queue.shards, heads, strict=True):
        for place in places:
            order = (place.priority, place.stamp)
            if best is None or order < best[0]:
                best = (order, shard, place.seq)
    if best is None:
        return None
    found = engine.step(queue, best[1], Peek([best[2]]), now).messages
    return found[0][0] if found else None


def browse_messages(
    engine: Engine, name: QueueName, limit: int, cursor: str, state: str, group: str, now: int
) -> BrowsedPage:
    """A page of `browse_steps`, in one turn."""
    return finish(browse_steps(engine, name, limit, cursor, state, group, lambda: now))


def browse_steps(
    engine: Engine, name: QueueName, limit: int, cursor: str, state: str, group: str, clock: Clock
) -> Iterator[BrowsedPage | None]:
    """Live messages over all partitions, oldest first: a page, and before it None after each step.

    It reads a bounded number of records, live or not: those that are kept until the journal is exported may be many
    more than are live. So a page may have fewer messages than there are.
    """
    queue = engine.queue(name, clock())
    if group:
        queue.group(group)
    starts = _read_cursor(cursor, queue.partitions)
    readers = [_PartitionReader(shard, start) for shard, start in zip(queue.shards, starts, strict=True)]
    chunk = max(limit // len(readers), READ_MIN)
    found: list[tuple[int, Message, list[DeliveryStatus]]] = []
    left, left_bytes, in_step = BROWSE_RECORDS, BROWSE_BYTES, 0
    heap: list[tuple[int, int]] = []  # of the first message of each partition, its id and the partition
    unread = readers
    while len(found) < limit and left_bytes > 0:
        while left > 0 and (lacking := [reader for reader in unread if reader.lacks_messages]):
            some, commands = _next_reads(lacking, min(STEP_RECORDS - in_step, left), chunk, left_bytes // len(readers))
            steps = [(queue, reader.shard, command) for reader, command in zip(some, commands, strict=True)]
            cost = sum(map(_PartitionReader.take, some, commands, engine.step_all(steps, clock())))
            left, in_step = left - cost, in_step + cost
            if in_step >= STEP_RECORDS:
                in_step = 0
                yield None
                engine.check_open(queue)
        for reader in unread:
            if reader.messages:
                heappush(heap, (reader.messages[0][0].id, reader.shard.partition))
        if not heap or any(reader.lacks_messages for reader in unread):
            break
        reader = readers[heappop(heap)[1]]
        message, statuses = reader.messages.popleft()
        found.append((reader.shard.partition, message, statuses))
        left_bytes -= len(message.payload)
        unread = [reader]
    nexts = [reader.next_seq for reader in readers]
    now = clock()
    page = [item for item in found if _matches(item[1], item[2], state, group, now)]
    yield BrowsedPage(page, ",".join(map(str, nexts)) if any(nexts) else "")


class _PartitionReader:
    """Where a page is in one partition: messages that were read, and where to go on reading; 0: it has no more."""

    def __init__(self, shard: Shard, start: int) -> None:
        self.shard = shard
        self.messages: deque[FoundMessage] = deque()
        self._at = start
        self._scan = 0

    @property
    def lacks_messages(self) -> bool:
        return not self.messages and self._at > 0

    @property
    def next_seq(self) -> int:
        return self.messages[0][0].seq if self.messages else self._at

    def next_read(self, chunk: int, max_bytes: int) -> Browse:
        """Read on: twice as many records as the last time, if none of those was live."""
        self._scan = min(2 * self._scan or chunk, reading.CHUNK)
        return Browse(self._at, self._scan, max(max_bytes, 1), scan_limit=self._scan)

    def take(self, command: Browse, reply: Browsed) -> int:
        """What was read. Returns how many records that were, at most; bytes count too."""
        self._at = reply.next_seq
        if reply.messages:
            self.messages.extend(reply.messages)
            self._scan = 0
        return command.scan_limit + sum([len(message.payload) for message, _ in reply.messages]) // RECORD_BYTES


def _next_reads(
    readers: Sequence[_PartitionReader], left: int, chunk: int, max_bytes: int
) -> tuple[list[_PartitionReader], list[Browse]]:
    """What to read in one round: of one reader at least, of others while `left` records are not reached."""
    some: list[_PartitionReader] = []
    commands: list[Browse] = []
    for reader in readers:
        command = reader.next_read(chunk, max_bytes)
        some.append(reader)
        commands.append(command)
        left -= command.scan_limit
        if left <= 0:
            break
    return some, commands


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


def _matches(message: Message, statuses: list[DeliveryStatus], state: str, group: str, now: int) -> bool:
    """Whether a message has this state in this group, or in any; with no group at all, whether it would have it."""
    if not state and not group:
        return True
    if not statuses:
        return state == ("scheduled" if message.deliver_at > now else "ready")
    return any((not group or s.group == group) and (not state or s.state == state) for s in statuses)


def browse_range(
    engine: Engine,
    name: QueueName,
    partition: int,
    first: int,
    until: int,
    limit: int,
    max_bytes: int,
    now: int,
    gone: bool = False,
) -> SequenceRange:
    """Live messages of one partition, sequences `first` up to and without `until` (0: the end); with `gone` also those
    that are only kept for the journal.

    Reads no more than `limit` records, live or not, and in chunks: a step is repeated for every record it lacks.
    """
    queue = engine.queue(name, now)
    shard = queue.shard(partition)
    found: list[FoundMessage] = []
    at, left, left_bytes = max(first, 1), limit, max_bytes
    while at and left > 0 and left_bytes > 0:
        chunk = min(left, reading.CHUNK)
        reply = engine.step(queue, shard, Browse(at, chunk, left_bytes, until, chunk, gone), now)
        found += reply.messages
        left -= chunk
        left_bytes -= sum([len(message.payload) for message, _ in reply.messages])
        at = reply.next_seq
    return SequenceRange(found, at)


def partition_bounds(
    engine: Engine, name: QueueName, since: int, clock: Clock
) -> Iterator[list[PartitionBounds] | None]:
    """By partition, where its messages begin, or those enqueued at `since` or later. Before that None after each
    step."""
    queue = engine.queue(name, clock())
    found: list[PartitionBounds] = []
    for first in range(0, queue.partitions, BOUNDS_SHARDS):
        if first:
            yield None
            engine.check_open(queue)
        shards = queue.shards[first : first + BOUNDS_SHARDS]
        replies = engine.step_all([(queue, shard, Bounds(since)) for shard in shards], clock())
        found += [
            PartitionBounds(shard.partition, reply.first, reply.end)
            for shard, reply in zip(shards, replies, strict=True)
        ]
    yield found
