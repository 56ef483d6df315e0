"""The transactions of a cell: staging, the decision to publish, the move into the queues, expiry.

core/transactions.py describes them and their records. Open ones are in memory with the counts of their parts, without
their messages; published ones are in the store only. Each owner has its own: nobody else's are found by their ids, and
none is forgotten for another owner's.

A call changes the batch of this turn and is valid once that is durable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.commands import Command, Draft, Enqueue, Enqueued, Packed, PublishStaged
from holdfast.core.effects import DeleteUntil, Op
from holdfast.core.records import Table
from holdfast.core.shard import Shard
from holdfast.core.transactions import (
    COUNTS,
    Owner,
    StagedBlock,
    StagedPart,
    Transaction,
    TransactionName,
    TransactionState,
    choose,
    count_key,
    done_key,
    end_key,
    live_key,
    name_of,
    number_key,
    owner_of,
    read_block,
    read_count,
    read_staged_part,
    read_transaction,
    remembered_key,
    remembered_range,
    staged_key,
    write_record,
)
from holdfast.engine.catalog import Queue
from holdfast.engine.message_ids import Known, has_names, remember, rounds
from holdfast.engine.open_transaction import (
    MovedBlock,
    OpenTransaction,
    TransactionLimits,
    assign_ids,
    check_names,
    draft_errors,
)
from holdfast.errors import (
    HoldfastError,
    InvalidArgument,
    LimitExceeded,
    MessageTooLarge,
    QueueNotFound,
    TransactionNotFound,
    TransactionPublished,
)
from holdfast.quotas import Quota
from holdfast.store.contract import Reader
from holdfast.timers import Timers
from holdfast.units import NEVER, SECOND

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

FORGET_CHUNK = 1_000
RETRY = SECOND  # before what failed by a bug is tried again
EXPIRE_CHUNK = 256  # open transactions that expire in one tick
ENDS_BYTES = 16  # of a key in ENDS
EVERY_LIVE = (b"\0", b"\1")
EVERY_COUNT = (COUNTS, COUNTS[:-1] + b"\1")


class StageResult(msgspec.Struct, frozen=True):
    """The result of a stage: what the transaction holds now. With `errors` (by batch and index) nothing was stored;
    `repeated`: this chunk was staged before, and nothing was stored again."""

    messages: int
    size_bytes: int
    expires_at: int
    repeated: bool = False
    errors: dict[tuple[int, int], HoldfastError] = {}


class Transactions:
    """See the module."""

    def __init__(self, engine: Engine, limits: TransactionLimits) -> None:
        self._engine = engine
        self.limits = limits
        self.live: dict[TransactionName, OpenTransaction] = {}
        self._parts = 0
        self._expiries: Timers[TransactionName] = Timers()  # of open ones
        self._forget_at = NEVER
        self._remembered: dict[Owner, int] = {}

    def open(self, store: Reader) -> None:
        """Read what is open: records and counts, no messages."""
        self.live.clear()
        self._remembered.clear()
        self._expiries = Timers()
        self._parts = 0
        by_number: dict[int, OpenTransaction] = {}
        for _, value in store.scan(Table.TRANSACTIONS, *EVERY_LIVE, 1 << 30):
            found = OpenTransaction(read_transaction(value))
            self.live[found.record.name] = by_number[found.record.number] = found
            if found.record.state is TransactionState.OPEN:
                self._expiries.set(found.record.name, found.record.ends_at)
        for key, value in store.scan(Table.STAGED_PARTS, b"", b"\xff" * 16, 1 << 30):
            staged_part = read_staged_part(value)
            by_number[int.from_bytes(key[:8], "big")].staged_parts[staged_part.part, staged_part.attempt] = staged_part
            self._parts += 1
        for key, value in store.scan(Table.META, *EVERY_COUNT, 1 << 30):
            self._remembered[owner_of(key)] = read_count(value)
        self._find_next_expiry()

    # --- undoing ----------------------------------------------------------------------------------------------------

    def _keep(self, name: TransactionName) -> None:
        """The operation is about to change this transaction."""
        operation = self._engine.operation
        operation.before_change(("transaction", name), partial(self._restore, name, self.live.get(name)))
        self._keep_totals()

    def _keep_totals(self) -> None:
        restore = partial(self._restore_totals, self._parts, self._forget_at)
        self._engine.operation.before_change("transactions", restore)

    def _restore(self, name: TransactionName, found: OpenTransaction | None) -> None:
        """Have a transaction as it is stored. It stays the object that it was: whoever publishes it waits for its
        end."""
        self._expiries.cancel(name)
        if found is None:
            self.live.pop(name, None)
            return
        value = self._engine.overlay.get(Table.TRANSACTIONS, live_key(name))
        assert value is not None, f"transaction {name.id!r} is missing"
        record = read_transaction(value)
        low, high = number_key(record.number), number_key(record.number + 1)
        rows = self._engine.overlay.scan(Table.STAGED_PARTS, low, high, 1 << 30)
        found.restore(record, [read_staged_part(part) for _, part in rows])
        self.live[name] = found
        if record.state is TransactionState.OPEN:
            self._expiries.set(name, record.ends_at)

    def _restore_totals(self, parts: int, forget_at: int) -> None:
        self._parts, self._forget_at = parts, forget_at

    def _restore_count(self, owner: Owner, count: int | None) -> None:
        if count is None:
            self._remembered.pop(owner, None)
        else:
            self._remembered[owner] = count

    # --- staging ----------------------------------------------------------------------------------------------------

    def stage(
        self,
        name: TransactionName,
        batches: Sequence[tuple[str, list[Draft]]],
        part: str,
        attempt: str,
        chunk: int,
        now: int,
    ) -> StageResult:
        """Store messages for queues of the transaction's namespace: all of them or none."""
        check_names(name, part, attempt)
        found = self._find(name)
        if (found is None and self._done(name) is not None) or (
            found and found.record.state is not TransactionState.OPEN
        ):
            raise TransactionPublished(transaction=name.id)
        staged_part = found.staged_parts.get((part, attempt)) if found is not None else None
        expected = staged_part.chunks if staged_part is not None else 0
        if found is not None and 0 <= chunk < expected:
            return _stage_result(found.record, repeated=True)
        if chunk != expected:
            raise InvalidArgument(
                field="chunk", problem=f"is the next of its part and attempt, {expected}, not {chunk}"
            )
        self._check_room(name, found, staged_part, batches)
        routed = [(self._engine.queue((name.namespace, queue), now, create=True), drafts) for queue, drafts in batches]
        errors = draft_errors(routed)
        if errors:
            record = found.record if found is not None else _new_record(0, name, now)
            return msgspec.structs.replace(_stage_result(record), errors=errors)
        self._keep(name if found is None else found.record.name)
        if found is None:
            found = self._begin(name, now)
        if staged_part is None:
            staged_part = found.staged_parts[part, attempt] = StagedPart(
                found.record.staged_parts_made, part, attempt, shard_parts={}
            )
            found.record.staged_parts_made += 1
            self._parts += 1
        self._engine.add(found.stage(staged_part, routed))
        self._expire_at(found, now + self.limits.timeout)
        return _stage_result(found.record)

    def _remembered_max(self, owner: Owner) -> int:
        """How many published transactions of an owner are remembered."""
        own = self._engine.limits.quotas.limit(owner[0], Quota.REMEMBERED_TRANSACTIONS)
        return own or self.limits.max_remembered

    def remembered(self, namespace: str) -> int:
        """How many published transactions of a namespace are remembered."""
        return sum([count for owner, count in self._remembered.items() if owner[0] == namespace])

    def _check_quotas(self, owner: Owner, transactions: int, size_bytes: int) -> None:
        """Of the namespace, and of the principal in it, whose share may be all of it."""
        quotas = self._engine.limits.quotas
        namespace, principal = owner
        here = [found.record for name, found in self.live.items() if name.namespace == namespace]
        sizes = [record.size_bytes for record in here]
        quotas.check(namespace, Quota.OPEN_TRANSACTIONS, len(sizes), transactions)
        quotas.check(namespace, Quota.STAGED_BYTES, sum(sizes), size_bytes)
        sizes = [record.size_bytes for record in here if record.identity == principal]
        quotas.check_share(namespace, Quota.OPEN_TRANSACTIONS, principal, len(sizes), transactions)
        quotas.check_share(namespace, Quota.STAGED_BYTES, principal, sum(sizes), size_bytes)

    def _check_room(
        self,
        name: TransactionName,
        found: OpenTransaction | None,
        staged_part: StagedPart | None,
        batches: Sequence[tuple[str, list[Draft]]],
    ) -> None:
        limits = self.limits
        if found is None and sum(1 for other in self.live if other.namespace == name.namespace) >= limits.max_open:
            raise LimitExceeded(
                what="The number of open transactions of a namespace",
                limit=limits.max_open,
                advice="Publish or abort some, or raise transactions.max_open",
            )
        if staged_part is None and self._parts >= limits.max_parts:
            raise LimitExceeded(
                what="The number of parts of all open transactions",
                limit=limits.max_parts,
                advice="Publish or abort some, or raise transactions.max_parts",
            )
        messages = sum(len(drafts) for _, drafts in batches)
        size_bytes = sum(len(draft.payload) for _, drafts in batches for draft in drafts)
        self._check_quotas(name.owner, 0 if found is not None else 1, size_bytes)
        if found is not None:
            messages += found.record.messages
            size_bytes += found.record.size_bytes
        if messages > limits.max_messages:
            raise LimitExceeded(
                what="A transaction",
                limit=f"{limits.max_messages} messages",
                advice="Publish several, or raise transactions.max_messages",
            )
        if size_bytes > limits.max_bytes:
            raise LimitExceeded(
                what="A transaction",
                limit=f"{limits.max_bytes} bytes",
                advice="Publish several, or raise transactions.max_bytes",
            )

    def _begin(self, name: TransactionName, now: int) -> OpenTransaction:
        (number,) = self._engine.ids.take(now)
        found = OpenTransaction(_new_record(number, name, now))
        self.live[name] = found
        return found

    # --- publishing -------------------------------------------------------------------------------------------------

    def publish(
        self, name: TransactionName, parts: Mapping[str, str] | None, protocol: str, now: int
    ) -> tuple[Transaction, bool]:
        """Decide to publish, and make the first step. Call `move` until the record says published.

        Returns the record, and whether this call decided: a repeated publish is answered with the record, whatever its
        parts. A transaction with no parts at all (an empty mapping) need not be staged first.
        """
        found = self._find(name)
        if found is None:
            done = self._done(name)
            if done is not None:
                return done, False
            if parts is None or parts:
                raise TransactionNotFound(transaction=name.id)
            check_names(name, "", "")
            self._keep(name)
            found = self._begin(name, now)
        record = found.record
        if record.state is not TransactionState.OPEN:
            return record, False
        self._keep(record.name)
        chosen = choose(name.id, found.staged_parts.values(), parts)
        self._check_queues(name, chosen)
        record.state = TransactionState.PUBLISHING
        self._expiries.cancel(record.name)
        record.published_at = now
        record.protocol = protocol
        record.chosen = [staged_part.number for staged_part in chosen]
        self._step(found, now)
        return record, True

    def move(self, name: TransactionName, now: int) -> bool:
        """Make the next step of a transaction that is being published. False: there is no more to do."""
        found = self.live.get(name)
        if found is None or found.record.state is not TransactionState.PUBLISHING:
            return False
        self._keep(name)
        self._step(found, now)
        return name in self.live

    def _check_queues(self, name: TransactionName, chosen: list[StagedPart]) -> None:
        """Check what the queues can take. After this nothing is refused."""
        counts: dict[Queue, int] = {}
        for staged_part in chosen:
            for number, shard_part in staged_part.shard_parts.items():
                place = self._engine.catalog.shard(number)
                if place is None or place[0].record.closing:
                    raise QueueNotFound(queue=shard_part.queue, namespace=name.namespace)
                queue, _ = place
                if shard_part.largest > queue.config.max_message_size:
                    raise MessageTooLarge(
                        size_bytes=shard_part.largest, limit_bytes=queue.config.max_message_size, queue=shard_part.queue
                    )
                counts[queue] = counts.get(queue, 0) + shard_part.messages
        for queue, count in counts.items():
            if 0 < queue.config.max_depth < count:
                raise LimitExceeded(
                    what=f"Queue {queue.record.name!r}",
                    limit=f"{queue.config.max_depth} messages, and the transaction has {count} for it",
                    advice="Raise its max_depth, or publish several transactions",
                )
            if 0 <= queue.room() < count:
                raise queue.full()

    def _step(self, found: OpenTransaction, now: int) -> None:
        """Move the next messages, in one batch with the record of the progress."""
        engine, record = self._engine, found.record
        taken = self._next_blocks(found)
        by_shard: dict[int, list[tuple[StagedBlock, list[int]]]] = {}
        fresh = engine.ids.take(now, sum(len(block.orders) for _, _, block in taken))
        for (shard, _, block), ids in zip(taken, assign_ids(taken, fresh), strict=True):
            by_shard.setdefault(shard, []).append((block, ids))
        for shard, moved in by_shard.items():
            record.published += sum(len(ids) for _, ids in moved)
            record.duplicates += self._enqueue(record, shard, moved, now)
        if record.at[0] == NEVER:
            self._finish(found, now)
        else:
            self._save(found)

    def _next_blocks(self, found: OpenTransaction) -> list[MovedBlock]:
        """The next blocks to move, up to the bounds of a step. Advances the record's position."""
        limits, record = self.limits, found.record
        taken: list[MovedBlock] = []
        count = size = 0
        for shard, staged_part, length in found.ahead():
            first = record.at[2] if (shard, staged_part) == record.at[:2] else 0
            for at in range(first, length):
                if count >= limits.step_messages or size >= limits.step_bytes:
                    record.at = (shard, staged_part, at)
                    return taken
                key = staged_key(record.number, shard, staged_part, at)
                value = self._engine.overlay.get(Table.STAGED, key)
                assert value is not None, f"block {at} of transaction {record.id!r} is missing"
                block = read_block(value)
                taken.append((shard, staged_part, block))
                self._engine.add([(Table.STAGED, key, None)])
                count += len(block.orders)
                size += len(value)
        record.at = (NEVER, 0, 0)
        return taken

    def _enqueue(self, record: Transaction, number: int, moved: list[tuple[StagedBlock, list[int]]], now: int) -> int:
        """Enqueue messages with their ids in a shard. Returns how many of them are duplicates."""
        place = self._engine.catalog.shard(number)
        if place is None or place[0].record.closing:
            record.dropped += sum(len(ids) for _, ids in moved)  # they are deleted with the queue
            return 0
        queue, shard = place
        commands: list[Command[Enqueued]] = [
            PublishStaged(block.messages, ids, record.protocol)
            for block, ids in moved
            if isinstance(block.messages, Packed)
        ]
        if len(commands) < len(moved):
            drafts = [draft for block, _ in moved for draft in block.drafts()]
            given = [message_id for _, ids in moved for message_id in ids]
            return self._enqueue_drafts(queue, shard, drafts, given, record.protocol, now)
        for command in commands:
            reply = self._engine.step(queue, shard, command, now)
            assert not reply.errors, "a published message was refused"
        self._engine.mark_dirty(queue.name)
        return 0

    def _enqueue_drafts(
        self, queue: Queue, shard: Shard, drafts: list[Draft], given: list[int], protocol: str, now: int
    ) -> int:
        """Enqueue messages that may repeat others. Returns how many do."""
        engine = self._engine
        engine.mark_dirty(queue.name)
        everything: list[tuple[list[int], Known]] = [(list(range(len(drafts))), {})]
        duplicates = 0
        for taken, known in (
            rounds(engine, queue, drafts, now, validated=True) if has_names(queue, drafts) else everything
        ):
            some = [drafts[at] for at in taken]
            here = {index: known[at] for index, at in enumerate(taken) if at in known}
            command = Enqueue(some, -1, protocol, [given[at] for at in taken], validated=True, known=here)
            reply = engine.step(queue, shard, command, now)
            assert not reply.errors, "a published message was refused"
            remember(engine, queue, some, reply, now)
            duplicates += len(reply.duplicates)
        return duplicates

    def _finish(self, found: OpenTransaction, now: int) -> None:
        """Everything is moved: delete the rest of its records, and remember for a time that it was published."""
        record = found.record
        self._remove(found)
        record.state = TransactionState.PUBLISHED
        record.ends_at = now + self.limits.remember
        record.chosen = []
        key, owner = done_key(record.name), record.name.owner
        ops: list[Op] = [
            (Table.TRANSACTIONS, key, write_record(record)),
            (Table.REMEMBERED, remembered_key(owner, record.ends_at, record.number), key),
            (Table.ENDS, end_key(record.ends_at, record.number), key),
        ]
        self._engine.add(ops)
        self._count(owner, 1)
        is_over = self._remembered[owner] > self._remembered_max(owner)
        self._forget_at = 0 if is_over else min(self._forget_at, record.ends_at)

    def _find(self, name: TransactionName) -> OpenTransaction | None:
        """A transaction that is not finished: the caller's own, or one that belongs to everybody."""
        return self.live.get(name) or self.live.get(name._replace(identity=""))

    def _done(self, name: TransactionName) -> Transaction | None:
        """A published transaction, if it is still remembered: the caller's own, or one that belongs to everybody."""
        keys = [done_key(name), done_key(name._replace(identity=""))]
        own, of_everybody = self._engine.overlay.get_many(Table.TRANSACTIONS, keys)
        value = own if own is not None else of_everybody
        return read_transaction(value) if value is not None else None

    # --- the end ----------------------------------------------------------------------------------------------------

    def abort(self, name: TransactionName) -> bool:
        """Remove what was staged. False: there is no such transaction."""
        found = self._find(name)
        if found is None:
            if self._done(name) is not None:
                raise TransactionPublished(transaction=name.id)
            return False
        if found.record.state is not TransactionState.OPEN:
            raise TransactionPublished(transaction=name.id)
        self._remove(found)
        return True

    def describe(self, name: TransactionName) -> tuple[Transaction, list[StagedPart]]:
        """A transaction, with its staged parts while it is open."""
        found = self._find(name)
        if found is not None:
            return found.record, sorted(found.staged_parts.values(), key=lambda staged_part: staged_part.number)
        done = self._done(name)
        if done is None:
            raise TransactionNotFound(transaction=name.id)
        return done, []

    def unfinished_moves(self) -> list[TransactionName]:
        """Transactions whose publishing a crash interrupted."""
        return [name for name, found in self.live.items() if found.record.state is TransactionState.PUBLISHING]

    def _remove(self, found: OpenTransaction) -> None:
        self._keep(found.record.name)
        number = found.record.number
        low, high = number_key(number), number_key(number + 1)
        ops: list[Op] = [
            (Table.STAGED, low, DeleteUntil(high)),
            (Table.STAGED_PARTS, low, DeleteUntil(high)),
            (Table.TRANSACTIONS, live_key(found.record.name), None),
        ]
        self._engine.add(ops)
        self._parts -= len(found.staged_parts)
        del self.live[found.record.name]
        self._expiries.cancel(found.record.name)

    def _save(self, found: OpenTransaction) -> None:
        record = found.record
        self._engine.add([(Table.TRANSACTIONS, live_key(record.name), write_record(record))])

    # --- time -------------------------------------------------------------------------------------------------------

    def wake_at(self) -> int:
        """When the next transaction expires, or the next published one is no longer remembered."""
        return min(self._expiries.due or NEVER, self._forget_at)

    def tick(self, now: int) -> None:
        """Abort open transactions that have expired, and delete the records of old ones, a bounded number."""
        for _ in range(EXPIRE_CHUNK):
            name = self._expiries.pop(now)
            if name is None:
                break
            if self._engine.apart(name.id, partial(self._expire, name), now) is None:
                self._expiries.set(name, now + RETRY)
        if self._forget_at <= now and self._engine.apart("transactions", partial(self._forget, now), now) is None:
            self._forget_at = now + RETRY

    def _expire(self, name: TransactionName) -> bool:
        self._remove(self.live[name])
        return True

    def _expire_at(self, found: OpenTransaction, at: int) -> None:
        found.record.ends_at = at
        self._expiries.set(found.record.name, at)
        self._save(found)

    def _forget(self, now: int) -> bool:
        """Forget those whose time has come, and the oldest of an owner that has too many."""
        self._keep_totals()
        overlay = self._engine.overlay
        rows = overlay.scan(Table.ENDS, b"", b"\xff" * 16, FORGET_CHUNK)
        self._delete([(end, key) for end, key in rows if int.from_bytes(end[:8], "big") <= now])
        for owner in self._owners_over():
            over = self._remembered[owner] - self._remembered_max(owner)
            rows = overlay.scan(Table.REMEMBERED, *remembered_range(owner), min(over, FORGET_CHUNK))
            self._delete([(place[-ENDS_BYTES:], key) for place, key in rows])
        self._find_next_expiry()
        return True

    def _delete(self, remembered: list[tuple[bytes, bytes]]) -> None:
        """Delete remembered transactions, given by their keys in ENDS and TRANSACTIONS."""
        places = [_remembered_place(end, key) for end, key in remembered]
        # Those of before there were owners are not counted.
        counted = self._engine.overlay.get_many(Table.REMEMBERED, places)
        for (end, key), place, was in zip(remembered, places, counted, strict=True):
            ops: list[Op] = [(Table.ENDS, end, None), (Table.TRANSACTIONS, key, None)]
            if was is not None:
                ops.append((Table.REMEMBERED, place, None))
                self._count(name_of(key).owner, -1)
            self._engine.add(ops)

    def _count(self, owner: Owner, change: int) -> None:
        before = self._remembered.get(owner)
        self._engine.operation.before_change(("remembered", owner), partial(self._restore_count, owner, before))
        count = self._remembered[owner] = self._remembered.get(owner, 0) + change
        if not count:
            del self._remembered[owner]
        self._engine.add([(Table.META, count_key(owner), write_record(count) if count else None)])

    def _owners_over(self) -> list[Owner]:
        return [owner for owner, count in self._remembered.items() if count > self._remembered_max(owner)]

    def _find_next_expiry(self) -> None:
        first = self._engine.overlay.scan(Table.ENDS, b"", b"\xff" * 16, 1)
        self._forget_at = int.from_bytes(first[0][0][:8], "big") if first else NEVER
        if self._owners_over():
            self._forget_at = 0


def _new_record(number: int, name: TransactionName, now: int) -> Transaction:
    return Transaction(number, name.namespace, name.id, now, now, identity=name.identity)


def _remembered_place(end: bytes, key: bytes) -> bytes:
    at, number = int.from_bytes(end[:8], "big"), int.from_bytes(end[8:], "big")
    return remembered_key(name_of(key).owner, at, number)


def _stage_result(record: Transaction, repeated: bool = False) -> StageResult:
    return StageResult(record.messages, record.size_bytes, record.ends_at, repeated)
