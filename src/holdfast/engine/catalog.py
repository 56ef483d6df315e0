"""The queues of a node in memory: their records, their open shards, and how messages find their shard."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.core.commands import Draft, HomogeneousDrafts
from holdfast.core.ids import fnv1a32, route_of
from holdfast.core.journal import ShardName
from holdfast.core.queue import QueueConfig, QueueRecord
from holdfast.core.records import NO_EXTRA, Origin
from holdfast.core.shard import Shard

QueueName = tuple[str, str]
"""(namespace, name)"""

Routes = list[tuple[Shard, Sequence[int]]]
"""Which shard takes which drafts of a batch, by index."""


class Queue:
    """A queue of this node with its shards, in the order of their partitions."""

    __slots__ = ("_turn", "names", "record", "shards")

    def __init__(self, record: QueueRecord, shards: list[Shard]) -> None:
        self.shards = shards
        self._turn = 0
        self.names: dict[int, ShardName] = {}
        self.change(record)

    def change(self, record: QueueRecord) -> None:
        """Take over a new record: its configuration reaches the shards at once."""
        self.record = record
        for shard in self.shards:
            shard.config = record.config
            self.names[shard.number] = ShardName(record.namespace, record.name, shard.partition, record.config.journal)

    @property
    def name(self) -> QueueName:
        return (self.record.namespace, self.record.name)

    @property
    def config(self) -> QueueConfig:
        return self.record.config

    @property
    def depth(self) -> int:
        """Messages that some group may still need."""
        return sum(shard.head.ready + shard.head.scheduled for shard in self.shards)

    def room(self) -> int:
        """How many more messages it may hold; -1: no limit."""
        limit = self.config.max_depth
        return max(limit - self.depth, 0) if limit else -1

    def route(self, drafts: Sequence[Draft]) -> Routes:
        """Which shard takes which drafts, by index, in order.

        A key decides; else the source of an import or redrive, or a producer's message id, so that a repetition meets
        the first. What has none of these goes together to the partition whose turn it is.
        """
        shards = self.shards
        self._turn = (self._turn + 1) % len(shards)
        spread = shards[self._turn]
        if len(shards) == 1 or _keyless(drafts):
            return [(spread, range(len(drafts)))]
        parts: dict[int, list[int]] = {}
        for index, draft in enumerate(drafts):
            parts.setdefault(self._partition(draft), []).append(index)
        return [(shards[partition], indexes) for partition, indexes in parts.items()]

    def route_dead_letters(self, drafts: list[Draft]) -> Routes:
        """Which shard takes which dead letters: their source decides, whatever their key."""
        parts: dict[int, list[int]] = {}
        for index, draft in enumerate(drafts):
            assert draft.extra.origin is not None
            parts.setdefault(self._of_source(draft.extra.origin), []).append(index)
        return [(self.shards[partition], indexes) for partition, indexes in parts.items()]

    def _of_source(self, origin: Origin) -> int:
        return fnv1a32(origin.source_id.to_bytes(8, "big")) % len(self.shards)

    def _partition(self, draft: Draft) -> int:
        extra = draft.extra
        if extra.key is not None:
            return route_of(extra.key) % len(self.shards)
        if extra.origin is not None:
            return self._of_source(extra.origin)
        if extra.message_id is not None:
            return route_of(extra.message_id) % len(self.shards)
        return self._turn

    def chosen(self, partitions: Iterable[int] | None) -> list[Shard]:
        """The shards of these partitions, or all."""
        return self.shards if partitions is None else [self.shards[p] for p in partitions if p < len(self.shards)]


def _keyless(drafts: Sequence[Draft]) -> bool:
    """Whether it is quickly said that none has what decides on a partition."""
    if isinstance(drafts, HomogeneousDrafts):
        return drafts.extra.metadata_only
    shared = drafts[0].extra if drafts else NO_EXTRA
    return shared.metadata_only and all([draft.extra is shared for draft in drafts])  # noqa: C419 - a list is faster


class DeliveryLocator:
    """Which partitions of a queue have deliveries of a group, or remember how they ended. To be asked at once."""

    def __init__(self, queue: Queue, group: str) -> None:
        found = [(shard.partition, shard.groups.get(group)) for shard in queue.shards]
        self._groups = [(partition, here) for partition, here in found if here is not None]
        self._ended: dict[int, int] | None = None

    def find(self, message_id: int) -> int:
        """The partition that has a delivery or remembers it, -1 if none does."""
        for partition, here in self._groups:
            if message_id in here.deliveries:
                return partition
        if self._ended is None:
            self._ended = {}
            for partition, here in self._groups:
                self._ended.update(dict.fromkeys(here.ended_ids(), partition))
        return self._ended.get(message_id, -1)

    def split(self, ids: list[int]) -> dict[int, list[int]]:
        """`find` for many: by partition, the indexes of those it has."""
        for partition, here in self._groups:
            if ids[0] in here.deliveries:  # what was leased together mostly is in one
                if here.deliveries.has_all(ids):
                    return {partition: list(range(len(ids)))}
                break
        parts: dict[int, list[int]] = {}
        for index, message_id in enumerate(ids):
            parts.setdefault(self.find(message_id), []).append(index)
        return parts
