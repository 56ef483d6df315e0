"""Workflow state: calls of a node that keep bytes beside a delivery. What it is, is said in core/workflow.py."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.broker.parts.part import Calls
from holdfast.core.commands import GetStates, Leased, PutState
from holdfast.core.records import WorkflowState
from holdfast.core.workflow import visible_state
from holdfast.engine.admin import find
from holdfast.engine.catalog import DeliveryLocator, QueueName
from holdfast.engine.engine import Engine
from holdfast.errors import LeaseLost, LimitExceeded


class StateCalls(Calls):
    """See the module."""

    async def get_state(self, name: QueueName, group: str, message_id: int, token: int = 0) -> WorkflowState | None:
        """The state of a message in a group, None if none was put yet. With a token it must be the current lease's."""
        now = self.clock()
        with self._guard() as engine:
            queue = engine.queue(name, now)
            partition = DeliveryLocator(queue, group).find(message_id)
            if partition < 0:
                partition, _, _ = find(engine, name, message_id, now)
            return _get(engine, name, group, partition, [(message_id, token)], now)[0]

    async def put_state(
        self, name: QueueName, group: str, message_id: int, token: int, data: bytes, if_match: int | None = None
    ) -> WorkflowState:
        """Keep `data` beside a delivery, under its lease; returns the state with its new etag, when it is durable.

        With `if_match` only over the state that has this etag, 0 for none yet; else `StateChanged`.
        """
        limit = self.config.limits.state_bytes
        if len(data) > limit:
            raise LimitExceeded(
                what="A workflow state", limit=f"{limit} bytes", advice="Keep it smaller, or raise limits.state_bytes"
            )
        return await self._change(name, PutState(group, message_id, token, data, if_match))

    async def drop_state(
        self, name: QueueName, group: str, message_id: int, token: int, if_match: int | None = None
    ) -> None:
        """Keep nothing beside a delivery any more, under its lease; where nothing is kept that is well too. `if_match`
        as above."""
        await self._change(name, PutState(group, message_id, token, None, if_match))

    async def _change(self, name: QueueName, command: PutState) -> WorkflowState:
        now = self.clock()
        group, message_id = command.group, command.id
        with self._guard() as engine:
            queue = engine.queue(name, now)
            engine.group(queue, group)
            partition = DeliveryLocator(queue, group).find(message_id)
            if partition < 0:
                raise LeaseLost(message_id=message_id)
            reply = engine.step(queue, queue.shards[partition], command, now)
        await self._durable()
        return reply

    async def states(self, name: QueueName, group: str, leased: Sequence[Leased]) -> list[WorkflowState | None]:
        """The states of what was just leased, in order; None where there is none, or the lease has ended since."""
        now = self.clock()
        with self._guard() as engine:
            by_partition: dict[int, list[int]] = {}
            for index, item in enumerate(leased):
                if _is_leased(engine, name, group, item):
                    by_partition.setdefault(item.partition, []).append(index)
            found: list[WorkflowState | None] = [None] * len(leased)
            for partition, indexes in by_partition.items():
                pairs = [(leased[index].message.id, leased[index].token) for index in indexes]
                for index, state in zip(indexes, _get(engine, name, group, partition, pairs, now), strict=True):
                    found[index] = state
        return found


def _is_leased(engine: Engine, name: QueueName, group: str, item: Leased) -> bool:
    queue = engine.queues.get(name)
    here = queue.shards[item.partition].groups.get(group) if queue is not None else None
    delivery = here.deliveries.get(item.message.id) if here is not None else None
    return delivery is not None and delivery.token == item.token


def _get(
    engine: Engine, name: QueueName, group: str, partition: int, deliveries: list[tuple[int, int]], now: int
) -> list[WorkflowState | None]:
    queue = engine.queue(name, now)
    reply = engine.step(queue, queue.shards[partition], GetStates(group, deliveries), now)
    return [visible_state(state) for state in reply]
