"""The node without its event loop: queues, shards and the batch that the current turn has gathered.

Everything here is synchronous and takes `now`; it neither waits nor knows who asked. The asyncio shell (node.py) and
the simulation drive it the same way: call operations, `write()` what they gathered, have it synced, then answer.

A read of a shard that has changes in the batch writes the batch first, so that the shard always reads what it wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core.codecs import read_ready, read_state
from holdfast.core.commands import (
    Ack,
    AddGroup,
    Command,
    DeadLettered,
    Draft,
    Enqueue,
    Enqueued,
    Lease,
    Leased,
    Settle,
    Settlement,
    Tick,
)
from holdfast.core.deadletter import make_dead_letter
from holdfast.core.deliveries import Delivery
from holdfast.core.effects import DeadLetterCandidate, DeleteUntil, Effects, Op, Read
from holdfast.core.groups import NEVER
from holdfast.core.ids import IdGenerator
from holdfast.core.journal import ShardName, write_block
from holdfast.core.queue import (
    DEAD_QUEUE_CONFIG,
    PRIORITY_MAX,
    GroupKind,
    GroupRecord,
    QueueConfig,
    QueueRecord,
    check_name,
    dead_queue_of,
)
from holdfast.core.records import (
    FLAG_STATE,
    LAST,
    Place,
    Table,
    delivery_key,
    journal_key,
    queue_key,
    ready_key,
    shard_key,
)
from holdfast.core.shard import SKIP_BLOCKED_MAX, HotBodies, Rows, Shard
from holdfast.engine.audits import AuditLimits, Audits
from holdfast.engine.catalog import DeliveryLocator, Queue, QueueName, Routes
from holdfast.engine.merge import order_key
from holdfast.engine.merge import shares as shares_of
from holdfast.engine.transactions import TransactionLimits, Transactions
from holdfast.errors import (
    GroupNotFound,
    HoldfastError,
    LeaseLost,
    LimitExceeded,
    QueueNotFound,
    WrongGroupKind,
)
from holdfast.store.contract import Store

R = TypeVar("R")

NODE_KEY = b"node"
# Ids are reserved this far ahead, so that after a crash none is given twice. Renewed when half of it is used: a
# restart within a second makes ids run up to a second ahead of the clock, which harms nothing.
RESERVE_MS = 1_000
TICK_ROUNDS_MAX = 1_000  # chunks of one Tick loop; more waits for the next turn


# What a shard leaves behind when its queue is deleted. MESSAGES are not among it: the journal refers to them.
_OF_SHARDS = (
    Table.SHARDS,
    Table.GROUPS,
    Table.READY,
    Table.SCHEDULED,
    Table.DUE,
    Table.KEYED,
    Table.LEASES,
    Table.DELIVERIES,
    Table.SETTLED,
    Table.EXPIRIES,
    Table.DEDUP,
    Table.DEDUP_ENDS,
    Table.SOURCES,
    Table.STATES,
)


_encode = msgspec.msgpack.Encoder().encode


class NodeRecord(msgspec.Struct, array_like=True):
    """What a node must remember of itself."""

    node: int
    ids_reserved: int = 0
    next_lsn: int = 1
    next_block: int = 1
    next_shard: int = 1
    exported_block: int = 0
    exported_lsn: int = 0
    transactions_remembered: int = 0


class Alert(msgspec.Struct, frozen=True):
    """A dead letter that somebody wants to hear of."""

    url: str
    namespace: str
    queue: str
    group: str
    message_id: int
    dead_queue: str
    dead_letter_id: int
    reason: str
    error: str
    attempts: int
    at: int


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds that the engine itself keeps."""

    auto_create: bool = True
    max_queues: int = 10_000
    max_groups: int = 64
    hot_bytes: int = 64 << 20
    transactions: TransactionLimits = TransactionLimits()
    audits: AuditLimits = AuditLimits()


class Engine:
    """See the module."""

    def __init__(self, store: Store, node: int, limits: Limits | None = None) -> None:
        self.store = store
        self.limits = limits or Limits()
        self.record = NodeRecord(node)
        self.epoch = 0
        self.queues: dict[QueueName, Queue] = {}
        self.ids = IdGenerator(node)
        self.hot = HotBodies(self.limits.hot_bytes)
        self.by_shard: dict[int, Queue] = {}
        self.alerts: list[Alert] = []
        self.dropped: list[DeadLetterCandidate] = []
        self.unfinished: set[QueueName] = set()  # queues in which the last lease stopped looking: ask again
        self.writes = 0  # batches that are in the store
        self._written_ops: list[Op] = []  # the last of them
        self.dirty_queues: set[QueueName] = set()  # queues in which something may have become ready
        self.captures: dict[QueueName, tuple[str, ...]] = {}  # queues that also take messages of ordinary topics
        self.captures_changed = 1  # grows with every change of them
        self._ops: list[Op] = []
        self._entries: list[tuple[object, ...]] = []
        self._rows = 0
        self._dirty_shards: dict[int, Shard] = {}
        self._wakes: list[tuple[int, int]] = []
        self._wake_of: dict[int, int] = {}
        self._must_sync = False
        self._forgotten: list[int] = []  # shards of a deleted queue; the batch's journal still names them
        self._at = 0
        self.transactions = Transactions(self, self.limits.transactions)
        self.audits = Audits(self, self.limits.audits)

    # --- opening ----------------------------------------------------------------------------------------------------

    def open(self, now: int) -> None:
        """Take the store over and read what stands in it: heads and what is out, not the backlog."""
        self.epoch = self.store.acquire()
        value = self.store.get(Table.META, NODE_KEY)
        if value is not None:
            stored = msgspec.msgpack.decode(value, type=NodeRecord)
            stored.node = self.record.node
            self.record = stored
        self.ids = IdGenerator(self.record.node, after=self.record.ids_reserved)
        for _, raw in self.store.scan(Table.QUEUES, b"", b"\xff" * 8, 1 << 30):
            record = msgspec.msgpack.decode(raw, type=QueueRecord)
            self._register_queue(record, now)
        self.transactions.open()
        self.audits.open()

    def _register_queue(self, record: QueueRecord, now: int) -> Queue:
        shards = [self._open_shard(record, partition, number, now) for partition, number in enumerate(record.shards)]
        queue = Queue(record, shards)
        self.queues[queue.name] = queue
        self._update_captures(queue.name, record.config.topics)
        for shard in shards:
            self.by_shard[shard.number] = queue
            self._schedule_wake(shard)
        return queue

    def _update_captures(self, name: QueueName, topics: tuple[str, ...]) -> None:
        if self.captures.get(name, ()) != topics:
            self.captures_changed += 1
            if topics:
                self.captures[name] = topics
            else:
                del self.captures[name]

    def _open_shard(self, record: QueueRecord, partition: int, number: int, now: int) -> Shard:
        shard = Shard(number, partition, record.name, record.config, self.ids, self.hot)
        reads = Shard.open_reads(number)
        shard.open(record.groups, self._fetch(reads), now)
        return shard

    # --- the turn ---------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        return bool(self._ops or self._entries or self._dirty_shards)

    def write(self) -> bool:
        """Write what has been gathered as one atomic batch. True: it must be synced before anything is answered."""
        if not self.pending:
            must_sync, self._must_sync = self._must_sync, False
            return must_sync
        effects = Effects()
        effects.ops = self._ops
        for shard in self._dirty_shards.values():
            shard.flush(effects)
        record = self.record
        must_sync = self._must_sync
        if self._entries:
            names: dict[int, ShardName] = {}
            for entry in self._entries:
                number = entry[1]
                assert isinstance(number, int)
                names[number] = self.by_shard[number].names[number]
            block = write_block(record.next_lsn, self._rows, self._at, names, self._entries)
            effects.ops.append((Table.JOURNAL, journal_key(record.next_block), block))
            record.next_block += 1
            record.next_lsn += self._rows
        if self.ids.ahead(RESERVE_MS // 2) > record.ids_reserved:
            record.ids_reserved = self.ids.ahead(RESERVE_MS)
            must_sync = True
        effects.ops.append((Table.META, NODE_KEY, _encode(record)))
        dirty_shards = self._dirty_shards
        self._ops, self._entries, self._rows, self._dirty_shards, self._must_sync = [], [], 0, {}, False
        self.store.write(self.epoch, effects.ops)
        self._written_ops = effects.ops
        self.writes += 1
        for shard in dirty_shards.values():
            self._schedule_wake(shard)
        for number in self._forgotten:
            del self.by_shard[number]
        self._forgotten = []
        return must_sync

    def drop_written_batch(self) -> None:
        """Of what was written last. Of thousands that takes time, so it is for when the disk works and nobody waits."""
        self._written_ops = []

    def add(self, ops: list[Op]) -> None:
        """Take records of somebody else's into the batch: a front's own, to be as durable as the messages beside it."""
        self._ops += ops

    def write_early(self) -> None:
        """Write what has been gathered, because it must be read. Whether it must be synced is for the turn's end."""
        must_sync = self.write()
        self._must_sync = self._must_sync or must_sync

    def step(self, queue: Queue, shard: Shard, command: Command[R], now: int) -> R:
        """Step a shard until it has all it needs, and take its effects into the batch."""
        effects = shard.step(command, now)
        while effects.reads:
            if shard.number in self._dirty_shards:
                self.write_early()
            shard.supply(effects.reads, self._fetch(effects.reads))
            effects = shard.step(command, now)
        self._at = now
        if effects.ops or effects.entries or shard.unsaved:
            self._ops += effects.ops
            self._entries += effects.entries
            self._rows += effects.rows
            self._dirty_shards[shard.number] = shard
        if effects.dead_letter_candidates:
            self._dead_letter(queue, shard, effects.dead_letter_candidates, now)
        return effects.reply

    def _fetch(self, reads: list[Read]) -> list[bytes | Rows | None]:
        store = self.store
        if len(reads) > 1 and all(read.end is None and read.table is reads[0].table for read in reads):
            return list(store.get_many(reads[0].table, [read.key for read in reads]))
        results: list[bytes | Rows | None] = []
        for read in reads:
            if read.end is None:
                results.append(store.get(read.table, read.key))
            else:
                results.append(store.scan(read.table, read.key, read.end, read.limit))
        return results

    # --- messages ---------------------------------------------------------------------------------------------------

    def enqueue(
        self, name: QueueName, drafts: Sequence[Draft], protocol: str, now: int, atomic: bool = False
    ) -> Enqueued:
        """Store messages. The reply is good once the batch is durable. `atomic`: nothing is stored if one errs."""
        return self.enqueue_in(self.queue(name, now, create=True), drafts, protocol, now, atomic)

    def enqueue_in(
        self,
        queue: Queue,
        drafts: Sequence[Draft],
        protocol: str,
        now: int,
        atomic: bool = False,
        group: str = "",
    ) -> Enqueued:
        """Store messages in a queue that is at hand. `group`: for this leasing group alone."""
        room = queue.room()
        routes = queue.route(drafts)
        if atomic:
            tried = self._spread(queue, routes, drafts, room, protocol, now, dry_run=True)
            if tried.errors:
                return Enqueued([0] * len(drafts), {}, tried.errors)
        self.dirty_queues.add(queue.name)
        if len(routes) == 1:
            shard, _ = routes[0]
            return self.step(queue, shard, Enqueue(drafts, room, protocol, group=group), now)
        return self._spread(queue, routes, drafts, room, protocol, now, group=group)

    def _spread(
        self,
        queue: Queue,
        routes: Routes,
        drafts: Sequence[Draft],
        room: int,
        protocol: str,
        now: int,
        dry_run: bool = False,
        group: str = "",
    ) -> Enqueued:
        """Enqueue a batch that goes to several partitions. `dry_run`: only find out what would be refused."""
        total = Enqueued([0] * len(drafts))
        ids = [] if dry_run else self.ids.take(now, len(drafts))
        for shard, indexes in routes:
            taken = [] if dry_run else [ids[i] for i in indexes]
            some = drafts if len(routes) == 1 else [drafts[i] for i in indexes]
            part = Enqueue(some, room, protocol, taken, group, dry_run=dry_run)
            reply = self.step(queue, shard, part, now)
            stored = 0
            for at, index in enumerate(indexes):
                total.ids[index] = reply.ids[at]
                if at in reply.duplicates:
                    total.duplicates[index] = reply.duplicates[at]
                elif at in reply.errors:
                    total.errors[index] = reply.errors[at]
                else:
                    stored += 1
            if room >= 0:
                room = max(room - stored, 0)
        return total

    def lease(
        self,
        name: QueueName,
        group: str,
        limit: int,
        timeout: int,
        consumer: str,
        protocol: str,
        now: int,
        partitions: Iterable[int] | None = None,
        max_bytes: int = 0,
    ) -> list[Leased]:
        """Lease the next deliveries over all chosen partitions, in their order. The group appears if it is new."""
        self.unfinished.discard(name)
        queue = self.queue(name, now, create=True)
        self.ensure_group(queue, group, GroupKind.LEASE, now)
        shards = queue.chosen(partitions)
        for shard in shards:
            if self._wake_of.get(shard.number, NEVER) <= now:
                self._tick_shard(queue, shard, now)
        timeout = timeout if timeout >= 0 else queue.config.delivery_timeout
        found: list[Leased] = []
        left = max_bytes
        runs = 0
        while len(found) < limit:
            before = len(found)
            bound = max(left, 1) if max_bytes else 0
            for shard, share in self._shares(shards, group, limit - len(found), bound, one_at_least=not found):
                runs += 1
                bound = max(left, 1) if max_bytes else 0
                command = Lease(group, share, timeout, consumer, protocol, bound, one_at_least=not found)
                reply = self.step(queue, shard, command, now)
                found += reply
                if max_bytes:
                    left -= sum([len(leased.message.payload) for leased in reply])
                    if len(reply) < share:
                        limit = len(found)  # what comes next does not fit, and nothing may overtake it
                        break
            if len(found) == before or (max_bytes and left <= 0):
                break
        if runs > 1:
            found.sort(key=_place_of_leased)
        return found

    def _shares(
        self, shards: list[Shard], group: str, limit: int, max_bytes: int, one_at_least: bool
    ) -> list[tuple[Shard, int]]:
        """How many of the next `limit` deliveries each shard has, going by their places.

        If several shards have some, they are no more than fit into `max_bytes`; where one has all, it sees to that.
        """
        filled = [index for index, shard in enumerate(shards) if shard.head.ready]
        if len(filled) == 1:
            alone = shards[filled[0]]
            return [(alone, count)] if (count := len(self.heads(alone, group, limit))) else []
        firsts: list[tuple[int, list[Place | Delivery]]] = []
        for index in filled:
            front = shards[index].front(group)
            firsts.append((index, self.heads(shards[index], group) if front is None else [front]))
        fronts = sorted((order_key(first[0]), index) for index, first in firsts if first)
        if not fronts:
            return []
        # What arrived together lies together, so the first shard often has all of it: look there before merging.
        best = shards[fronts[0][1]]
        nexts = self.heads(best, group, limit)
        if len(fronts) == 1:
            return [(best, len(nexts))]
        if len(nexts) == limit and order_key(nexts[-1]) < fronts[1][0]:
            return [(best, limit)]
        found = {index: self.heads(shards[index], group, limit) for _, index in fronts[1:]}
        found[fronts[0][1]] = nexts
        # A shard that must read on first may have something better beyond its horizon.
        horizons = [shards[index].horizon(group) for index, items in found.items() if len(items) < limit]
        known = min((horizon for horizon in horizons if horizon is not None), default=(PRIORITY_MAX + 1, 0))
        counts = shares_of(found, limit, known, max_bytes, one_at_least)
        return [(shards[index], count) for index, count in counts.items()]

    def heads(self, shard: Shard, group: str, limit: int = 1) -> list[Place | Delivery]:
        """The next deliveries of a group in one shard."""
        shard.skipped_blocked = 0
        found, reads = shard.heads(group, limit)
        while reads:
            if shard.number in self._dirty_shards:
                self.write_early()
            shard.supply(reads, self._fetch(reads))
            found, reads = shard.heads(group, limit)
        if shard.skipped_blocked >= SKIP_BLOCKED_MAX:
            self.unfinished.add(self.by_shard[shard.number].name)
        return found

    def oldest(self, shard: Shard) -> int:
        """The stamp of the oldest message that is not delayed, 0 if there is none."""
        return min((place.stamp for place in self.fronts(shard)), default=0)

    def fronts(self, shard: Shard) -> list[Place]:
        """For each priority the oldest message that is not delayed, whatever became of it in any group."""
        if shard.number in self._dirty_shards:
            self.write_early()
        number = shard.number
        fronts = [
            self.store.scan(Table.READY, ready_key(number, priority, 0), ready_key(number, priority, LAST), 1)
            for priority in shard.head.priorities
        ]
        return [read_ready(*front[0]) for front in fronts if front]

    def settle(
        self, name: QueueName, group: str, settlements: list[Settlement], now: int
    ) -> list[int | HoldfastError | None]:
        """Settle deliveries; a result for each, in order."""
        queue = self.queue(name, now)
        self.dirty_queues.add(name)
        together = {settlement.partition for settlement in settlements}
        if len(together) == 1 and 0 <= (partition := together.pop()) < len(queue.shards):
            return self._settle_in(queue, queue.shards[partition], Settle(group, settlements), now)
        results: list[int | HoldfastError | None] = [None] * len(settlements)
        parts: dict[int, list[int]] = {}
        locator = DeliveryLocator(queue, group)
        for index, settlement in enumerate(settlements):
            partition = settlement.partition
            if not 0 <= partition < len(queue.shards):
                partition = locator.find(settlement.id)
            if partition < 0:
                results[index] = LeaseLost(message_id=settlement.id)
            else:
                parts.setdefault(partition, []).append(index)
        for partition, indexes in parts.items():
            batch = [settlements[index] for index in indexes]
            settled = self._settle_in(queue, queue.shards[partition], Settle(group, batch), now)
            for index, result in zip(indexes, settled, strict=True):
                results[index] = result
        return results

    def ack(
        self, name: QueueName, group: str, ids: list[int], tokens: list[int], now: int, partition: int = -1
    ) -> list[int | HoldfastError | None]:
        """`settle` where all are acked by their tokens, by columns. `partition`: that of all; -1: not known."""
        queue = self.queue(name, now)
        self.dirty_queues.add(name)
        if 0 <= partition < len(queue.shards):
            return self._settle_in(queue, queue.shards[partition], Ack(group, ids, tokens), now)
        results: list[int | HoldfastError | None] = [None] * len(ids)
        for holder, indexes in DeliveryLocator(queue, group).split(ids).items():
            if len(indexes) == len(ids) and holder >= 0:
                return self._settle_in(queue, queue.shards[holder], Ack(group, ids, tokens), now)
            settled: list[int | HoldfastError | None]
            if holder < 0:
                settled = [LeaseLost(message_id=ids[index]) for index in indexes]
            else:
                part = Ack(group, [ids[index] for index in indexes], [tokens[index] for index in indexes])
                settled = self._settle_in(queue, queue.shards[holder], part, now)
            for index, result in zip(indexes, settled, strict=True):
                results[index] = result
        return results

    def _settle_in(
        self, queue: Queue, shard: Shard, command: Settle | Ack, now: int
    ) -> list[int | HoldfastError | None]:
        return self.step(queue, shard, command, now).results

    # --- time -------------------------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Act on everything that is due by now."""
        while self._wakes and self._wakes[0][0] <= now:
            at, number = heappop(self._wakes)
            if self._wake_of.get(number) != at:
                continue
            del self._wake_of[number]
            queue = self.by_shard.get(number)
            if queue is not None:
                shard = next(shard for shard in queue.shards if shard.number == number)
                self._tick_shard(queue, shard, now)
        self.transactions.tick(now)
        self.audits.tick(now)

    def _tick_shard(self, queue: Queue, shard: Shard, now: int) -> None:
        rounds = 0
        while self.step(queue, shard, Tick(), now):
            self.dirty_queues.add(queue.name)
            rounds += 1
            if rounds == TICK_ROUNDS_MAX:
                break
        self._schedule_wake(shard)

    def wake_at(self) -> int:
        """When the next thing is due; NEVER if nothing is."""
        while self._wakes and self._wake_of.get(self._wakes[0][1]) != self._wakes[0][0]:
            heappop(self._wakes)
        first = self._wakes[0][0] if self._wakes else NEVER
        return min(first, self.transactions.wake_at(), self.audits.wake_at())

    def _schedule_wake(self, shard: Shard) -> None:
        at = shard.wake_at()
        known = self._wake_of.get(shard.number, NEVER)
        if at != known:
            if at == NEVER:
                self._wake_of.pop(shard.number, None)
            else:
                self._wake_of[shard.number] = at
                heappush(self._wakes, (at, shard.number))

    # --- dead letters -----------------------------------------------------------------------------------------------

    def _dead_letter(
        self, queue: Queue, shard: Shard, dead_letter_candidates: list[DeadLetterCandidate], now: int
    ) -> None:
        """Move doomed deliveries to the dead queue, the letter and the end of its source in one batch.

        If a crash could come between the two, a rejected message would be dead and delivered again: its consumer is not
        asked twice. So nothing may be read that is not written yet: the batch begins here, and anew for each group.
        """
        target_name = dead_queue_of(queue.record.name, queue.config)
        by_group: dict[str, list[DeadLetterCandidate]] = {}
        for item in dead_letter_candidates:
            by_group.setdefault(item.group, []).append(item)
        for group, items in by_group.items():
            self.write_early()
            if target_name is None:
                self.dropped += items
                dead_letter_ids = [0] * len(items)
            else:
                carried = self._with_states(queue, shard, group, items)
                dead_letter_ids = self._deliver_dead_letters(queue, target_name, carried, now)
            outcomes = {
                item.delivery.id: dead_letter_id for item, dead_letter_id in zip(items, dead_letter_ids, strict=True)
            }
            self.step(queue, shard, DeadLettered(group, outcomes), now)

    def _with_states(
        self, queue: Queue, shard: Shard, group: str, dead_letter_candidates: list[DeadLetterCandidate]
    ) -> list[DeadLetterCandidate]:
        """Doomed deliveries with their workflow states, which the letters carry on. All of it is written."""
        found = queue.record.group(group)
        if found is None or not any(item.delivery.flags & FLAG_STATE for item in dead_letter_candidates):
            return dead_letter_candidates
        keys = [delivery_key(shard.number, found.number, item.delivery.id) for item in dead_letter_candidates]
        values = self.store.get_many(Table.STATES, keys)
        return [
            item._replace(state=read_state(value) if value is not None else None)
            for item, value in zip(dead_letter_candidates, values, strict=True)
        ]

    def _deliver_dead_letters(
        self, queue: Queue, target_name: str, dead_letter_candidates: list[DeadLetterCandidate], now: int
    ) -> list[int]:
        """Ids of the dead letters, -1 where the dead queue could not take one."""
        target = self._dead_queue(queue, target_name, now)
        if target is None:
            return [-1] * len(dead_letter_candidates)
        drafts = [make_dead_letter(queue.record.name, item) for item in dead_letter_candidates]
        reply = self.enqueue_dead_letters(target, drafts, "broker", now)
        if queue.config.dlq.alert_webhook:
            for item, dead_letter_id in zip(dead_letter_candidates, reply.ids, strict=True):
                if dead_letter_id:
                    self._alert(queue, target_name, item, dead_letter_id, now)
        return [dead_letter_id or -1 for dead_letter_id in reply.ids]

    def enqueue_dead_letters(self, target: Queue, drafts: list[Draft], protocol: str, now: int) -> Enqueued:
        """Store dead letters, however many are there already."""
        self.dirty_queues.add(target.name)
        return self._spread(target, target.route_dead_letters(drafts), drafts, -1, protocol, now)

    def _dead_queue(self, queue: Queue, name: str, now: int) -> Queue | None:
        """The dead queue of a queue. An automatic one appears; one named by hand that is gone takes nothing, nor does
        one for which there is no room."""
        namespace = queue.record.namespace
        target = self.queues.get((namespace, name))
        if target is None and not queue.config.dlq.queue and len(self.queues) < self.limits.max_queues:
            target = self.add_queue(namespace, name, DEAD_QUEUE_CONFIG, now, automatic=True)
        if target is None or target.record.closing:
            return None
        return target

    def _alert(self, queue: Queue, target: str, item: DeadLetterCandidate, dead_letter_id: int, now: int) -> None:
        self.alerts.append(
            Alert(
                queue.config.dlq.alert_webhook,
                queue.record.namespace,
                queue.record.name,
                item.group,
                item.delivery.id,
                target,
                dead_letter_id,
                item.reason,
                item.delivery.error,
                item.delivery.failures + (1 if item.delivery.token else 0),
                now,
            )
        )

    # --- the journal's export ---------------------------------------------------------------------------------------

    def exported(self, last_block: int, last_lsn: int, removal: list[Op]) -> None:
        """Blocks up to `last_block` are in the lake: they leave the store, with the messages that waited for it."""
        self.record.exported_block = last_block
        self.record.exported_lsn = last_lsn
        self._ops += removal

    # --- queues and groups ------------------------------------------------------------------------------------------

    def queue(self, name: QueueName, now: int, create: bool = False) -> Queue:
        """A queue by name. With `create` it appears if the node allows that."""
        queue = self.queues.get(name)
        if queue is not None and not queue.record.closing:
            return queue
        if queue is None and create and self.limits.auto_create:
            check_name(name[1])
            return self.add_queue(name[0], name[1], QueueConfig(), now)
        raise QueueNotFound(queue=name[1], namespace=name[0])

    def add_queue(self, namespace: str, name: str, config: QueueConfig, now: int, automatic: bool = False) -> Queue:
        if len(self.queues) >= self.limits.max_queues:
            raise LimitExceeded(
                what="The number of queues",
                limit=self.limits.max_queues,
                advice="Delete some, or raise queues.max_queues",
            )
        numbers = self._new_shards(config.partitions)
        record = QueueRecord(namespace, name, config, numbers, now, automatic=automatic)
        queue = self._register_queue(record, now)
        self.save_queue(queue)
        return queue

    def reconfigure(self, queue: Queue, config: QueueConfig, now: int) -> None:
        """Give a queue another configuration. Partitions may only have grown."""
        record = queue.record
        added = self._new_shards(config.partitions - len(record.shards))
        record = replace(record, config=config, shards=record.shards + added, automatic=False)
        for partition, number in enumerate(added, len(queue.shards)):
            shard = self._open_shard(replace(record, groups=()), partition, number, now)
            queue.shards.append(shard)
            self.by_shard[number] = queue
        queue.change(record)
        self._update_captures(queue.name, config.topics)
        self.save_queue(queue)
        for shard in queue.shards[len(record.shards) - len(added) :]:
            for group in record.groups:
                self._start_group(queue, shard, group, True, now)
        self.dirty_queues.add(queue.name)

    def forget_queue(self, queue: Queue) -> None:
        """Remove a queue whose messages have all been purged. Message records go with the journal's export."""
        record = queue.record
        for shard in queue.shards:
            low, high = shard_key(shard.number), shard_key(shard.number + 1)
            self._ops += [(table, low, DeleteUntil(high)) for table in _OF_SHARDS]
            self._dirty_shards.pop(shard.number, None)
            self._wake_of.pop(shard.number, None)
        self._ops.append((Table.QUEUES, queue_key(record.namespace, record.name), None))
        self._forgotten += [shard.number for shard in queue.shards]
        del self.queues[queue.name]
        self._update_captures(queue.name, ())
        self._must_sync = True

    def _new_shards(self, count: int) -> tuple[int, ...]:
        first = self.record.next_shard
        self.record.next_shard += count
        return tuple(range(first, first + count))

    def save_queue(self, queue: Queue) -> None:
        record = queue.record
        key = queue_key(record.namespace, record.name)
        self._ops.append((Table.QUEUES, key, msgspec.msgpack.encode(record)))
        self._must_sync = True

    def ensure_group(self, queue: Queue, name: str, kind: GroupKind, now: int) -> GroupRecord:
        """A group by name, made on first use: the first one of a queue starts with all that is stored."""
        group = queue.record.group(name)
        if group is None:
            return self.add_group(queue, name, kind, now, earliest=not queue.record.groups)
        if group.kind is not kind:
            action = "lease" if kind is GroupKind.LEASE else "be read as a log"
            raise WrongGroupKind(group=name, kind=group.kind.value, action=action)
        return group

    def add_group(
        self,
        queue: Queue,
        name: str,
        kind: GroupKind,
        now: int,
        earliest: bool,
        max_lag_messages: int = 0,
        max_lag_age: int = 0,
    ) -> GroupRecord:
        check_name(name, "group")
        record = queue.record
        if len(record.groups) >= self.limits.max_groups:
            raise LimitExceeded(
                what="The number of groups of a queue",
                limit=self.limits.max_groups,
                advice="Delete some, or raise queues.max_groups_per_queue",
            )
        group = GroupRecord(record.groups_made, name, kind, now, max_lag_messages, max_lag_age)
        queue.change(replace(record, groups=(*record.groups, group), groups_made=record.groups_made + 1))
        self.save_queue(queue)
        for shard in queue.shards:
            self._start_group(queue, shard, group, earliest, now)
            self._schedule_wake(shard)
        self.dirty_queues.add(queue.name)
        return group

    def _start_group(self, queue: Queue, shard: Shard, group: GroupRecord, earliest: bool, now: int) -> None:
        command = AddGroup(
            group.number,
            group.name,
            group.kind is GroupKind.CURSOR,
            earliest,
            group.max_lag_messages,
            group.max_lag_age,
        )
        self.step(queue, shard, command, now)

    def group(self, queue: Queue, name: str) -> GroupRecord:
        group = queue.record.group(name)
        if group is None:
            raise GroupNotFound(group=name, queue=queue.record.name)
        return group


def _place_of_leased(leased: Leased) -> tuple[int, int]:
    return (leased.message.priority, leased.stamp)
