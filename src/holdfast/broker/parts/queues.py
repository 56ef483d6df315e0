"""Queues: create, update, list, purge, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from holdfast.broker.cell import Cell
from holdfast.broker.submission import Submission
from holdfast.core.queue import QueueRecord
from holdfast.engine.catalog import Queue, QueueName
from holdfast.engine.queues import (
    create_queue,
    delete_queue,
    finish_deletion,
    finish_growth,
    purge_queue,
    update_queue,
)
from holdfast.errors import QueueNotFound


class Queues:
    """See the module."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._growths: dict[Queue, asyncio.Task[None]] = {}

    def get(self, name: QueueName) -> QueueRecord:
        cell = self._cell
        return cell.engine.queue(name, cell.clock()).record

    def exists(self, name: QueueName) -> bool:
        return name in self._cell.engine.queues

    def is_automatic(self, name: QueueName) -> bool:
        """Whether there is such a queue, and it was created as a dead queue."""
        queue = self._cell.engine.queues.get(name)
        return queue is not None and queue.record.automatic

    def depth(self, name: QueueName) -> int:
        """How many messages a queue holds."""
        cell = self._cell
        return cell.engine.queue(name, cell.clock()).depth

    def names(self, namespace: str | None = None) -> list[QueueName]:
        """Names of all queues, or of those of a namespace."""
        return [name for name in self._cell.engine.queues if namespace is None or name[0] == namespace]

    def captures(self) -> tuple[object, Mapping[QueueName, tuple[str, ...]]]:
        """The topic filters of queues that also take messages of ordinary topics, by queue, and before them a version
        that is another whenever they have changed."""
        engine = self._cell.open_engine
        if engine is None:
            return None, {}
        return (engine, engine.catalog.captures_changed), engine.catalog.captures

    def in_namespace(self, namespace: str, prefix: str = "", after: str = "") -> list[QueueRecord]:
        """Queues of a namespace by name."""
        found = [
            queue.record
            for (queue_namespace, name), queue in self._cell.engine.queues.items()
            if queue_namespace == namespace and name.startswith(prefix) and name > after and not queue.record.closing
        ]
        return sorted(found, key=lambda record: record.name)

    def dead_queue_users(self, name: QueueName) -> list[str]:
        """The queues of a namespace whose dead letters go to this one."""
        return self._cell.engine.catalog.dead_queue_users(name)

    async def create(self, name: QueueName, fields: Mapping[str, object] | None = None) -> QueueRecord:
        """Returns when it is durable. So is the queue that exists, if it is refused for that."""
        async with self._cell.refusing_durably():
            return await self.submit_create(name, fields)

    def submit_create(self, name: QueueName, fields: Mapping[str, object] | None = None) -> Submission[QueueRecord]:
        """As `create`, for callers that answer nothing before the sync of this turn."""
        cell = self._cell
        with cell.guard as engine:
            record = create_queue(engine, name, fields or {}, cell.clock())
        return cell.submission(record)

    def update(self, name: QueueName, fields: Mapping[str, object]) -> Submission[QueueRecord]:
        """Change the configuration. It is valid, and durable, before the last of many new partitions is there: `grown`
        waits for that."""
        cell = self._cell
        with cell.guard as engine:
            record = update_queue(engine, name, fields, cell.clock())
            queue = engine.queue(name, cell.clock())
        cell.dispatcher.members.rebalance(queue)
        self._grow(queue)
        return cell.submission(record)

    def _grow(self, queue: Queue) -> None:
        """Go on adding partitions, if some are lacking and no task adds them already."""
        if queue.lacking and queue not in self._growths:
            growth = self._growths[queue] = self._cell.spawn(self._finish_growth(queue))
            growth.add_done_callback(lambda _: self._growths.pop(queue))

    async def _finish_growth(self, queue: Queue) -> None:
        cell = self._cell
        await cell.in_steps_to_the_end(lambda: finish_growth(cell.engine, queue, cell.clock))
        cell.dispatcher.members.rebalance(queue)

    async def grown(self, name: QueueName) -> None:
        """Wait until a queue has all its partitions."""
        cell = self._cell
        growth = self._growths.get(cell.engine.queue(name, cell.clock()))
        if growth is not None:
            await cell.wait_for(growth)

    async def purge(self, name: QueueName) -> int:
        """Remove the messages that wait now. Returns how many."""
        cell = self._cell
        return await cell.in_steps(purge_queue(cell.engine, name, cell.clock))

    async def delete(self, name: QueueName) -> int:
        """Delete a queue with all it holds. Returns how many messages it held. Once the queue is marked, the deletion
        goes on to its end, also if the caller is cancelled."""
        cell = self._cell
        with cell.guard as engine:
            work = delete_queue(engine, name, cell.clock)
            next(work)
        return await cell.wait_for(cell.spawn(self._finish_deletion(name, work)))

    async def _finish_deletion(self, name: QueueName, work: Iterator[int]) -> int:
        cell = self._cell
        begun = [work]

        def begin() -> Iterator[int]:
            return begun.pop() if begun else finish_deletion(cell.engine, cell.engine.queues[name], cell.clock)

        count = await cell.in_steps_to_the_end(begin)
        dispatcher = cell.dispatcher
        dispatcher.members.queue_deleted(name)
        for member in dispatcher.members.all_members():
            if member.with_queue and member.group[0] == name:
                cell.remove_member(member, None)
                member.removed()
        dispatcher.waiters.reject(name, None, QueueNotFound(queue=name[1], namespace=name[0]))
        return count

    def resume(self) -> None:
        """Resume deletions and growth that a crash or a failure of the store interrupted."""
        cell = self._cell
        for name, queue in cell.engine.queues.items():
            self._grow(queue)
            if queue.record.closing:
                cell.spawn(self._finish_deletion(name, finish_deletion(cell.engine, queue, cell.clock)))
