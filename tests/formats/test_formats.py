"""Data directories that older versions wrote are opened, and everything in them is as it was.

NAME.tar.gz is the directory, NAME.txt tells what is in it, in the words of the version that wrote it. `v1-short` has
records that lack the fields which were added last, as core/records.py allows. `v1` has a record for each lease,
`v1-leases` one for the leases of a call.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.core.codecs import read_shard_head
from holdfast.core.commands import Draft, GetStates, Leased, Settlement
from holdfast.core.journal import EntryKind, decoded, read_block
from holdfast.core.records import Extra, ShardHead, Table, WorkflowState
from holdfast.core.states import JournalEvent, Reason
from holdfast.core.transactions import COUNTS, TransactionName, read_count, read_transaction
from holdfast.engine import audited_redrive
from holdfast.engine.browse import browse_messages
from holdfast.engine.cell_record import CELL_KEY, CellRecord
from holdfast.engine.cursors import cursor_commit, cursor_read
from holdfast.engine.engine import Engine
from holdfast.engine.messages import find_message
from holdfast.errors import FormatUnknown
from holdfast.store.rocks import RocksStore
from holdfast.units import DAY
from tests.formats.scene import ALL, ORDERS, SECOND, START, TASKS, dump, write

HERE = Path(__file__).parent
NEWEST = "v5"
OLD = sorted(path.name.removesuffix(".tar.gz") for path in HERE.glob("*.tar.gz"))


@pytest.fixture(params=OLD)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(name: str, tmp_path: Path) -> Iterator[RocksStore]:
    with tarfile.open(HERE / f"{name}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    opened = RocksStore(tmp_path / "data")
    yield opened
    opened.close()


@pytest.fixture
def engine(store: RocksStore) -> Engine:
    found = Engine(store, cell=1)
    found.open(START)
    return found


def lease(engine: Engine, now: int, group: str = "work") -> list[Leased]:
    return engine.lease(TASKS, group, 100, 60 * SECOND, "c2", "http", now)


def payloads(leased: list[Leased]) -> list[str]:
    return [item.message.payload.decode() for item in leased]


def test_there_is_a_directory_of_every_format() -> None:
    assert {"v1", "v1-short", "v1-leases", "v1-transactions", "v1-audits", "v2", "v3", "v4", NEWEST} <= set(OLD)


def test_everything_is_as_the_old_version_told(name: str, store: RocksStore, engine: Engine) -> None:
    assert "\n".join(dump(store, engine, START)) + "\n" == (HERE / f"{name}.txt").read_text()


def test_the_scene_still_comes_out_the_same(tmp_path: Path) -> None:
    write(tmp_path / "data")
    store = RocksStore(tmp_path / "data")
    engine = Engine(store, cell=1)
    engine.open(START)
    assert "\n".join(dump(store, engine, START)) + "\n" == (HERE / f"{NEWEST}.txt").read_text()
    store.close()


def test_its_messages_live_on(engine: Engine) -> None:
    assert payloads(lease(engine, START)) == ["urgent", "released", "ready", "short-lived", "once"]
    due = START + 5 * SECOND
    engine.tick(due)
    assert payloads(lease(engine, due)) == ["backing off"]
    key = next(d for d in engine.queues[TASKS].shards[0].groups["work"].deliveries.values() if d.key)
    assert engine.settle(TASKS, "work", [Settlement(key.id, consumer="c1")], due) == [None]
    assert payloads(lease(engine, due)) == ["key, second"]
    late = START + 3600 * SECOND
    engine.tick(late)
    assert "delayed" in payloads(lease(engine, late))


def test_its_leases_end_at_their_deadline(engine: Engine) -> None:
    engine.tick(START + 60 * SECOND)
    _, _, delivery_statuses = find_message(engine, TASKS, 21380884070404099, START)
    assert [
        (delivery_status.state, delivery_status.error)
        for delivery_status in delivery_statuses
        if delivery_status.group == "work"
    ] == [("scheduled", "timeout")]


def test_its_groups_go_on_where_they_were(engine: Engine) -> None:
    assert len(lease(engine, START, "audit")) == 10
    found = cursor_read(engine, TASKS, "log", 0, 0, 100, 1 << 20, START)
    assert [message.seq for message in found.messages] == list(range(3, 13))


def test_what_its_cursor_group_held_was_not_counted_and_goes_without_a_trace(engine: Engine) -> None:
    """Heads count what only cursor groups need since format 3: of what is older, nothing is counted, nor subtracted."""
    queue = engine.queues[TASKS]
    for group in ("work", "audit"):
        leased = lease(engine, START, group)
        engine.settle(TASKS, group, [Settlement(item.message.id, item.token) for item in leased], START)
    before = queue.depth
    for seq in (4, 12):
        for _ in cursor_commit(engine, TASKS, "log", 0, seq, lambda: START):
            engine.write()
    assert 0 <= queue.depth <= before
    assert all(shard.head.kept >= 0 and shard.head.kept_bytes >= 0 for shard in queue.shards)


def test_what_was_enqueued_once_is_not_enqueued_again(engine: Engine) -> None:
    again = engine.enqueue(TASKS, [Draft(b"again", extra=Extra(message_id="order-1"))], "http", START)
    assert list(again.duplicates) == [0]


def test_its_messages_expire(engine: Engine) -> None:
    engine.tick(START + 61 * SECOND)
    left = browse_messages(engine, TASKS, 100, "", "", "", START).messages
    assert b"short-lived" not in [message.payload for _, message, _ in left]


def test_its_dead_letters_can_be_had(engine: Engine) -> None:
    (dead_letter,) = engine.lease(("default", "dlq/tasks"), "g", 9, -1, "", "", START)
    origin = dead_letter.message.extra.origin
    assert origin is not None
    assert (origin.source_queue, origin.source_group, origin.reason) == ("tasks", "work", "rejected")


def test_ids_and_the_journal_go_on(store: RocksStore, engine: Engine) -> None:
    reserved = engine.record.ids_reserved
    engine.write()  # the groups of before format 4 are journalled when they are opened
    before = CellRecord(*msgspec.structs.astuple(engine.record))
    (new,) = engine.enqueue(TASKS, [Draft(b"new")], "http", START).ids
    engine.write()
    assert new > reserved
    assert engine.record.next_lsn == before.next_lsn + 1
    assert store.get(Table.META, CELL_KEY) is not None


def test_its_groups_are_journalled_once(name: str, store: RocksStore, engine: Engine) -> None:
    engine.write()
    again = Engine(store, cell=1)
    again.open(START)
    assert not again.pending
    blocks = [read_block(value) for _, value in store.scan(Table.JOURNAL, b"", ALL, 1_000)]
    entries = [entry for block in blocks for entry in decoded(block)]
    created = [entry for entry in entries if entry[0] == EntryKind.ONE and entry[3] == JournalEvent.GROUP_CREATED]
    assert {entry[2] for entry in created} >= {"work", "audit", "log"}
    assert {entry[6] for entry in created} == ({Reason.RECORDED} if name < "v4" else {""})


def opened_newest(tmp_path: Path) -> tuple[RocksStore, Engine]:
    """The newest directory there is, opened by this version."""
    with tarfile.open(HERE / f"{NEWEST}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    store = RocksStore(tmp_path / "data")
    engine = Engine(store, cell=1)
    engine.open(START)
    return store, engine


def test_its_transactions_and_states_go_on(tmp_path: Path) -> None:
    store, engine = opened_newest(tmp_path)
    published, opened = (TransactionName("default", name, "token:anybody") for name in ("published", "open"))
    assert not engine.transactions.publish(published, None, "http", START)[1]
    record, decided = engine.transactions.publish(opened, {"part": "2"}, "http", START)
    assert (record.published, decided) == (2, True)
    found = engine.lease(ORDERS, "work", 9, -1, "", "http", START)
    assert payloads(found) == ["published, two"]  # the others have the same key
    (dead_letter,) = engine.lease(("default", "dlq/orders"), "g", 9, -1, "", "", START)
    assert dead_letter.message.extra.state == WorkflowState(1, b"reject")
    again = GetStates("work", [(found[0].message.id, found[0].token)])
    assert engine.step(engine.queues[ORDERS], engine.queues[ORDERS].shards[0], again, START) == [
        WorkflowState(1, b"nack")
    ]
    store.close()


def test_its_transactions_are_forgotten_in_time(tmp_path: Path) -> None:
    store, engine = opened_newest(tmp_path)
    engine.transactions.publish(TransactionName("default", "new", "token:me"), {}, "http", START + 8 * DAY)
    engine.tick(START + 8 * DAY)
    engine.write()
    left = [read_transaction(value).id for _, value in store.scan(Table.TRANSACTIONS, b"", b"\xff", 9)]
    counts = [read_count(value) for _, value in store.scan(Table.META, COUNTS, COUNTS[:-1] + b"\1", 9)]
    assert (left, counts, len(store.scan(Table.ENDS, b"", b"\xff", 9))) == (["new"], [1], 1)
    store.close()


def test_its_redrives_go_on_and_can_be_undone(tmp_path: Path) -> None:
    store, engine = opened_newest(tmp_path)
    dead = ("default", "dlq/repairs")
    dead_letters = [was.dead_letter for was in engine.audits.page(engine.audits.get(dead, "audit-1"), 0, 9)]
    again = audited_redrive.move(
        engine, dead, "audit-1", dict.fromkeys(dead_letters), to="", by="", note="why", clock=lambda: START
    )
    assert [[one.status.value for one in step] for step in again] == [["repeated", "repeated"]]
    undone = audited_redrive.undo(engine, dead, "audit-1", 0, 9, lambda: START)
    assert [[one.status.value for one in step] for step in undone] == [["undone", "undone"]]
    found = browse_messages(engine, dead, 9, "", "", "", START).messages
    assert [message.payload for _, message, _ in found] == [b"as it was", b"wrong"]
    store.close()


def test_the_short_records_are_short(tmp_path: Path) -> None:
    with tarfile.open(HERE / "v1-short.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    store = RocksStore(tmp_path / "data")
    heads = [value for _, value in store.scan(Table.SHARDS, b"", ALL, 100)]
    store.close()
    fields = [msgspec.msgpack.decode(value) for value in heads]
    assert all(len(found) < len(ShardHead.__struct_fields__) for found in fields)
    assert all(read_shard_head(value).unneeded_seq == 0 for value in heads)


def test_records_of_an_unknown_version_are_not_guessed_at(store: RocksStore) -> None:
    epoch = store.acquire()
    key, value = store.scan(Table.DELIVERIES, b"", ALL, 1)[0]
    store.write(epoch, [(Table.DELIVERIES, key, b"\x63" + value[1:])])
    with pytest.raises(FormatUnknown, match="written in format 99"):
        Engine(store, cell=1).open(START)
