"""Workflow state: bytes that are kept beside a delivery. core/workflow.py says what it is."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.broker.cell import Cell
from holdfast.core.commands import Leased, PutState
from holdfast.core.records import WorkflowState
from holdfast.engine.catalog import QueueName
from holdfast.engine.workflow_states import get_state, put_state, states_of_leased
from holdfast.errors import LimitExceeded


class WorkflowStates:
    """See the module. `bytes_max` bounds one state."""

    def __init__(self, cell: Cell, bytes_max: int) -> None:
        self._cell = cell
        self._bytes_max = bytes_max

    async def get(self, name: QueueName, group: str, message_id: int, token: int = 0) -> WorkflowState | None:
        """The state of a message in a group, None if none was put yet. With a token it must be the current lease's."""
        cell = self._cell
        found = await cell.read_in_steps(get_state(cell.engine, name, group, message_id, token, cell.clock))
        return found[0] if found else None

    async def put(
        self, name: QueueName, group: str, message_id: int, token: int, data: bytes, if_match: int | None = None
    ) -> WorkflowState:
        """Keep `data` beside a delivery, under its lease. Returns the state with its new etag when it is durable.

        With `if_match` only over the state that has this etag, 0 for none yet; else `StateChanged`, when the state that
        is there is durable.
        """
        limit = self._bytes_max
        if len(data) > limit:
            raise LimitExceeded(
                what="A workflow state", limit=f"{limit} bytes", advice="Keep it smaller, or raise limits.state_bytes"
            )
        return await self._change(name, PutState(group, message_id, token, data, if_match))

    async def drop(
        self, name: QueueName, group: str, message_id: int, token: int, if_match: int | None = None
    ) -> WorkflowState:
        """Remove the state of a delivery, under its lease; it may have none. `if_match` as above."""
        return await self._change(name, PutState(group, message_id, token, None, if_match))

    async def _change(self, name: QueueName, command: PutState) -> WorkflowState:
        async with self._cell.refusing_durably():
            with self._cell.guard as engine:
                state = put_state(engine, name, command, self._cell.clock())
        return await self._cell.submission(state)

    async def of_leased(self, name: QueueName, group: str, leased: Sequence[Leased]) -> list[WorkflowState | None]:
        """The states of what was just leased, in order; None where there is none, or the lease has ended since."""
        with self._cell.guard as engine:
            return states_of_leased(engine, name, group, leased, self._cell.clock())
