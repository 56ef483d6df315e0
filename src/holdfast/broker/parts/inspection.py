"""Inspection: browse, find, statistics, history. Nothing is changed."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.broker.cell import Cell
from holdfast.broker.dispatch.members import GroupName, Member
from holdfast.broker.history import History, read_history, read_related
from holdfast.broker.lake_reader import LakeReads
from holdfast.config.settings import LimitSettings
from holdfast.core.commands import DeliveryStatus
from holdfast.core.records import Message
from holdfast.engine.browse import (
    BrowsedPage,
    PartitionBounds,
    SequenceRange,
    browse_range,
    browse_steps,
    head_message,
    partition_bounds,
)
from holdfast.engine.catalog import QueueName
from holdfast.engine.messages import Found, find_named, find_steps
from holdfast.engine.stats import GroupStats, QueueStats, queue_stats, stats_of_all, stats_steps
from holdfast.errors import InvalidArgument, MessageNotFound, QueueNotFound
from holdfast.units import SECOND

COLLECTED_LONG = SECOND // 20  # stats of all queues that took so long to collect are valid for a while
COLLECTED_MAX = 15 * SECOND
QUEUES_PER_STEP = 500  # whose consumers are looked up before others have a turn


class Collected(NamedTuple):
    """The statistics of all queues at an instant, and until when they are valid."""

    at: int
    until: int
    stats: list[QueueStats]


class Inspection:
    """See the module. `journal` is the directory of the journal's segments."""

    def __init__(self, cell: Cell, limits: LimitSettings, lake_reads: LakeReads, journal: Path) -> None:
        self._cell = cell
        self._limits = limits
        self._lake_reads = lake_reads
        self._journal = journal
        self._collecting: dict[str | None, asyncio.Task[list[QueueStats]]] = {}  # by namespace
        self._collected: dict[str | None, Collected] = {}

    def watch(self, name: QueueName) -> AbstractContextManager[asyncio.Event]:
        """An event that is set whenever something may have changed in a queue. Clear it before you look."""
        return self._cell.watch(name)

    def head(self, name: QueueName, group: str) -> Message | None:
        """What a leasing group would be given next, None if there is nothing for it now. Cheap at any depth."""
        with self._cell.read_guard as engine:
            return head_message(engine, name, group, self._cell.clock())

    async def browse(
        self, name: QueueName, limit: int = 100, cursor: str = "", state: str = "", group: str = ""
    ) -> BrowsedPage:
        """Live messages, oldest first; nothing is leased."""
        if not 1 <= limit <= self._limits.lease_max:
            raise InvalidArgument(field="limit", problem=f"is 1 to {self._limits.lease_max}, not {limit}")
        cell = self._cell
        return await cell.read_in_steps(browse_steps(cell.engine, name, limit, cursor, state, group, cell.clock))

    async def browse_range(
        self,
        name: QueueName,
        partition: int,
        first: int = 0,
        until: int = 0,
        limit: int = 1000,
        max_bytes: int = 8 << 20,
        gone: bool = False,
    ) -> SequenceRange:
        """Live messages of one partition by sequence, from `first` up to and without `until`; nothing is leased. With
        `gone` also those that are settled, or deleted, and whose record the journal has not taken yet.

        Looks at `limit` records at most, live or not, so a range may hold fewer messages, even none, and go on.
        """
        limits = self._limits
        if not 1 <= limit <= limits.read_max:
            raise InvalidArgument(field="limit", problem=f"is 1 to {limits.read_max}, not {limit}")
        with self._cell.read_guard as engine:
            size = min(max_bytes, limits.read_bytes)
            return browse_range(engine, name, partition, first, until, limit, size, self._cell.clock(), gone)

    async def bounds(self, name: QueueName, since: int = 0) -> list[PartitionBounds]:
        """By partition, where its messages begin, or those enqueued at `since` or later, and where they end."""
        cell = self._cell
        return await cell.read_in_steps(partition_bounds(cell.engine, name, since, cell.clock))

    async def find(self, name: QueueName, message_id: int) -> tuple[int, Message, list[DeliveryStatus]]:
        """A live message by its id: its partition, the message, its delivery status in each group."""
        cell = self._cell
        return await cell.read_in_steps(find_steps(cell.engine, name, message_id, cell.clock))

    async def find_named(self, name: QueueName, producer_id: str, wait: int = 0) -> Found:
        """A live message by the id that its producer gave it. If there is none, wait up to `wait` microseconds for it;
        the queue need not exist yet."""
        if not 0 <= wait <= self._limits.max_wait:
            raise InvalidArgument(field="wait", problem=f"is 0 to {self._limits.max_wait // SECOND} seconds")
        loop = asyncio.get_running_loop()
        until = loop.time() + wait / SECOND
        with self.watch(name) as changed:
            while True:
                changed.clear()
                with suppress(QueueNotFound, MessageNotFound):
                    return await self._find_named(name, producer_id)
                try:
                    async with asyncio.timeout_at(until):
                        await changed.wait()
                except TimeoutError:
                    return await self._find_named(name, producer_id)

    async def _find_named(self, name: QueueName, producer_id: str) -> Found:
        with self._cell.read_guard as engine:
            message_id = find_named(engine, name, producer_id, self._cell.clock())
        if message_id is None:
            raise MessageNotFound(message_id=producer_id, queue=name[1])
        return await self.find(name, message_id)

    async def history(self, name: QueueName, message_id: int, *, related: bool = False) -> History:
        """Every step of a message's life, also of one that no longer exists, from the journal. `related`: also of those
        that it was made of, and that were made of it, by dying and by redrives."""
        after = self._cell.engine.record.exported_block
        read = read_related if related else read_history
        return await self._lake_reads.read(read, self._cell.store, self._journal, after, name, message_id)

    async def stats(self, name: QueueName) -> QueueStats:
        """Statistics of a queue. They cost the same at any depth."""
        cell = self._cell
        return self._of_queue(await cell.read_in_steps(stats_steps(cell.engine, name, cell.clock)))

    async def all_stats(self, namespace: str | None = None) -> list[QueueStats]:
        """The statistics of all queues, or of those of a namespace.

        Concurrent callers share a collection. If it took long, its result is valid for a while: however often stats of
        ten thousand queues are asked for, to collect them takes a sixth of the node's time at most.
        """
        collected = self._collected.get(namespace)
        if collected is not None and collected.at <= self._cell.clock() < collected.until:
            return collected.stats
        task = self._collecting.get(namespace)
        if task is None:
            task = self._collecting[namespace] = asyncio.ensure_future(self._collect(namespace))
        return await asyncio.shield(task)

    async def _collect(self, namespace: str | None) -> list[QueueStats]:
        cell = self._cell
        began = cell.clock()
        found: list[QueueStats] = []
        try:
            collected = await cell.read_in_steps(stats_of_all(cell.engine, namespace, cell.clock))
            for start in range(0, len(collected), QUEUES_PER_STEP):
                found += [self._of_queue(stats) for stats in collected[start : start + QUEUES_PER_STEP]]
                await asyncio.sleep(0)
        finally:
            del self._collecting[namespace]
        now = cell.clock()
        took = now - began
        self._collected = {name: one for name, one in self._collected.items() if one.at <= now < one.until}
        if took >= COLLECTED_LONG:
            self._collected[namespace] = Collected(now, now + min(5 * took, COLLECTED_MAX), found)
        return found

    def take_active(self) -> dict[QueueName, None]:
        """The queues in which something has happened since the last call."""
        return self._cell.take_active()

    def depths(self) -> dict[QueueName, int]:
        """How many messages each queue holds."""
        return {name: queue.depth for name, queue in self._cell.engine.queues.items()}

    def counters(self, name: QueueName) -> tuple[int, dict[str, int]]:
        """How many messages a queue holds, and what was counted in it since it was created: less than `stats`, and
        cheaper."""
        queue = self._cell.engine.queue(name, self._cell.clock())
        return queue.depth, queue.totals()

    def current_stats(self, name: QueueName) -> QueueStats:
        """`stats` for callers that cannot await."""
        now = self._cell.clock()
        with self._cell.read_guard as engine:
            return self._of_queue(queue_stats(engine, name, now))

    def _of_queue(self, stats: QueueStats) -> QueueStats:
        """The stats of a queue with what the broker knows of its consumers."""
        name, now = (stats.namespace, stats.name), self._cell.clock()
        groups = [self._with_consumers(name, group, now) for group in stats.groups]
        return msgspec.structs.replace(stats, groups=groups)

    def _with_consumers(self, name: QueueName, stats: GroupStats, now: int) -> GroupStats:
        dispatcher, group = self._cell.dispatcher, (name, stats.name)
        members = dispatcher.members.of(group)
        waiting = dispatcher.waiters.consumers(group)
        named = {*[member.name for member in members], *waiting, *dispatcher.activity.recent(group, now)} - {""}
        return msgspec.structs.replace(
            stats,
            members={member.name: member.partitions for member in members},
            in_flight={member.name: len(member.in_flight) for member in members},
            consumers=len(named) + waiting.count(""),
            waiting=len(waiting),
            unattended=self._cell.unattended.since(group, now),
        )

    def consumers(self, name: QueueName | None = None) -> list[Member]:
        """The push members of a queue's groups, or of all queues."""
        members = self._cell.dispatcher.members
        if name is None:
            return members.all_members()
        self._cell.engine.queue(name, self._cell.clock())
        return [member for group in members.groups_of(name) for member in members.of(group)]

    def polls(self) -> list[tuple[GroupName, str]]:
        """The long polls that wait for a message: the group of each, and its consumer."""
        return self._cell.dispatcher.waiters.polls()

    def waiting(self, name: QueueName | None = None, group: str = "") -> int:
        """Long polls that wait for a message: of a queue, of one of its groups, or of all queues."""
        waiters = self._cell.dispatcher.waiters
        if name is None:
            return waiters.count
        return waiters.in_group((name, group)) if group else waiters.in_queue(name)
