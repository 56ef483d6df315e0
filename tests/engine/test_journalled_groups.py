"""The journal tells which groups there are: when they come, where they start, and when they go."""

from __future__ import annotations

from holdfast.core.commands import Settlement
from holdfast.core.effects import Op
from holdfast.core.queue import GroupKind
from holdfast.core.records import Table, journal_key
from holdfast.core.states import ABOUT_GROUPS
from holdfast.engine.cell_record import put_cell_record
from holdfast.engine.cursors import cursor_commit
from holdfast.engine.groups import delete_group
from holdfast.engine.queues import delete_queue, update_queue
from tests.engine.rig import TASKS, Rig

CURSOR = GroupKind.CURSOR

Told = list[tuple[str, str | None, str | None, int | None, str | None]]


def told(cell: Rig) -> Told:
    """The events of groups: event, group, kind, start, reason."""
    rows = [row for row in cell.journal() if row.event in ABOUT_GROUPS]
    assert all(row.message_id == 0 for row in rows)
    return [(row.event.value, row.group, row.group_kind, row.start_after, row.reason) for row in rows]


def go(cell: Rig, work: object) -> None:
    for _ in work:  # type: ignore[attr-defined]
        cell.engine.write()


def test_a_group_is_told_when_it_comes_with_where_it_starts_and_when_it_goes(cell: Rig) -> None:
    cell.create_queue(partitions=1)
    first, last = cell.enqueue(b"a", b"b").ids
    cell.create_group("all", earliest=True)
    cell.create_group("new", earliest=False)
    cell.create_group("log", kind=CURSOR, earliest=True)
    cell.create_group("tail", kind=CURSOR, earliest=False)
    go(cell, delete_group(cell.engine, TASKS, "new", cell.clock))
    *created, deleted = told(cell)
    assert [(group, kind) for _, group, kind, _, _ in created] == [
        ("all", "lease"),
        ("new", "lease"),
        ("log", "cursor"),
        ("tail", "cursor"),
    ]
    starts = [start for *_, start, _ in created]
    assert (starts[0], starts[2]) == (0, 0)
    (later,) = cell.enqueue(b"c").ids
    for start in (starts[1], starts[3]):
        assert start is not None
        assert first < last <= start < later
    assert deleted == ("group_deleted", "new", None, None, None)


def test_every_partition_has_its_own_events_and_a_new_one_too(memory: Rig) -> None:
    memory.create_queue(partitions=2)
    memory.create_group("g", earliest=True)
    update_queue(memory.engine, TASKS, {"partitions": 3}, memory.now)
    memory.engine.write()
    rows = [row for row in memory.journal() if row.event in ABOUT_GROUPS]
    assert [(row.partition, row.group, row.start_after) for row in rows] == [(0, "g", 0), (1, "g", 0), (2, "g", 0)]


def test_a_message_that_only_a_deleted_group_needed_is_told_to_be_gone(memory: Rig) -> None:
    memory.create_queue(partitions=1)
    memory.create_group("fast", earliest=True)
    memory.create_group("slow", earliest=True)
    done, waiting = memory.enqueue(b"a", b"b").ids
    (leased,) = memory.lease(group="fast")
    memory.engine.settle(TASKS, "fast", [Settlement(leased.message.id, leased.token)], memory.now)
    go(memory, delete_group(memory.engine, TASKS, "slow", memory.clock))
    ends = [(row.message_id, row.group, row.reason) for row in memory.journal() if row.event == "purged"]
    assert ends == [(done, None, "group_deleted")]
    assert memory.queue().depth == 1, f"{waiting} waits for the other group"


def test_a_queue_that_is_deleted_takes_its_groups_with_it(memory: Rig) -> None:
    for name, journal in ((TASKS, "payload"), (("default", "quiet"), "off")):
        memory.create_queue(name, partitions=2, journal=journal)
        memory.create_group("g", name)
        go(memory, delete_queue(memory.engine, name, memory.clock))
    assert [event for event, *_ in told(memory)] == ["group_created"] * 2 + ["queue_deleted"] * 2


def test_without_a_journal_nothing_is_told_until_it_is_switched_on(memory: Rig) -> None:
    memory.create_queue(partitions=1, journal="off")
    memory.create_group("g", earliest=True)
    memory.create_group("gone", earliest=True)
    go(memory, delete_group(memory.engine, TASKS, "gone", memory.clock))
    assert told(memory) == []
    update_queue(memory.engine, TASKS, {"journal": "metadata"}, memory.now)
    update_queue(memory.engine, TASKS, {"journal": "payload"}, memory.now)
    memory.engine.write()
    assert told(memory) == [("group_created", "g", "lease", 0, "recorded")]


def test_groups_of_before_they_were_journalled_are_recorded_once(cell: Rig) -> None:
    """A cursor group is recorded where it is: where it began is not known."""
    cell.create_queue(partitions=1)
    cell.create_queue(("default", "alone"), partitions=1)
    cell.create_group("work", earliest=True)
    first, second = cell.enqueue(b"a", b"b").ids
    cell.create_group("later", earliest=False)
    for name in ("read", "unread"):
        cell.create_group(name, kind=CURSOR, earliest=True)
    go(cell, cursor_commit(cell.engine, TASKS, "read", 0, 2, cell.clock))
    go(cell, cursor_commit(cell.engine, TASKS, "unread", 0, 1, cell.clock))
    before = told(cell)
    cell.engine.record.groups_journalled = False
    cell.engine.add([put_cell_record(cell.engine.record)])
    cell.restart()
    cell.restart()
    recorded = told(cell)[len(before) :]
    assert [(group, kind, reason) for _, group, kind, _, reason in recorded] == [
        ("work", "lease", "recorded"),
        ("later", "lease", "recorded"),
        ("read", "cursor", "recorded"),
        ("unread", "cursor", "recorded"),
    ]
    work, later, read, unread = (start for *_, start, _ in recorded)
    assert (work, unread) == (0, second - 1)
    assert later is not None
    assert read is not None
    assert first < second <= later <= read


def test_the_store_remembers_how_the_lake_ended_whatever_is_dropped_without_one(cell: Rig) -> None:
    cell.enqueue(b"a")
    removal: list[Op] = [(Table.JOURNAL, journal_key(1), None)]
    cell.engine.exported(3, 5, removal, ("a hash", 2))
    cell.engine.exported(4, 6, [], None)
    cell.engine.write()
    cell.restart()
    record = cell.engine.record
    assert (record.exported_lsn, record.chain_hash, record.chain_length) == (6, "a hash", 2)
