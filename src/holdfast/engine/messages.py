"""Single messages by their id: find, edit, delete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.core.commands import Delete, DeliveryStatus, Edit, Find
from holdfast.core.records import Message
from holdfast.core.shard import Shard
from holdfast.engine.browse import finish
from holdfast.engine.catalog import Queue, QueueName
from holdfast.engine.wake_ups import Clock
from holdfast.errors import MessageNotFound

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

FIND_SHARDS = 16  # partitions that one step searches: each by binary search

Found = tuple[int, Message, list[DeliveryStatus]]
"""A live message: its partition, the message, its status in each group."""


def find_message(engine: Engine, name: QueueName, message_id: int, now: int) -> Found:
    """`find_steps`, in one turn."""
    return finish(find_steps(engine, name, message_id, lambda: now))


def find_steps(engine: Engine, name: QueueName, message_id: int, clock: Clock) -> Iterator[Found | None]:
    """A live message by its id, and before it None after each step."""
    queue = engine.queue(name, clock())
    for number, shard in enumerate(queue.shards, 1):
        found = _find_in(engine, queue, shard, message_id, clock())
        if found is not None:
            yield (shard.partition, *found)
            return
        if number % FIND_SHARDS == 0:
            yield None
            engine.check_open(queue)
    raise MessageNotFound(message_id=message_id, queue=name[1])


def find_live_message(
    engine: Engine, queue: Queue, message_id: int, now: int
) -> tuple[Shard, Message, list[DeliveryStatus]] | None:
    """A live message by its id, in whichever partition of a queue; None if it is not live."""
    for shard in queue.shards:
        found = _find_in(engine, queue, shard, message_id, now)
        if found is not None:
            return (shard, *found)
    return None


def _find_in(
    engine: Engine, queue: Queue, shard: Shard, message_id: int, now: int
) -> tuple[Message, list[DeliveryStatus]] | None:
    if not shard.live:
        return None
    try:
        return engine.step(queue, shard, Find(message_id), now)
    except MessageNotFound:
        return None


def _holder(engine: Engine, queue: Queue, message_id: int, partition: int, now: int) -> Shard:
    """The shard that has a message: that of the partition, or if it is not known (-1) the one that is found."""
    return queue.shard(find_message(engine, queue.name, message_id, now)[0] if partition < 0 else partition)


def edit_message(
    engine: Engine,
    name: QueueName,
    message_id: int,
    priority: int | None,
    deliver_at: int | None,
    now: int,
    partition: int = -1,
) -> Message:
    """Change the priority or the delivery time of a message that waits; None leaves a field as it is."""
    queue = engine.queue(name, now)
    shard = _holder(engine, queue, message_id, partition, now)
    edited = engine.step(queue, shard, Edit(message_id, priority, deliver_at), now)
    engine.mark_dirty(name)
    return edited


def delete_message(engine: Engine, name: QueueName, message_id: int, now: int, partition: int = -1) -> None:
    """Delete a message that waits, for all groups."""
    queue = engine.queue(name, now)
    shard = _holder(engine, queue, message_id, partition, now)
    engine.step(queue, shard, Delete(message_id), now)
    engine.mark_dirty(name)
