"""Creation, configuration, purge and deletion of queues and groups, and what a restart finds of them."""

from __future__ import annotations

import sys

import pytest

from holdfast.core.commands import Draft, Verb
from holdfast.core.leasing import DEAD_LETTER_BACKOFF
from holdfast.core.queue import GroupKind
from holdfast.core.records import Extra, Table
from holdfast.engine.catalog import QueueName
from holdfast.engine.cursors import cursor_commit, cursor_ends, cursor_read
from holdfast.engine.engine import Limits
from holdfast.engine.groups import create_group, delete_group, ensure_group
from holdfast.engine.messages import delete_message, edit_message, find_message
from holdfast.engine.queues import create_queue, delete_queue, finish_deletion, purge_queue, update_queue
from holdfast.errors import (
    DeadQueueInvalid,
    GroupExists,
    GroupNotFound,
    InvalidArgument,
    InvalidName,
    LimitExceeded,
    MessageNotFound,
    QueueExists,
    QueueInUse,
    QueueNotFound,
    WrongGroupKind,
)
from holdfast.store import MemoryDisk, MemoryStore
from tests.engine.rig import DEAD, TASKS, Rig

OTHER = ("default", "other")


def test_a_queue_is_created_once_and_with_a_good_name(memory: Rig) -> None:
    memory.create_queue()
    with pytest.raises(QueueExists):
        memory.create_queue()
    with pytest.raises(InvalidName):
        memory.create_queue(("default", "a//b"))
    with pytest.raises(InvalidName):
        memory.create_queue(("", "tasks"))
    with pytest.raises(DeadQueueInvalid):
        memory.create_queue(OTHER, dlq={"queue": "other"})


def test_queues_and_groups_have_limits() -> None:
    disk = MemoryDisk()
    cell = Rig(lambda: MemoryStore(disk), Limits(max_queues=1, max_groups=1, auto_create=False))
    with pytest.raises(QueueNotFound):
        cell.enqueue(b"m")
    cell.create_queue()
    with pytest.raises(LimitExceeded, match="max_queues"):
        cell.create_queue(OTHER)
    cell.create_group("g")
    with pytest.raises(LimitExceeded, match="max_groups"):
        cell.create_group("h")


def test_partitions_that_are_added_are_read_by_every_group(cell: Rig) -> None:
    cell.create_queue(partitions=1, topics=["a/+"])
    cell.create_group("g")
    cell.create_group("log", kind=GroupKind.CURSOR)
    cell.enqueue(b"old")
    changed = cell.engine.catalog.captures_changed
    record = update_queue(cell.engine, TASKS, {"partitions": 3, "topics": []}, cell.now)
    cell.engine.write()
    assert (record.config.partitions, len(record.shards), cell.queue().partitions) == (3, 3, 3)
    assert cell.engine.catalog.captures == {}
    assert cell.engine.catalog.captures_changed == changed + 1
    for number in range(3):
        cell.enqueue(b"%d" % number)
    cell.restart()
    assert len(cell.lease(9)) == 4
    assert sum(end.end - end.first for end in cursor_ends(cell.engine, TASKS, "log", cell.now)) == 4


def test_captures_are_those_of_the_queues_there_are(memory: Rig) -> None:
    memory.create_queue(topics=["a/+"])
    memory.create_queue(OTHER)
    assert memory.engine.catalog.captures == {TASKS: ("a/+",)}
    assert set(memory.engine.queues) == {TASKS, OTHER}
    memory.run(delete_queue(memory.engine, TASKS, memory.clock))
    assert memory.engine.catalog.captures == {}


def test_a_namespace_has_what_its_queues_have_together(memory: Rig) -> None:
    def totals(namespace: str) -> tuple[int, int, int, int]:
        found = memory.engine.catalog.totals(namespace)
        return found.queues, found.partitions, found.groups, found.webhooks

    memory.create_queue(partitions=2)
    memory.create_queue(OTHER, partitions=3, dlq={"alert_webhook": "https://alerts.example"})
    memory.create_queue(("elsewhere", "tasks"), partitions=1)
    for group in ("g", "h"):
        create_group(memory.engine, OTHER, group, GroupKind.LEASE, memory.now, None, 0, 0)
    assert (totals("default"), totals("elsewhere"), totals("nowhere")) == ((2, 5, 2, 1), (1, 1, 0, 0), (0, 0, 0, 0))
    memory.run(delete_group(memory.engine, OTHER, "g", memory.clock))
    update_queue(memory.engine, OTHER, {"partitions": 4, "dlq": {"alert_webhook": ""}}, memory.now)
    memory.restart()
    assert totals("default") == (2, 6, 1, 0)
    memory.run(delete_queue(memory.engine, TASKS, memory.clock))
    memory.run(delete_queue(memory.engine, ("elsewhere", "tasks"), memory.clock))
    assert (totals("default"), totals("elsewhere")) == ((1, 4, 1, 0), (0, 0, 0, 0))


def test_the_users_of_a_dead_queue_are_those_that_name_it_now_and_its_own_queue(memory: Rig) -> None:
    users = memory.engine.catalog.dead_queue_users
    memory.create_queue(("default", "graves"), dlq={"enabled": False})
    memory.create_queue(("elsewhere", "graves"), dlq={"enabled": False})
    memory.create_queue(OTHER, dlq={"queue": "graves"})
    memory.create_queue(TASKS, dlq={"queue": "graves"})
    assert users(("default", "graves")) == ["other", "tasks"]
    assert (users(("elsewhere", "graves")), users(DEAD)) == ([], [])
    update_queue(memory.engine, TASKS, {"dlq": {"queue": ""}}, memory.now)
    assert (users(("default", "graves")), users(DEAD)) == (["other"], ["tasks"])
    deletion = delete_queue(memory.engine, OTHER, memory.clock)
    next(deletion)  # it is marked
    assert users(("default", "graves")) == []
    memory.run(deletion)
    memory.run(delete_queue(memory.engine, ("default", "graves"), memory.clock))
    with pytest.raises(DeadQueueInvalid, match="does not exist"):
        memory.create_queue(OTHER, dlq={"queue": "graves"})


def test_a_queue_is_created_changed_and_deleted_at_the_same_cost_however_many_there_are(memory: Rig) -> None:
    def calls(name: QueueName) -> int:
        count = 0

        def called(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(called)
        try:
            memory.create_queue(name, partitions=1)
            create_group(memory.engine, name, "g", GroupKind.LEASE, memory.now, None, 0, 0)
            update_queue(memory.engine, name, {"max_depth": 7}, memory.now)
            memory.run(delete_queue(memory.engine, name, memory.clock))
        finally:
            sys.setprofile(None)
        return count

    calls(("default", "first"))  # what is cached is
    among_none = calls(("default", "among-none"))
    for number in range(200):
        memory.create_queue(("default", f"q-{number}"), partitions=1)
    assert calls(("default", "among-many")) <= among_none + 20


def test_a_purge_leaves_what_is_leased(cell: Rig) -> None:
    cell.create_queue(partitions=2)
    for _ in range(6):
        cell.enqueue(b"m")
    leased = cell.lease(1)
    assert sum(cell.run(purge_queue(cell.engine, TASKS, cell.clock))) == 5
    assert [message.id for message in cell.live()] == [leased[0].message.id]


def test_a_purge_goes_on_until_all_is_gone(memory: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.core.admin.CHUNK", 2)
    memory.create_queue(partitions=1)
    memory.enqueue(*[b"m"] * 5)
    counts = memory.run(purge_queue(memory.engine, TASKS, memory.clock))
    assert (sum(counts), max(counts)) == (5, 2)
    assert memory.live() == []


def test_a_deleted_queue_leaves_nothing_but_what_the_journal_names(cell: Rig) -> None:
    cell.create_queue(partitions=2)
    cell.enqueue(b"a", b"b")
    cell.lease(1)
    assert sum(cell.run(delete_queue(cell.engine, TASKS, cell.clock))) == 2
    assert TASKS not in cell.engine.queues
    for table in (Table.QUEUES, Table.SHARDS, Table.GROUPS, Table.READY, Table.LEASES, Table.DELIVERIES):
        assert cell.engine.store.scan(table, b"", b"\xff" * 9, 9) == []
    assert cell.engine.store.scan(Table.MESSAGES, b"", b"\xff" * 9, 9) != []
    cell.create_queue(partitions=1)
    assert cell.live() == []


def test_a_deletion_that_a_crash_interrupts_is_finished_later(cell: Rig) -> None:
    cell.create_queue(dlq={"enabled": False})
    cell.create_queue(OTHER, dlq={"queue": "tasks"})
    with pytest.raises(QueueInUse):
        cell.run(delete_queue(cell.engine, TASKS, cell.clock))
    update_queue(cell.engine, OTHER, {"dlq": {"queue": ""}}, cell.now)
    cell.enqueue(b"a")
    next(delete_queue(cell.engine, TASKS, cell.clock))
    cell.restart()
    with pytest.raises(QueueNotFound):
        cell.queue()
    [closing] = [queue for queue in cell.engine.queues.values() if queue.record.closing]
    cell.run(finish_deletion(cell.engine, closing, cell.clock))
    assert set(cell.engine.queues) == {OTHER}


def test_a_dead_queue_that_is_being_deleted_takes_no_dead_letters(cell: Rig) -> None:
    cell.enqueue(b"first", b"second")
    cell.consume(1, Verb.REJECT)
    update_queue(cell.engine, TASKS, {"dlq": {"enabled": False}}, cell.now)  # else it is in use
    deletion = delete_queue(cell.engine, DEAD, cell.clock)
    next(deletion)
    update_queue(cell.engine, TASKS, {"dlq": {"enabled": True}}, cell.now)
    cell.consume(1, Verb.REJECT)
    cell.run(deletion)
    assert cell.live(DEAD) == []
    cell.advance(DEAD_LETTER_BACKOFF)
    assert [message.payload for message in cell.live(DEAD)] == [b"second"]


# --- groups ---------------------------------------------------------------------------------------------------------


def test_a_first_group_begins_with_all_that_is_stored_and_others_after_it(cell: Rig) -> None:
    cell.enqueue(b"a")
    cell.create_group("first")
    cell.create_group("second")
    create_group(cell.engine, TASKS, "third", GroupKind.LEASE, cell.now, True, 0, 0)
    assert [len(cell.lease(9, group)) for group in ("first", "second", "third")] == [1, 0, 1]
    with pytest.raises(GroupExists):
        cell.create_group("first")


def test_limits_of_lag_are_for_cursor_groups(memory: Rig) -> None:
    for kind, messages, age in ((GroupKind.LEASE, 1, 0), (GroupKind.LEASE, 0, 1), (GroupKind.CURSOR, -1, 0)):
        with pytest.raises(InvalidArgument, match="max_lag"):
            create_group(memory.engine, TASKS, "g", kind, memory.now, None, messages, age)
    with pytest.raises(InvalidArgument, match="negative"):
        create_group(memory.engine, TASKS, "g", GroupKind.CURSOR, memory.now, None, 0, -1)


def test_a_group_is_of_one_kind(memory: Rig) -> None:
    memory.create_queue()
    memory.create_group("log", kind=GroupKind.CURSOR)
    memory.create_group("g")
    with pytest.raises(WrongGroupKind, match="lease"):
        memory.lease(1, "log")
    with pytest.raises(WrongGroupKind, match="read as a log"):
        ensure_group(memory.engine, memory.queue(), "g", GroupKind.CURSOR, memory.now)


def test_a_deleted_group_takes_along_what_only_it_needed(cell: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.core.sweeps.SWEEP_CHUNK", 2)
    cell.create_queue(partitions=1)
    cell.create_group("g")
    cell.create_group("h")
    cell.enqueue(*[b"m"] * 5)
    cell.consume(5)
    assert cell.queue().depth == 5
    cell.run(delete_group(cell.engine, TASKS, "h", cell.clock))
    assert cell.queue().depth == 0
    with pytest.raises(GroupNotFound):
        cell.run(delete_group(cell.engine, TASKS, "h", cell.clock))


# --- cursors and single messages ------------------------------------------------------------------------------------


def test_looking_where_a_cursor_group_ends_creates_nothing_unless_asked_to(cell: Rig) -> None:
    with pytest.raises(QueueNotFound):
        cursor_ends(cell.engine, TASKS, "log", cell.now, create=False)
    cell.enqueue(b"x")
    with pytest.raises(GroupNotFound):
        cursor_ends(cell.engine, TASKS, "log", cell.now, create=False)
    created = cursor_ends(cell.engine, TASKS, "log", cell.now)
    assert cursor_ends(cell.engine, TASKS, "log", cell.now, create=False) == created


def test_a_cursor_reads_on_where_it_committed(cell: Rig) -> None:
    cell.create_queue(partitions=1)
    cell.enqueue(b"a", b"b", b"c")

    def read(first: int = 0, create: bool = True) -> list[bytes]:
        found = cursor_read(cell.engine, TASKS, "log", 0, first, 10, 1000, cell.now, create=create)
        return [message.payload for message in found.messages]

    with pytest.raises(GroupNotFound):
        read(create=False)
    assert read() == [b"a", b"b", b"c"]
    assert cell.run(cursor_commit(cell.engine, TASKS, "log", 0, 1, cell.clock)) == [1]
    assert read(create=False) == [b"b", b"c"]
    assert read(3) == [b"c"]


def test_a_long_commit_is_made_in_steps(memory: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engine.cursors.COMMIT_MESSAGES", 4)
    monkeypatch.setattr("holdfast.core.cursors.SPAN", 2)
    memory.create_queue(partitions=1)
    memory.create_group("log", kind=GroupKind.CURSOR)
    memory.enqueue(*[b"m"] * 9)
    assert memory.run(cursor_commit(memory.engine, TASKS, "log", 0, 9, memory.clock)) == [4, 4, 1]


def test_a_message_is_found_edited_and_deleted_by_its_id(cell: Rig) -> None:
    cell.create_queue(partitions=3)
    ids = [cell.enqueue(Draft(b"%d" % number, extra=Extra(key=f"k{number}"))).ids[0] for number in range(4)]
    assert [find_message(cell.engine, TASKS, one, cell.now)[1].payload for one in ids] == [b"0", b"1", b"2", b"3"]
    assert edit_message(cell.engine, TASKS, ids[3], 1, None, cell.now).priority == 1
    delete_message(cell.engine, TASKS, ids[0], cell.now)
    assert [one.message.payload for one in cell.lease(9)] == [b"3", b"1", b"2"]
    for act in (find_message, delete_message):
        with pytest.raises(MessageNotFound):
            act(cell.engine, TASKS, ids[0], cell.now)


def test_a_queue_is_created_by_its_first_use_where_that_is_allowed(memory: Rig) -> None:
    memory.enqueue(b"m")
    assert TASKS in memory.engine.queues
    with pytest.raises(InvalidName):
        memory.enqueue(b"m", name=("default", "/"))
    create_queue(memory.engine, OTHER, {}, memory.now)
    next(delete_queue(memory.engine, OTHER, memory.clock))
    with pytest.raises(QueueNotFound):
        memory.enqueue(b"m", name=OTHER)
