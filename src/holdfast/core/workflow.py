"""Workflow state: bytes that a consumer keeps beside a delivery while it works on it.

A state is created when it is first put, survives retries, and is deleted with the delivery. It can be changed only
under the delivery's lease, and has an `etag` that grows with every change, so that a put can require the state that was
read. A state that was dropped is as if it had never been, except that later etags continue from its own.

A dead letter has the state of the delivery that died, and a redriven message that of its dead letter: in the message
itself (`Extra.state`), as the state that its next delivery begins with. In the queue it came from, this holds for the
group it died in; the other groups have states of their own.
"""

from __future__ import annotations

from holdfast.core.codecs import read_state, write_state
from holdfast.core.commands import GetStates, PutState
from holdfast.core.deliveries import Delivery
from holdfast.core.effects import Outcome, Read
from holdfast.core.groups import LeaseGroup
from holdfast.core.leasing import write_own_record
from holdfast.core.reading import locate
from holdfast.core.records import FLAG_SOURCED, FLAG_STATE, Message, Table, WorkflowState, delivery_key
from holdfast.core.shard import Shard, handles
from holdfast.errors import LeaseLost, StateChanged

NO_STATE = WorkflowState(0, None)


def visible_state(state: WorkflowState | None) -> WorkflowState | None:
    """A state as consumers see it: one that was dropped is none."""
    return state if state is not None and state.data is not None else None


def inherited(queue: str, group: str, message: Message) -> WorkflowState | None:
    """The state with which a delivery of a dead letter or a redriven message begins."""
    state, origin = message.extra.state, message.extra.origin
    if group and origin is not None and origin.source_queue == queue and origin.source_group != group:
        return None
    return state


@handles(PutState)
def put_state(shard: Shard, command: PutState, _now: int, effects: Outcome[WorkflowState]) -> None:
    group = shard.lease_group(command.group, "keep a state")
    delivery = group.deliveries.get(command.id)
    if delivery is None or not delivery.token or delivery.token != command.token:
        raise LeaseLost(message_id=command.id)
    before = _states(shard, group, [delivery])[0] or NO_STATE
    seen = (visible_state(before) or NO_STATE).etag
    if command.if_match is not None and command.if_match != seen:
        raise StateChanged(message_id=command.id, etag=seen, given=command.if_match)
    if command.data is None and not seen:
        effects.reply = before
        return
    delivery = group.deliveries.checkout(command.id)
    after = WorkflowState(before.etag + 1, command.data)
    key = delivery_key(shard.number, group.number, delivery.id)
    effects.ops.append((Table.STATES, key, write_state(after)))
    if not delivery.flags & FLAG_STATE:
        delivery.flags |= FLAG_STATE
        write_own_record(shard, group, delivery, effects)
        group.mark_dirty()
    effects.reply = after


@handles(GetStates)
def get_states(shard: Shard, command: GetStates, _now: int, effects: Outcome[list[WorkflowState | None]]) -> None:
    """The states of deliveries, in order, also those that were dropped; None where there never was one."""
    group = shard.lease_group(command.group, "keep a state")
    waiting: list[Message] = []
    deliveries: list[Delivery] = []
    for message_id, token in command.deliveries:
        delivery = group.deliveries.get(message_id)
        if token and (delivery is None or delivery.token != token):
            raise LeaseLost(message_id=message_id)
        if delivery is not None:
            deliveries.append(delivery)
        else:
            waiting.append(locate(shard, message_id)[0])
    found = {d.id: state for d, state in zip(deliveries, _states(shard, group, deliveries), strict=True)}
    found |= {message.id: inherited(shard.queue, group.name, message) for message in waiting}
    effects.reply = [found[message_id] for message_id, _ in command.deliveries]


def _states(shard: Shard, group: LeaseGroup, deliveries: list[Delivery]) -> list[WorkflowState | None]:
    """The states of deliveries of a group."""
    reads = {
        delivery.id: Read(Table.STATES, delivery_key(shard.number, group.number, delivery.id))
        for delivery in deliveries
        if delivery.flags & FLAG_STATE
    }
    shard.require(reads.values())
    inheriting = [d for d in deliveries if d.flags & FLAG_SOURCED and d.id not in reads]
    shard.require_records(delivery.seq for delivery in inheriting)
    found: dict[int, WorkflowState | None] = {}
    for message_id, read in reads.items():
        value = shard.get(read.table, read.key)
        assert value is not None, f"the state of message {message_id} in group {group.name!r} is missing"
        found[message_id] = read_state(value)
    for delivery in inheriting:
        found[delivery.id] = inherited(shard.queue, group.name, shard.message(delivery.seq))
    return [found.get(delivery.id) for delivery in deliveries]
