"""Bounds and corners of a shard that a transcript would not show."""

from __future__ import annotations

import pytest

from holdfast.core import shard as shard_module
from holdfast.core.commands import (
    AddGroup,
    CursorCommit,
    CursorRead,
    Draft,
    Edit,
    Enqueue,
    Lease,
    Peek,
    RemoveGroup,
    Settle,
    Settlement,
    Verb,
    Withdraw,
)
from holdfast.core.effects import Missing, Op
from holdfast.core.queue import GroupKind
from holdfast.core.records import Table
from holdfast.engine.browse import browse_messages, browse_range
from holdfast.engine.cursors import cursor_commit, cursor_read
from holdfast.engine.messages import edit_message
from holdfast.engine.queues import purge_queue, update_queue
from holdfast.errors import GroupNotFound, HoldfastError, LeaseLost, WrongGroupKind
from tests.core.bench import NAME, Bench, payloads

SECOND = 1_000_000


def refused(results: list[int | HoldfastError | None]) -> list[bool]:
    return [isinstance(result, LeaseLost) for result in results]


@pytest.mark.parametrize("verb", [Verb.ACK, Verb.NACK])
def test_only_the_last_settlements_are_remembered(verb: Verb) -> None:
    bench = Bench()
    bench.engine.memory.ended_leases.limit = 4
    bench.enqueue("a", "b", "c", "d", "e")
    leased = bench.lease(5)
    bench.settle(leased, verb)
    assert refused(bench.settle(leased, verb)) == [True, True, False, False, False]


def test_one_delivery_acked_twice_in_a_batch() -> None:
    bench = Bench()
    bench.enqueue("a")
    leased = bench.lease()
    assert bench.settle([*leased, *leased]) == [None, None]
    assert bench.queue.depth == 0


def test_a_delivery_that_waits_cannot_be_settled() -> None:
    bench = Bench()
    bench.enqueue("a")
    leased = bench.lease(consumer="c")
    bench.settle(leased, Verb.NACK)
    assert refused(bench.settle(leased, Verb.RELEASE)) == [True]
    by_consumer = Settlement(leased[0].message.id, consumer="c")
    assert refused(bench.engine.settle(NAME, "g", [by_consumer], bench.now)) == [True]


def test_many_extensions_leave_no_trace_of_the_old_deadlines() -> None:
    bench = Bench()
    bench.enqueue("first", "extended")
    _, extended = bench.lease(2)
    for _ in range(3_000):
        bench.now += 1
        bench.settle([extended], Verb.EXTEND)
    assert bench.group.deadlines.size < 1_100


def test_what_was_restored_as_ready_and_edited_since_is_ready_once() -> None:
    bench = Bench(ordering="partition")
    (message_id,) = bench.enqueue("a", key="k")
    bench.settle(bench.lease(), Verb.RELEASE)
    bench.reopen()
    bench.step(Edit(message_id, priority=128))
    bench.advance(0)
    assert payloads(bench.lease(2)) == ["a"]


def test_a_paused_queue_leases_nothing_even_when_asked_at_the_shard() -> None:
    bench = Bench()
    bench.enqueue("a")
    update_queue(bench.engine, NAME, {"paused": True}, bench.now)
    assert bench.step(Lease("g", 1, SECOND)) == []
    assert bench.lease() == []


def test_an_empty_queue_leases_nothing_even_when_asked_at_the_shard() -> None:
    assert Bench().step(Lease("g", 1, SECOND)) == []


def test_what_has_expired_is_not_leased_before_the_sweep_comes() -> None:
    bench = Bench()
    bench.enqueue("good")
    bench.enqueue("early", ttl=SECOND)
    bench.enqueue("behind")
    bench.now += 2 * SECOND
    for limit in (1, 9):
        reply = bench.step(Lease("g", limit, SECOND))
        assert payloads(reply) == ["good"]
        bench.settle(reply, Verb.RELEASE)
    assert bench.step(Lease("g", 1, SECOND)) != []
    assert bench.step(Lease("g", 9, SECOND)) == []
    assert payloads(bench.lease(9)) == ["behind"]


def test_groups_that_are_not_there_or_of_the_other_kind() -> None:
    bench = Bench()
    bench.add_group("log", GroupKind.CURSOR)
    with pytest.raises(WrongGroupKind):
        bench.step(Lease("log", 1, SECOND))
    with pytest.raises(GroupNotFound):
        bench.step(Settle("nobody", []))
    with pytest.raises(WrongGroupKind):
        bench.step(CursorRead("g", 1, 1, 1))
    with pytest.raises(GroupNotFound):
        bench.step(CursorCommit("nobody", 1))


def test_a_group_is_added_once_and_removed_once() -> None:
    bench = Bench()
    before = bench.group
    bench.step(AddGroup(9, "g"))
    assert bench.group is before
    bench.step(RemoveGroup("nobody"))
    assert not bench.shard.head.unneeded_seq


def test_who_has_settled_what_is_read_again_when_too_much_to_remember(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "MASKS_MAX", 2)
    bench = Bench(groups=("g", "h"))
    bench.enqueue("a", "b", "c", "d")
    bench.settle(bench.lease(4))
    assert len(bench.shard.masks) <= 2
    bench.settle(bench.lease(4, group="h"), group="h")
    assert bench.queue.depth == 0
    assert bench.engine.store.scan(Table.SETTLED, b"", b"\xff", 9) == []


def test_heads_are_written_once_for_a_change() -> None:
    bench = Bench()
    bench.step(Lease("g", 1, SECOND))
    first: list[Op] = []
    second: list[Op] = []
    bench.shard.dirty = True
    bench.shard.flush(first)
    bench.shard.flush(second)
    assert [table for table, _, _ in first] == [Table.SHARDS]
    assert second == []


def test_a_record_that_was_not_asked_for_is_asked_for() -> None:
    with pytest.raises(Missing) as missing:
        Bench().shard.get(Table.SETTLED, b"key")
    assert [read.key for read in missing.value.reads] == [b"key"]


def test_what_was_read_for_a_refused_command_is_not_used_for_the_next() -> None:
    bench = Bench(groups=("g", "h"))
    (message,) = bench.enqueue("a")
    leased = bench.lease()
    with pytest.raises(HoldfastError, match="leased in group"):
        edit_message(bench.engine, NAME, message, 1, None, bench.now)
    bench.settle(leased, Verb.RELEASE)
    assert edit_message(bench.engine, NAME, message, 1, None, bench.now).priority == 1


def test_a_cursor_group_that_lags_behind_nothing_has_lost_nothing() -> None:
    bench = Bench(groups=())
    bench.add_group("log", GroupKind.CURSOR, max_lag=1)
    bench.enqueue("a", "b")
    for _ in purge_queue(bench.engine, NAME, lambda: bench.now):
        bench.engine.write()
    bench.advance(0)
    cursor = bench.shard.cursors["log"]
    assert (cursor.head.committed, cursor.head.lost_from) == (1, 0)


def test_browsing_finds_what_stands_behind_many_delayed_messages_that_have_fallen_due() -> None:
    bench = Bench()
    bench.enqueue("a", "b", "c", delay=0)
    bench.enqueue(*[f"late {n}" for n in range(30)], delay=5 * SECOND)
    bench.advance(10 * SECOND)
    bench.advance(SECOND)
    bench.enqueue("d", "e")
    bench.settle(bench.lease(2))
    found = browse_range(bench.engine, NAME, 0, 0, 0, 100, 1 << 20, bench.now).messages
    assert [message.payload.decode() for message, _ in found] == ["c", *[f"late {n}" for n in range(30)], "d", "e"]
    bench.add_group("log", GroupKind.CURSOR)
    seen = cursor_read(bench.engine, NAME, "log", 0, 0, 100, 1 << 20, bench.now)
    assert len(seen.messages) == 33
    for _ in cursor_commit(bench.engine, NAME, "log", 0, seen.next_seq - 1, lambda: bench.now):
        bench.engine.write()
    assert bench.queue.depth == 33, "the leasing group still needs them"
    bench.settle(bench.lease(33))
    assert bench.queue.depth == 0


def test_browsing_skips_what_is_gone_in_bounded_chunks() -> None:
    bench = Bench()
    bench.enqueue(*[f"n{n}" for n in range(25_000)])
    while leased := bench.lease(5_000):
        bench.settle(leased)
    bench.enqueue("last", "very last")
    pages, cursor, found = 0, "", []
    while pages == 0 or cursor:
        page = browse_messages(bench.engine, NAME, 1, cursor, "", "", bench.now)
        pages, cursor = pages + 1, page.cursor
        found += [message.payload for _, message, _ in page.messages]
    assert found == [b"last", b"very last"]
    assert pages <= 5


def test_what_one_cursor_has_passed_waits_for_the_other() -> None:
    bench = Bench(groups=())
    for group in ("one", "two"):
        bench.add_group(group, GroupKind.CURSOR)
    bench.enqueue(*[f"n{n}" for n in range(10)])
    bench.step(CursorCommit("one", 10))
    assert bench.queue.depth == 10
    bench.step(CursorCommit("two", 4))
    assert bench.queue.depth == 6
    bench.step(CursorCommit("two", 10))
    assert bench.queue.depth == 0


def test_a_lease_that_outlived_its_message_is_looked_at_again_when_the_clock_goes_back() -> None:
    for ttl in (100 * SECOND, 5 * SECOND):  # the second expires before the older first: the other index
        bench = Bench(delivery_timeout="1h")
        bench.enqueue("older", ttl=100 * SECOND)
        bench.enqueue("leased", ttl=ttl)
        _, leased = bench.lease(2)
        bench.advance(200 * SECOND)
        bench.now -= 199 * SECOND
        bench.settle([leased], Verb.RELEASE)
        assert bench.queue.depth == 2
        bench.advance(150 * SECOND)
        assert bench.queue.depth == 1
        assert bench.engine.queues["default", "dlq/" + NAME[1]].depth == 1


def test_records_that_are_not_there_are_known_not_to_be_there() -> None:
    bench = Bench()
    bench.enqueue("a")
    bench.engine.write()
    shard = bench.queue.shards[0]
    with pytest.raises(Missing) as missing:
        shard.require_records(range(11, 16))
    shard.supply(missing.value.reads, [[]])
    shard.require_records(range(11, 16))
    assert [shard.find_record(seq) for seq in range(11, 16)] == [None] * 5


def test_withdrawing_what_is_gone_or_leased_changes_nothing() -> None:
    bench = Bench()
    bench.enqueue("acked", "leased", "waiting")
    acked, _ = bench.lease(2)
    bench.settle([acked])
    reply = bench.engine.step(bench.queue, bench.shard, Withdraw([1, 2, 3, 99]), bench.now)
    assert reply == 1
    assert bench.queue.depth == 1


def test_a_dry_run_reports_what_would_be_refused_and_changes_nothing() -> None:
    bench = Bench(max_message_size=3)
    reply = bench.step(Enqueue([Draft(b"ok"), Draft(b"large")], dry_run=True))
    assert (reply.ids, list(reply.errors)) == ([0, 0], [1])
    reply = bench.step(Enqueue([Draft(b"ok"), Draft(b"too")], dry_run=True))
    assert (reply.ids, reply.errors) == ([0, 0], {})
    assert bench.queue.depth == 0


def test_messages_for_one_group_are_skipped_in_bounds_where_nothing_is_journalled() -> None:
    bench = Bench(groups=("g", "other"), journal="off", max_depth=0)
    for _ in range(3):
        bench.step(Enqueue([Draft(b"g's", deliver_at=bench.now + 1) for _ in range(1_000)], group="g"))
    bench.enqueue("for all")
    bench.reopen()
    assert payloads(bench.lease(5, "other")) == ["for all"]
    assert bench.shard.groups["other"].fresh == 0
    assert len(bench.lease(5_000)) == 3_001


def test_what_is_gone_is_not_looked_at() -> None:
    bench = Bench()
    bench.enqueue("acked", "waiting")
    bench.settle(bench.lease(1))
    found = bench.step(Peek([1, 2, 99]))
    assert [message.payload for message, _ in found.messages] == [b"waiting"]
