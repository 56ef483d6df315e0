"""The groups of a queue: creation, deletion, and the group that appears with its first use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.core.commands import AddGroup, RemoveGroup, Tick
from holdfast.core.queue import GroupKind, GroupRecord, check_name
from holdfast.core.shard import Shard
from holdfast.engine.catalog import Queue, QueueName
from holdfast.engine.wake_ups import Clock
from holdfast.errors import GroupExists, InvalidArgument, LimitExceeded, WrongGroupKind
from holdfast.quotas import Quota

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

IDLE_STEPS = 128
"""Steps that found nothing to do and are joined with the next: a turn for each of a thousand empty partitions takes
longer than all of their work."""


def create_group(
    engine: Engine,
    name: QueueName,
    group: str,
    kind: GroupKind,
    now: int,
    earliest: bool | None,
    max_lag_messages: int,
    max_lag_age: int,
    by_consumer: bool = False,
) -> GroupRecord:
    """Create a group. `earliest`: it begins with all that is stored; None: it does if it is the queue's first.
    `by_consumer`: for somebody who does not administer the queue."""
    queue = engine.queue(name, now, create=True)
    existing = queue.record.group(group)
    if existing is not None:
        raise GroupExists(group=group, queue=name[1], kind=existing.kind.value)
    if kind is GroupKind.LEASE and (max_lag_messages or max_lag_age):
        raise InvalidArgument(field="max_lag", problem="is for cursor groups only")
    if max_lag_messages < 0 or max_lag_age < 0:
        raise InvalidArgument(field="max_lag", problem="cannot be negative")
    if by_consumer:
        check_consumers_share(engine, queue)
    first = not queue.record.groups if earliest is None else earliest
    return add_group(engine, queue, group, kind, now, first, max_lag_messages, max_lag_age)


def ensure_group(engine: Engine, queue: Queue, name: str, kind: GroupKind, now: int) -> GroupRecord:
    """A group by name, created on first use: the first one of a queue begins with all that is stored."""
    group = queue.find_group(name)
    if group is None:
        check_consumers_share(engine, queue)
        return add_group(engine, queue, name, kind, now, earliest=not queue.record.groups)
    if group.kind is not kind:
        action = "lease" if kind is GroupKind.LEASE else "be read as a log"
        raise WrongGroupKind(group=name, kind=group.kind.value, action=action)
    return group


def check_consumers_share(engine: Engine, queue: Queue) -> None:
    """Refuse a group that appears by use, or is created by somebody who may only consume, where three quarters of what
    a queue may have are there: the rest is for who administers it, so that consumers cannot keep others out."""
    share = max(engine.limits.max_groups * 3 // 4, 1)
    if len(queue.record.groups) >= share:
        raise LimitExceeded(
            what="The number of groups of a queue that consumers create",
            limit=share,
            advice="Delete some, let an administrator of the queue create it, or raise queues.max_groups_per_queue, "
            "three quarters of which are for consumers",
        )


def add_group(
    engine: Engine,
    queue: Queue,
    name: str,
    kind: GroupKind,
    now: int,
    earliest: bool,
    max_lag_messages: int = 0,
    max_lag_age: int = 0,
) -> GroupRecord:
    """Add a group that the queue does not have yet."""
    check_name(name, "group")
    record = queue.record
    if len(record.groups) >= engine.limits.max_groups:
        raise LimitExceeded(
            what="The number of groups of a queue",
            limit=engine.limits.max_groups,
            advice="Delete some, or raise queues.max_groups_per_queue",
        )
    namespace = record.namespace
    engine.limits.quotas.check(namespace, Quota.GROUPS, engine.catalog.totals(namespace).groups)
    group = GroupRecord(record.groups_made, name, kind, now, max_lag_messages, max_lag_age)
    engine.change_queue(queue, replace(record, groups=(*record.groups, group), groups_made=record.groups_made + 1))
    engine.save_queue(queue)
    for shard in queue.shards:
        start_group(engine, queue, shard, group, earliest, now)
        engine.wake_ups.schedule(shard)
    engine.mark_dirty(queue.name)
    return group


def start_group(engine: Engine, queue: Queue, shard: Shard, group: GroupRecord, earliest: bool, now: int) -> None:
    """The group begins in one shard, with all that is stored there or after it."""
    command = AddGroup(
        group.number, group.name, group.kind is GroupKind.CURSOR, earliest, group.max_lag_messages, group.max_lag_age
    )
    engine.step(queue, shard, command, now)


def delete_group(engine: Engine, name: QueueName, group: str, clock: Clock) -> Iterator[int]:
    """Delete a group. Messages that only this group needed are deleted in the ticks that follow."""
    queue = engine.queue(name, clock())
    record = queue.group(group)
    left = tuple(other for other in queue.record.groups if other.number != record.number)
    engine.change_queue(queue, replace(queue.record, groups=left))
    engine.save_queue(queue)
    # Every shard forgets the group before the first commit, so that no half of the deletion is ever visible.
    for shard in queue.shards:
        engine.step(queue, shard, RemoveGroup(group), clock())
    yield 0
    # The shards remember, over a crash too, what is left to delete; the ticks here only do it without delay.
    yield from joined(_ticks(engine, queue, clock))


def _ticks(engine: Engine, queue: Queue, clock: Clock) -> Iterator[int]:
    for shard in queue.shards:
        while done := engine.step(queue, shard, Tick(), clock()):
            yield done - 1  # a sweep that found nothing counts as 1


def joined(work: Iterator[int]) -> Iterator[int]:
    """Work that goes through partitions in steps, where steps that give 0 are none of their own."""
    idle = 0
    for count in work:
        idle += 1
        if count or idle >= IDLE_STEPS:
            yield count
            idle = 0
    yield 0
