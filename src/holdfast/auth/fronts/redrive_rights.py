"""Dead letters as callers name them: of which queue they are, and where they may be moved."""

from __future__ import annotations

from holdfast.auth.principal import Action, Principal
from holdfast.broker.node import Node
from holdfast.core.queue import DEAD_PREFIX, check_name
from holdfast.engine.catalog import QueueName
from holdfast.engine.redrive import Destination
from holdfast.errors import GroupNotFound, InvalidArgument, NoDeadQueue


def dead_queue(node: Node, name: QueueName) -> tuple[QueueName, str]:
    """The dead queue of a queue, and the source queue whose dead letters are meant; empty if `name` is the dead queue
    itself."""
    if name[1].startswith(DEAD_PREFIX):
        return name, ""
    dead = node.dead_letters.queue_of(name)
    if dead is None and node.dead_letters.is_used(name):
        return name, ""
    if dead is None:
        raise NoDeadQueue(queue=name[1])
    return dead, name[1]


def check_destination(node: Node, principal: Principal, to: str) -> None:
    """Raises if there is no such queue, or the caller may not move dead letters there. Empty: their source queue."""
    if to:
        principal.require(Action.ADMIN, check_name(to))
        node.queues.get((principal.namespace, to))  # a name that is misspelt must not become a queue


def destination(
    node: Node, principal: Principal, name: QueueName, to: str, group: str, *, all_groups: bool
) -> Destination:
    """Where dead letters that are named by the queue `name` are to go."""
    check_destination(node, principal, to)
    if group and all_groups:
        raise InvalidArgument(field="group", problem="cannot be given together with all_groups")
    if group and not to and name[1].startswith(DEAD_PREFIX):
        raise InvalidArgument(
            field="group", problem="needs `to`: dead letters of a dead queue may come from several queues"
        )
    if group:
        home = node.queues.get((name[0], to) if to else name)
        if home.group(check_name(group, "group")) is None:
            raise GroupNotFound(group=group, queue=home.name)
    return Destination(queue=to, group=group, all_groups=all_groups)
