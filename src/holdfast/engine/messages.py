"""Single messages by their id: find, edit, delete."""

from __future__ import annotations

from holdfast.core.commands import Delete, DeliveryStatus, Edit, Find
from holdfast.core.records import Message
from holdfast.core.shard import Shard
from holdfast.engine.catalog import Queue, QueueName
from holdfast.engine.engine import Engine
from holdfast.errors import MessageNotFound


def find_message(
    engine: Engine, name: QueueName, message_id: int, now: int
) -> tuple[int, Message, list[DeliveryStatus]]:
    """A live message by its id: its partition, the message, its status in each group."""
    shard, message, statuses = _find(engine, engine.queue(name, now), message_id, now)
    return shard.partition, message, statuses


def find_live_message(
    engine: Engine, queue: Queue, message_id: int, now: int
) -> tuple[Shard, Message, list[DeliveryStatus]] | None:
    """A live message by its id, in whichever partition of a queue; None if it is not live."""
    for shard in queue.shards:
        try:
            message, statuses = engine.step(queue, shard, Find(message_id), now)
        except MessageNotFound:
            continue
        return shard, message, statuses
    return None


def _find(engine: Engine, queue: Queue, message_id: int, now: int) -> tuple[Shard, Message, list[DeliveryStatus]]:
    found = find_live_message(engine, queue, message_id, now)
    if found is None:
        raise MessageNotFound(message_id=message_id, queue=queue.record.name)
    return found


def edit_message(
    engine: Engine, name: QueueName, message_id: int, priority: int | None, deliver_at: int | None, now: int
) -> Message:
    """Change the priority or the delivery time of a message that waits; None leaves a field as it is."""
    queue = engine.queue(name, now)
    shard, _, _ = _find(engine, queue, message_id, now)
    edited = engine.step(queue, shard, Edit(message_id, priority, deliver_at), now)
    engine.mark_dirty(name)
    return edited


def delete_message(engine: Engine, name: QueueName, message_id: int, now: int) -> None:
    """Delete a message that waits, for all groups."""
    queue = engine.queue(name, now)
    shard, _, _ = _find(engine, queue, message_id, now)
    engine.step(queue, shard, Delete(message_id), now)
    engine.mark_dirty(name)
