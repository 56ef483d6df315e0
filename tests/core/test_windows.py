"""A backlog larger than the window comes out in order, whatever happens beyond the window meanwhile."""

from __future__ import annotations

import pytest

from holdfast.core import groups
from holdfast.core.commands import Verb
from holdfast.core.windows import WINDOW_MAX
from holdfast.engine.groups import delete_group
from holdfast.engine.messages import delete_message, edit_message
from tests.core.bench import NAME, Bench, payloads

SECOND = 1_000_000
MANY = 2 * WINDOW_MAX


def numbered(count: int, first: int = 0) -> list[str]:
    return [str(number) for number in range(first, first + count)]


@pytest.mark.parametrize("hot_bytes", [0, 1 << 20])
def test_a_backlog_comes_out_in_order(hot_bytes: int) -> None:
    bench = Bench(hot_bytes=hot_bytes)
    bench.enqueue(*numbered(MANY))
    found: list[str] = []
    while leased := bench.lease(100):
        found += payloads(leased)
        bench.settle(leased)
        if len(found) % 1000 == 0:
            bench.reopen()
    assert found == numbered(MANY)
    assert bench.engine.memory.cache_used_bytes == 0


def test_more_than_a_window_in_one_call() -> None:
    bench = Bench()
    bench.enqueue(*numbered(MANY))
    assert payloads(bench.lease(MANY)) == numbered(MANY)


def test_a_less_urgent_message_waits_for_all_that_is_more_urgent() -> None:
    bench = Bench()
    bench.enqueue("late", priority=200)
    bench.enqueue(*numbered(MANY), priority=1)
    assert payloads(bench.lease(MANY + 1)) == [*numbered(MANY), "late"]


def test_what_is_tried_again_goes_behind_what_was_ready_before_also_beyond_the_window() -> None:
    bench = Bench()
    bench.enqueue(*numbered(MANY))
    bench.settle(bench.lease(1), Verb.NACK, delay=0)
    assert payloads(bench.lease(MANY)) == [*numbered(MANY - 1, 1), "0"]


@pytest.mark.parametrize("batch", [100, WINDOW_MAX])
def test_fresh_messages_wait_in_the_store_when_the_window_is_full(batch: int) -> None:
    bench = Bench()
    bench.enqueue("consumed")
    bench.settle(bench.lease(1), Verb.ACK)
    for first in range(0, MANY, batch):
        bench.enqueue(*numbered(batch, first))
    assert len(bench.group.window(128).loaded) == WINDOW_MAX
    assert payloads(bench.lease(2 * MANY)) == numbered(MANY + (-MANY) % batch)


def test_new_messages_enter_no_window_of_a_group_that_nobody_consumes() -> None:
    bench = Bench()
    bench.enqueue(*numbered(3))
    assert bench.group.windows == {}, "nothing was ever leased"
    assert payloads(bench.lease(3)) == numbered(3)
    for first in range(3, 3 + 2 * MANY, MANY):
        bench.enqueue(*numbered(MANY, first))
    assert not bench.group.follows, "its windows are full"
    assert bench.group.fresh == 2 * MANY
    assert payloads(bench.lease(3 * MANY)) == numbered(2 * MANY, 3)
    bench.enqueue("last")
    assert payloads(bench.lease()) == ["last"]
    bench.enqueue("next")
    assert [place.seq for place in bench.group.window(128).loaded] == [2 * MANY + 5], "it follows again"


def test_a_message_deleted_beyond_the_window_is_never_seen() -> None:
    bench = Bench()
    ids = bench.enqueue(*numbered(MANY))
    delete_message(bench.engine, NAME, ids[-1], bench.now)
    delete_message(bench.engine, NAME, ids[1], bench.now)
    bench.engine.write()
    assert not bench.group.skips
    assert payloads(bench.lease(MANY)) == ["0", *numbered(MANY - 3, 2)]


def test_a_message_edited_to_a_place_beyond_the_window_comes_in_its_turn() -> None:
    bench = Bench()
    bench.enqueue(*numbered(MANY), priority=1)
    (last,) = bench.enqueue("last")
    edit_message(bench.engine, NAME, last, 1, None, bench.now)
    assert payloads(bench.lease(MANY + 1)) == [*numbered(MANY), "last"]


def test_a_key_with_more_messages_than_a_window_keeps_nobody_waiting() -> None:
    bench = Bench()
    bench.enqueue(*numbered(MANY), key="hot")
    bench.enqueue("a", key="a")
    bench.enqueue("b")
    first = bench.lease(10)
    assert payloads(first) == ["0", "a", "b"]
    assert bench.group.fresh == MANY - 1
    bench.settle(first)
    for number in range(1, 20):
        leased = bench.lease(10)
        assert payloads(leased) == [str(number)]
        bench.settle(leased)


def test_messages_of_a_blocked_key_are_skipped_as_they_are_read_and_found_again() -> None:
    bench = Bench()
    bench.enqueue("out", key="hot")
    out = bench.lease()
    bench.enqueue(*numbered(WINDOW_MAX))
    bench.enqueue("hot 1", "hot 2", key="hot")
    bench.enqueue("last")
    assert payloads(bench.lease(2 * WINDOW_MAX)) == [*numbered(WINDOW_MAX), "last"]
    bench.settle(out)
    again = bench.lease(5)
    assert payloads(again) == ["hot 1"]
    bench.settle(again)
    assert payloads(bench.lease(5)) == ["hot 2"]


def test_a_consumer_that_fails_everything_gets_no_fresh_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MAX_RETRYING", 3)
    bench = Bench()
    bench.enqueue(*numbered(5))
    bench.settle(bench.lease(3), Verb.NACK)
    assert bench.lease(5) == []
    bench.advance(5 * SECOND)
    again = bench.lease(1)
    assert payloads(again) == ["0"]
    bench.settle(again)
    assert payloads(bench.lease(5)) == ["3", "4", "1", "2"]


def test_a_group_leases_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MAX_LEASED", 3)
    bench = Bench()
    bench.enqueue(*numbered(5))
    leased = bench.lease(5)
    assert payloads(leased) == numbered(3)
    assert bench.lease(5) == []
    bench.settle(leased[:1])
    assert payloads(bench.lease(5)) == ["3"]


def test_a_key_in_several_groups_goes_on_after_a_restart() -> None:
    bench = Bench(groups=("g", "slow"))
    bench.enqueue(*numbered(12), key="k")
    for number in range(10):
        leased = bench.lease(5)
        assert payloads(leased) == [str(number)]
        bench.settle(leased)
        if number == 8:
            bench.reopen()  # what is ready for its key is so again
    leased = bench.lease(5)
    bench.reopen()  # the message it skipped is behind all those that it has settled
    bench.settle(leased)
    assert payloads(bench.lease(5)) == ["11"]
    assert payloads(bench.lease(5, group="slow")) == ["0"]


def test_a_delayed_message_of_before_is_not_for_a_group_that_started_later() -> None:
    bench = Bench()
    bench.enqueue("before", delay=SECOND)
    bench.add_group("late", earliest=False)
    bench.enqueue("after", delay=SECOND)
    bench.advance(2 * SECOND)
    bench.enqueue("now")
    bench.reopen()
    assert payloads(bench.lease(5, group="late")) == ["after", "now"]
    assert payloads(bench.lease(5)) == ["before", "after", "now"]


def test_nor_when_it_falls_due_behind_others() -> None:
    bench = Bench()
    bench.enqueue("before", delay=SECOND)
    bench.add_group("late", earliest=False)
    bench.enqueue("now")
    bench.advance(2 * SECOND)
    bench.reopen()
    assert payloads(bench.lease(5, group="late")) == ["now"]
    assert payloads(bench.lease(5)) == ["now", "before"]


def test_memory_of_messages_comes_back_when_a_group_goes() -> None:
    bench = Bench(groups=("g", "slow"))
    bench.enqueue("a", "b")
    leased = bench.lease(2)
    for _ in delete_group(bench.engine, NAME, "slow", lambda: bench.now):
        bench.engine.write()
    bench.settle(leased)
    assert bench.engine.memory.cache_used_bytes == 0


def test_a_message_that_is_larger_than_asked_for_goes_alone() -> None:
    bench = Bench()
    bench.enqueue("large")
    assert payloads(bench.engine.lease(NAME, "g", 1, -1, "", "", bench.now, None, 1)) == ["large"]


def test_the_bytes_of_a_lease_are_bounded_over_all_partitions() -> None:
    bench = Bench(partitions=4)
    names = [f"{number:04}" for number in range(12)]
    for name in names:  # each in another partition
        bench.enqueue(name, key=name)
    found = [
        payloads(bench.engine.lease(NAME, "g", 100, -1, "", "", bench.now, None, max_bytes))
        for max_bytes in (11, 1, 4, 1_000)
    ]
    assert found == [names[:2], names[2:3], names[3:4], names[4:]]


def test_records_that_do_not_fit_into_memory_are_read_from_the_store() -> None:
    bench = Bench(hot_bytes=0)
    bench.enqueue("keyed", key="k")
    assert not bench.shard.cached_records
    assert payloads(bench.lease()) == ["keyed"]
