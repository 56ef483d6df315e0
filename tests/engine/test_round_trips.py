"""How often calls ask the store: with a network between, each time is a round trip."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from holdfast.core.commands import Draft
from holdfast.core.effects import Read
from holdfast.core.records import Extra, Table
from holdfast.store import MemoryDisk, MemoryStore
from holdfast.store.contract import Found, Rows
from tests.engine.rig import Rig

NEW = ("default", "new")


class CountingStore(MemoryStore):
    """Counts round trips: a read of many is one."""

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
