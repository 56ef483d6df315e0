"""How often calls ask the store: with a network between, each time is a round trip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from holdfast.core.commands import Command, Draft, Verb
from holdfast.core.effects import Outcome, Read
from holdfast.core.records import Extra, Table
from holdfast.core.shard import Shard
from holdfast.engine.browse import browse_messages, finish, partition_bounds
from holdfast.engine.leases import leases_of
from holdfast.engine.messages import find_message
from holdfast.store import MemoryDisk, MemoryStore
from holdfast.store.contract import Found, Rows
from tests.engine.rig import TASKS, Rig

R = TypeVar("R")

NEW = ("default", "new")


class CountingStore(MemoryStore):
    """Counts round trips: a read of many is one."""

    remote = True

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__(disk)
        self.trips = 0
        self._reading = False

    def _ask(self) -> None:
        self.trips += not self._reading

    def read(self, reads: Sequence[Read]) -> list[Found]:
        self._ask()
        self._reading = True
        try:
            return super().read(reads)
        finally:
            self._reading = False

    def get(self, table: Table, key: bytes) -> bytes | None:
        self._ask()
        return super().get(table, key)

    def get_many(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        self._ask()
        return super().get_many(table, keys)

    def scan(self, table: Table, start: bytes, end: bytes, limit: int, reverse: bool = False) -> Rows:
        self._ask()
        return super().scan(table, start, end, limit, reverse)


class CountingRig(Rig):
    def __init__(self) -> None:
        disk = MemoryDisk(crashable=False)
        super().__init__(lambda: CountingStore(disk))

    def trips(self, work: Callable[[], object]) -> int:
        """How many `work` takes; a store that it opens has none before."""
        self._counting().trips = 0
        work()
        return self._counting().trips

    def _counting(self) -> CountingStore:
        store = self.engine.store
        assert isinstance(store, CountingStore)
        return store


@pytest.fixture
def rig() -> CountingRig:
    return CountingRig()


def test_opening_a_thousand_queues_of_ten_partitions_takes_a_dozen(rig: CountingRig) -> None:
    for number in range(1_000):
        rig.create_queue(("default", f"queue{number}"), partitions=10)
    assert rig.trips(rig.restart) <= 12
    assert len(rig.engine.queues) == 1_000


def test_the_first_messages_of_a_new_queue_take_none(rig: CountingRig) -> None:
    assert rig.trips(lambda: rig.enqueue(*[b"payload"] * 100, name=NEW)) == 0


def test_a_hundred_message_ids_of_their_producer_are_looked_up_in_one(rig: CountingRig) -> None:
    rig.create_queue(partitions=10)
    drafts = [Draft(b"payload", extra=Extra(message_id=f"m{n}", key=f"k{n}")) for n in range(100)]
    rig.restart()
    assert rig.trips(lambda: rig.enqueue(*drafts)) == 1
    assert not rig.enqueue(*drafts).errors


def test_acking_what_was_leased_takes_none(rig: CountingRig) -> None:
    rig.create_queue(partitions=10)
    rig.create_group("g")
    rig.enqueue(*[Draft(b"payload", extra=Extra(key=f"k{n}")) for n in range(100)])
    leased = rig.lease(100)
    assert rig.trips(lambda: rig.settle(leased)) == 0


def backlog(rig: CountingRig, count: int, groups: int = 1, ttl: int = -1) -> list[int]:
    """Messages in ten partitions, of which nothing is in memory; their ids."""
    rig.create_queue(partitions=10)
    for number in range(groups):
        rig.create_group(f"g{number or ''}")
    drafts = [Draft(b"payload", ttl=ttl, extra=Extra(key=f"k{n}")) for n in range(count)]
    ids = rig.enqueue(*drafts).ids
    rig.restart()
    return ids


def test_leasing_a_hundred_from_a_cold_backlog_takes_two_and_the_next_one(rig: CountingRig) -> None:
    backlog(rig, 1_000)
    assert rig.trips(lambda: rig.lease(100)) <= 2
    leased = []
    assert rig.trips(lambda: leased.extend(rig.lease(100))) <= 1
    assert len(leased) == 100


def test_a_lease_that_takes_no_more_bytes_leaves_nothing_stale(rig: CountingRig) -> None:
    backlog(rig, 100)
    found = [rig.lease(100, max_bytes=50) for _ in range(15)]
    assert [len(leased) for leased in found] == [7] * 14 + [2]
    assert len({one.message.id for leased in found for one in leased}) == 100


@pytest.mark.parametrize("groups", [1, 2])
def test_rejecting_a_hundred_takes_six(rig: CountingRig, groups: int) -> None:
    backlog(rig, 100, groups)
    leased = rig.lease(100)
    rig.restart()
    assert rig.trips(lambda: rig.settle(leased, Verb.REJECT)) <= 6
    assert len(rig.live(("default", "dlq/tasks"))) == 100


def test_acking_a_hundred_that_another_group_has_not_settled_takes_two(rig: CountingRig) -> None:
    backlog(rig, 100, groups=2)
    leased = rig.lease(100)
    rig.restart()
    assert rig.trips(lambda: rig.settle(leased)) <= 2


def test_the_expiry_of_a_thousand_takes_sixty(rig: CountingRig) -> None:
    backlog(rig, 1_000, ttl=1_000_000)
    assert rig.trips(lambda: rig.advance(2_000_000)) <= 60
    assert rig.live() == []
    assert len(rig.live(("default", "dlq/tasks"))) == 1_000


def test_finding_one_message_of_twenty_thousand_takes_five(rig: CountingRig) -> None:
    ids = backlog(rig, 20_000)
    for message_id in (ids[0], ids[7_777], ids[-1]):
        assert rig.trips(lambda message_id=message_id: find_message(rig.engine, TASKS, message_id, rig.now)) <= 5  # type: ignore[misc]
        assert find_message(rig.engine, TASKS, message_id, rig.now)[1].id == message_id


def test_browsing_a_hundred_takes_two_a_round(rig: CountingRig) -> None:
    backlog(rig, 1_000)
    assert rig.trips(lambda: browse_messages(rig.engine, TASKS, 100, "", "", "", rig.now)) <= 20


def test_where_messages_since_an_instant_begin_takes_five(rig: CountingRig) -> None:
    backlog(rig, 10_000)
    since = rig.now
    rig.now += 1
    assert rig.trips(lambda: finish(partition_bounds(rig.engine, TASKS, since, rig.clock))) <= 5


def test_what_a_consumer_holds_takes_two(rig: CountingRig) -> None:
    backlog(rig, 1_000)
    leased = rig.lease(100, consumer="worker")
    rig.restart()
    assert rig.trips(lambda: leases_of(rig.engine, TASKS, "g", "worker", "test", rig.now)) <= 2
    assert leases_of(rig.engine, TASKS, "g", "worker", "test", rig.now) == sorted(leased, key=lambda one: one.token)


def test_what_was_read_for_steps_that_failed_is_read_again(rig: CountingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    backlog(rig, 100)
    leased = rig.lease(100)
    rig.restart()
    shards = rig.queue().shards
    step, left = type(shards[0]).step, [2 * len(shards) - 1]

    def failing(shard: Shard, command: Command[R], now: int) -> Outcome[R]:
        left[0] -= 1
        if left[0] == 0:
            raise ZeroDivisionError
        return step(shard, command, now)

    with monkeypatch.context() as patch:
        patch.setattr(Shard, "step", failing)
        with pytest.raises(ZeroDivisionError):
            rig.settle(leased, Verb.REJECT)
    assert [shard._have for shard in shards] == [{}] * len(shards)
