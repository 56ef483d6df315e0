"""What shards keep in memory beside what is leased or waits is bounded over all of them: counted in entries."""

from __future__ import annotations

import pytest

from holdfast.core import memory as memory_module
from holdfast.core.commands import Draft, Verb
from holdfast.core.deliveries import STALE_MAX
from holdfast.core.memory import EndedLeases, Masks, SharedBound
from holdfast.engine import wake_ups
from holdfast.engine.engine import Limits
from holdfast.engine.groups import delete_group
from holdfast.engine.queues import delete_queue, purge_queue
from holdfast.store import MemoryDisk, MemoryStore
from tests.core.bench import Bench
from tests.engine.rig import TASKS, Rig

SECOND = 1_000_000


def rig(remembered_settlements: int = 250_000, settled_cache: int = 250_000, window_places: int = 500_000) -> Rig:
    disk = MemoryDisk()
    limits = Limits(
        remembered_settlements=remembered_settlements, settled_cache=settled_cache, window_places=window_places
    )
    return Rig(lambda: MemoryStore(disk), limits)


def test_who_has_much_loses_the_oldest_and_who_has_little_nothing() -> None:
    bound = SharedBound(100)
    busy, calm, empty = EndedLeases(bound), EndedLeases(bound), EndedLeases(bound)
    empty.remember(1, Verb.NACK, 1)
    bound.forget(empty)
    bound.forget(empty)
    calm.remember(1, Verb.NACK, 10)
    for start in range(0, 1_000, 50):
        tokens = list(range(1_000 + start, 1_050 + start))
        busy.remember_acked(tokens, tokens)
        bound.enforce()
        assert bound.size == len(busy) + len(calm) <= 100
    assert calm.get(1) == (Verb.NACK, 10)
    assert (busy.get(1_999), busy.get(1_000)) == ((Verb.ACK, 1_999), None)


def test_holders_that_are_empty_have_no_share() -> None:
    bound = SharedBound(10)
    masks = [Masks(bound) for _ in range(5)]
    for one in masks:
        one.put(1, 1)
        one.drop(1)
        one.drop(1)
    masks[0].put(1, 1)
    for seq in range(1, 13):
        masks[0].put(seq, 3)
    bound.enforce()
    assert (len(masks[0]), bound.size) == (7, 7)


def test_settlements_are_remembered_for_the_node_and_forgotten_oldest_first() -> None:
    cell = rig(remembered_settlements=40)
    names = [("default", f"q{number}") for number in range(10)]
    for name in names:
        cell.create_queue(name, partitions=2)
        for _ in range(10):
            cell.enqueue(b"m", b"m", name=name)
            cell.consume(2, name=name)
            assert cell.engine.memory.ended_leases.size <= 40
    held = [len(shard.groups["g"].ended) for queue in cell.engine.queues.values() for shard in queue.shards]
    assert sum(held) == cell.engine.memory.ended_leases.size


def test_a_settle_of_ten_thousand_can_be_repeated() -> None:
    cell = rig()
    cell.create_queue(partitions=1)
    cell.enqueue(*[b"m"] * 10_000)
    leased = cell.lease(10_000)
    cell.settle(leased)
    assert cell.settle(leased) == [None] * 10_000


def test_a_group_or_queue_that_is_deleted_is_forgotten() -> None:
    cell = rig()
    cell.create_queue(partitions=2)
    for group in ("g", "h"):
        cell.create_group(group)
    cell.enqueue(b"a", b"b")
    cell.consume(2, group="g")
    cell.consume(1, group="h")
    memory = cell.engine.memory
    assert (memory.ended_leases.size, memory.masks.size) == (3, 1)
    cell.run(delete_group(cell.engine, TASKS, "g", cell.clock))
    assert memory.ended_leases.size == 1
    cell.run(delete_queue(cell.engine, TASKS, cell.clock))
    assert (memory.ended_leases.size, memory.masks.size, memory.cache_used_bytes) == (0, 0, 0)


def test_who_has_settled_messages_is_cached_for_the_node() -> None:
    cell = rig(settled_cache=20)
    for number in range(8):
        name = ("default", f"q{number}")
        cell.create_queue(name, partitions=2)
        cell.create_group("g", name)
        cell.create_group("h", name)
        cell.enqueue(*[b"m"] * 10, name=name)
        cell.consume(10, name=name)
        assert cell.engine.memory.masks.size <= 20
    held = [len(shard.masks) for queue in cell.engine.queues.values() for shard in queue.shards]
    assert sum(held) == cell.engine.memory.masks.size
    for number in range(8):  # what was forgotten is read
        name = ("default", f"q{number}")
        cell.consume(10, group="h", name=name)
        assert cell.live(name) == []


def shown(cell: Rig) -> int:
    """Messages in all windows."""
    return sum(
        len(group.places)
        for queue in cell.engine.queues.values()
        for shard in queue.shards
        for group in shard.groups.values()
    )


def test_windows_are_bounded_for_the_node_and_what_they_lost_is_read_again_in_order() -> None:
    cell = rig(window_places=100)
    names = [("default", f"q{number}") for number in range(6)]
    for name in names:
        cell.create_queue(name, partitions=1)
        cell.create_group("g", name)
        cell.enqueue(*[b"%03d" % number for number in range(90)], name=name)
        assert shown(cell) <= cell.engine.memory.places.size <= 100
    found: dict[str, list[bytes]] = {name[1]: [] for name in names}
    for _ in range(30):
        for name in names:
            leased = cell.lease(3, name=name)
            found[name[1]] += [one.message.payload for one in leased]
            cell.settle(leased, name=name)
            cell.enqueue(b"new", name=name)
            assert shown(cell) <= cell.engine.memory.places.size <= 100
    assert found == {name[1]: [b"%03d" % number for number in range(90)] for name in names}


def test_a_group_that_loses_the_end_of_its_windows_follows_no_more_until_it_has_read_it() -> None:
    cell = rig(window_places=100)
    cell.create_queue(partitions=1)
    cell.create_group("g")
    cell.enqueue(b"first")
    cell.consume(1)
    [shard] = cell.queue().shards
    group = shard.groups["g"]
    cell.enqueue(*[b"m"] * 60, Draft(b"urgent", priority=1))
    assert (len(group.places), group.follows) == (61, True)
    assert (group.places.trim(40), group.follows) == (21, True), "the window of urgent ones is still complete"
    assert (group.places.trim(0), group.follows) == (40, False)
    cell.enqueue(b"last")
    assert len(group.places) == 0
    assert [one.message.payload for one in cell.lease(100)] == [b"urgent", *[b"m"] * 60, b"last"]


def test_windows_of_what_is_deleted_count_no_more() -> None:
    cell = rig()
    cell.create_queue(partitions=2)
    for group in ("g", "h"):
        cell.create_group(group)
        cell.enqueue(b"m")
        cell.consume(9, group=group)
    cell.enqueue(*[b"m"] * 10)
    before = cell.engine.memory.places.size
    cell.run(delete_group(cell.engine, TASKS, "g", cell.clock))
    assert cell.engine.memory.places.size <= before - 10
    cell.run(delete_queue(cell.engine, TASKS, cell.clock))
    cell.engine.memory.places.enforce()
    assert cell.engine.memory.places.size == 0


def test_masks_of_many_groups_are_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "MASK_BITS_MAX", 3)
    bench = Bench(groups=("a", "b", "c", "d", "e"))
    bench.enqueue("m", "n")
    bench.settle(bench.lease(2, "a"), group="a")
    assert len(bench.shard.masks) == 2
    bench.settle(bench.lease(2, "e"), group="e")
    assert (len(bench.shard.masks), bench.engine.memory.masks.size) == (0, 0)
    for group in ("b", "c", "d"):
        bench.settle(bench.lease(2, group), group=group)
    assert bench.shard.live == 0


def test_wake_ups_that_are_replaced_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake_ups, "STALE_MAX", 5)
    cell = rig()
    cell.create_queue(partitions=1, message_ttl="0s")
    for number in range(200):
        cell.engine.lease(TASKS, "g", 1, (1_000 - number) * SECOND, "", "", cell.now)
        cell.enqueue(b"m")
        cell.engine.lease(TASKS, "g", 1, (1_000 - number) * SECOND, "", "", cell.now)
        cell.engine.write()
        assert len(cell.engine.wake_ups) <= 2 * 1 + 5
    cell.advance(1_001 * SECOND)
    assert sum(shard.groups["g"].leased for shard in cell.queue().shards) == 0


def test_backoffs_of_what_was_purged_do_not_pile_up() -> None:
    cell = rig()
    cell.create_queue(partitions=1, retry={"initial_backoff": "1h", "max_backoff": "1h"})
    cell.create_group("g")
    for _ in range(6):
        cell.enqueue(*[b"m"] * 100)
        cell.consume(100, Verb.NACK)
        cell.run(purge_queue(cell.engine, TASKS, cell.clock))
        cell.enqueue(b"m")
        assert len(cell.queue().shards[0].groups["g"].backoffs) <= 2 * 101 + STALE_MAX
        cell.run(purge_queue(cell.engine, TASKS, cell.clock))
    cell.enqueue(b"last")
    cell.consume(1, Verb.NACK)
    cell.advance(3_601 * SECOND)
    assert [one.message.payload for one in cell.lease(9)] == [b"last"]
