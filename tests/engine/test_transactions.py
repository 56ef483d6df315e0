"""What transactions do within one turn, before anything of it is written; whose they are, and what is remembered."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from holdfast.core.commands import Draft
from holdfast.core.records import Table
from holdfast.core.transactions import (
    COUNTS,
    Transaction,
    TransactionName,
    TransactionState,
    done_key,
    end_key,
    read_transaction,
    write_record,
)
from holdfast.engine import transactions
from holdfast.engine.open_transaction import TransactionLimits
from holdfast.errors import TransactionNotFound, TransactionPublished
from tests.engine.rig import START, TASKS, Rig

NAME = TransactionName("default", "t1")


def test_a_queue_with_no_messages_in_a_stage_is_left_out(memory: Rig) -> None:
    memory.create_queue()
    memory.create_queue(("default", "other"))
    staged = memory.engine.transactions.stage(NAME, [("other", []), (TASKS[1], [Draft(b"one")])], "", "", 0, memory.now)
    assert staged.messages == 1
    record, decided = memory.engine.transactions.publish(NAME, None, "test", memory.now)
    memory.engine.write()
    assert decided
    assert record.state is TransactionState.PUBLISHED
    assert [message.payload for message in memory.live()] == [b"one"]
    assert memory.live(("default", "other")) == []


def test_a_publish_repeated_in_the_same_turn_is_answered_with_the_record(memory: Rig) -> None:
    memory.create_queue()
    transactions = memory.engine.transactions
    transactions.stage(NAME, [(TASKS[1], [Draft(b"one")])], "", "", 0, memory.now)
    first, decided = transactions.publish(NAME, None, "test", memory.now)
    again, decided_again = transactions.publish(NAME, None, "test", memory.now)
    assert (decided, decided_again) == (True, False)
    assert first.state is again.state is TransactionState.PUBLISHED
    memory.engine.write()
    assert [message.payload for message in memory.live()] == [b"one"]


# --- owners ---------------------------------------------------------------------------------------------------------

MINE, THEIRS = NAME._replace(identity="token:me"), NAME._replace(identity="token:you")


def stage(cell: Rig, name: TransactionName, payload: bytes) -> int:
    found = cell.engine.transactions.stage(name, [(TASKS[1], [Draft(payload)])], "", "", 0, cell.now)
    cell.engine.write()
    return found.messages


def publish(cell: Rig, name: TransactionName) -> tuple[int, bool]:
    """How many messages it published, and whether it was now."""
    record, decided = cell.engine.transactions.publish(name, None, "test", cell.now)
    cell.engine.write()
    return record.published, decided


def remembered(cell: Rig) -> list[TransactionName]:
    """The transactions that are known as published, and those that are not finished, over a restart."""
    cell.engine.tick(cell.now)
    cell.restart()
    rows = cell.engine.store.scan(Table.TRANSACTIONS, b"", b"\xff" * 99, 1000)
    return [read_transaction(value).name for _, value in rows]


def test_one_id_of_two_identities_is_two_transactions(cell: Rig) -> None:
    cell.create_queue()
    stage(cell, MINE, b"mine")
    assert cell.engine.transactions.abort(THEIRS) is False
    with pytest.raises(TransactionNotFound):
        cell.engine.transactions.describe(THEIRS)
    with pytest.raises(TransactionNotFound):
        publish(cell, THEIRS)
    assert stage(cell, THEIRS, b"theirs") == 1
    assert publish(cell, THEIRS) == (1, True)
    assert [message.payload for message in cell.live()] == [b"theirs"]
    cell.restart()
    assert stage(cell, MINE, b"mine again, not stored: the chunk was staged before") == 1
    assert publish(cell, MINE) == (1, True)
    with pytest.raises(TransactionPublished):
        stage(cell, MINE, b"late")
    assert remembered(cell) == [MINE, THEIRS]


def test_one_of_before_there_were_owners_belongs_to_everybody(cell: Rig) -> None:
    cell.create_queue()
    stage(cell, NAME, b"old")
    assert cell.engine.transactions.describe(MINE)[0].name == NAME
    assert publish(cell, MINE) == (1, True)
    assert publish(cell, THEIRS) == (1, False)
    with pytest.raises(TransactionPublished):
        cell.engine.transactions.abort(THEIRS)


def test_nothing_is_forgotten_for_another_owner(cell: Rig) -> None:
    cell.engine.transactions.limits = TransactionLimits(max_remembered=2)
    others = [THEIRS._replace(id=f"t{number}") for number in range(5)]
    elsewhere = MINE._replace(namespace="acme")
    for name in (MINE, elsewhere, *others):
        cell.now += 1
        cell.engine.transactions.publish(name, {}, "test", cell.now)
        cell.engine.tick(cell.now)
        cell.engine.write()
    assert set(remembered(cell)) == {MINE, elsewhere, *others[3:]}
    assert cell.engine.transactions.wake_at() == START + 1 + TransactionLimits().remember
    cell.now = cell.engine.transactions.wake_at() + 1
    assert set(remembered(cell)) == set(others[3:])
    cell.now += 10
    assert remembered(cell) == []
    assert cell.engine.store.scan(Table.REMEMBERED, b"", b"\xff" * 99, 9) == []
    assert cell.engine.store.scan(Table.META, COUNTS, COUNTS[:-1] + b"\1", 9) == []


def test_transactions_that_ended_leave_nothing_in_memory_behind_one_that_stays_open(cell: Rig) -> None:
    """Else a cell would keep as many entries as transactions were begun within their timeout."""
    cell.create_queue()
    stage(cell, MINE, b"stays")

    def begin_and_end(count: int) -> None:
        for number in range(count):
            cell.now += 1
            stage(cell, THEIRS._replace(id=f"t{number}"), b"x")
            cell.engine.transactions.abort(THEIRS._replace(id=f"t{number}"))
            cell.engine.write()
            cell.engine.store.sync()
            cell.engine.transactions.wake_at()

    begin_and_end(200)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        begin_and_end(2_000)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 2_000 * 40
    finally:
        tracemalloc.stop()


def test_fewer_are_remembered_when_the_limit_is_lowered(cell: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [MINE._replace(id=f"t{number}") for number in range(4)]
    for name in names[:3]:
        cell.now += 1
        cell.engine.transactions.publish(name, {}, "test", cell.now)
    assert remembered(cell) == names[:3]
    monkeypatch.setattr(transactions, "FORGET_CHUNK", 1)
    cell.engine.transactions.limits = TransactionLimits(max_remembered=1)
    cell.engine.transactions.publish(names[3], {}, "test", cell.now)
    while cell.engine.transactions.wake_at() <= cell.now:
        cell.engine.tick(cell.now)
    assert remembered(cell) == names[3:]


def test_what_was_published_before_there_were_owners_is_forgotten_in_time(memory: Rig) -> None:
    record = Transaction(7, "default", "t1", START, START + 5, TransactionState.PUBLISHED)
    memory.engine.add(
        [
            (Table.TRANSACTIONS, done_key(NAME), write_record(record)),
            (Table.ENDS, end_key(record.ends_at, record.number), done_key(NAME)),
        ]
    )
    assert remembered(memory) == [NAME]
    assert publish(memory, MINE) == (0, False)
    memory.now += 5
    assert remembered(memory) == []


def test_transactions_that_expire_together_are_aborted_some_in_each_tick(
    memory: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "EXPIRE_CHUNK", 3)
    memory.create_queue()
    opened = memory.engine.transactions
    for number in range(5):
        opened.stage(TransactionName("default", str(number)), [(TASKS[1], [Draft(b"x")])], "", "", 0, memory.now)
    memory.engine.write()
    later = memory.now + opened.limits.timeout
    memory.engine.tick(later)
    assert (len(opened.live), opened.wake_at() <= later) == (2, True)
    memory.engine.tick(later)
    assert (len(opened.live), opened.wake_at() <= later) == (0, False)
