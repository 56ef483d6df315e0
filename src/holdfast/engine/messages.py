"""Single messages by their id: find, edit, delete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.core.commands import Command, Delete, DeliveryStatus, Edit, Find
from holdfast.core.records import Message
from holdfast.core.shard import Shard
from holdfast.engine.browse import finish
from holdfast.engine.catalog import Queue, QueueName
from holdfast.engine.message_ids import find_ids
from holdfast.engine.wake_ups import Clock
from holdfast.errors import MessageNotFound

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

FIND_SHARDS = 16  # partitions that one step searches: each by binary search

Found = tuple[int, Message, list[DeliveryStatus]]
"""A live message: its partition, the message, its status in each group."""

FoundInShard = tuple[Shard, Message, list[DeliveryStatus]]
"""The same, with its shard."""


def find_message(engine: Engine, name: QueueName, message_id: int, now: int) -> Found:
    """`find_steps`, in one turn."""
    return finish(find_steps(engine, name, message_id, lambda: now))


def find_steps(engine: Engine, name: QueueName, message_id: int, clock: Clock) -> Iterator[Found | None]:
    """A live message by its id, and before it None after each step."""
    queue = engine.queue(name, clock())
    for first in range(0, queue.partitions, FIND_SHARDS):
        if first:
            yield None
            engine.check_open(queue)
        found = _find_among(engine, queue, queue.shards[first : first + FIND_SHARDS], message_id, clock())
        if found is not None:
            yield (found[0].partition, *found[1:])
            return
    raise MessageNotFound(message_id=message_id, queue=name[1])


def find_named(engine: Engine, name: QueueName, producer_id: str, now: int) -> int | None:
    """The message that a producer has given this id, as long as the queue remembers it."""
    return find_ids(engine, engine.queue(name, now), {producer_id: None}, now).get(producer_id)


def find_live_message(engine: Engine, queue: Queue, message_id: int, now: int) -> FoundInShard | None:
    """A live message by its id, in whichever partition of a queue; None if it is not live."""
    return _find_among(engine, queue, queue.shards, message_id, now)


def _find_among(engine: Engine, queue: Queue, shards: list[Shard], message_id: int, now: int) -> FoundInShard | None:
    steps: list[tuple[Queue, Shard, Command[tuple[Message, list[DeliveryStatus]] | None]]] = [
        (queue, shard, Find(message_id)) for shard in shards if shard.live
    ]
    for (_, shard, _), found in zip(steps, engine.step_all(steps, now), strict=True):
        if found is not None:
            return shard, *found
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


def delete_message(
    engine: Engine, name: QueueName, message_id: int, now: int, partition: int = -1, leased: bool = False
) -> None:
    """Delete a message that waits, for all groups. `leased`: also if consumers hold it; they then lose their leases."""
    queue = engine.queue(name, now)
    shard = _holder(engine, queue, message_id, partition, now)
    engine.step(queue, shard, Delete(message_id, leased), now)
    engine.mark_dirty(name)
