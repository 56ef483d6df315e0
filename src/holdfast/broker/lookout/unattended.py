"""Groups that have a backlog and nobody who consumes it: they keep every message until the queue is full.

Such a group is often one that was made by accident, or whose consumers were taken away. Stats, a metric and `holdfast
doctor` show it, and the log has a line when it begins to matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import structlog

from holdfast.broker.dispatch.dispatcher import Dispatcher
from holdfast.broker.dispatch.members import GroupName
from holdfast.engine.engine import Engine
from holdfast.units import MINUTE, SECOND

log = structlog.get_logger()

UNATTENDED_AFTER = 5 * MINUTE
"""How long a group may have a backlog and no consumer before it is logged: longer than a deployment takes."""
LOOK_SECONDS = 60.0
QUEUES_PER_SLICE = 50  # then others have their turn


class UnattendedGroups:
    """See the module."""

    def __init__(self, engine: Callable[[], Engine | None], dispatcher: Dispatcher, clock: Callable[[], int]) -> None:
        self._engine = engine
        self._dispatcher = dispatcher
        self._clock = clock
        self._started_at = 0
        self._logged: dict[GroupName, None] = {}  # in the order in which they are looked at

    def since(self, group: GroupName, now: int) -> int:
        """For how long a group has had a backlog and no consumer, in microseconds; 0 if it has not."""
        engine, dispatcher = self._engine(), self._dispatcher
        queue = engine.queues.get(group[0]) if engine is not None else None
        record = queue.find_group(group[1]) if queue is not None else None
        if queue is None or record is None or dispatcher.members.of(group) or dispatcher.waiters.in_group(group):
            return 0
        last = max(dispatcher.activity.last_seen(group), record.created_at, self._started_at)
        if queue.leased(record.name) or not queue.backlog(record.name):
            return 0
        return max(now - last, 1)

    async def run(self) -> None:
        """Look at all groups, again and again, a few at a time."""
        self._started_at = self._clock()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for _ in self.look():
                await asyncio.sleep(0)

    def look(self) -> Iterator[None]:
        """Log groups that have become unattended, once for each time, and those that no longer are. Stops now and then
        for others."""
        engine = self._engine()
        names = list(engine.queues) if engine is not None else []
        found: dict[GroupName, None] = {}
        for index, name in enumerate(names, 1):
            if engine is not None and name in engine.queues:
                for group in engine.queues[name].record.groups:
                    if self._log((name, group.name)):
                        found[name, group.name] = None
            if index % QUEUES_PER_SLICE == 0:
                yield
        for name, group_name in [group for group in self._logged if group not in found]:
            if engine is not None and name in engine.queues and engine.queues[name].find_group(group_name) is not None:
                log.info(
                    "a group that nobody consumed has a consumer again, or no backlog",
                    namespace=name[0],
                    queue=name[1],
                    group=group_name,
                )
        self._logged = found

    def _log(self, group: GroupName) -> bool:
        """Whether a group is unattended, for long enough."""
        now = self._clock()
        since = self.since(group, now)
        if since < UNATTENDED_AFTER:
            return False
        if group not in self._logged:
            log.warning(
                "nobody consumes a group that has a backlog; delete it if it is not needed",
                namespace=group[0][0],
                queue=group[0][1],
                group=group[1],
                seconds=since // SECOND,
            )
        return True
