"""A turn costs what it does, not what there is: idle queues, partitions and groups add nothing to the life of one
message. Counted in function calls, which do not depend on the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from holdfast.core.commands import Draft
from holdfast.store import MemoryDisk, MemoryStore
from tests.engine.calls import calls_of
from tests.engine.rig import TASKS, Rig

SLACK = 12
"""Calls by which two lives may differ: a heap, a hash table and the store's own order are not quite flat."""


@pytest.fixture
def rig() -> Iterator[Rig]:
    disk = MemoryDisk()
    opened = Rig(lambda: MemoryStore(disk))
    yield opened
    opened.close()


def life(rig: Rig) -> None:
    """One message is enqueued and leased in one turn, and acked in the next, which asks for more in vain."""
    engine, now = rig.engine, rig.now
    engine.enqueue(TASKS, [Draft(b"m")], "test", now)
    leased = engine.lease(TASKS, "g", 10, -1, "", "test", now)
    engine.write()
    engine.wake_at()
    assert len(leased) == 1
    engine.ack(TASKS, "g", [leased[0].message.id], [leased[0].token], now, leased[0].partition)
    assert engine.lease(TASKS, "g", 10, -1, "", "test", now) == []
    engine.write()
    engine.wake_at()


def calls_of_life(rig: Rig) -> int:
    for _ in range(120):  # whatever grows with the first lives, in any partition, has grown
        rig.now += 1_000
        life(rig)
    return min(calls_of(lambda: life(rig)) for _ in range(12))


def with_queues(rig: Rig, count: int) -> None:
    rig.create_queue(partitions=4)
    for number in range(count):
        rig.create_queue(("default", f"idle{number}"), partitions=1)


def with_partitions(rig: Rig, count: int) -> None:
    rig.create_queue(partitions=count)


def with_idle_groups(rig: Rig, count: int) -> None:
    rig.create_queue(partitions=4)
    rig.create_group("g")
    for number in range(count):
        rig.create_group(f"idle{number}")


def with_leases(rig: Rig, count: int) -> None:
    """Deliveries that consumers hold, in every partition."""
    rig.create_queue(partitions=8)
    for _ in range(count):
        rig.enqueue(b"held")
    assert len(rig.lease(count)) == count


@pytest.mark.parametrize(
    ("furnish", "few", "many"),
    [(with_queues, 1, 1_000), (with_partitions, 1, 100), (with_idle_groups, 1, 40), (with_leases, 0, 200)],
)
def test_a_life_costs_the_same_beside_what_is_idle(furnish: Callable[[Rig, int], None], few: int, many: int) -> None:
    calls: list[int] = []
    for count in (few, many):
        disk = MemoryDisk()
        rig = Rig(lambda disk=disk: MemoryStore(disk))  # type: ignore[misc]
        furnish(rig, count)
        calls.append(calls_of_life(rig))
        rig.close()
    assert abs(calls[1] - calls[0]) <= SLACK, calls
