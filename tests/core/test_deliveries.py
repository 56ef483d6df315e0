"""Leases are columns of their batch until one of them is checked out; acks are columnar."""

from __future__ import annotations

from random import Random

import pytest

from holdfast.core.commands import Leased, Verb
from holdfast.core.deliveries import Deliveries, Delivery, LeaseBatch, first_leases
from holdfast.core.journal import EntryKind, decoded, read_block
from holdfast.core.records import NO_EXTRA, Message, Place, Table
from holdfast.errors import HoldfastError, LeaseLost
from holdfast.units import NEVER
from tests.core.bench import NAME, Bench

SECOND = 1_000_000
NOW, DEADLINE = 1_000, 9_000
END = b"\xff" * 32  # after every key


def batch(*ids: int, flags: int = 0, key: bytes = b"") -> LeaseBatch:
    """Leases of these messages, each under a token a thousand higher than its id."""
    places = [Place(each, each, key, flags, 128, 10) for each in ids]
    messages = [Message(each, each, 128, each, 0, 0, NO_EXTRA, b"") for each in ids]
    tokens = [each + 1_000 for each in ids]
    return LeaseBatch(tokens[0], first_leases(places, messages, tokens, NOW, DEADLINE, "ann", "http"))


def leased(*batches: LeaseBatch) -> Deliveries:
    deliveries = Deliveries()
    for one in batches:
        deliveries.lease(one)
    return deliveries


def single(message_id: int, token: int, consumer: str = "") -> Delivery:
    return Delivery(
        message_id, 1, 128, 1, 1, b"", 0, 0, 77, 0, token=token, deadline=DEADLINE, consumer=consumer, protocol="http"
    )


def test_a_delivery_that_is_checked_out_has_an_object_of_its_own() -> None:
    granted = batch(1, 2)
    deliveries = leased(granted)
    found = deliveries.checkout(2)
    assert (found.id, found.token, found.deadline, found.consumer) == (2, 1_002, DEADLINE, "ann")
    found.failures = 3
    assert deliveries.get(2) is deliveries.checkout(2) is found
    assert granted.made == 0b10
    assert deliveries.get(3) is None
    assert 3 not in deliveries
    with pytest.raises(KeyError):
        deliveries.checkout(3)
    deliveries.remove([1])
    assert 1 not in deliveries
    assert len(deliveries) == 1


def test_a_delivery_that_is_only_read_stays_part_of_its_batch() -> None:
    granted = batch(1, 2)
    deliveries = leased(granted)
    read = deliveries.get(2)
    assert read is not None
    assert read == deliveries[2]
    assert read is not deliveries[2]
    read.failures = 3
    assert deliveries[2].failures == 0
    assert granted.made == 0
    assert deliveries.parts([1, 2], [1_001, 1_002]) == ([(granted, 0, 2)], [])


def test_questions_change_nothing() -> None:
    granted = batch(1, 2)
    deliveries = leased(granted)
    deliveries[9] = single(9, 1_009, "ann")
    deliveries[8] = single(8, 0)
    assert [one.id for one in deliveries.values()] == [1, 2, 9, 8]
    assert [one.id for one in deliveries.leased_to("ann", "http")] == [1, 2, 9]
    assert deliveries.leased_to("bob", "http") == []
    assert deliveries.enqueued_at(100) == [1, 2, 77, 77]
    assert granted.made == 0
    assert deliveries.has_all([1, 2, 8])
    assert not deliveries.has_all([1, 3])
    assert deliveries.has_none([3, 4])
    assert not deliveries.has_none([3, 9])


def test_a_lease_is_current_by_token_and_deadline() -> None:
    granted = batch(1, 2)
    deliveries = leased(granted)
    deliveries[9] = single(9, 1_009)
    assert deliveries.is_leased(2, 1_002, DEADLINE)
    assert deliveries.is_leased(9, 1_009, DEADLINE)
    assert not deliveries.is_leased(2, 1_001, DEADLINE)
    assert not deliveries.is_leased(2, 1_002, DEADLINE + 1)
    assert not deliveries.is_leased(9, 1_008, DEADLINE)
    assert not deliveries.is_leased(3, 1_003, DEADLINE)
    assert granted.made == 0


def test_the_message_of_a_token() -> None:
    deliveries = leased(batch(1, 2, 3), batch(4, 5))
    assert [deliveries.of_token(token) for token in (1_001, 1_003, 1_005)] == [1, 3, 5]
    deliveries.checkout(2).token = 55
    assert [deliveries.of_token(token) for token in (1_002, 55)] == [None, 2], "it was leased again"
    assert deliveries.checkout(3).token == 1_003
    assert deliveries.of_token(1_003) == 3, "as its batch has it, and in its own right"
    deliveries.remove([1])
    assert deliveries.of_token(1_001) is None


@pytest.mark.parametrize(
    ("first", "ids", "at", "count"),
    [
        (0, [1, 2, 3, 4], 0, 4),
        (1, [2, 3], 0, 2),
        (1, [9, 2, 3, 7], 1, 2),
        (0, [1, 3, 2], 0, 1),
        (3, [4, 1], 0, 1),
        (0, [2, 1], 0, 0),
    ],
)
def test_how_much_of_a_batch_is_asked_for_in_its_order(first: int, ids: list[int], at: int, count: int) -> None:
    assert batch(1, 2, 3, 4).count_matching(first, ids, [each + 1_000 for each in ids], at) == count


def test_only_what_is_as_it_was_given_counts() -> None:
    ids, tokens = [1, 2, 3], [1_001, 1_002, 1_003]
    assert batch(*ids).count_matching(0, ids, [1_001, 1_002, 7], 0) == 2
    one = batch(*ids)
    one.make(1)
    assert one.count_matching(0, ids, tokens, 0) == 1
    one.ended |= 1
    assert one.count_matching(2, [3], [1_003], 0) == 1


def test_the_deliveries_under_some_tokens_and_those_that_are_lost() -> None:
    first, second = batch(1, 2, 3, 4), batch(5, 6)
    deliveries = leased(first, second)
    own = deliveries.checkout(3)
    ids = [5, 1, 2, 3, 4, 9, 6]
    tokens = [each + 1_000 for each in ids]
    tokens[-1] = 7
    expected = [(second, 0, 1), (first, 0, 2), (own, 0, 1), (first, 3, 1)]
    assert deliveries.parts(ids, tokens) == (expected, [5, 6])
    assert deliveries.parts([3], [7]) == ([], [0])


class Counted(int):
    """A number that counts how often it is compared."""

    compared = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return int(self) == other

    def __ne__(self, other: object) -> bool:
        Counted.compared += 1
        return int(self) != other


@pytest.mark.parametrize("count", [1_000, 4_000])
@pytest.mark.parametrize("order", ["shuffled", "stale", "reversed", "swapped"])
def test_acks_out_of_order_cost_no_more_each_in_a_large_batch(
    order: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counted, "compared", 0)
    ids = list(range(1, count + 1))
    deliveries = leased(batch(*ids))
    asked, stale = list(ids), int(order == "stale")
    if order == "shuffled":
        Random(1).shuffle(asked)
    elif order == "reversed":
        asked.reverse()
    elif order == "swapped":
        asked[::2], asked[1::2] = asked[1::2], asked[::2]
    parts, lost = deliveries.parts([Counted(each) for each in asked], [Counted(each + 1_000 + stale) for each in asked])
    assert sum(part[2] for part in parts) + len(lost) == count
    assert bool(lost) == bool(stale)
    assert Counted.compared < 40 * count


def test_a_long_run_ends_where_a_lease_is_another() -> None:
    ids = list(range(1, 3_001))
    granted = batch(*ids)
    for end in (1, 8, 9, 10, 40, 41, 42, 1_000, 2_999, 3_000):
        asked = ids[:end] + [9_999] * (3_000 - end)
        assert granted.count_matching(0, asked, [each + 1_000 for each in asked], 0) == end
        tokens = [each + 1_000 + (each > end) for each in ids]
        assert granted.count_matching(0, ids, tokens, 0) == end
        assert granted.count_matching(0, [7, *ids], [7, *tokens], 1) == end


def test_what_nobody_has_leased_has_no_token() -> None:
    deliveries = Deliveries()
    deliveries[8] = single(8, 0)
    assert deliveries.parts([8], [0]) == ([], [0])
    assert deliveries.lease_deadline(8, 0) is None
    assert deliveries.of_token(0) is None


# --- acks, columnar -----------------------------------------------------------------------------------------------


def ack(bench: Bench, found: list[Leased], partition: int = -1, group: str = "g") -> list[bool]:
    """Which of them were done."""
    results = bench.engine.ack(
        NAME, group, [one.message.id for one in found], [one.token for one in found], bench.now, partition
    )
    bench.engine.write()
    return [done(result) for result in results]


def done(result: int | HoldfastError | None) -> bool:
    assert result is None or isinstance(result, LeaseLost)
    return result is None


def acked(bench: Bench) -> list[int]:
    """The messages that the journal says were acked, in its order."""
    blocks = bench.engine.store.scan(Table.JOURNAL, b"", END, 1_000)
    entries = [entry for _, value in blocks for entry in decoded(read_block(value))]
    return [message_id for entry in entries if entry[0] == EntryKind.ACKED for message_id in entry[5]]


def left(bench: Bench) -> list[tuple[bytes, bytes]]:
    """Records of what is out or waits."""
    tables = (Table.LEASES, Table.DELIVERIES, Table.READY, Table.KEYED)
    return [row for table in tables for row in bench.engine.store.scan(table, b"", END, 1_000)]


def test_a_lease_is_acked_as_a_whole_in_parts_and_out_of_order() -> None:
    bench = Bench()
    bench.enqueue(*"abcdefgh")
    found = bench.lease(6)
    assert ack(bench, found[:2]) == [True] * 2
    assert ack(bench, [found[5], found[2]], partition=0) == [True] * 2
    assert bench.group.leased == 2
    bench.reopen()
    assert sorted(one.id for one in bench.group.deliveries.values()) == [one.message.id for one in found[3:5]]
    assert ack(bench, found[3:5]) == [True] * 2
    assert ack(bench, bench.lease(2)) == [True] * 2
    assert bench.queue.depth == 0
    assert len(bench.group.deliveries) == 0
    assert left(bench) == []


def test_what_was_asked_about_is_acked_with_the_rest() -> None:
    bench = Bench()
    bench.enqueue("a", "b", "c", priority=3)
    bench.enqueue("d", priority=5)
    found = bench.lease(4)
    bench.settle([found[1]], Verb.EXTEND)
    assert ack(bench, found) == [True] * 4
    assert acked(bench) == [one.message.id for one in found]
    assert bench.queue.depth == 0
    assert left(bench) == []


def test_one_that_was_lost_does_not_keep_the_others() -> None:
    bench = Bench()
    bench.enqueue("a", "b", "c")
    found = bench.lease(3)
    bench.settle([found[1]], Verb.NACK)
    assert ack(bench, found) == [True, False, True]
    assert ack(bench, found) == [True, False, True], "the same again is answered the same"
    assert bench.queue.depth == 1


def test_one_that_nobody_knows_is_lost() -> None:
    bench = Bench()
    bench.enqueue("a")
    found = bench.lease()
    results = bench.engine.ack(NAME, "g", [found[0].message.id, 5], [found[0].token, 6], bench.now)
    assert [done(result) for result in results] == [True, False]
    assert bench.queue.depth == 0


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("groups", [("g",), ("g", "h")])
def test_one_that_waits_for_another_attempt_is_not_acked_without_a_token(
    groups: tuple[str, ...], key: str | None
) -> None:
    bench = Bench(groups)
    bench.enqueue("a", key=key)
    found = bench.lease()
    bench.settle(found, Verb.NACK, delay=0)
    results = bench.engine.ack(NAME, "g", [found[0].message.id], [0], bench.now)
    assert [done(result) for result in results] == [False]
    assert bench.group.leased == 0
    assert ack(bench, bench.lease()) == [True]


def test_acked_twice_in_one_call() -> None:
    bench = Bench()
    bench.enqueue("a", "b")
    found = bench.lease(2)
    assert ack(bench, [*found, found[0]]) == [True] * 3
    assert bench.queue.depth == 0


def test_over_several_partitions() -> None:
    bench = Bench(partitions=3)
    for name in "abcdef":
        bench.enqueue(name)
    found = bench.lease(6)
    assert {one.partition for one in found} == {0, 1, 2}
    assert ack(bench, found) == [True] * 6
    assert bench.queue.depth == 0


def test_with_keys_the_next_message_of_each_is_ready() -> None:
    bench = Bench()
    bench.enqueue("a", "b", key="k")
    found = bench.lease(2)
    assert ack(bench, found) == [True]
    assert ack(bench, bench.lease(2)) == [True]
    assert bench.queue.depth == 0


def test_with_another_group_the_message_stays_for_it() -> None:
    bench = Bench(groups=("g", "h"))
    bench.enqueue("a", "b")
    assert ack(bench, bench.lease(2)) == [True] * 2
    assert bench.queue.depth == 2
    assert ack(bench, bench.lease(2, group="h"), group="h") == [True] * 2
    assert bench.queue.depth == 0


def test_a_lease_that_ended_is_not_acked() -> None:
    bench = Bench()
    bench.enqueue("a", "b")
    found = bench.lease(2)
    bench.advance(3_600 * SECOND)
    assert ack(bench, found) == [False] * 2
    assert bench.queue.depth == 2


# --- questions --------------------------------------------------------------------------------------------------------


def test_the_deadline_of_a_lease() -> None:
    deliveries = leased(batch(1, 2))
    deliveries[9] = single(9, 1_009)
    found = [deliveries.lease_deadline(*pair) for pair in ((1, 1_001), (1, 7), (9, 1_009), (9, 7), (3, 1_003))]
    assert found == [DEADLINE, None, DEADLINE, None, None]


def test_a_group_that_there_is_not_has_no_deliveries_whatever_is_done_to_them() -> None:
    shard = Bench().shard
    shard.deliveries_of("nobody")[9] = single(9, 1_009)
    assert len(shard.deliveries_of("nobody")) == 0


def test_the_statistics_of_a_group() -> None:
    bench = Bench()
    bench.enqueue("consumed")
    bench.settle(bench.lease(1), Verb.ACK)
    assert bench.shard.group_counts("g").oldest_at is None
    bench.enqueue("a", "b", "c")
    first = bench.now
    assert bench.shard.group_counts("g").oldest_at == first
    bench.advance(SECOND)
    bench.settle(bench.lease(2)[1:], Verb.NACK)
    counts = bench.shard.group_counts("g")
    assert (counts.ready, counts.waiting, counts.leased, counts.oldest_at) == (1, 1, 1, first)
    assert counts.counters == {"leased": 3, "acked": 1, "failed:nack": 1}
    assert bench.shard.counters() == [counts.counters]
    assert sum(counts.delivery_times) == 3
    assert sum(counts.processing_times) == 1


def test_how_a_lease_ended_is_remembered_by_its_token() -> None:
    bench = Bench()
    bench.enqueue("a", "b", "c")
    acked, failed, held = bench.lease(3)
    bench.settle([acked])
    bench.settle([failed], Verb.NACK)
    assert bench.shard.ended_message("g", acked.token) == acked.message.id
    assert bench.shard.ended_message("g", failed.token) == failed.message.id
    assert bench.shard.ended_message("g", held.token) is None
    assert bench.shard.ended_message("nobody", acked.token) is None


def test_leases_that_have_all_ended_are_not_restored() -> None:
    group = Bench().group
    ended = batch(1, 2)
    group.restore_batch(LeaseBatch(ended.token, ended.leases, 0b11))
    assert (len(group.deliveries), group.leased, group.wake_at()) == (0, 0, NEVER)


def test_restored_leases_are_acked_columnar() -> None:
    bench = Bench()
    bench.enqueue(*"abcdefgh")
    found = bench.lease(8)
    bench.settle(found[3:4])
    bench.reopen()
    assert [type(part) for part, _, _ in bench.group.deliveries.parts(*_pairs(found))[0]] == [LeaseBatch, LeaseBatch]
    assert ack(bench, found[:3] + found[4:]) == [True] * 7
    assert not bench.engine.store.scan(Table.LEASES, b"", END, 10)


def _pairs(found: list[Leased]) -> tuple[list[int], list[int]]:
    return [one.message.id for one in found], [one.token for one in found]
