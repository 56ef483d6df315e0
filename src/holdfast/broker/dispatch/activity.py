"""When consumers last asked for messages: those that poll are not members, and not always waiting."""

from __future__ import annotations

from holdfast.broker.dispatch.members import GroupName
from holdfast.units import MINUTE

RECENT = MINUTE
"""A consumer that has asked within this time counts as one."""
GROUPS_MAX = 10_000
CONSUMERS_MAX = 100  # of a group


class Activity:
    """See the module. It is bounded: of very many groups or consumers, those that are longest known are forgotten."""

    def __init__(self) -> None:
        self._groups: dict[GroupName, dict[str, int]] = {}

    def seen(self, group: GroupName, consumer: str, now: int) -> None:
        """A consumer of a group asks for messages, or commits what it has read."""
        consumers = self._groups.get(group)
        if consumers is None:
            consumers = self._groups[group] = {}
            if len(self._groups) > GROUPS_MAX:
                del self._groups[next(iter(self._groups))]
        consumers.pop(consumer, None)
        consumers[consumer] = now
        if len(consumers) > CONSUMERS_MAX:
            del consumers[next(iter(consumers))]

    def recent(self, group: GroupName, now: int) -> set[str]:
        """Names of consumers that have asked within the last minute."""
        return {name for name, at in self._groups.get(group, {}).items() if now - at < RECENT}

    def last_seen(self, group: GroupName) -> int:
        """When any of its consumers last asked; 0: never, since the node was started."""
        return max(self._groups.get(group, {}).values(), default=0)
