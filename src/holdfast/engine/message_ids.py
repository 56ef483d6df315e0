"""Deduplication of an enqueue by the message ids that producers give: within a queue, over all its partitions.

core/enqueue.py has what is remembered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from holdfast.core.commands import Draft, Enqueued, FindIds, RememberIds
from holdfast.core.enqueue import dedup_name, draft_error
from holdfast.engine.catalog import Queue

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

Known = dict[int, int]
"""By index, the id of the message that a draft repeats."""


def has_names(queue: Queue, drafts: Sequence[Draft]) -> bool:
    """Whether some of these may repeat a message by their ids."""
    return bool(queue.config.dedup_window) and any(dedup_name(draft) is not None for draft in drafts)


def rounds(
    engine: Engine, queue: Queue, drafts: Sequence[Draft], now: int, validated: bool = False
) -> Iterator[tuple[list[int], Known]]:
    """Which drafts to enqueue next, and what they repeat; what is stored of them must be remembered before the next
    round. Of drafts with the same id the first that is stored counts, so that the others wait for a later round.
    `validated`: none is refused.

    Mostly one round takes all. There are four at the most: a draft that would be refused waits for nothing.
    """
    names = [dedup_name(draft) for draft in drafts]
    left = list(range(len(drafts)))
    while left:
        found = find_ids(engine, queue, dict.fromkeys([name for at in left if (name := names[at]) is not None]), now)
        full = not validated and queue.room() == 0
        taken: list[int] = []
        known: Known = {}
        later: list[int] = []
        first: set[str] = set()
        for at in left:
            name = names[at]
            if name is not None:
                if name in found:
                    known[at] = found[name]
                elif name not in first:
                    first.add(name)
                elif not full and (validated or draft_error(queue.shards[0], drafts[at]) is None):
                    later.append(at)
                    continue
            taken.append(at)
        yield taken, known
        left = later


def repetitions(engine: Engine, queue: Queue, drafts: Sequence[Draft], now: int) -> Known:
    """Which drafts would repeat a message, or one before them in this batch, if none were refused. Of those the ids
    mean nothing."""
    names = [dedup_name(draft) for draft in drafts]
    found = find_ids(engine, queue, dict.fromkeys([name for name in names if name is not None]), now)
    known: Known = {}
    for at, name in enumerate(names):
        if name is not None:
            if name in found:
                known[at] = found[name]
            found.setdefault(name, 1)
    return known


def remember(engine: Engine, queue: Queue, drafts: Sequence[Draft], reply: Enqueued, now: int) -> None:
    """Remember those that were stored."""
    ids = {
        name: message_id
        for at, (draft, message_id) in enumerate(zip(drafts, reply.ids, strict=True))
        if message_id and at not in reply.duplicates and (name := dedup_name(draft)) is not None
    }
    if ids:
        engine.step(queue, queue.shards[0], RememberIds(ids), now)


def find_ids(engine: Engine, queue: Queue, names: dict[str, None], now: int) -> dict[str, int]:
    """The messages of these ids, those that are remembered.

    Versions before this one remembered an id in the shard of its message. Those that have some left are asked too.
    """
    first, *others = queue.shards
    command = FindIds(list(names))
    found = engine.step(queue, first, command, now)
    for shard in others:
        if shard.head.dedup_end:
            older = engine.step(queue, shard, command, now)
            found |= older
    return found
