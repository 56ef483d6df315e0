"""The engine of a cell: its queues and shards in memory, and the batch that the current turn has collected.

Everything here is synchronous and takes `now`; it does not wait, and it does not know who the caller is. The asyncio
part (broker/) and the simulation use it in the same way: call operations, `write()` the batch, have it synced, answer.

A turn writes one batch, at its end: what belongs together is never torn by a crash. What a turn has changed is read
through the batch (store/overlay.py), so that a shard always reads what it wrote.

This module has what every message needs: enqueue, lease, settle, and the step of one shard. Administration is in
queues.py, groups.py, messages.py, browse.py and cursors.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core.codecs import read_ready
from holdfast.core.commands import (
    Ack,
    Command,
    Draft,
    Enqueue,
    Enqueued,
    Lease,
    Leased,
    RecordGroups,
    Settle,
    Settled,
    Settlement,
    Tick,
)
from holdfast.core.deliveries import Delivery
from holdfast.core.effects import DeadLetterCandidate, Op, Read
from holdfast.core.ids import IdGenerator
from holdfast.core.journal import group_entry
from holdfast.core.memory import CellMemory
from holdfast.core.queue import PRIORITY_MAX, GroupKind, JournalMode, QueueConfig, QueueRecord, check_name
from holdfast.core.records import LAST, Place, Table, queue_key, ready_key
from holdfast.core.shard import SKIP_BLOCKED_MAX, Shard
from holdfast.core.states import JournalEvent
from holdfast.engine import merge
from holdfast.engine.audits import AuditLimits, Audits
from holdfast.engine.batch import Batch
from holdfast.engine.catalog import Catalog, Queue, QueueName, Routes, plain
from holdfast.engine.cell_record import CELL_KEY, UNFINISHED_KEY, CellRecord, read_cell_record
from holdfast.engine.dead_lettering import Alert, Candidates, DeadLettering, FailedRequest
from holdfast.engine.groups import ensure_group
from holdfast.engine.leases import DeliveryLocator
from holdfast.engine.limits.circuit_breaker import Tripped
from holdfast.engine.limits.throttling import Throttling
from holdfast.engine.merge import order_key
from holdfast.engine.message_ids import Known, has_names, remember, repetitions, rounds
from holdfast.engine.open_transaction import TransactionLimits
from holdfast.engine.operation import Operation
from holdfast.engine.queues import add_queue
from holdfast.engine.schedules.schedules import Schedules
from holdfast.engine.stored_shards import StoredShards, records_of
from holdfast.engine.transactions import Transactions
from holdfast.engine.wake_ups import WakeUps
from holdfast.errors import HoldfastError, LeaseLost, QueueFull, QueueNotFound, StoreError, StoreUnfinished
from holdfast.quotas import Quotas
from holdfast.store.contract import Rows, Store
from holdfast.store.overlay import Overlay
from holdfast.units import SECOND

R = TypeVar("R")
T = TypeVar("T")

_decode_queue = msgspec.msgpack.Decoder(QueueRecord).decode

# Deliveries that a tick acts on, over all shards: 2 to 10 ms. The rest waits for the next turn.
TICK_DELIVERIES_MAX = 256

TICK_SHARDS = 2  # that a tick steps together, so that their reads share a round trip

FAILED_PAUSE = SECOND  # before a piece of what is due that failed by a bug is tried again

REMOTE_PROBES = 15  # a million messages are searched in five round trips
NOTHING_KNOWN: Known = {}

Step = tuple[Queue, Shard, Command[R]]

SettleResult = int | HoldfastError | None
"""None, the new deadline of an extended lease, or the error that refused the settlement."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds that the engine itself keeps."""

    auto_create: bool = True
    max_queues: int = 10_000
    max_groups: int = 64
    hot_bytes: int = 64 << 20
    remembered_settlements: int = 250_000
    settled_cache: int = 250_000
    window_places: int = 200_000
    transactions: TransactionLimits = TransactionLimits()
    audits: AuditLimits = AuditLimits()
    quotas: Quotas = msgspec.field(default_factory=Quotas)


class Engine:
    """See the module. `cell` is the number of the cell, which its ids carry."""

    def __init__(self, store: Store, cell: int, limits: Limits | None = None) -> None:
        self.store = store
        self.limits = limits or Limits()
        self.record = CellRecord(cell)
        self.epoch = 0
        self.ids = IdGenerator(cell)
        self.memory = CellMemory(
            self.limits.hot_bytes,
            self.limits.remembered_settlements,
            self.limits.settled_cache,
            self.limits.window_places,
            probes=REMOTE_PROBES if store.remote else 1,
        )
        self.catalog = Catalog()
        self.queues = self.catalog.queues
        self.wake_ups = WakeUps()
        self.dead_lettering = DeadLettering(self)
        self.transactions = Transactions(self, self.limits.transactions)
        self.audits = Audits(self, self.limits.audits)
        self.schedules = Schedules(self)
        self.throttling = Throttling(self)
        self.dirty_queues: dict[QueueName, None] = {}  # in which something may have become ready, in that order
        self.unfinished: set[QueueName] = set()  # in which the last lease stopped looking: ask again
        self.alerts: list[Alert] = []  # new dead letters that a webhook is configured for; the broker takes them
        self.failed_requests: list[FailedRequest] = []  # the broker tells those who wait for a reply
        self.tripped: list[Tripped] = []  # queues that their circuit breakers paused; the broker tells
        self.dropped: list[DeadLetterCandidate] = []  # dead letters whose queue has no dead queue; the broker logs them
        self.failures: list[tuple[str, Exception]] = []  # of what was due: where, and the bug; the broker logs them
        self.writes = 0  # batches that are in the store
        self._batch = Batch(store)
        self._written_ops: list[Op] = []  # of the last batch
        self.operation = Operation(self)
        self.forgotten: list[int] = []  # shards of deleted queues; the batch's journal still names them

    # --- opening ----------------------------------------------------------------------------------------------------

    def open(self, now: int, *, filling: bool = False) -> None:
        """Take over the store and read heads, groups and open deliveries: not the backlog. `filling`: for the one who
        fills it; for others it is unfinished."""
        self.epoch = self.store.acquire()
        value, rows, unfinished = self.store.read(
            [
                Read(Table.META, CELL_KEY),
                Read(Table.QUEUES, b"", b"\xff" * 8, 1 << 30),
                Read(Table.META, UNFINISHED_KEY),
            ]
        )
        if unfinished is not None and not filling:
            raise StoreUnfinished(store=self.store.name)
        assert isinstance(rows, list)
        if isinstance(value, bytes):
            stored = read_cell_record(value)
            stored.cell = self.record.cell
            self.record = stored
        self.ids = IdGenerator(self.record.cell, after=self.record.ids_reserved)
        self._open_queues(rows, now)
        if value is not None and not self.record.groups_journalled:
            for queue in self.queues.values():
                self.record_groups(queue, now)
        self.record.groups_journalled = True
        self.transactions.open(self.store)
        self.audits.open(self.store)
        self.schedules.open(self.store)

    def _open_queues(self, rows: Rows, now: int) -> None:
        records = [_decode_queue(value) for _, value in rows]
        owners = [(number, record, at) for record in records for at, number in enumerate(record.shards)]
        stored = StoredShards(self.store)
        shards: dict[int, Shard] = {}
        for number, record, partition in sorted(owners, key=itemgetter(0)):
            shard = shards[number] = self.new_shard(record, partition)
            shard.open(record.groups, stored.of(number), now)
        for record in records:
            self.add_queue(record, [shards[number] for number in record.shards])

    def record_groups(self, queue: Queue, now: int) -> None:
        """Journal the groups of a queue, which the journal does not know yet."""
        if queue.record.groups and queue.config.journal is not JournalMode.OFF:
            for shard in queue.shards:
                self.step(queue, shard, RecordGroups(), now)

    def add_queue(self, record: QueueRecord, shards: list[Shard]) -> Queue:
        """Add a queue, new or stored."""
        self.operation.before_queue((record.namespace, record.name))
        queue = Queue(record, shards)
        self.catalog.add(queue)
        for shard in shards:
            self.wake_ups.schedule(shard)
        return queue

    def new_shard(self, record: QueueRecord, partition: int) -> Shard:
        """The shard of a partition, as it is when nothing is stored."""
        return Shard(record.shards[partition], partition, record.name, record.config, self.ids, self.memory)

    def queue(self, name: QueueName, now: int, create: bool = False) -> Queue:
        """A queue by name. With `create` it is created if it does not exist and the limits allow that."""
        queue = self.queues.get(name)
        if queue is not None and not queue.record.closing:
            return queue
        if queue is None and create and self.limits.auto_create:
            check_name(name[1])
            return add_queue(self, name, QueueConfig(), now)
        raise QueueNotFound(queue=name[1], namespace=name[0])

    def check_open(self, queue: Queue) -> None:
        """Refuse to go on with a queue that was deleted between two steps."""
        if self.queues.get(queue.name) is not queue:
            raise QueueNotFound(queue=queue.record.name, namespace=queue.record.namespace)

    def change_queue(self, queue: Queue, record: QueueRecord) -> None:
        """Have a queue take over a new record, which is to be saved."""
        self.operation.before_queue(queue.name)
        queue.change(record)

    def save_queue(self, queue: Queue) -> None:
        """Write a queue's record. What follows from it must not be answered before it is durable."""
        record = queue.record
        self.catalog.count(queue)
        key = queue_key(record.namespace, record.name)
        self._batch.add([(Table.QUEUES, key, msgspec.msgpack.encode(record))])
        self._batch.must_sync = True

    def forget_queue(self, queue: Queue, ops: list[Op], now: int) -> None:
        """Remove a queue whose messages are all purged. `ops` delete its records."""
        self.operation.before_queue(queue.name)
        if queue.config.journal is not JournalMode.OFF:
            entries = [group_entry(shard.number, JournalEvent.QUEUE_DELETED) for shard in queue.shards]
            self._batch.add_entries(entries, now)
        for shard in queue.shards:
            self._batch.drop_shard(shard)
            self.wake_ups.cancel(shard)
            shard.close()
        self._batch.add(ops)
        self._batch.must_sync = True
        self.forgotten += [shard.number for shard in queue.shards]
        self.catalog.remove(queue)

    def mark_dirty(self, *names: QueueName) -> None:
        """Something may have become ready in these queues: their waiters and members are served in this turn."""
        self.dirty_queues.update(dict.fromkeys(names))

    def take_dirty(self) -> list[QueueName]:
        """The dirty queues, in the order they became so. They are clean again."""
        names = list(self.dirty_queues)
        self.dirty_queues.clear()
        return names

    # --- the turn ---------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether there is something to write."""
        return self._batch.pending

    @property
    def overlay(self) -> Overlay:
        """The store as it will be when the batch is written."""
        return self._batch.overlay

    def add(self, ops: list[Op]) -> None:
        """Add records to the batch that are not a shard's: they become durable with the messages beside them."""
        self._batch.add(ops)

    def write(self) -> bool:
        """Write the batch, atomically. True: it must be synced before anything in it is answered."""
        batch, self._batch = self._batch, Batch(self.store)
        self.operation.begin()  # what is written is not undone
        if not batch.pending:
            return batch.must_sync
        ops = batch.seal(self.record, self.ids, self.catalog.shard_name)
        self.store.write(self.epoch, ops)
        self._written_ops = ops
        self.writes += 1
        for shard in batch.shards:
            self.wake_ups.schedule(shard)
        if self.forgotten:
            self.catalog.forget_shards(self.forgotten)
            self.forgotten.clear()
        return batch.must_sync

    def drop_written_batch(self) -> None:
        """Free the memory of the last batch. That takes time for thousands of records: best while the disk works."""
        self._written_ops = []

    def begin(self) -> None:
        """An operation of a caller begins. `undo` ends it if it fails in its middle."""
        self._batch.begin()
        self.operation.begin()

    @property
    def unchanged(self) -> bool:
        """Whether the operation has changed nothing yet: it may end like this, as if it had not begun."""
        return not (self._batch.changed or self.operation.changed)

    def undo(self, now: int) -> None:
        """An operation failed by a bug: have everything as it was when it began, see operation.py."""
        self.operation.undo(self._batch.undo().values(), now)

    def read_again(self, queue: Queue, shard: Shard, now: int) -> None:
        """Have a shard in memory as the store and the batch have it."""
        shard.reopen(queue.record.groups, records_of(self.overlay, shard.number), now)
        self._batch.add_shard(shard)

    def exported(self, last_block: int, last_lsn: int, removal: list[Op], chain: tuple[str, int] | None) -> None:
        """The journal is exported up to `last_block`: its blocks are removed, with the messages kept for them. `chain`:
        the hash and the number of the manifest's last line, by which a changed lake is found out; None: there was no
        segment to write."""
        self.record.exported_block = last_block
        self.record.exported_lsn = last_lsn
        if chain is not None:
            self.record.chain_hash, self.record.chain_length = chain
        self._batch.add(removal)

    def step(self, queue: Queue, shard: Shard, command: Command[R], now: int) -> R:
        """Step a shard until it has all records it needs, and add its effects to the batch."""
        self._batch.keep(shard)
        outcome = shard.step(command, now)
        while outcome.reads:
            self._supply([(shard, outcome.reads)])
            outcome = shard.step(command, now)
        self._batch.add_step(shard, outcome, now)
        queue.observe(shard)
        if outcome.dead_letter_candidates:
            self.dead_lettering.move(queue, [(shard, outcome.dead_letter_candidates)], now)
        return outcome.reply

    def step_all(self, steps: Sequence[Step[R]], now: int) -> list[R]:
        """`step` for several shards, each of which is there once, and none of which depends on another: what they lack
        is read in rounds, that of all shards at once."""
        if len(steps) == 1:
            return [self.step(*steps[0], now)]
        for _, shard, _ in steps:
            self._batch.keep(shard)
        replies: dict[int, R] = {}
        candidates: dict[QueueName, tuple[Queue, Candidates]] = {}
        left = list(enumerate(steps))
        try:
            while left:
                lacking: list[tuple[int, Step[R]]] = []
                asked: list[tuple[Shard, list[Read]]] = []
                for at, one in left:
                    queue, shard, command = one
                    outcome = shard.step(command, now)
                    if outcome.reads:
                        lacking.append((at, one))
                        asked.append((shard, outcome.reads))
                        continue
                    self._batch.add_step(shard, outcome, now)
                    queue.observe(shard)
                    replies[at] = outcome.reply
                    if outcome.dead_letter_candidates:
                        moving = candidates.setdefault(queue.name, (queue, []))[1]
                        moving.append((shard, outcome.dead_letter_candidates))
                self._supply(asked)
                left = lacking
        except BaseException:
            for _, (_, shard, _) in left:
                shard.forget()
            raise
        finally:
            for queue, parts in candidates.values():
                self.dead_lettering.move(queue, parts, now)
        return [replies[at] for at in range(len(steps))]

    def _supply(self, asked: list[tuple[Shard, list[Read]]]) -> None:
        """Give shards the records they asked for, as they are with all their changes, in one round trip."""
        reader = self.overlay if any(self._batch.changes(shard) for shard, _ in asked) else self.store
        try:
            found = iter(reader.read([read for _, reads in asked for read in reads]) if asked else ())
        except StoreError:
            for shard, _ in asked:
                shard.forget()  # what was read before is stale for the next command
            raise
        for shard, reads in asked:
            shard.supply(reads, [next(found) for _ in reads])

    # --- messages -------------------------------------------------------------------------------------------------

    def enqueue(
        self, name: QueueName, drafts: Sequence[Draft], protocol: str, now: int, atomic: bool = False
    ) -> Enqueued:
        """Store messages. The reply is valid once the batch is durable. `atomic`: all are stored, or none."""
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
        """As `enqueue`, in a queue that is found already. `group`: for this leasing group alone."""
        room = queue.room()
        simple = plain(drafts)
        routes = queue.route(drafts, simple)
        named = not simple and has_names(queue, drafts)
        if atomic:
            known = repetitions(self, queue, drafts, now) if named else {}
            tried = self.enqueue_routed(queue, routes, drafts, room, protocol, now, dry_run=True, known=known)
            if tried.errors:
                return Enqueued([0] * len(drafts), {}, _completed(tried.errors, queue))
        self.dirty_queues[queue.name] = None
        if named:
            reply = self._enqueue_named(queue, routes, drafts, protocol, now, group)
        elif len(routes) == 1:
            shard, _ = routes[0]
            reply = self.step(queue, shard, Enqueue(drafts, room, protocol, group=group), now)
        else:
            reply = self.enqueue_routed(queue, routes, drafts, room, protocol, now, group=group)
        if reply.errors:
            _completed(reply.errors, queue)
        return reply

    def _enqueue_named(
        self, queue: Queue, routes: Routes, drafts: Sequence[Draft], protocol: str, now: int, group: str
    ) -> Enqueued:
        """Enqueue a batch of which some may repeat a message, by the ids that their producer gave them."""
        total = Enqueued([0] * len(drafts), {}, {})
        for taken, known in rounds(self, queue, drafts, now):
            chosen = set(taken)
            some = routes
            if len(taken) < len(drafts):
                some = [(shard, mine) for shard, own in routes if (mine := [at for at in own if at in chosen])]
            reply = self.enqueue_routed(queue, some, drafts, queue.room(), protocol, now, group=group, known=known)
            for at in taken:
                total.ids[at] = reply.ids[at]
            total.duplicates |= reply.duplicates
            total.errors |= reply.errors
            remember(self, queue, drafts, reply, now)
        return total

    def enqueue_routed(
        self,
        queue: Queue,
        routes: Routes,
        drafts: Sequence[Draft],
        room: int,
        protocol: str,
        now: int,
        dry_run: bool = False,
        group: str = "",
        known: Known = NOTHING_KNOWN,
    ) -> Enqueued:
        """Enqueue a batch, or a part of it, that goes to several partitions. `dry_run`: only find out what would be
        refused. `known`: what drafts repeat."""
        total = Enqueued([0] * len(drafts), {}, {})
        ids = [] if dry_run else self.ids.take(now, len(drafts))
        parts: list[Step[Enqueued]] = []
        for shard, indexes in routes:
            taken = [] if dry_run else [ids[i] for i in indexes]
            some = drafts if len(indexes) == len(drafts) else [drafts[i] for i in indexes]
            here = {at: known[i] for at, i in enumerate(indexes) if i in known} if known else {}
            parts.append((queue, shard, Enqueue(some, room, protocol, taken, group, dry_run=dry_run, known=here)))
        unbounded = room < 0 or room >= len(drafts)
        replies = self.step_all(parts, now) if unbounded else self._enqueue_in_room(parts, room, now)
        for (_, indexes), reply in zip(routes, replies, strict=True):
            for at, index in enumerate(indexes):
                total.ids[index] = reply.ids[at]
            for at, first in reply.duplicates.items():
                total.duplicates[indexes[at]] = first
            for at, error in reply.errors.items():
                total.errors[indexes[at]] = error
        return total

    def _enqueue_in_room(self, parts: list[Step[Enqueued]], room: int, now: int) -> list[Enqueued]:
        """One part after another: each has the room that those before it have left."""
        replies: list[Enqueued] = []
        for queue, shard, command in parts:
            assert isinstance(command, Enqueue)
            reply = self.step(queue, shard, replace(command, room=room), now)
            replies.append(reply)
            room = max(room - (len(reply.ids) - len(reply.duplicates.keys() | reply.errors.keys())), 0)
        return replies

    def lease(
        self,
        name: QueueName,
        group: str,
        limit: int,
        timeout: int,
        consumer: str,
        protocol: str,
        now: int,
        partitions: Collection[int] | None = None,
        max_bytes: int = 0,
    ) -> list[Leased]:
        """Lease the next deliveries over all chosen partitions, in their order. The group is created if it is new."""
        queue = self.queue(name, now, create=True)
        ensure_group(self, queue, group, GroupKind.LEASE, now)
        return self.lease_in(queue, group, limit, timeout, consumer, protocol, now, partitions, max_bytes)

    def lease_in(
        self,
        queue: Queue,
        group: str,
        limit: int,
        timeout: int,
        consumer: str,
        protocol: str,
        now: int,
        partitions: Collection[int] | None = None,
        max_bytes: int = 0,
    ) -> list[Leased]:
        """As `lease`, in a queue that is found already, for a leasing group that it has."""
        self.unfinished.discard(queue.name)
        if self.wake_ups.next_at() <= now:
            self._tick_among(queue, queue.chosen(partitions), now)
        timeout = timeout if timeout >= 0 else queue.config.delivery_timeout
        if not queue.limited:
            return self._lease_in(queue, group, limit, timeout, consumer, protocol, now, partitions, max_bytes)
        limit = self.throttling.begin(queue, group, limit, now)
        leased = self._lease_in(queue, group, limit, timeout, consumer, protocol, now, partitions, max_bytes)
        self.throttling.end(queue, group, len(leased))
        return leased

    def _lease_in(
        self,
        queue: Queue,
        group: str,
        limit: int,
        timeout: int,
        consumer: str,
        protocol: str,
        now: int,
        partitions: Collection[int] | None,
        max_bytes: int,
    ) -> list[Leased]:
        """Lease what no limit of the queue holds back."""
        found: list[Leased] = []
        left = max_bytes
        runs = 0
        while len(found) < limit and (shards := queue.filled(group, partitions)):
            before = len(found)
            for shard in shards:
                shard.skipped_blocked = 0
            bound = max(left, 1) if max_bytes else 0
            quotas = [(shards[0], limit - before)]
            if len(shards) > 1:
                quotas = self._quotas(shards, group, limit - before, bound, one_at_least=not found)
                self._read_to_lease(group, quotas)
            for shard, quota in quotas:
                runs += 1
                bound = max(left, 1) if max_bytes else 0
                command = Lease(group, quota, timeout, consumer, protocol, bound, one_at_least=not found)
                reply = self.step(queue, shard, command, now)
                found += reply
                if max_bytes:
                    left -= sum([len(leased.message.payload) for leased in reply])
                    if len(reply) < quota and len(shards) > 1:
                        limit = len(found)  # what comes next does not fit, and nothing may overtake it
                        _forget_reads(quotas)
                        break
            if any([shard.skipped_blocked >= SKIP_BLOCKED_MAX for shard in shards]):  # noqa: C419 - as everywhere here
                self.unfinished.add(queue.name)
            if max_bytes and left <= 0:
                break
            if len(found) == before and not (queue.limited and self.throttling.goes_on(queue)):
                break
        if runs > 1:
            found.sort(key=_place_of_leased)
        return found

    def _read_to_lease(self, group: str, quotas: list[tuple[Shard, int]]) -> None:
        """Read what leases from several shards need, in rounds: where each read is a round trip."""
        while self.store.remote and len(quotas) > 1:
            asked = [(shard, reads) for shard, quota in quotas if (reads := shard.lease_reads(group, quota))]
            if not asked:
                return
            self._supply(asked)

    def has_next(self, queue: Queue, group: str, now: int) -> bool:
        """Whether a lease for a group may find something: there is something, or something is due."""
        return queue.has_next(group) or self.wake_ups.next_at() <= now

    def _tick_among(self, queue: Queue, shards: list[Shard], now: int) -> None:
        """Do what is due in these shards before something is leased from them, a bounded part of it."""
        due = self.wake_ups.due_among
        self._tick_in_order(lambda: ((queue, shard) for shard in due(shards, now)), now, self._tick_together)

    def _tick_in_order(
        self,
        due: Callable[[], Iterator[tuple[Queue, Shard]]],
        now: int,
        tick: Callable[[list[tuple[Queue, Shard]], int, int], int],
    ) -> None:
        """Do a bounded part of what is due. `due` tells the shards; asked each time, as a tick may make others due."""
        left = TICK_DELIVERIES_MAX
        while left > 0 and (some := list(islice(due(), TICK_SHARDS))):
            left -= max(tick(some, left, now), len(some))

    def _quotas(
        self, shards: list[Shard], group: str, limit: int, max_bytes: int, one_at_least: bool
    ) -> list[tuple[Shard, int]]:
        """How many of the next `limit` deliveries each of several shards has, in the order of delivery.

        If several have some, they are no more than fit into `max_bytes`; one that has all limits itself.
        """
        places = [shard.next_place(group) for shard in shards]
        unknown = self.heads([shard for shard, place in zip(shards, places, strict=True) if place is None], group)
        searched = iter(unknown)
        firsts = enumerate([[place] if place is not None else next(searched) for place in places])
        order = sorted((order_key(first[0]), index) for index, first in firsts if first)
        if not order:
            return []
        # Messages that arrived together are in one shard, so the first shard often has all: look there before merging.
        best = shards[order[0][1]]
        [nexts] = self.heads([best], group, limit)
        if len(order) == 1:
            return [(best, len(nexts))]
        if len(nexts) == limit and order_key(nexts[-1]) < order[1][0]:
            return [(best, limit)]
        others = [index for _, index in order[1:]]
        found = dict(zip(others, self.heads([shards[index] for index in others], group, limit), strict=True))
        found[order[0][1]] = nexts
        # A shard that must read on first may have something better beyond its horizon.
        horizons = [shards[index].horizon(group) for index, items in found.items() if len(items) < limit]
        known = min((horizon for horizon in horizons if horizon is not None), default=(PRIORITY_MAX + 1, 0))
        counts = merge.quotas(found, limit, known, max_bytes, one_at_least)
        return [(shards[index], count) for index, count in counts.items()]

    def heads(self, shards: list[Shard], group: str, limit: int = 1) -> list[list[Place | Delivery]]:
        """The next deliveries of a group in each of these shards."""
        for shard in shards:
            shard.skipped_blocked = 0
        found: dict[int, list[Place | Delivery]] = {}
        left = list(enumerate(shards))
        while left:
            asked: list[tuple[Shard, list[Read]]] = []
            lacking: list[tuple[int, Shard]] = []
            for at, shard in left:
                found[at], reads = shard.heads(group, limit)
                if reads:
                    asked.append((shard, reads))
                    lacking.append((at, shard))
            self._supply(asked)
            left = lacking
        return [found[at] for at in range(len(shards))]

    def oldest_places(self, shards: list[Shard]) -> list[list[Place]]:
        """In each of these shards, for each priority the oldest message that is not delayed, whatever its status in any
        group."""
        reads = {
            (at, priority): Read(
                Table.READY, ready_key(shard.number, priority, 0), ready_key(shard.number, priority, LAST)
            )
            for at, shard in enumerate(shards)
            for priority in shard.head.priorities
        }
        oldest: list[list[Place]] = [[] for _ in shards]
        for (at, _), rows in zip(reads, self.overlay.read(list(reads.values())), strict=True):
            assert isinstance(rows, list)
            oldest[at] += [read_ready(*row) for row in rows]
        return oldest

    def settle(self, name: QueueName, group: str, settlements: list[Settlement], now: int) -> list[SettleResult]:
        """Settle deliveries; a result for each, in order."""
        queue = self.queue(name, now)
        self.dirty_queues[name] = None
        together = {settlement.partition for settlement in settlements}
        if len(together) == 1 and 0 <= (partition := together.pop()) < len(queue.shards):
            return self.step(queue, queue.shards[partition], Settle(group, settlements), now).results
        results: list[SettleResult] = [None] * len(settlements)
        parts: dict[int, list[int]] = {}
        unknown = [one for one in settlements if not 0 <= one.partition < len(queue.shards)]
        found = DeliveryLocator(queue, group).find_all([one.id for one in unknown], [one.token for one in unknown])
        located = iter(found)
        for index, settlement in enumerate(settlements):
            partition = settlement.partition
            if not 0 <= partition < len(queue.shards):
                partition = next(located)
            if partition < 0:
                results[index] = LeaseLost(message_id=settlement.id)
            else:
                parts.setdefault(partition, []).append(index)
        steps: list[Step[Settled]] = [
            (queue, queue.shards[partition], Settle(group, [settlements[index] for index in indexes]))
            for partition, indexes in parts.items()
        ]
        return _scattered(results, parts.values(), self.step_all(steps, now))

    def ack(
        self, name: QueueName, group: str, ids: list[int], tokens: list[int], now: int, partition: int = -1
    ) -> list[SettleResult]:
        """Ack deliveries, in columnar form. `partition`: that of all; -1: not known."""
        queue = self.queue(name, now)
        self.dirty_queues[name] = None
        if 0 <= partition < len(queue.shards):
            return self.step(queue, queue.shards[partition], Ack(group, ids, tokens), now).results
        results: list[SettleResult] = [None] * len(ids)
        parts = DeliveryLocator(queue, group).split(ids, tokens)
        for index in parts.pop(-1, ()):
            results[index] = LeaseLost(message_id=ids[index])
        steps: list[Step[Settled]] = []
        for holder, indexes in parts.items():
            if len(indexes) == len(ids):
                return self.step(queue, queue.shards[holder], Ack(group, ids, tokens), now).results
            part = Ack(group, [ids[index] for index in indexes], [tokens[index] for index in indexes])
            steps.append((queue, queue.shards[holder], part))
        return _scattered(results, parts.values(), self.step_all(steps, now))

    # --- time -------------------------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Do a bounded part of what is due by now; `wake_at` has passed until all of it is done.

        Each piece is an operation of its own: one that fails by a bug is undone, told of in `failures`, and tried again
        after `FAILED_PAUSE`, and holds up nothing else.
        """
        found = self.catalog.shard
        due = self.wake_ups.due
        self._tick_in_order(lambda: (one for number in due(now) if (one := found(number))), now, self._tick_apart)
        self.transactions.tick(now)
        self.audits.tick(now)
        self.schedules.tick(now)
        self.throttling.tick(now)

    def apart(self, what: str, work: Callable[[], T], now: int) -> T | None:
        """Do a piece of what is due as an operation of its own. None: it failed by a bug, and is undone."""
        self.begin()
        try:
            return work()
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - the broker logs it
            self.undo(now)
            self.failures.append((what, error))
            return None

    def _tick_apart(self, some: list[tuple[Queue, Shard]], limit: int, now: int) -> int:
        """`_tick_together`, as an operation of its own. Of several that fail together each is tried alone."""
        before = len(self.failures)
        done = self.apart(some[0][0].record.name, lambda: self._tick_together(some, limit, now), now)
        if done is not None:
            return done
        if len(some) > 1:
            del self.failures[before:]
            return sum([self._tick_apart([one], limit, now) for one in some])
        self.wake_ups.postpone(some[0][1], now + FAILED_PAUSE)
        return 1

    def _tick_together(self, some: list[tuple[Queue, Shard]], limit: int, now: int) -> int:
        """Do what is due in some shards, for about `limit` messages. Returns for how many."""
        count = 0
        going = some
        while going and count < limit:
            done = self.step_all([(queue, shard, Tick()) for queue, shard in going], now)
            count += sum(done)
            going = [one for one, acted_on in zip(going, done, strict=True) if acted_on]
            self.dirty_queues.update(dict.fromkeys([queue.name for queue, _ in going]))
        for _, shard in some:
            self.wake_ups.schedule(shard)
        return count

    def wake_at(self) -> int:
        """When the next thing is due; NEVER if nothing is."""
        return min(
            self.wake_ups.next_at(),
            self.transactions.wake_at(),
            self.audits.wake_at,
            self.schedules.wake_at,
            self.throttling.wake_at,
        )


def _place_of_leased(leased: Leased) -> tuple[int, int]:
    return (leased.message.priority, leased.stamp)


def _forget_reads(quotas: list[tuple[Shard, int]]) -> None:
    """Some of these will not be leased from after all."""
    for shard, _ in quotas:
        shard.forget()


def _scattered(results: list[SettleResult], parts: Iterable[list[int]], settled: list[Settled]) -> list[SettleResult]:
    """Enter the results of parts where their indexes say."""
    for indexes, part in zip(parts, settled, strict=True):
        for index, result in zip(indexes, part.results, strict=True):
            results[index] = result
    return results


def _completed(errors: dict[int, HoldfastError], queue: Queue) -> dict[int, HoldfastError]:
    """The errors of an enqueue, where those about a full queue say why it is full."""
    full = [index for index, error in errors.items() if isinstance(error, QueueFull)]
    if full:
        errors.update(dict.fromkeys(full, queue.full()))
    return errors
