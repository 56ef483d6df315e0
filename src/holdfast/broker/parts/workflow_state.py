"""Workflow state: bytes that are kept beside a delivery. core/workflow.py says what it is."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.broker.cell import Cell
from holdfast.broker.submission import Submission
from holdfast.core.commands import GetStates, Leased, PutState
from holdfast.core.records import WorkflowState
from holdfast.core.workflow import visible_state
from holdfast.engine.admin import find
from holdfast.engine.catalog import DeliveryLocator, QueueName
from holdfast.engine.engine import Engine
from holdfast.errors import LeaseLost, LimitExceeded


class WorkflowStates:
    """See the module. `bytes_max` bounds one state."""

    def __init__(self, cell: Cell, bytes_max: int) -> None:
        self._cell = cell
        self._bytes_max = bytes_max

    async def get(self, name: QueueName, group: str, message_id: int, token: int = 0) -> WorkflowState | None:
        """The state of a message in a group, None if none was put yet. With a token it must be the current lease's."""
        now = self._cell.clock()
        with self._cell.guard as engine:
            queue = engine.queue(name, now)
            partition = DeliveryLocator(queue, group).find(message_id)
            if partition < 0:
                partition, _, _ = find(engine, name, message_id, now)
            return _get(engine, name, group, partition, [(message_id, token)], now)[0]

    def put(
        self, name: QueueName, group: str, message_id: int, token: int, data: bytes, if_match: int | None = None
    ) -> Submission[WorkflowState]:
        """Keep `data` beside a delivery, under its lease. The result is the state with its new etag.

        With `if_match` only over the state that has this etag, 0 for none yet; else `StateChanged`.
        """
        limit = self._bytes_max
        if len(data) > limit:
            raise LimitExceeded(
                what="A workflow state", limit=f"{limit} bytes", advice="Keep it smaller, or raise limits.state_bytes"
            )
        return self._change(name, PutState(group, message_id, token, data, if_match))

    def drop(
        self, name: QueueName, group: str, message_id: int, token: int, if_match: int | None = None
    ) -> Submission[WorkflowState]:
        """Remove the state of a delivery, under its lease; it may have none. `if_match` as above."""
        return self._change(name, PutState(group, message_id, token, None, if_match))

    def _change(self, name: QueueName, command: PutState) -> Submission[WorkflowState]:
        now = self._cell.clock()
        group, message_id = command.group, command.id
        with self._cell.guard as engine:
            queue = engine.queue(name, now)
            engine.group(queue, group)
            partition = DeliveryLocator(queue, group).find(message_id)
            if partition < 0:
                raise LeaseLost(message_id=message_id)
            reply = engine.step(queue, queue.shards[partition], command, now)
        return self._cell.submission(reply)

    async def of_leased(self, name: QueueName, group: str, leased: Sequence[Leased]) -> list[WorkflowState | None]:
        """The states of what was just leased, in order; None where there is none, or the lease has ended since."""
        now = self._cell.clock()
        with self._cell.guard as engine:
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
