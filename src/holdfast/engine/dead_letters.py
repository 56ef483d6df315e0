"""Which dead letters are selected, and the order in which they were dead-lettered.

`by_death_time` merges the partitions of a dead queue by the time of dead-lettering. Dead letters of the same time (of
one rejected batch, of one sweep of expired messages) are in the order in which their messages were enqueued. Only
references are held, so that memory does not grow with the number or the size of the dead letters.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

import msgspec

from holdfast.core.commands import Browse
from holdfast.core.records import Message
from holdfast.core.shard import Shard
from holdfast.engine.catalog import Queue
from holdfast.engine.engine import Engine
from holdfast.engine.messages import find_steps
from holdfast.engine.wake_ups import Clock
from holdfast.errors import MessageNotFound

PAGE_MESSAGES = 256  # dead letters read at a time, over all partitions
PAGE_BYTES = 8 << 20  # and about how many bytes of payload
READ_MAX = 1_024  # dead letters read before others have a turn
SORT_MAX = 4_096  # dead letters of the same time in one partition that are sorted together; more are sorted in parts


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the dead letters that meet every condition that is set."""

    ids: frozenset[int] = frozenset()
    reasons: frozenset[str] = frozenset()
    error: str = ""  # a part of the last error's text; upper and lower case are the same
    source_queue: str = ""
    source_group: str = ""
    after: int = 0  # dead-lettered at or after this instant
    before: int = 0  # dead-lettered before this instant
    before_id: int = 0  # with a smaller id: those that existed at some moment, whatever the clock has done since
    properties: tuple[tuple[str, str], ...] = ()

    def match(self, dead_letter: Message) -> bool:
        origin = dead_letter.extra.origin
        if origin is None:
            if self.reasons or self.error or self.source_queue or self.source_group:
                return False
        elif (
            (self.reasons and origin.reason not in self.reasons)
            or (self.error and self.error.casefold() not in origin.error.casefold())
            or (self.source_queue and origin.source_queue != self.source_queue)
            or (self.source_group and origin.source_group != self.source_group)
        ):
            return False
        return (
            dead_letter.enqueued_at >= self.after
            and not (self.before and dead_letter.enqueued_at >= self.before)
            and not (self.before_id and dead_letter.id >= self.before_id)
            and set(self.properties) <= set(dead_letter.extra.properties)
        )


class DeadLetterRef(msgspec.Struct, frozen=True, gc=False):
    """A dead letter by its place. References are ordered as their dead letters were dead-lettered."""

    died_at: int
    source_id: int
    id: int
    partition: int
    seq: int
    size_bytes: int
    matches: bool

    def __lt__(self, other: DeadLetterRef) -> bool:
        return (self.died_at, self.source_id, self.id) < (other.died_at, other.source_id, other.id)


def by_death_time(
    engine: Engine, queue: Queue, which: DeadLetterFilter, clock: Clock
) -> Iterator[DeadLetterRef | None]:
    """The dead letters that exist now, in the order of dead-lettering. None: many were read without an end, and others
    may have a turn."""
    if which.ids:
        yield from _by_ids(engine, queue, which, clock)
        return
    ends = [(shard, shard.head.next_seq) for shard in queue.shards if shard.live]
    chunk = max(PAGE_MESSAGES // max(len(ends), 1), 8)
    max_bytes = PAGE_BYTES // max(len(ends), 1)
    sources = [_sorted(_of_shard(engine, queue, shard, end, which, chunk, max_bytes, clock)) for shard, end in ends]
    heap: list[tuple[DeadLetterRef, int]] = []
    unread = range(len(sources))
    read = 0
    while True:
        for index in unread:
            for ref in sources[index]:
                if ref is not None:
                    heappush(heap, (ref, index))
                    break
                read += chunk
                if read >= READ_MAX:
                    read = 0
                    yield None
        if not heap:
            return
        ref, index = heappop(heap)
        yield ref
        unread = range(index, index + 1)


def _by_ids(engine: Engine, queue: Queue, which: DeadLetterFilter, clock: Clock) -> Iterator[DeadLetterRef | None]:
    """Dead letters by their ids, those that exist."""
    for message_id in sorted(which.ids):
        try:
            for found in find_steps(engine, queue.name, message_id, clock):
                if found is None:
                    yield None
                else:
                    partition, dead_letter, _ = found
                    yield _ref(dead_letter, dead_letter.enqueued_at, partition, which)
        except MessageNotFound:
            continue


def _of_shard(
    engine: Engine,
    queue: Queue,
    shard: Shard,
    end: int,
    which: DeadLetterFilter,
    chunk: int,
    max_bytes: int,
    clock: Clock,
) -> Iterator[DeadLetterRef | None]:
    """The dead letters of one partition below sequence `end`, and None after each page. Their times never decrease:
    where the clock was set back, the time of the one before is used."""
    at = 1
    died_at = 0
    while at:
        reply = engine.step(queue, shard, Browse(at, chunk, max_bytes, end, chunk), clock())
        at = reply.next_seq
        for dead_letter, _ in reply.messages:
            died_at = max(died_at, dead_letter.enqueued_at)
            yield _ref(dead_letter, died_at, shard.partition, which)
        yield None


def _sorted(refs: Iterator[DeadLetterRef | None]) -> Iterator[DeadLetterRef | None]:
    """Dead letters in the order of their ids, those of the same time sorted."""
    same_time: list[DeadLetterRef] = []
    for ref in refs:
        if ref is None:
            yield None
            continue
        if same_time and (ref.died_at != same_time[0].died_at or len(same_time) == SORT_MAX):
            yield from sorted(same_time)
            same_time = []
        same_time.append(ref)
    yield from sorted(same_time)


def _ref(dead_letter: Message, died_at: int, partition: int, which: DeadLetterFilter) -> DeadLetterRef:
    origin = dead_letter.extra.origin
    source_id = origin.source_id if origin is not None else dead_letter.id
    size_bytes, matches = len(dead_letter.payload), which.match(dead_letter)
    return DeadLetterRef(died_at, source_id, dead_letter.id, partition, dead_letter.seq, size_bytes, matches)
