"""Who gets what becomes ready: long polls that wait, and members that are pushed to. Nothing here polls.

A turn asks the dispatcher to lease for those who wait on queues in which something stirred; when the batch that holds
those leases is written, `deliver_granted` gives them out. A waiter that went away in between has its leases released.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import chain

import structlog

from holdfast.broker.dispatch.members import GroupName, Member, Members
from holdfast.core.commands import Leased, Settlement, Verb
from holdfast.engine.catalog import QueueName
from holdfast.engine.engine import Engine
from holdfast.errors import HoldfastError

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Waiter:
    """A long poll."""

    __slots__ = ("consumer", "future", "group", "limit", "max_bytes", "protocol", "timeout")

    def __init__(
        self,
        group: GroupName,
        limit: int,
        timeout: int,
        max_bytes: int,
        consumer: str,
        protocol: str,
        future: asyncio.Future[list[Leased]],
    ) -> None:
        self.group = group
        self.limit = limit
        self.timeout = timeout
        self.max_bytes = max_bytes
        self.consumer = consumer
        self.protocol = protocol
        self.future = future


Grant = tuple[Waiter | Member, list[Leased]]
"""What was leased for whom."""


class Dispatcher:
    """Waiters in the order they came, members by credit."""

    def __init__(self, lease_bytes_max: int) -> None:
        self.members = Members(lease_bytes_max)
        self.waiting = 0
        self._waiters: dict[QueueName, dict[GroupName, deque[Waiter]]] = {}
        self._granted: list[Grant] = []  # in this turn
        self._held_grants: deque[list[Grant]] = deque()  # in turns that must be synced before anything goes out

    def add(self, waiter: Waiter) -> None:
        lines = self._waiters.setdefault(waiter.group[0], {})
        lines.setdefault(waiter.group, deque()).append(waiter)
        self.waiting += 1

    def remove(self, waiter: Waiter) -> None:
        line = self._line(waiter.group)
        if line is not None and waiter in line:
            line.remove(waiter)
            self.waiting -= 1
            self._prune(waiter.group)

    def _line(self, group: GroupName) -> deque[Waiter] | None:
        return self._waiters.get(group[0], {}).get(group)

    def _prune(self, group: GroupName) -> None:
        """Forget a line in which nobody stands."""
        lines = self._waiters.get(group[0])
        if lines is not None and not lines.get(group):
            lines.pop(group, None)
            if not lines:
                del self._waiters[group[0]]

    def has_waiters(self, group: GroupName) -> bool:
        """Whether somebody waits already: who comes later goes behind."""
        return self._line(group) is not None

    def line(self, group: GroupName) -> int:
        """How many wait in a group's line."""
        return len(self._line(group) or ())

    def waiting_for(self, queue: QueueName) -> int:
        return sum(len(line) for line in self._waiters.get(queue, {}).values())

    def groups_of(self, queue: QueueName) -> list[GroupName]:
        """Groups of a queue in which somebody wants something."""
        return list({**dict.fromkeys(self._waiters.get(queue, ())), **dict.fromkeys(self.members.groups_of(queue))})

    def reject_waiters(self, queue: QueueName, group: str | None, error: HoldfastError) -> None:
        """End the long polls of a queue, or of one of its groups, that is no more."""
        for name in [name for name in self._waiters.get(queue, {}) if group is None or name[1] == group]:
            for waiter in list(self._waiters[queue][name]):
                self.waiting -= 1
                if not waiter.future.done():
                    waiter.future.set_exception(error)
            self._waiters[queue][name].clear()
            self._prune(name)

    def lease(self, engine: Engine, now: int) -> None:
        """Lease for those who wait, in every queue in which something stirred."""
        dirty_queues, engine.dirty_queues = engine.dirty_queues, set()
        for name in dirty_queues:
            queue = engine.queues.get(name)
            if queue is None or queue.record.closing or queue.config.paused:
                continue
            for group in self.groups_of(name):
                self._serve_waiters(engine, group, now)
                self._granted += self.members.serve(engine, queue, group, now)

    def _serve_waiters(self, engine: Engine, group: GroupName, now: int) -> None:
        line = self._line(group)
        while line:
            waiter = line[0]
            found = engine.lease(
                group[0],
                group[1],
                waiter.limit,
                waiter.timeout,
                waiter.consumer,
                waiter.protocol,
                now,
                max_bytes=waiter.max_bytes,
            )
            if not found:
                return
            line.popleft()
            self.waiting -= 1
            self._granted.append((waiter, found))
        self._prune(group)

    @property
    def has_held(self) -> bool:
        """Whether something is held: what is granted later goes out later."""
        return bool(self._held_grants)

    def hold_until_synced(self) -> None:
        """What was granted in this turn goes out when it is synced, by `deliver_held`."""
        self._held_grants.append(self._granted)
        self._granted = []

    def deliver_held(self) -> list[tuple[GroupName, list[Settlement]]]:
        """Give out what was leased in the first turn that is held, if any is. Returns as `deliver_granted`."""
        return self._deliver(self._held_grants.popleft()) if self._held_grants else []

    def deliver_granted(self) -> list[tuple[GroupName, list[Settlement]]]:
        """Give out what was leased. Returns what must be released because nobody was there to take it."""
        granted, self._granted = self._granted, []
        return self._deliver(granted)

    def _deliver(self, granted: list[Grant]) -> list[tuple[GroupName, list[Settlement]]]:
        unclaimed: list[tuple[GroupName, list[Settlement]]] = []
        for taker, leased in granted:
            if isinstance(taker, Member):
                if self.members.get(taker.group, taker.name) is taker and _delivered(taker, leased):
                    continue
            elif not taker.future.done():
                taker.future.set_result(leased)
                continue
            unclaimed.append((taker.group, releases(leased)))
        return unclaimed

    def fail(self, error: HoldfastError) -> None:
        """The store failed or the node stops: long polls end, and what was leased and not handed over is forgotten."""
        for taker, leased in chain(*self._held_grants, self._granted):
            if isinstance(taker, Member):
                for item in leased:
                    taker.forget(item.message.id)
            elif not taker.future.done():
                taker.future.set_exception(error)
        self._granted = []
        self._held_grants.clear()
        for queue in list(self._waiters):
            self.reject_waiters(queue, None, error)


def _delivered(member: Member, leased: list[Leased]) -> bool:
    """Hand a batch to a member. One whose callback fails is not to bring the node down with it."""
    try:
        member.deliver(leased)
    except Exception:
        log.exception("a member could not take its deliveries; they are released", member=member.name)
        return False
    return True


def releases(leased: list[Leased]) -> list[Settlement]:
    return [Settlement(item.message.id, item.token, Verb.RELEASE, partition=item.partition) for item in leased]
