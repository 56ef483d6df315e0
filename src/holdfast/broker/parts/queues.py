"""Administration: calls of a node that make, change and remove queues, groups and single messages."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.broker.parts.subscriptions import PushCalls
from holdfast.core.queue import GroupKind, GroupRecord, QueueRecord
from holdfast.core.records import Message
from holdfast.engine import admin
from holdfast.engine.catalog import Queue, QueueName
from holdfast.engine.stats import RateWindow
from holdfast.errors import GroupNotFound, QueueNotFound


class AdminCalls(PushCalls):
    """See the module. What is removed may have push consumers, who are told."""

    _rates: dict[QueueName, RateWindow]

    async def create_queue(self, name: QueueName, fields: Mapping[str, object] | None = None) -> QueueRecord:
        record = self.create_queue_nowait(name, fields or {})
        await self._durable()
        return record

    def create_queue_nowait(self, name: QueueName, fields: Mapping[str, object]) -> QueueRecord:
        """As `create_queue`, but it does not wait: it is durable with the next sync."""
        with self._guard() as engine:
            return admin.create_queue(engine, name, fields, self.clock())

    async def update_queue(self, name: QueueName, fields: Mapping[str, object]) -> QueueRecord:
        record = self.update_queue_nowait(name, fields)
        await self._durable()
        return record

    def update_queue_nowait(self, name: QueueName, fields: Mapping[str, object]) -> QueueRecord:
        """As `update_queue`, but it does not wait: it is durable with the next sync."""
        with self._guard() as engine:
            record = admin.update_queue(engine, name, fields, self.clock())
            queue = engine.queue(name, self.clock())
        for group in self.dispatcher.members.groups_of(name):
            self.dispatcher.members.rebalance(group, queue)
        return record

    async def delete_queue(self, name: QueueName) -> int:
        """Delete a queue with all it holds. Returns how many messages went with it."""
        count = await self._in_steps(admin.delete_queue(self.engine, name, self.clock))
        self._rates.pop(name, None)
        self.dispatcher.members.queue_deleted(name)
        for member in self.dispatcher.members.all_members():
            if member.with_queue and member.group[0] == name:
                self.remove_member(member, None)
                member.removed()
        self.dispatcher.reject_waiters(name, None, QueueNotFound(queue=name[1], namespace=name[0]))
        return count

    async def _finish_deletion(self, queue: Queue) -> None:
        await self._in_steps(admin.finish_deletion(self.engine, queue, self.clock))

    async def purge(self, name: QueueName) -> int:
        """Remove the messages that wait now. Returns how many."""
        return await self._in_steps(admin.purge_queue(self.engine, name, self.clock))

    async def create_group(
        self,
        name: QueueName,
        group: str,
        kind: GroupKind = GroupKind.LEASE,
        *,
        earliest: bool | None = None,
        max_lag_messages: int = 0,
        max_lag_age: int = 0,
    ) -> GroupRecord:
        """A group by hand. Unless told, the first one of a queue starts with all that is stored, others at the end."""
        with self._guard() as engine:
            record = admin.create_group(
                engine, name, group, kind, self.clock(), earliest, max_lag_messages, max_lag_age
            )
        await self._durable()
        return record

    async def delete_group(self, name: QueueName, group: str) -> None:
        for member in self.dispatcher.members.of((name, group)):
            self.remove_member(member, None)
            member.removed()
        self.dispatcher.reject_waiters(name, group, GroupNotFound(group=group, queue=name[1]))
        await self._in_steps(admin.delete_group(self.engine, name, group, self.clock))

    async def edit(
        self, name: QueueName, message_id: int, *, priority: int | None = None, deliver_at: int | None = None
    ) -> Message:
        """Change a waiting message."""
        with self._guard() as engine:
            message = admin.edit(engine, name, message_id, priority, deliver_at, self.clock())
        await self._durable()
        return message

    async def delete(self, name: QueueName, message_id: int) -> None:
        """Remove one waiting message."""
        with self._guard() as engine:
            admin.delete(engine, name, message_id, self.clock())
        await self._durable()
