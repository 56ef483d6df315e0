"""Every live delivery: of leasing groups, of cursor groups, and of messages that no group exists for."""

from __future__ import annotations

from holdfast.core.commands import Draft, Verb
from holdfast.core.queue import GroupKind
from holdfast.engine.cursors import cursor_commit
from holdfast.engine.leases import LiveDelivery, live_deliveries
from holdfast.units import SECOND
from tests.engine.rig import TASKS, Rig

LOG = ("default", "log")
NEW = ("default", "new")


def live(cell: Rig) -> list[LiveDelivery]:
    return sorted([one for page in live_deliveries(cell.engine, cell.now) for one in page], key=str)


def test_what_is_settled_or_committed_is_not_live(cell: Rig) -> None:
    cell.create_queue(partitions=1, retry={"initial_backoff": "10s"})
    cell.create_group("g")
    cell.create_group("h")
    acked, nacked, leased, ready = cell.enqueue(b"0", b"1", b"2", b"3").ids
    cell.consume(1)
    cell.consume(1, Verb.NACK)
    cell.lease(1)
    assert [one[3:] for one in live(cell) if one.group == "g"] == [
        ("g", nacked, "scheduled", 2),
        ("g", leased, "leased", 1),
        ("g", ready, "ready", 1),
    ]
    assert {one.message_id for one in live(cell) if one.group == "h"} == {acked, nacked, leased, ready}


def test_a_cursor_group_has_what_it_has_not_committed(cell: Rig) -> None:
    cell.create_queue(LOG, partitions=1)
    cell.create_group("log", LOG, GroupKind.CURSOR)
    ids = cell.enqueue(b"0", b"1", b"2", name=LOG).ids
    assert live(cell) == [LiveDelivery("default", "log", 0, "log", one, "unread", 0) for one in ids]
    cell.run(cursor_commit(cell.engine, LOG, "log", 0, 2, cell.clock))
    assert live(cell) == [LiveDelivery("default", "log", 0, "log", ids[2], "unread", 0)]


def test_messages_for_which_no_group_exists_are_live(cell: Rig) -> None:
    cell.create_queue(NEW, partitions=2)
    ids = cell.enqueue(b"a", Draft(b"b", deliver_at=cell.now + SECOND), name=NEW).ids
    assert {(one.group, one.message_id) for one in live(cell)} == {(None, one) for one in ids}


def test_a_cell_without_queues_has_none(memory: Rig) -> None:
    assert live(memory) == []
    memory.create_queue(TASKS)
    assert live(memory) == []
