"""Looking: calls of a node that change nothing."""

from __future__ import annotations

import msgspec

from holdfast.broker.dispatch.dispatcher import Dispatcher
from holdfast.broker.dispatch.members import Member
from holdfast.broker.history import History, read_history
from holdfast.broker.lake_reader import LakeReads
from holdfast.broker.parts.part import Calls
from holdfast.core.commands import DeliveryStatus
from holdfast.core.ids import time_of_id
from holdfast.core.queue import GroupKind, GroupRecord, QueueRecord
from holdfast.core.records import Message
from holdfast.engine import admin
from holdfast.engine.catalog import Queue, QueueName
from holdfast.engine.stats import GroupStats, QueueStats, RateWindow, cursor_stats, group_stats
from holdfast.errors import InvalidArgument
from holdfast.store.contract import Store


class ReadCalls(Calls):
    """See the module."""

    store: Store
    dispatcher: Dispatcher
    _lake_reads: LakeReads
    _rates: dict[QueueName, RateWindow]

    def queue(self, name: QueueName) -> QueueRecord:
        return self.engine.queue(name, self.clock()).record

    def queues(self, namespace: str, prefix: str = "", after: str = "") -> list[QueueRecord]:
        """Queues of a namespace by name."""
        found = [
            queue.record
            for (queue_namespace, name), queue in self.engine.queues.items()
            if queue_namespace == namespace and name.startswith(prefix) and name > after and not queue.record.closing
        ]
        return sorted(found, key=lambda record: record.name)

    def head(self, name: QueueName, group: str) -> Message | None:
        """What a leasing group would be given next, None if there is nothing for it now. Cheap at any depth."""
        with self._guard() as engine:
            return admin.head(engine, name, group, self.clock())

    async def browse(
        self, name: QueueName, limit: int = 100, cursor: str = "", state: str = "", group: str = ""
    ) -> admin.Page:
        """Live messages, oldest first; nothing is leased."""
        if not 1 <= limit <= self.config.limits.lease_max:
            raise InvalidArgument(field="limit", problem=f"is 1 to {self.config.limits.lease_max}, not {limit}")
        with self._guard() as engine:
            return admin.browse(engine, name, limit, cursor, state, group, self.clock())

    async def browse_range(
        self,
        name: QueueName,
        partition: int,
        first: int = 0,
        until: int = 0,
        limit: int = 1000,
        max_bytes: int = 8 << 20,
    ) -> admin.SequenceRange:
        """Live messages of one partition by sequence, from `first` up to and without `until`; nothing is leased.

        Looks at `limit` records at most, live or not, so a range may hold fewer messages, even none, and go on.
        """
        limits = self.config.limits
        if not 1 <= limit <= limits.read_max:
            raise InvalidArgument(field="limit", problem=f"is 1 to {limits.read_max}, not {limit}")
        with self._guard() as engine:
            size = min(max_bytes, limits.read_bytes)
            return admin.browse_range(engine, name, partition, first, until, limit, size, self.clock())

    async def bounds(self, name: QueueName, since: int = 0) -> list[admin.PartitionBounds]:
        """By partition, where its messages begin, or those enqueued at `since` or later, and where they end."""
        with self._guard() as engine:
            return admin.bounds(engine, name, since, self.clock())

    async def find(self, name: QueueName, message_id: int) -> tuple[int, Message, list[DeliveryStatus]]:
        """A live message by its id: its partition, the message, how it stands in each group."""
        with self._guard() as engine:
            return admin.find(engine, name, message_id, self.clock())

    async def history(self, name: QueueName, message_id: int) -> History:
        """Every step of a message's life, also of one that is gone, from the journal."""
        after = self.engine.record.exported_block
        journal = self.config.lake_dir / "journal"
        return await self._lake_reads.read(read_history, self.store, journal, after, name, message_id)

    async def stats(self, name: QueueName) -> QueueStats:
        """Figures of a queue. They cost the same at any depth."""
        return self.current_stats(name)

    def current_stats(self, name: QueueName) -> QueueStats:
        """As `stats`, at once."""
        now = self.clock()
        with self._guard() as engine:
            queue = engine.queue(name, now)
            groups = [self._group_stats(queue, record, now) for record in queue.record.groups]
        heads = [shard.head for shard in queue.shards]
        rates = self._rates.setdefault(name, RateWindow())
        return QueueStats(
            namespace=name[0],
            name=name[1],
            partitions=len(queue.shards),
            depth=queue.depth,
            ready=sum(head.ready for head in heads),
            scheduled=sum(head.scheduled for head in heads),
            size_bytes=sum(head.size_bytes for head in heads),
            enqueued=sum(head.enqueued for head in heads),
            duplicates=sum(head.duplicates for head in heads),
            refused=sum(head.refused for head in heads),
            rates=rates.per_second(queue, now),
            oldest_age=max((group.oldest_age for group in groups), default=self._oldest_age(queue, now)),
            groups=groups,
        )

    def _oldest_age(self, queue: Queue, now: int) -> int:
        """The age of the oldest message of a queue that has no group yet."""
        stamps = [stamp for shard in queue.shards if (stamp := self.engine.oldest(shard))]
        return now - time_of_id(min(stamps)) if stamps else 0

    def _group_stats(self, queue: Queue, record: GroupRecord, now: int) -> GroupStats:
        name = record.name
        if record.kind is GroupKind.CURSOR:
            return cursor_stats(name, [shard.cursors[name] for shard in queue.shards], queue.shards)
        for shard in queue.shards:
            self.engine.heads(shard, name)
        stats = group_stats(name, [shard.groups[name] for shard in queue.shards], queue.shards, now)
        members = self.dispatcher.members.of((queue.name, name))
        return msgspec.structs.replace(
            stats,
            members={member.name: member.partitions for member in members},
            in_flight={member.name: len(member.in_flight) for member in members},
        )

    def consumers(self, name: QueueName) -> list[Member]:
        """The push members of a queue's groups."""
        self.queue(name)
        members = self.dispatcher.members
        return [member for group in members.groups_of(name) for member in members.of(group)]

    def waiting(self, name: QueueName) -> int:
        """Lease requests that wait for a message of a queue."""
        return self.dispatcher.waiting_for(name)
