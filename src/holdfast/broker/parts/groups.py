"""Consumer groups, made and removed by hand. (A leasing group also appears with its first consumer.)"""

from __future__ import annotations

from holdfast.broker.cell import Cell
from holdfast.broker.submission import Submission
from holdfast.core.queue import GroupKind, GroupRecord
from holdfast.engine.catalog import QueueName
from holdfast.engine.groups import create_group, delete_group
from holdfast.errors import GroupNotFound


class Groups:
    """See the module."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    def get(self, name: QueueName, group: str) -> GroupRecord:
        """A group that exists."""
        return self._cell.engine.queue(name, self._cell.clock()).group(group)

    async def create(
        self,
        name: QueueName,
        group: str,
        kind: GroupKind = GroupKind.LEASE,
        *,
        earliest: bool | None = None,
        max_lag_messages: int = 0,
        max_lag_age: int = 0,
        by_consumer: bool = False,
    ) -> GroupRecord:
        """`by_consumer`: for somebody who does not administer the queue.

        Unless `earliest` says so, the first group of a queue starts with all that is stored, others at the end. Returns
        when it is durable. So is the group that exists, if it is refused for that."""
        async with self._cell.refusing_durably():
            return await self.submit_create(
                name,
                group,
                kind,
                earliest=earliest,
                max_lag_messages=max_lag_messages,
                max_lag_age=max_lag_age,
                by_consumer=by_consumer,
            )

    def submit_create(
        self,
        name: QueueName,
        group: str,
        kind: GroupKind = GroupKind.LEASE,
        *,
        earliest: bool | None = None,
        max_lag_messages: int = 0,
        max_lag_age: int = 0,
        by_consumer: bool = False,
    ) -> Submission[GroupRecord]:
        """As `create`, for callers that answer nothing before the sync of this turn."""
        cell = self._cell
        with cell.guard as engine:
            record = create_group(
                engine, name, group, kind, cell.clock(), earliest, max_lag_messages, max_lag_age, by_consumer
            )
        return cell.submission(record)

    async def delete(self, name: QueueName, group: str) -> None:
        """Delete a group. Its push members are removed, and its long polls end."""
        cell = self._cell
        for member in cell.dispatcher.members.of((name, group)):
            cell.remove_member(member, None)
            member.removed()
        cell.dispatcher.waiters.reject(name, group, GroupNotFound(group=group, queue=name[1]))
        await cell.in_steps(delete_group(cell.engine, name, group, cell.clock))
