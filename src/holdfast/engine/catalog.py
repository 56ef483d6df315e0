"""The queues of a cell in memory: their records, their open shards, and which shard a message goes to."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from holdfast.core.commands import Draft, HomogeneousDrafts
from holdfast.core.ids import fnv1a32, route_of
from holdfast.core.journal import ShardName
from holdfast.core.queue import DEAD_PREFIX, DeliveryLimits, GroupRecord, QueueRecord, dead_queue_of
from holdfast.core.records import NO_EXTRA, Origin
from holdfast.core.shard import Shard
from holdfast.errors import GroupNotFound, InvalidArgument, QueueFull
from holdfast.rates import RateWindow
from holdfast.token_buckets import TokenBucket

QueueName = tuple[str, str]
"""(namespace, name)"""

Routes = list[tuple[Shard, Sequence[int]]]
"""Which shard takes which drafts of a batch, by index."""


NO_LIMITS = DeliveryLimits()


class Queue:
    """A queue with its shards, in the order of their partitions. `shards` is for the engine: others ask.

    What a turn asks of a queue is counted as its shards change (`observe`), so that no partition is asked for nothing.
    """

    __slots__ = (
        "_filled", "_groups", "_live", "_next", "buckets", "config", "counted", "deaths", "depth", "limited", "name",
        "names", "rates", "record", "shards", "size_bytes",
    )  # fmt: skip

    def __init__(self, record: QueueRecord, shards: list[Shard]) -> None:
        self.name: QueueName = (record.namespace, record.name)
        self.rates = RateWindow()
        self._next = 0  # the partition that takes the next batch without keys
        self.buckets: dict[str, TokenBucket] = {}  # by group (engine/limits/throttling.py)
        self.deaths: deque[int] = deque()  # when its last messages died (engine/limits/circuit_breaker.py)
        self.counted: QueueRecord | None = None  # as the catalog has counted it
        self.restore(record, shards)

    def restore(self, record: QueueRecord, shards: list[Shard]) -> None:
        """Have this record and these shards, whatever there was."""
        self.shards: list[Shard] = []
        self.names: dict[int, ShardName] = {}
        self.depth = 0  # messages that some group may still need
        self.size_bytes = 0  # their payloads
        self._live: list[tuple[int, int]] = []  # what each shard has of both
        # By leasing group that is in use: the shards in which it may have something to deliver. One that has something
        # in every shard is not kept up to date: nobody seems to consume it.
        self._filled: dict[str, dict[int, Shard]] = {}
        self.add_shards(record, shards)

    def add_shards(self, record: QueueRecord, shards: list[Shard]) -> None:
        """Take over a new record, and shards for partitions that are added."""
        self.shards += shards
        self._live += [(0, 0)] * len(shards)
        self.change(record)
        for shard in shards:
            self.observe(shard)

    def change(self, record: QueueRecord) -> None:
        """Take over a new record. Its configuration is valid in the shards immediately."""
        self.record = record
        self.config = record.config
        self.limited = record.config.throttle != NO_LIMITS
        self._groups = {group.name: group for group in record.groups}
        self._filled.clear()
        for shard in self.shards:
            shard.configure(record.config)
            self.names[shard.number] = ShardName(record.namespace, record.name, shard.partition, record.config.journal)

    def observe(self, shard: Shard) -> None:
        """A shard has changed."""
        partition = shard.partition
        before = self._live[partition]
        self._live[partition] = counted = shard.counted()
        self.depth += counted[0] - before[0]
        self.size_bytes += counted[1] - before[1]
        for group, filled in list(self._filled.items()):
            if not shard.has_next(group):
                filled.pop(partition, None)
            elif len(filled) < len(self.shards):
                filled[partition] = shard
            else:
                del self._filled[group]

    def reopened(self, shard: Shard) -> None:
        """A shard has been read again, after a change that may have stopped in the middle."""
        self._filled.clear()
        self.observe(shard)

    def filled(self, group: str, partitions: Collection[int] | None = None) -> list[Shard]:
        """The shards, of these partitions or of all, in which a leasing group may have something to deliver."""
        filled = self._filled_of(group)
        if partitions is None:
            return list(filled.values())
        return [shard for number, shard in filled.items() if number in partitions]

    def has_next(self, group: str) -> bool:
        """Whether a leasing group may have something to deliver."""
        return bool(self._filled_of(group))

    def _filled_of(self, group: str) -> dict[int, Shard]:
        filled = self._filled.get(group)
        if filled is None:
            filled = {shard.partition: shard for shard in self.shards if shard.has_next(group)}
            self._filled[group] = filled
        return filled

    @property
    def partitions(self) -> int:
        return len(self.shards)

    @property
    def shard_numbers(self) -> list[int]:
        """Under which its partitions are stored and journalled."""
        return [shard.number for shard in self.shards]

    @property
    def lacking(self) -> int:
        """Partitions that its configuration has and that are not added yet."""
        return self.config.partitions - len(self.shards)

    def room(self) -> int:
        """How many more messages it may hold; -1: no limit."""
        limit = self.config.max_depth
        return max(limit - self.depth, 0) if limit else -1

    def full(self) -> QueueFull:
        """The error for a message that it has no room for. It names the group that holds most of the others back."""
        group, backlog = max(
            [(group.name, self.backlog(group.name)) for group in self.record.groups],
            key=lambda found: found[1],
            default=("", self.depth),
        )
        holder = f"Group {group!r} has not settled {backlog} of them" if group else "It has no group that consumes them"
        return QueueFull(
            queue=self.record.name,
            depth=self.depth,
            max_depth=self.config.max_depth,
            holder=holder,
            group=group,
            backlog=backlog,
        )

    def backlog(self, group: str) -> int:
        """Messages that a group has not settled."""
        return sum([shard.backlog(group) for shard in self.shards])

    def leased(self, group: str) -> int:
        """Messages that consumers of a group hold; a cursor group's hold none."""
        return sum([shard.leased(group) for shard in self.shards])

    def group(self, name: str) -> GroupRecord:
        group = self._groups.get(name)
        if group is None:
            raise GroupNotFound(group=name, queue=self.record.name)
        return group

    def find_group(self, name: str) -> GroupRecord | None:
        return self._groups.get(name)

    def lease_deadline(self, group: str, partition: int, message_id: int, token: int) -> int | None:
        """When a lease ends; None if it has ended: the message is not leased under this token."""
        if not 0 <= partition < len(self.shards):
            return None
        return self.shards[partition].deliveries_of(group).lease_deadline(message_id, token)

    def sample_rates(self, now: int) -> None:
        """Record the counters, from which `stats` computes rates. To be called when the queue is opened, and a second
        after something has happened in it."""
        self.rates.sample(self.totals(), now)

    def totals(self) -> dict[str, int]:
        """Counters since the queue was created, over all groups, by the names of rates."""
        found = {"enqueued": sum([shard.head.enqueued for shard in self.shards]), "leased": 0, "acked": 0, "failed": 0}
        for shard in self.shards:
            for counters in shard.counters():
                found["leased"] += counters.get("leased", 0)
                found["acked"] += counters.get("acked", 0)
                found["failed"] += sum([value for key, value in counters.items() if key.startswith("failed:")])
        return found

    # --- routing ----------------------------------------------------------------------------------------------------

    def shard(self, partition: int) -> Shard:
        if not 0 <= partition < len(self.shards):
            raise InvalidArgument(field="partition", problem=f"is 0 to {len(self.shards) - 1}, not {partition}")
        return self.shards[partition]

    def chosen(self, partitions: Iterable[int] | None) -> list[Shard]:
        """The shards of these partitions, or all."""
        return self.shards if partitions is None else [self.shards[p] for p in partitions if p < len(self.shards)]

    def route(self, drafts: Sequence[Draft], simple: bool) -> Routes:
        """Which shard takes which drafts, by index, in order. `simple`: they are `plain`.

        A key decides; else the source of an import or redrive, so that a repetition is compared with the first.
        Messages that have neither go together to one partition after another.
        """
        shards = self.shards
        self._next = (self._next + 1) % len(shards)
        if len(shards) == 1 or simple:
            return [(shards[self._next], range(len(drafts)))]
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
        return self._next


def plain(drafts: Sequence[Draft]) -> bool:
    """Whether it is quickly said that drafts have nothing that decides on a partition or deduplicates."""
    if type(drafts) is HomogeneousDrafts:
        return drafts.extra.metadata_only
    shared = drafts[0].extra if drafts else NO_EXTRA
    return shared.metadata_only and all([draft.extra is shared for draft in drafts])  # noqa: C419 - a list is faster


class NamespaceTotals:
    """What the queues of a namespace have together, and the queues by the dead queue that they name.

    It is counted when a queue comes, changes or goes: with ten thousand queues, a creation that looked at all of them
    would hold up everything else for milliseconds.
    """

    __slots__ = ("by_dead_queue", "groups", "partitions", "queues", "webhooks")

    def __init__(self) -> None:
        self.queues = self.partitions = self.groups = self.webhooks = 0
        self.by_dead_queue: dict[str, set[str]] = {}

    def add(self, record: QueueRecord, count: int = 1) -> None:
        """Count a queue; with -1 no more."""
        config = record.config
        self.queues += count
        self.groups += count * len(record.groups)
        self.partitions += count * config.partitions
        self.webhooks += count * bool(config.dlq.alert_webhook)
        if config.dlq.queue:
            named_by = self.by_dead_queue.setdefault(config.dlq.queue, set())
            if count > 0:
                named_by.add(record.name)
            else:
                named_by.remove(record.name)
            if not named_by:
                del self.by_dead_queue[config.dlq.queue]


class Catalog:
    """The queues of a cell by name and by shard, and the topics that queues capture. `queues` is to be read only."""

    __slots__ = ("_by_shard", "_queues", "_totals", "captures", "captures_changed", "queues")

    def __init__(self) -> None:
        self._queues: dict[QueueName, Queue] = {}
        self._by_shard: dict[int, Queue] = {}
        self._totals: dict[str, NamespaceTotals] = {}
        self.queues: Mapping[QueueName, Queue] = MappingProxyType(self._queues)
        self.captures: dict[QueueName, tuple[str, ...]] = {}  # queues that also take messages of ordinary topics
        self.captures_changed = 1  # grows with every change of them

    def totals(self, namespace: str) -> NamespaceTotals:
        return self._totals.get(namespace) or NamespaceTotals()

    def record(self, name: QueueName) -> QueueRecord | None:
        queue = self._queues.get(name)
        return None if queue is None else queue.record

    def dead_queue_users(self, name: QueueName) -> list[str]:
        """The queues whose dead letters go to `name`, by their configuration or as their automatic dead queue."""
        namespace, dead_queue = name
        named_by = self.totals(namespace).by_dead_queue.get(dead_queue, ())
        records = [self.record((namespace, user)) for user in {*named_by, dead_queue.removeprefix(DEAD_PREFIX)}]
        return sorted(
            record.name
            for record in records
            if record is not None and not record.closing and dead_queue_of(record.name, record.config) == dead_queue
        )

    def add(self, queue: Queue) -> None:
        """Add a queue, or shards and captures that were added to one."""
        self._queues[queue.name] = queue
        self._by_shard.update((shard.number, queue) for shard in queue.shards)
        self._capture(queue.name, queue.config.topics)
        self.count(queue)

    def remove(self, queue: Queue) -> None:
        """Remove a queue. Its shards are known until `forget_shards`, because the journal of this turn names them."""
        del self._queues[queue.name]
        self._capture(queue.name, ())
        self._count(queue, None)

    def forget(self, queue: Queue) -> None:
        """Forget a queue at once, with its shards: it is to be as if it had never been here."""
        self.remove(queue)
        self.forget_shards([shard.number for shard in queue.shards])

    def forget_shards(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            del self._by_shard[number]

    def shard(self, number: int) -> tuple[Queue, Shard] | None:
        """A shard by its number, with its queue; None if it is deleted and the turn of that is over."""
        queue = self._by_shard.get(number)
        return None if queue is None else (queue, queue.shards[bisect_left(queue.record.shards, number)])

    def shard_name(self, number: int) -> ShardName:
        """What the journal calls a shard."""
        return self._by_shard[number].names[number]

    def count(self, queue: Queue) -> None:
        """The record of a queue has changed."""
        self._count(queue, queue.record)

    def _count(self, queue: Queue, record: QueueRecord | None) -> None:
        """Count a queue by this record; None: no more."""
        namespace = queue.record.namespace
        totals = self._totals.setdefault(namespace, NamespaceTotals())
        if queue.counted is not None:
            totals.add(queue.counted, -1)
        if record is not None:
            totals.add(record)
        queue.counted = record
        if not totals.queues:
            del self._totals[namespace]

    def _capture(self, name: QueueName, topics: tuple[str, ...]) -> None:
        if self.captures.get(name, ()) != topics:
            self.captures_changed += 1
            if topics:
                self.captures[name] = topics
            else:
                del self.captures[name]
