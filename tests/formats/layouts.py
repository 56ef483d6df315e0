"""The bytes of every record and key, and the fields of every packed struct, a line each.

    python -m tests.formats.layouts

writes them to tests/formats/layout-N.txt, N being the FORMAT of store/formats.py. Only for a new number: the file of
one that has been released is what its data directories look like, and stays as it is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import msgspec
from msgspec.inspect import (
    CollectionType,
    DictType,
    EnumType,
    Metadata,
    StructType,
    TupleType,
    Type,
    UnionType,
    type_info,
)

from holdfast.broker.parts.redrive_jobs import PROGRESS, REQUESTS, JobProgress, RedriveRequest
from holdfast.core import audits, codecs, records, transactions
from holdfast.core.commands import Draft
from holdfast.core.deliveries import Delivery, first_leases
from holdfast.core.effects import Op
from holdfast.core.journal import Block, EntryKind, decoded, read_block
from holdfast.core.queue import QueueRecord
from holdfast.core.records import NO_EXTRA, Extra, Message, Origin, Place, Table, WorkflowState
from holdfast.core.runs import BytesColumn, HomogeneousRun, RecordRun
from holdfast.core.transactions import TransactionName
from holdfast.engine.cell_record import CELL_KEY, CellRecord
from holdfast.engine.engine import Engine
from holdfast.engine.queues import purge_queue
from holdfast.engine.schedules import records as schedules
from holdfast.mqtt.codec import Properties
from holdfast.mqtt.sessions import messages as mqtt_messages
from holdfast.mqtt.sessions import records as mqtt_records
from holdfast.store.formats import FORMAT
from holdfast.store.rocks import RocksStore
from holdfast.store.rocks_tuning import FAMILY_OF
from tests.formats import scene

HERE = Path(__file__).parent
FILE = HERE / f"layout-{FORMAT}.txt"

# Everything that is packed by msgspec. Those that are part of one are found by themselves.
PACKED: tuple[type[msgspec.Struct], ...] = (
    CellRecord,
    RedriveRequest,
    JobProgress,
    QueueRecord,
    records.ShardHead,
    records.GroupHead,
    records.CursorHead,
    records.Extra,
    records.Leases,
    Block,
    transactions.Transaction,
    transactions.StagedPart,
    audits.Audit,
    audits.Audited,
    schedules.Schedule,
    schedules.ScheduleState,
    schedules.Run,
    mqtt_records.SessionRecord,
    mqtt_records.SubscriptionRecord,
    mqtt_records.OutgoingRecord,
)

SHARD, GROUP, SEQ, ID, STAMP, DUE, END = 0x01020304, 0x05060708, 0x11, 0x22, 0x33, 0x44, 0x55
TOKEN, PRIORITY, SIZE, NOW = 0x66, 0x77, 0x88, 0x99
KEY = b"keyhash!"


def lines() -> Iterator[str]:
    """The whole layout."""
    for table in Table:
        yield f"table {table.name}: {int(table)} in family {FAMILY_OF[table]}"
    for name in sorted(name for name in vars(records) if name.startswith("FLAG_")):
        yield f"flag {name.removeprefix('FLAG_').lower()}: {getattr(records, name)}"
    for table, key, value in samples():
        said = "a struct" if value is None else value.hex() or "(empty)"
        yield f"{table.name}: {key.hex()} = {said}"
    yield from fields()
    yield from entries()


def samples() -> Iterator[tuple[Table, bytes, bytes | None]]:
    """Records as they are written, with fields that can be told apart; None for those that are a struct below."""
    extra = Extra(
        "key", "id", (("a", "b"),), "corr", "text/plain", "reply", b"data", origin(), 1, True, WorkflowState(7, b"s")
    )
    packed = msgspec.msgpack.encode
    yield Table.META, CELL_KEY, None
    yield Table.META, REQUESTS, None
    yield Table.META, PROGRESS, None
    yield Table.QUEUES, records.queue_key("space", "queue"), None
    yield Table.SHARDS, records.shard_key(SHARD), codecs.write_head(records.ShardHead())
    yield Table.GROUPS, records.group_key(SHARD, GROUP), codecs.write_head(records.GroupHead(1, 2, {3: 4}))
    for one in (NO_EXTRA, extra):
        written = codecs.write_message(ID, NOW, DUE, END, PRIORITY, one, b"payload")
        yield Table.MESSAGES, records.message_key(SHARD, SEQ), written
        homogeneous = codecs.homogeneous_messages(ID, NOW, END, PRIORITY, one, BytesColumn.of([b"payload"]))
        yield Table.MESSAGES, records.message_key(SHARD, SEQ), homogeneous[:][0]
    yield Table.READY, records.ready_key(SHARD, PRIORITY, STAMP), codecs.ready_value(SEQ, KEY, 2, SIZE)
    yield (
        Table.READY,
        records.ready_key(SHARD, PRIORITY, STAMP),
        codecs.homogeneous_ready_values(SEQ, SIZE.to_bytes(4, "big"))[:][0],
    )
    scheduled = codecs.scheduled_value(ID, PRIORITY, KEY, 2, SIZE)
    yield Table.SCHEDULED, records.scheduled_key(SHARD, DUE, SEQ), scheduled
    yield Table.DUE, records.due_key(SHARD, SEQ), codecs.due_value(STAMP)
    yield Table.KEYED, records.keyed_key(SHARD, KEY, PRIORITY, STAMP), codecs.keyed_value(SEQ, ID)
    yield Table.LEASES, records.leases_key(SHARD, GROUP, TOKEN, records.LEASES_PART), leases()
    yield Table.LEASES, records.leases_key(SHARD, GROUP, TOKEN, records.ENDED_PART), codecs.write_bits(0b101)
    yield Table.DELIVERIES, records.delivery_key(SHARD, GROUP, ID), codecs.write_delivery(delivery())
    for state in (WorkflowState(7, b"state"), WorkflowState(7, None)):
        yield Table.STATES, records.delivery_key(SHARD, GROUP, ID), codecs.write_state(state)
    for mask in (0b1_0000_0001, records.KEPT, records.GONE):
        yield Table.SETTLED, records.settled_key(SHARD, SEQ), codecs.write_mask(mask)
    yield Table.EXPIRIES, records.expiry_key(SHARD, END, SEQ), b""
    yield Table.DEDUP, records.dedup_key(SHARD, "id"), codecs.dedup_value(ID, END)
    yield Table.DEDUP_ENDS, records.dedup_end_key(SHARD, END, "id"), b""
    yield Table.SOURCES, records.source_key(SHARD, ID, "group"), codecs.due_value(ID)
    yield Table.JOURNAL, records.journal_key(SEQ), None
    yield Table.TRANSACTIONS, transactions.live_key(TransactionName("space", "id")), None
    yield Table.TRANSACTIONS, transactions.done_key(TransactionName("space", "id")), None
    yield Table.TRANSACTIONS, transactions.live_key(TransactionName("space", "id", "token:me")), None
    yield Table.REMEMBERED, transactions.remembered_key(("space", "token:me"), END, 1), None
    yield Table.META, transactions.count_key(("space", "token:me")), None
    yield Table.STAGED_PARTS, transactions.staged_part_key(1, 2), None
    keyed = Draft(b"payload", extra=records.Extra(key="key"))
    for draft in (Draft(b"payload", PRIORITY, DUE, END), Draft(b"payload", extra=extra), keyed):
        ((block, _),) = transactions.blocks([(3, draft)])
        yield Table.STAGED, transactions.staged_key(1, SHARD, 2, 3), block
    yield Table.ENDS, transactions.end_key(END, 1), transactions.done_key(TransactionName("space", "id"))
    yield Table.AUDITS, audits.audit_key("space", "dlq/queue", "id"), None
    yield Table.AUDITED, audits.audited_key(1, ID), packed(audits.Audited(1, 2, "queue", 3, (("a", "b"),), b"payload"))
    yield Table.SCHEDULES, schedules.schedule_key("space", "nightly"), None
    yield Table.SCHEDULE_STATES, schedules.schedule_key("space", "nightly"), None
    run = schedules.Run(1, DUE, NOW, schedules.TickOutcome.REFUSED, ID, "error")
    yield Table.SCHEDULE_RUNS, schedules.run_key("space", "nightly", 101), schedules.write_run(run)
    will = mqtt_records.WillRecord("topic", b"payload", 1, True, b"block")
    session = mqtt_records.SessionRecord(5, 60, NOW, DUE, will, "owner")
    yield Table.MQTT_SESSIONS, b"space\0client", mqtt_records.write(session)
    subscription = mqtt_records.SubscriptionRecord(1, True, False, 9)
    yield Table.MQTT_SUBSCRIPTIONS, b"space\0client\0a/+", mqtt_records.write(subscription)
    outgoing = mqtt_records.OutgoingRecord(ID, 1, False, 5, (1, 2), "share")
    yield Table.MQTT_OUTGOING, b"space\0client\0" + records.journal_key(3), mqtt_records.write(outgoing)
    yield Table.MQTT_INCOMING, b"space\0client\0\0\1", b""
    properties = Properties(content_type="text/plain", user_properties=(("a", "b"),))
    message = mqtt_messages.Message("topic", b"payload", 1, True, properties, END)
    yield Table.MQTT_MESSAGES, records.journal_key(ID), mqtt_messages.write_message(message)
    yield Table.MQTT_RETAINED, mqtt_records.retained_key("space", "topic"), records.journal_key(ID)

    yield from runs()


def runs() -> Iterator[tuple[Table, bytes, bytes]]:
    """Records that a store keeps together, of which one has gone."""
    with tempfile.TemporaryDirectory() as scratch:
        store = RocksStore(Path(scratch) / "data")
        epoch = store.acquire()
        message, place = records.message_key(SHARD, SEQ), records.ready_key(SHARD, PRIORITY, STAMP)
        homogeneous = HomogeneousRun(b"<", ID, b">", BytesColumn.of([b"a", b"bc"] * 4))
        ops: list[Op] = [
            (Table.MESSAGES, message, RecordRun.of([b"a", b"bc"] * 4)),
            (Table.MESSAGES, records.message_key(SHARD, SEQ + 8), homogeneous),
            (Table.READY, place, RecordRun.of([b"d"] * 8)),
        ]
        store.write(epoch, [*ops, (Table.READY, records.ready_key(SHARD, PRIORITY, STAMP + 1), None)])
        for table in (Table.RUNS, Table.MESSAGE_RUNS, Table.READY_RUNS):
            for key, value in store.scan(table, b"", scene.ALL, 10):
                yield table, key, value
        store.close()


def origin() -> Origin:
    return Origin(ID, "queue", "group", "reason", "error", 3, NOW, NOW + 1)


def leases() -> bytes:
    place = Place(STAMP, SEQ, KEY, 2, PRIORITY, SIZE)
    message = Message(ID, SEQ, PRIORITY, NOW, DUE, END, NO_EXTRA, b"payload")
    return codecs.write_leases(first_leases([place], [message], [TOKEN], NOW, END, "consumer", "http"))


def delivery() -> Delivery:
    return Delivery(
        ID, SEQ, PRIORITY, 1, STAMP, KEY, 2, 3, 4, END, 5, 6, 7, TOKEN, 8, SIZE, "consumer", "http", "error", "doom"
    )


def fields() -> Iterator[str]:
    """The fields of every packed struct, in the order in which they are stored, and the values of every enum."""
    found: dict[str, str] = {}
    for struct in PACKED:
        _collect(type_info(struct), found)
    yield from (found[name] for name in sorted(found))


def _collect(kind: Type, found: dict[str, str]) -> None:
    match kind:
        case StructType(cls=cls, fields=parts, array_like=array):
            if cls.__name__ not in found:
                said = ", ".join(f"{part.encode_name} {cls.__annotations__[part.name]}" for part in parts)
                found[cls.__name__] = f"{'array' if array else 'map'} {cls.__name__}: {said}"
                for part in parts:
                    _collect(part.type, found)
        case EnumType(cls=cls):
            found[cls.__name__] = f"enum {cls.__name__}: {', '.join(str(_value(one)) for one in cls)}"
        case Metadata(type=inner):
            _collect(inner, found)
        case UnionType(types=inner):
            for one in inner:
                _collect(one, found)
        case TupleType(item_types=inner):
            for one in inner:
                _collect(one, found)
        case DictType(key_type=key, value_type=value):
            _collect(key, found)
            _collect(value, found)
        case CollectionType(item_type=inner):
            _collect(inner, found)


def _value(member: Enum) -> object:
    return member.value


def entries() -> Iterator[str]:
    """What stands in the entries of a journal: the kinds of the fields of each, as the engine writes them."""
    shapes: dict[int, set[str]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "data"
        scene.write(directory)
        store = RocksStore(directory)
        engine = Engine(store, cell=1)
        engine.open(scene.START)
        for _ in purge_queue(engine, scene.TASKS, lambda: scene.START):
            engine.write()
        for _, value in store.scan(Table.JOURNAL, records.journal_key(0), scene.ALL, 1_000):
            for entry in decoded(read_block(value)):
                shapes.setdefault(entry[0], set()).add(", ".join(type(one).__name__ for one in entry[1:]))
        store.close()
    for kind, said in sorted(shapes.items()):
        for shape in sorted(said):
            yield f"entry {EntryKind(kind).name} {kind}: {shape}"


if __name__ == "__main__":
    FILE.write_text("\n".join(lines()) + "\n")
