"""Every live delivery of a cell, page by page: what a snapshot holds, and what the journal must add up to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.core.commands import Browse, CursorRead
from holdfast.core.queue import GroupKind
from holdfast.core.shard import Shard
from holdfast.engine.catalog import Queue
from holdfast.engine.engine import Engine

PAGE_MESSAGES = 1_000
PAGE_BYTES = 8 << 20  # payloads read at a time, although only the status of their messages is wanted


class LiveDelivery(NamedTuple):
    """A message that a group has not settled or committed; without a group: one that no group exists for."""

    namespace: str
    queue: str
    partition: int
    group: str | None
    message_id: int
    state: str
    attempt: int


def live_deliveries(engine: Engine, now: int) -> Iterator[list[LiveDelivery]]:
    """All of them. Nothing changes, and nothing may change until the last page is read."""
    for queue in engine.queues.values():
        for shard in queue.shards:
            yield from _waiting(engine, queue, shard, now)
            for group in queue.record.groups:
                if group.kind is GroupKind.CURSOR:
                    yield from _unread(engine, queue, shard, group.name, now)


def _waiting(engine: Engine, queue: Queue, shard: Shard, now: int) -> Iterator[list[LiveDelivery]]:
    """What leasing groups have not settled, and messages that no group exists for."""
    place = (*queue.name, shard.partition)
    first = 1
    while first:
        page = engine.step(queue, shard, Browse(first, PAGE_MESSAGES, PAGE_BYTES, scan_limit=PAGE_MESSAGES), now)
        first = page.next_seq
        rows: list[LiveDelivery] = []
        for message, statuses in page.messages:
            rows += [
                LiveDelivery(*place, status.group, message.id, status.state, status.attempt)
                for status in statuses
                if status.state != "settled"
            ]
            if not statuses and not shard.kept_by_cursor(message.seq):
                rows.append(LiveDelivery(*place, None, message.id, "ready", 0))
        yield rows


def _unread(engine: Engine, queue: Queue, shard: Shard, group: str, now: int) -> Iterator[list[LiveDelivery]]:
    """What a cursor group has not committed."""
    place = (*queue.name, shard.partition)
    first = shard.cursor_head(group).committed + 1
    while first < shard.head.next_seq:
        found = engine.step(queue, shard, CursorRead(group, first, PAGE_MESSAGES, PAGE_BYTES), now)
        first = found.next_seq
        yield [LiveDelivery(*place, group, message.id, "unread", 0) for message in found.messages]
