"""Long polls that wait for a message, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from holdfast.broker.dispatch.members import GroupName
from holdfast.core.commands import Leased
from holdfast.engine.catalog import QueueName
from holdfast.errors import HoldfastError


class LeaseRequest(NamedTuple):
    """What a lease may give: `timeout` is that of the lease, negative for the queue's own."""

    group: GroupName
    limit: int
    timeout: int
    max_bytes: int
    consumer: str
    protocol: str


class Waiter:
    """A long poll."""

    __slots__ = ("future", "request")

    def __init__(self, request: LeaseRequest, future: asyncio.Future[list[Leased]]) -> None:
        self.request = request
        self.future = future

    @property
    def group(self) -> GroupName:
        return self.request.group


class Waiters:
    """All long polls of a cell: one line for each group."""

    def __init__(self) -> None:
        self.count = 0
        self._lines: dict[QueueName, dict[GroupName, deque[Waiter]]] = {}

    def add(self, waiter: Waiter) -> None:
        lines = self._lines.setdefault(waiter.group[0], {})
        lines.setdefault(waiter.group, deque()).append(waiter)
        self.count += 1

    def remove(self, waiter: Waiter) -> None:
        line = self._line(waiter.group)
        if line is not None and waiter in line:
            line.remove(waiter)
            self.count -= 1
            self._prune(waiter.group)

    def first(self, group: GroupName) -> Waiter | None:
        """The waiter that came first."""
        line = self._line(group)
        return line[0] if line else None

    def in_group(self, group: GroupName) -> int:
        return len(self._line(group) or ())

    def consumers(self, group: GroupName) -> list[str]:
        """The names of those that wait."""
        return [waiter.request.consumer for waiter in self._line(group) or ()]

    def polls(self) -> list[tuple[GroupName, str]]:
        """All that wait: the group of each, and its consumer."""
        return [
            (group, waiter.request.consumer)
            for lines in self._lines.values()
            for group, line in lines.items()
            for waiter in line
        ]

    def in_queue(self, queue: QueueName) -> int:
        return sum(len(line) for line in self._lines.get(queue, {}).values())

    def groups_of(self, queue: QueueName) -> Iterable[GroupName]:
        """Groups of a queue that have a line."""
        return self._lines.get(queue, ())

    def reject(self, queue: QueueName, group: str | None, error: HoldfastError) -> None:
        """End the long polls of a queue, or of one of its groups."""
        for name in [name for name in self._lines.get(queue, {}) if group is None or name[1] == group]:
            for waiter in list(self._lines[queue][name]):
                self.count -= 1
                if not waiter.future.done():
                    waiter.future.set_exception(error)
            self._lines[queue][name].clear()
            self._prune(name)

    def reject_all(self, error: HoldfastError) -> None:
        for queue in list(self._lines):
            self.reject(queue, None, error)

    def _line(self, group: GroupName) -> deque[Waiter] | None:
        return self._lines.get(group[0], {}).get(group)

    def _prune(self, group: GroupName) -> None:
        """Forget a line that is empty."""
        lines = self._lines.get(group[0])
        if lines is not None and not lines.get(group):
            lines.pop(group, None)
            if not lines:
                del self._lines[group[0]]
