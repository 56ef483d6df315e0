"""A data directory with something in every state, and how it looks to whoever opens it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.core.audits import read_audit, read_audited
from holdfast.core.codecs import read_message, read_state
from holdfast.core.commands import Draft, PutState, Settlement, Verb
from holdfast.core.journal import read_block, rows
from holdfast.core.queue import GroupKind
from holdfast.core.records import NO_EXTRA, Extra, Message, Table, journal_key, message_key, seq_of
from holdfast.core.transactions import TransactionName, read_transaction
from holdfast.engine.audited_redrive import move
from holdfast.engine.browse import browse_messages
from holdfast.engine.cell_record import CELL_KEY
from holdfast.engine.cursors import cursor_commit
from holdfast.engine.engine import Engine
from holdfast.engine.groups import create_group
from holdfast.engine.queues import create_queue
from holdfast.store.contract import Store
from holdfast.store.rocks import RocksStore

START = 1_772_323_200_000_000  # 2026-03-01T00:00:00Z
SECOND = 1_000_000
TASKS = ("default", "tasks")
ORDERS = ("default", "orders")
REPAIRS = ("default", "repairs")
ALL = b"\xff" * 40


def write(directory: Path) -> None:
    """Make the data directory: a queue with messages in every state, nothing of its journal exported."""
    store = RocksStore(directory)
    engine = Engine(store, cell=1)
    engine.open(START)
    create_queue(engine, TASKS, {"partitions": 1, "retry.max_retries": 1}, START)
    for name, kind, max_lag in (
        ("work", GroupKind.LEASE, 0),
        ("audit", GroupKind.LEASE, 0),
        ("log", GroupKind.CURSOR, 1_000),
    ):
        create_group(engine, TASKS, name, kind, START, True, max_lag, 0)
    _fill(engine)
    engine.write()
    store.sync()
    store.close()


def _fill(engine: Engine) -> None:
    def enqueue(payload: str, priority: int = 128, deliver_at: int = 0, ttl: int = -1, extra: Extra = NO_EXTRA) -> None:
        engine.enqueue(TASKS, [Draft(payload.encode(), priority, deliver_at, ttl, extra)], "http", START)

    def lease(group: str, limit: int, consumer: str) -> dict[str, Settlement]:
        found = engine.lease(TASKS, group, limit, 60 * SECOND, consumer, "http", START)
        return {item.message.payload.decode(): Settlement(item.message.id, item.token) for item in found}

    def settle(group: str, settlement: Settlement, verb: Verb, error: str = "") -> None:
        changed = msgspec.structs.replace(settlement, verb=verb, error=error)
        assert engine.settle(TASKS, group, [changed], START) == [None]

    enqueue("acked by work", priority=1)
    enqueue("backing off", priority=1)
    enqueue("rejected", priority=1)
    enqueue("leased", priority=1, extra=Extra(properties=(("colour", "red"),), correlation_id="request-1"))
    enqueue("key, first", priority=1, extra=Extra(key="k"))
    enqueue("key, second", priority=1, extra=Extra(key="k"))
    enqueue("released", priority=1)
    held = lease("work", 6, "c1")
    settle("work", held["acked by work"], Verb.ACK)
    settle("work", held["backing off"], Verb.NACK, "boom")
    settle("work", held["rejected"], Verb.REJECT, "no such customer")
    settle("work", held["released"], Verb.RELEASE)
    enqueue("ready")
    enqueue("urgent", priority=0)
    enqueue("delayed", deliver_at=START + 3600 * SECOND)
    enqueue("short-lived", ttl=60 * SECOND)
    enqueue("once", extra=Extra(message_id="order-1"))
    for _ in cursor_commit(engine, TASKS, "log", 0, 2, lambda: START):
        engine.write()
    _fill_more(engine)


def _fill_more(engine: Engine) -> None:
    """What came after the first format: transactions, workflow states. In a queue of its own."""
    create_queue(engine, ORDERS, {"partitions": 1}, START)
    transactions = engine.transactions
    for name in ("open", "published"):
        for attempt, payloads in (("1", ["lost"]), ("2", [f"{name}, one", f"{name}, two"])):
            drafts = [Draft(payload.encode(), extra=Extra(key="k")) for payload in payloads]
            transactions.stage(TransactionName("default", name), [("orders", drafts)], "part", attempt, 0, START)
    transactions.publish(TransactionName("default", "published"), {"part": "2"}, "http", START)
    for verb in (Verb.REJECT, Verb.NACK):
        (held,) = engine.lease(ORDERS, "work", 1, 60 * SECOND, "c1", "http", START)
        put = PutState("work", held.message.id, held.token, verb.encode())
        engine.step(engine.queues[ORDERS], engine.queues[ORDERS].shards[0], put, START)
        engine.settle(ORDERS, "work", [Settlement(held.message.id, held.token, verb, delay=0)], START)
    _redrive(engine)


def _redrive(engine: Engine) -> None:
    """A redrive under an id, of one letter with its own payload and one with another. In a queue of its own."""
    engine.enqueue(REPAIRS, [Draft(b"as it was"), Draft(b"wrong")], "http", START)
    held = engine.lease(REPAIRS, "work", 2, 60 * SECOND, "c1", "http", START)
    engine.settle(REPAIRS, "work", [Settlement(one.message.id, one.token, Verb.REJECT) for one in held], START)
    dead = ("default", "dlq/repairs")
    dead_letters = [message.id for _, message, _ in browse_messages(engine, dead, 9, "", "", "", START).messages]
    payloads = dict(zip(dead_letters, (None, b"repaired"), strict=True))
    for _ in move(engine, dead, "audit-1", payloads, to="", by="ops", note="why", clock=lambda: START):
        engine.write()


def dump(store: Store, engine: Engine, now: int) -> Iterator[str]:
    """Everything there is to see, a line each."""
    for name in sorted(engine.queues):
        queue = engine.queues[name]
        yield f"queue {name[1]}: {queue.depth} messages"
        for partition, message, delivery_statuses in browse_messages(engine, name, 1_000, "", "", "", now).messages:
            yield f"  {partition}.{message.seq} {message.payload.decode()!r} {_describe(message)}"
            for delivery_status in delivery_statuses:
                attempt = f"{delivery_status.state} attempt {delivery_status.attempt} {delivery_status.error}"
                yield f"    {delivery_status.group}: {attempt}".rstrip()
        for record in queue.record.groups:
            for shard in queue.shards:
                if record.kind is GroupKind.CURSOR:
                    yield f"  {record.name}: committed {shard.cursors[record.name].head.committed}"
                else:
                    group = shard.groups[record.name]
                    counts = f"{group.fresh} untouched, {group.leased} leased, {group.retrying} again"
                    yield f"  {record.name}: {counts}"
    for _, value in store.scan(Table.TRANSACTIONS, b"", ALL, 1_000):
        found = read_transaction(value)
        yield f"transaction {found.id}: {found.state}, {found.messages} staged, {found.published} published"
    for _, value in store.scan(Table.STATES, b"", ALL, 1_000):
        yield f"state {read_state(value)}"
    yield from _audits(store)
    for _, value in store.scan(Table.JOURNAL, journal_key(0), ALL, 1_000):
        for row in rows(read_block(value), 1, lambda shard, first, count: _messages(store, shard, first, count)):
            yield f"journal {row.lsn} {row.event} {row.group or '-'} {row.message_id} {row.reason or ''}".rstrip()


def _audits(store: Store) -> Iterator[str]:
    for _, value in store.scan(Table.AUDITS, b"", ALL, 1_000):
        audit = read_audit(value)
        yield f"audit {audit.id} of {audit.dead_queue}: by {audit.by}, {audit.note!r}, {audit.moved} moved"
    for _, value in store.scan(Table.AUDITED, b"", ALL, 1_000):
        entry = read_audited(value)
        yield f"  letter {entry.dead_letter}: {entry.message} in {entry.queue}, had {entry.payload!r}"


def _describe(message: Message) -> str:
    extra = {
        name: value
        for name in Extra.__struct_fields__
        if (value := getattr(message.extra, name)) and name not in ("origin", "flags")
    }
    origin = message.extra.origin
    if origin is not None:
        extra["reason"] = origin.reason
        extra["error"] = origin.error
    times = [message.enqueued_at - START, message.deliver_at and message.deliver_at - START]
    times.append(message.expires_at and message.expires_at - START)
    return f"id {message.id} priority {message.priority} times {times} {extra or ''}".rstrip()


def _messages(store: Store, shard: int, first: int, count: int) -> list[Message]:
    found = store.scan(Table.MESSAGES, message_key(shard, first), message_key(shard, first + count), count)
    return [read_message(seq_of(key), value) for key, value in found]


def shorten(directory: Path) -> None:
    """Take the last fields from every msgpack record, as if it had been written before they were thought of.

    Only those that hold nothing: whoever reads the rest must come to the same.
    """
    store = RocksStore(directory)
    epoch = store.acquire()
    for table in (Table.SHARDS, Table.GROUPS, Table.QUEUES, Table.JOURNAL):
        for key, value in store.scan(table, b"", ALL, 1_000):
            store.write(epoch, [(table, key, _shortened(value))])
    node = store.get(Table.META, CELL_KEY)
    assert node is not None
    store.write(epoch, [(Table.META, CELL_KEY, _shortened(node))])
    store.sync()
    store.close()


def _shortened(value: bytes) -> bytes:
    fields = msgspec.msgpack.decode(value)
    while not fields[-1]:
        fields.pop()
    return msgspec.msgpack.encode(fields)
