"""The queues of a cell: creation, configuration, purge, deletion.

What may concern many messages (purge, deletion) is a generator: each step is a bounded amount of work, and between two
steps the caller commits and lets other work run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.core.commands import Purge
from holdfast.core.deadletter import check_dead_queue, check_unused
from holdfast.core.effects import DeleteUntil, Op
from holdfast.core.queue import JournalMode, QueueConfig, QueueRecord, check_name, from_fields
from holdfast.core.records import Table, queue_key, shard_key
from holdfast.engine.catalog import Queue, QueueName
from holdfast.engine.groups import joined, start_group
from holdfast.engine.wake_ups import Clock
from holdfast.errors import LimitExceeded, QueueExists
from holdfast.quotas import Quota

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

# The tables of a shard that are deleted with its queue. MESSAGES is not among them: the journal refers to its records.
_SHARD_TABLES = (
    Table.SHARDS,
    Table.GROUPS,
    Table.READY,
    Table.SCHEDULED,
    Table.DUE,
    Table.KEYED,
    Table.LEASES,
    Table.DELIVERIES,
    Table.SETTLED,
    Table.EXPIRIES,
    Table.DEDUP,
    Table.DEDUP_ENDS,
    Table.SOURCES,
    Table.STATES,
)

# Groups that begin in a new partition, in one step: 15 µs each.
GROUP_STARTS_MAX = 512


def create_queue(engine: Engine, name: QueueName, fields: Mapping[str, object], now: int) -> QueueRecord:
    check_name(name[0], "namespace")
    check_name(name[1])
    if name in engine.queues:
        raise QueueExists(queue=name[1])
    config = from_fields(fields)
    _check_webhooks(engine, name, config)
    _check_dead_queue(engine, name, config)
    return add_queue(engine, name, config, now).record


def add_queue(engine: Engine, name: QueueName, config: QueueConfig, now: int, automatic: bool = False) -> Queue:
    """Add a queue whose name and configuration are valid."""
    if len(engine.queues) >= engine.limits.max_queues:
        raise LimitExceeded(
            what="The number of queues",
            limit=engine.limits.max_queues,
            advice="Delete some, or raise queues.max_queues",
        )
    if not automatic:  # a dead letter must have somewhere to go
        quotas, namespace = engine.limits.quotas, name[0]
        totals = engine.catalog.totals(namespace)
        quotas.check(namespace, Quota.QUEUES, totals.queues)
        quotas.check(namespace, Quota.PARTITIONS, totals.partitions, config.partitions)
    numbers = engine.record.new_shards(config.partitions)
    record = QueueRecord(*name, config, numbers, now, automatic=automatic)
    queue = engine.add_queue(record, [engine.new_shard(record, partition) for partition in range(len(numbers))])
    engine.save_queue(queue)
    queue.sample_rates(now)
    return queue


def update_queue(engine: Engine, name: QueueName, fields: Mapping[str, object], now: int) -> QueueRecord:
    """Change the configuration. New partitions are empty, and every group begins at their beginning. Those that are too
    many for one turn follow by `finish_growth`."""
    queue = engine.queue(name, now)
    config = from_fields(fields, queue.config)
    if not queue.config.dlq.alert_webhook:
        _check_webhooks(engine, name, config)
    more = config.partitions - queue.config.partitions
    if more:
        engine.limits.quotas.check(name[0], Quota.PARTITIONS, engine.catalog.totals(name[0]).partitions, more)
    _check_dead_queue(engine, name, config)
    reconfigure(engine, queue, config, now)
    return queue.record


def _check_dead_queue(engine: Engine, name: QueueName, config: QueueConfig) -> None:
    catalog = engine.catalog
    check_dead_queue(name[1], config, catalog.record((name[0], config.dlq.queue)), catalog.dead_queue_users(name))


def _check_webhooks(engine: Engine, name: QueueName, config: QueueConfig) -> None:
    """Refuse one more queue with a webhook than its namespace may have."""
    if config.dlq.alert_webhook:
        engine.limits.quotas.check(name[0], Quota.WEBHOOKS, engine.catalog.totals(name[0]).webhooks)


def reconfigure(engine: Engine, queue: Queue, config: QueueConfig, now: int) -> None:
    """Change the configuration to one that is valid. The number of partitions may only have grown."""
    was_off = queue.config.journal is JournalMode.OFF
    engine.change_queue(queue, replace(queue.record, config=config, automatic=False))
    if was_off:
        engine.record_groups(queue, now)
    grow(engine, queue, now)
    engine.mark_dirty(queue.name)


def grow(engine: Engine, queue: Queue, now: int) -> None:
    """Add partitions that the configuration has and the queue lacks, as many as a turn may, and save the queue."""
    record = queue.record
    count = max(GROUP_STARTS_MAX // max(len(record.groups), 1), 1)
    added = engine.record.new_shards(min(queue.lacking, count))
    record = replace(record, shards=record.shards + added)
    new_shards = [engine.new_shard(record, partition) for partition in range(len(queue.shards), len(record.shards))]
    engine.operation.before_queue(queue.name)
    queue.add_shards(record, new_shards)
    engine.catalog.add(queue)
    engine.save_queue(queue)
    for shard in new_shards:
        for group in record.groups:
            start_group(engine, queue, shard, group, True, now)


def finish_growth(engine: Engine, queue: Queue, clock: Clock) -> Iterator[int]:
    """Add the partitions that are still lacking, unless the queue is deleted meanwhile."""
    while queue.lacking and engine.queues.get(queue.name) is queue and not queue.record.closing:
        grow(engine, queue, clock())
        engine.mark_dirty(queue.name)
        yield 0


def purge_queue(engine: Engine, name: QueueName, clock: Clock) -> Iterator[int]:
    """Delete the messages that wait now, also those that wait for a cursor group only. What is leased stays until it is
    settled."""
    yield from joined(_purge(engine, engine.queue(name, clock()), clock, everything=False))


def delete_queue(engine: Engine, name: QueueName, clock: Clock) -> Iterator[int]:
    """Purge everything, leased or not, and delete the queue. It is marked first, so that a restart goes on with it."""
    queue = engine.queue(name, clock())
    check_unused(name[1], engine.catalog.dead_queue_users(name))
    engine.change_queue(queue, replace(queue.record, closing=True))
    engine.save_queue(queue)
    yield 0
    yield from finish_deletion(engine, queue, clock)


def finish_deletion(engine: Engine, queue: Queue, clock: Clock) -> Iterator[int]:
    """Go on with the deletion of a queue that is marked. Its message records are deleted by the journal's export."""
    yield from joined(_purge(engine, queue, clock, everything=True))
    record = queue.record
    ops: list[Op] = [(Table.QUEUES, queue_key(record.namespace, record.name), None)]
    for first, last in _neighbours(record.shards):
        low, high = shard_key(first), shard_key(last + 1)
        ops += [(table, low, DeleteUntil(high)) for table in _SHARD_TABLES]
    engine.forget_queue(queue, ops, clock())
    yield 0


def _neighbours(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """The first and last of each row of consecutive numbers: those of partitions that were made together. A range of
    records for each of a thousand partitions would take the store 50 ms."""
    rows: list[tuple[int, int]] = []
    for number in numbers:
        if rows and rows[-1][1] == number - 1:
            rows[-1] = (rows[-1][0], number)
        else:
            rows.append((number, number))
    return rows


def _purge(engine: Engine, queue: Queue, clock: Clock, everything: bool) -> Iterator[int]:
    for shard in queue.shards:
        command = Purge(shard.head.next_seq, everything=everything)
        removed = 0
        while True:
            reply = engine.step(queue, shard, command, clock())
            yield reply.count
            removed += reply.count
            if reply.done:
                if not removed:
                    break
                removed = 0
            command = replace(command, after=reply.after)
