"""Workflow states: bytes that consumers keep beside their deliveries. The rules are in core/workflow.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.core.commands import GetStates, Leased, PutState
from holdfast.core.records import WorkflowState
from holdfast.core.workflow import visible_state
from holdfast.engine.catalog import Queue, QueueName
from holdfast.engine.engine import Engine
from holdfast.engine.leases import DeliveryLocator
from holdfast.engine.messages import find_steps
from holdfast.engine.wake_ups import Clock
from holdfast.errors import LeaseLost


def get_state(
    engine: Engine, name: QueueName, group: str, message_id: int, token: int, clock: Clock
) -> Iterator[list[WorkflowState] | None]:
    """The state of a message in a group, none if there is none. With a token it must be the current lease's. Before
    that None after each step."""
    queue = engine.queue(name, clock())
    partition = DeliveryLocator(queue, group).find(message_id, token)
    if partition < 0:
        for found in find_steps(engine, name, message_id, clock):
            if found is None:
                yield None
            else:
                partition = found[0]
    states = _get_states(engine, queue, group, partition, [(message_id, token)], clock())
    yield [state for state in states if state is not None]


def put_state(engine: Engine, name: QueueName, command: PutState, now: int) -> WorkflowState:
    """Keep a state beside a leased delivery, or drop it; the state with its new etag."""
    queue = engine.queue(name, now)
    queue.group(command.group)
    partition = DeliveryLocator(queue, command.group).find(command.id, command.token)
    if partition < 0:
        raise LeaseLost(message_id=command.id)
    return engine.step(queue, queue.shards[partition], command, now)


def states_of_leased(
    engine: Engine, name: QueueName, group: str, leased: Sequence[Leased], now: int
) -> list[WorkflowState | None]:
    """The states of deliveries, in order; None where there is none, or where the lease has ended since."""
    found: list[WorkflowState | None] = [None] * len(leased)
    queue = engine.queues.get(name)
    by_partition: dict[int, list[int]] = {}
    for index, item in enumerate(leased):
        if queue is not None and queue.lease_deadline(group, item.partition, item.message.id, item.token) is not None:
            by_partition.setdefault(item.partition, []).append(index)
    for partition, indexes in by_partition.items():
        deliveries = [(leased[index].message.id, leased[index].token) for index in indexes]
        states = _get_states(engine, engine.queue(name, now), group, partition, deliveries, now)
        for index, state in zip(indexes, states, strict=True):
            found[index] = state
    return found


def _get_states(
    engine: Engine, queue: Queue, group: str, partition: int, deliveries: list[tuple[int, int]], now: int
) -> list[WorkflowState | None]:
    states = engine.step(queue, queue.shards[partition], GetStates(group, deliveries), now)
    return [visible_state(state) for state in states]
