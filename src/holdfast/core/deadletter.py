"""Dead letters: the message made of a dead delivery, and which queue may be the dead queue of another."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.commands import Draft
from holdfast.core.effects import DeadLetterCandidate
from holdfast.core.queue import DEAD_PREFIX, QueueConfig, QueueRecord
from holdfast.core.records import Origin
from holdfast.core.workflow import inherited, visible_state
from holdfast.errors import DeadQueueInvalid, QueueInUse


def make_dead_letter(source_queue: str, candidate: DeadLetterCandidate) -> Draft:
    """A new message with its origin, the reason, and the workflow state of the delivery."""
    delivery, message = candidate.delivery, candidate.message
    origin = Origin(
        message.id,
        source_queue,
        candidate.group,
        str(candidate.reason),
        delivery.error,
        delivery.failures + (1 if delivery.token else 0),
        delivery.first_at,
        delivery.leased_at,
    )
    state = visible_state(candidate.state or inherited(source_queue, candidate.group, message))
    extra = replace(message.extra, origin=origin, flags=0, state=state, enqueued_as=None)
    return Draft(message.payload, message.priority, 0, -1, extra)


def check_dead_queue(name: str, config: QueueConfig, target: QueueRecord | None, users: Sequence[str]) -> None:
    """Whether `name`, to which the dead letters of `users` go, may have the dead queue that `config` names: `target`,
    if there is such a queue."""
    chosen = config.dlq.queue
    if config.dlq.enabled and (name.startswith(DEAD_PREFIX) or users):
        raise DeadQueueInvalid(
            value=chosen or DEAD_PREFIX + name,
            problem=f"{name!r} is itself a dead queue and can have none (set dlq.enabled to false)",
        )
    if not config.dlq.enabled or not chosen:
        return
    if chosen == name:
        raise DeadQueueInvalid(value=chosen, problem="a queue cannot be its own dead queue")
    if target is None or target.closing:
        raise DeadQueueInvalid(value=chosen, problem="that queue does not exist; create it first")
    if target.config.dlq.enabled:
        raise DeadQueueInvalid(
            value=chosen,
            problem="that queue has a dead queue of its own; create it with dlq.enabled = false",
        )


def check_unused(name: str, users: Sequence[str]) -> None:
    """A dead queue can't be deleted while other queues point to it."""
    if users:
        raise QueueInUse(queue=name, users=", ".join(repr(user) for user in users))
