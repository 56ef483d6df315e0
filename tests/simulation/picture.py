"""The store read back in full: every record decoded, put together to the model's nouns, and checked against the others.

This is what a restart finds. Counters must equal what counting gives, no record may stand alone, and no message may be
where no group will ever come upon it.
"""

from __future__ import annotations

import msgspec

from holdfast.core.codecs import (
    read_cursor_head,
    read_delivery,
    read_group_head,
    read_keyed,
    read_leases,
    read_mask,
    read_message,
    read_ready,
    read_scheduled,
    read_shard_head,
    read_state,
)
from holdfast.core.deliveries import Delivery, LeaseBatch
from holdfast.core.journal import read_block, removable
from holdfast.core.queue import GroupKind, QueueRecord
from holdfast.core.records import (
    FLAG_STATE,
    GONE,
    KEPT,
    CursorHead,
    GroupHead,
    Message,
    Place,
    ShardHead,
    Table,
    seq_of,
)
from holdfast.store.contract import Store
from tests.simulation.mail import Group, Is, Life, Mail, Queue, must

EVERYTHING = b"\xff" * 64
SHARD_TABLES = (
    Table.GROUPS,
    Table.READY,
    Table.SCHEDULED,
    Table.DUE,
    Table.KEYED,
    Table.DELIVERIES,
    Table.LEASES,
    Table.SETTLED,
    Table.EXPIRIES,
    Table.DEDUP,
    Table.DEDUP_ENDS,
    Table.SOURCES,
    Table.STATES,
)

EXPIRY_RESTS = 5_000_000  # after a dead queue has refused what no group needed

Rows = list[tuple[bytes, bytes]]


def number_in(key: bytes, at: int, size: int = 8) -> int:
    return int.from_bytes(key[at : at + size], "big")


class ShardPicture:
    """The records of one shard, decoded."""

    def __init__(self, number: int, tables: dict[Table, dict[int, Rows]], record: QueueRecord) -> None:
        self.number = number
        self.name = f"{record.name}#{number}"
        self.record = record
        rows = {table: tables[table].get(number, []) for table in (*SHARD_TABLES, Table.SHARDS, Table.MESSAGES)}
        self.rows = rows
        head = rows[Table.SHARDS]
        self.head = read_shard_head(head[0][1]) if head else ShardHead(priorities={})
        self.messages: dict[int, Message] = {
            seq_of(key): read_message(seq_of(key), value) for key, value in rows[Table.MESSAGES]
        }
        self.ready: dict[int, Place] = {}
        for key, value in rows[Table.READY]:
            place = read_ready(key, value)
            must(place.seq not in self.ready, f"{self.name}: message {place.seq} is ready twice")
            self.ready[place.seq] = place
        self.scheduled: dict[int, tuple[int, Place]] = {}
        for key, value in rows[Table.SCHEDULED]:
            due, _, place = read_scheduled(key, value)
            self.scheduled[place.seq] = (due, place)
        self.masks = {seq_of(key): read_mask(value) for key, value in rows[Table.SETTLED]}
        heads = {number_in(key, 4, 4): value for key, value in rows[Table.GROUPS]}
        known = {group.number for group in record.groups}
        must(set(heads) == known, f"{self.name}: heads of groups {set(heads)}, but the queue has {known}")
        self.groups: dict[str, tuple[int, GroupHead]] = {}
        self.cursors: dict[str, tuple[int, CursorHead]] = {}
        for group in record.groups:
            if group.kind is GroupKind.CURSOR:
                self.cursors[group.name] = (group.number, read_cursor_head(heads[group.number]))
            else:
                self.groups[group.name] = (group.number, read_group_head(heads[group.number]))
        self.states = {(number_in(k, 4, 4), number_in(k, 8)): read_state(v) for k, v in rows[Table.STATES]}
        self.deliveries: dict[int, dict[int, Delivery]] = {number: {} for number, _ in self.groups.values()}
        for key, value in rows[Table.DELIVERIES]:
            group_number = number_in(key, 4, 4)
            must(group_number in self.deliveries, f"{self.name}: a delivery of the unknown group {group_number}")
            delivery = read_delivery(key, value)
            self.deliveries[group_number][delivery.seq] = delivery
        for group_number, token, leases, ended in read_leases(rows[Table.LEASES]):
            must(group_number in self.deliveries, f"{self.name}: a lease of the unknown group {group_number}")
            others = self.deliveries[group_number]
            batch = LeaseBatch(token, leases, ended)
            for delivery in map(batch.view, batch.held()):
                must(delivery.seq not in others, f"{self.name}: {delivery.seq} has two records in {group_number}")
                others[delivery.seq] = delivery
        self._check_batches()
        flagged = {(n, d.id) for n, found in self.deliveries.items() for d in found.values() if d.flags & FLAG_STATE}
        must(flagged == set(self.states), f"{self.name}: STATES differ from deliveries: {flagged ^ set(self.states)}")

    def _check_batches(self) -> None:
        """A record of leases has at least one that is not over; what says which are is beside it."""
        keys = {key for key, _ in self.rows[Table.LEASES]}
        for key in keys:
            must(key[:-1] + b"\0" in keys, f"{self.name}: {key.hex()} is of no leases")
        left = {
            token
            for _, token, leases, ended in read_leases(self.rows[Table.LEASES])
            if ended.bit_count() < len(leases.ids)
        }
        known = {number_in(key, 8) for key in keys}
        must(left == known, f"{self.name}: records of leases are left that are all over: {known - left}")

    def to_be_swept(self, seq: int) -> bool:
        """Whether a group was removed, and what it has left is still to be looked through here."""
        return 0 < self.head.unneeded_seq <= seq

    def kept(self, seq: int) -> bool:
        return any(seq > head.committed for _, head in self.cursors.values())


class Picture:
    """All that is stored, as the model would have it."""

    def __init__(self, store: Store, now: int, event: int, latest: int) -> None:
        self.now = now
        self.latest = latest  # the clock was there once, and may have gone back
        self.event = event
        self.queues: dict[str, Queue] = {}
        self.shards: dict[int, ShardPicture] = {}
        tables = {table: _by_shard(store, table) for table in (*SHARD_TABLES, Table.SHARDS, Table.MESSAGES)}
        self.gone: set[tuple[int, int]] = set()
        for _, value in store.scan(Table.JOURNAL, b"", EVERYTHING, 1 << 30):
            for shard, seqs in removable(read_block(value)):
                self.gone |= {(shard, seq) for seq in seqs}
        records = [
            msgspec.msgpack.decode(value, type=QueueRecord)
            for _, value in store.scan(Table.QUEUES, b"", EVERYTHING, 1 << 30)
        ]
        for record in records:
            self._queue(record, tables)
        for table in SHARD_TABLES:
            strangers = set(tables[table]) - set(self.shards)
            must(not strangers, f"{table.name} has records of shards {strangers} of no queue")
        for number, rows in tables[Table.MESSAGES].items():
            if number not in self.shards:
                for key, _ in rows:
                    must((number, seq_of(key)) in self.gone, f"message {seq_of(key)} of unknown shard {number} stays")

    def _queue(self, record: QueueRecord, tables: dict[Table, dict[int, Rows]]) -> None:
        shards = [ShardPicture(number, tables, record) for number in record.shards]
        queue = Queue(record.name, record.config)
        queue.next_seq = [shard.head.next_seq for shard in shards]
        queue.groups_made = record.groups_made
        looks = [at for shard in shards for at in (shard.head.next_expiry, shard.head.next_early)]
        queue.rests_until = max(at if at <= self.latest + EXPIRY_RESTS else 0 for at in looks)
        for group in record.groups:
            queue.groups[group.name] = _group(group.name, shards)
            queue.groups[group.name].max_lag_messages = group.max_lag_messages
            queue.groups[group.name].max_lag_age = group.max_lag_age
        for partition, shard in enumerate(shards):
            self.shards[shard.number] = shard
            self._mails(queue, partition, shard)
            for key, value in shard.rows[Table.DEDUP]:
                queue.dedup[key[4:].decode()] = (number_in(value, 0), number_in(value, 8))
            if shard.head.unneeded_seq:
                queue.unneeded.add(partition)
        self.queues[record.name] = queue

    def _mails(self, queue: Queue, partition: int, shard: ShardPicture) -> None:
        for seq, message in shard.messages.items():
            listed = seq in shard.ready or seq in shard.scheduled
            mask = shard.masks.get(seq, 0)
            if not listed and (mask == GONE or not mask or not shard.kept(seq)):
                there = (shard.number, seq) in self.gone or (mask and shard.to_be_swept(seq))
                must(bool(there), f"{shard.name}: the record of message {seq} is left behind")
                continue
            must((shard.number, seq) not in self.gone, f"{shard.name}: live message {seq} is to go with the journal")
            origin = message.extra.origin
            keyed = queue.config.keyed
            stamp = shard.ready[seq].stamp if seq in shard.ready else message.id
            mail = Mail(
                id=message.id,
                queue=queue.name,
                partition=partition,
                seq=seq,
                priority=message.priority,
                key=message.extra.key if keyed else None,
                enqueued_at=message.enqueued_at,
                deliver_at=message.deliver_at,
                expires_at=message.expires_at,
                size=len(message.payload),
                message_id=message.extra.message_id,
                source=(origin.source_id, origin.source_group) if origin else None,
                source_queue=origin.source_queue if origin else "",
                seed=message.extra.state,
                given_key=message.extra.key,
                why=(origin.reason, origin.attempts) if origin else None,
                scheduled=seq in shard.scheduled,
                order=(self.event, stamp),
                ms=stamp >> 22,
                listed=listed,
                masked=mask != 0,
            )
            for name, (number, head) in shard.groups.items():
                if head.start <= seq and (listed or mask >> number & 1):
                    mail.lives[name] = self._life(shard, seq, number, mask)
            queue.mails[mail.id] = mail
            for name, (_, cursor) in shard.cursors.items():
                if cursor.committed < seq < cursor.made_at:
                    queue.groups[name].old.add(mail.id)

    def _life(self, shard: ShardPicture, seq: int, number: int, mask: int) -> Life:
        delivery = shard.deliveries[number].get(seq)
        if mask >> number & 1:
            must(delivery is None, f"{shard.name}: message {seq} is settled, but has a delivery in group {number}")
            return Life(Is.ENDED)
        if delivery is None:
            return Life()
        life = Life(failures=delivery.failures, token=delivery.token, deadline=delivery.deadline)
        life.consumer = delivery.consumer
        life.kept = shard.states.get((number, delivery.id))
        life.doom = delivery.dead_reason
        life.ready_at = delivery.ready_at
        life.again_ms = delivery.stamp >> 22 if delivery.stamp != delivery.order else 0
        if delivery.token:
            life.state = Is.LEASED
        elif delivery.dead_reason:
            life.state = Is.DEAD_LETTERING
        elif delivery.ready_at > self.now:
            life.state = Is.BACKING_OFF
        return life


def _group(name: str, shards: list[ShardPicture]) -> Group:
    if name in shards[0].cursors:
        heads = [shard.cursors[name][1] for shard in shards]
        lost = [[head.lost_from, head.lost_to] if head.lost_from else [] for head in heads]
        made, done = [head.made_at for head in heads], [head.committed for head in heads]
        return Group(name, shards[0].cursors[name][0], True, made, done, lost=lost)
    starts = [shard.groups[name][1].start for shard in shards]
    return Group(name, shards[0].groups[name][0], False, starts, [0] * len(shards), lost=[[] for _ in shards])


def _by_shard(store: Store, table: Table) -> dict[int, Rows]:
    found: dict[int, Rows] = {}
    for key, value in store.scan(table, b"", EVERYTHING, 1 << 30):
        found.setdefault(number_in(key, 0, 4), []).append((key, value))
    return found


def check_records(picture: Picture) -> None:
    """Every record fits the others, in every shard."""
    for shard in picture.shards.values():
        _check_places(shard)
        _check_counts(shard)
        _check_companions(shard)
        _check_wakes(shard, picture.latest)
        for name, (number, head) in shard.groups.items():
            _check_group(shard, name, number, head)


def _check_places(shard: ShardPicture) -> None:
    for seq, place in shard.ready.items():
        must(seq in shard.messages, f"{shard.name}: READY names message {seq}, which has no record")
        message = shard.messages[seq]
        must(message.priority == place.priority, f"{shard.name}: message {seq} is ready at {place.priority}")
        must(seq not in shard.scheduled, f"{shard.name}: message {seq} is ready and scheduled")
        must(place.size_bytes == len(message.payload), f"{shard.name}: message {seq} has size {place.size_bytes}")
    for seq, (due, _) in shard.scheduled.items():
        must(seq in shard.messages, f"{shard.name}: SCHEDULED names message {seq}, which has no record")
        must(due == shard.messages[seq].deliver_at, f"{shard.name}: message {seq} is scheduled for {due}")
    keyed = {seq: (p.key, p.priority, p.stamp) for seq, p in shard.ready.items() if p.key}
    found: dict[int, tuple[bytes, int, int]] = {}
    for key, value in shard.rows[Table.KEYED]:
        priority, stamp, seq, _ = read_keyed(key, value)
        found[seq] = (key[4:12], priority, stamp)
    must(found == keyed, f"{shard.name}: KEYED and READY differ: {set(found.items()) ^ set(keyed.items())}")


def _check_counts(shard: ShardPicture) -> None:
    head = shard.head
    priorities: dict[int, int] = {}
    for place in shard.ready.values():
        priorities[place.priority] = priorities.get(place.priority, 0) + 1
    size = sum(len(shard.messages[seq].payload) for seq in (*shard.ready, *shard.scheduled))
    counted = (len(shard.ready), len(shard.scheduled), size, priorities)
    stored = (head.ready, head.scheduled, head.size_bytes, head.priorities)
    must(counted == stored, f"{shard.name}: ready, scheduled, size, priorities are {counted}, the head says {stored}")
    kept = [len(shard.messages[seq].payload) for seq, mask in shard.masks.items() if mask == KEPT]
    counted_kept, stored_kept = (len(kept), sum(kept)), (head.kept, head.kept_bytes)
    must(counted_kept == stored_kept, f"{shard.name}: kept for cursors {counted_kept}, the head says {stored_kept}")
    last = max(shard.messages, default=0)
    must(head.next_seq > last, f"{shard.name}: next sequence {head.next_seq}, but {last} is stored")


def _check_companions(shard: ShardPicture) -> None:
    live = {seq: shard.messages[seq] for seq in (*shard.ready, *shard.scheduled)}
    sources = {(m.extra.origin.source_id, m.extra.origin.source_group, m.id) for m in live.values() if m.extra.origin}
    found = {(number_in(k, 4), k[12:].decode(), number_in(v, 0)) for k, v in shard.rows[Table.SOURCES]}
    must(found == sources, f"{shard.name}: SOURCES differ by {found ^ sources}")
    due = {seq_of(key): number_in(value, 0) for key, value in shard.rows[Table.DUE]}
    places = {seq: p.stamp for seq, p in shard.ready.items() if shard.messages[seq].deliver_at}
    must(due == places, f"{shard.name}: DUE has {due}, but fallen due are {places}")
    for key, _ in shard.rows[Table.EXPIRIES]:
        seq = number_in(key, 12)
        must(seq in live, f"{shard.name}: EXPIRIES names message {seq}, which is not live")
        must(live[seq].expires_at == number_in(key, 4), f"{shard.name}: EXPIRIES is wrong of {seq}")
    for seq in shard.masks:
        wanted = seq in live or shard.kept(seq) or shard.to_be_swept(seq)
        must(wanted, f"{shard.name}: SETTLED is left of message {seq}")
    ends = {(number_in(key, 4), key[12:].decode()) for key, _ in shard.rows[Table.DEDUP_ENDS]}
    for key, value in shard.rows[Table.DEDUP]:
        must((number_in(value, 8), key[4:].decode()) in ends, f"{shard.name}: {key[4:].decode()!r} is never forgotten")


def _check_wakes(shard: ShardPicture, latest: int) -> None:
    """Nothing that will happen by itself is forgotten."""
    head = shard.head
    first_due = min((due for due, _ in shard.scheduled.values()), default=0)
    must(not first_due or 0 < head.next_due <= first_due, f"{shard.name}: due {first_due}, head {head.next_due}")
    early = {number_in(key, 12) for key, _ in shard.rows[Table.EXPIRIES]}
    for seq in (*shard.ready, *shard.scheduled):
        expires = shard.messages[seq].expires_at
        leased = any(seq in deliveries and deliveries[seq].token for deliveries in shard.deliveries.values())
        if leased or expires <= latest + EXPIRY_RESTS:
            continue  # what is leased is looked at when it is settled
        if seq in early:
            must(0 < head.next_early <= expires, f"{shard.name}: message {seq} will not expire early")
        else:
            expiry_planned = 0 < head.next_expiry <= expires and head.expiry_seq <= seq
            must(expiry_planned, f"{shard.name}: message {seq} will not expire at {expires}: {head}")
    first_end = min((number_in(key, 4) for key, _ in shard.rows[Table.DEDUP_ENDS]), default=0)
    must(not first_end or 0 < head.dedup_end <= first_end, f"{shard.name}: ids are kept beyond {first_end}")


def _check_group(shard: ShardPicture, name: str, number: int, head: GroupHead) -> None:
    deliveries = shard.deliveries[number]
    fresh = 0
    for seq, place in shard.ready.items():
        if seq < head.start or shard.masks.get(seq, 0) >> number & 1 or seq in deliveries:
            continue
        fresh += 1
        frontier = head.frontiers.get(place.priority, head.base)
        if place.stamp > frontier:
            must(seq not in head.skips, f"{shard.name}/{name}: message {seq} will be skipped")
        else:
            behind = place.key and any(d.key == place.key for d in deliveries.values())
            must(bool(behind), f"{shard.name}/{name}: message {seq} was passed by and waits for nothing")
    counted = head.fresh + shard.head.arrived - head.arrived
    must(fresh == counted, f"{shard.name}/{name}: {fresh} messages are untouched, the heads say {counted}")
    for seq, delivery in deliveries.items():
        must(seq in shard.ready, f"{shard.name}/{name}: a delivery of message {seq}, which is not ready")
        place = shard.ready[seq]
        same = (delivery.order, delivery.priority, delivery.key) == (place.stamp, place.priority, place.key)
        must(same, f"{shard.name}/{name}: delivery {delivery} is not at {place}")
    strays = set(head.skips) - set(shard.ready)
    must(not strays, f"{shard.name}/{name}: skips {strays} are not stored")
