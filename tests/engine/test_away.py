"""A store that does not answer a read, whichever: an operation that has changed nothing ends without a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from holdfast.core.commands import Verb
from holdfast.core.effects import Read
from holdfast.core.records import Table
from holdfast.core.runs import RecordRun
from holdfast.errors import StoreAway
from holdfast.store.contract import Found, Rows
from holdfast.store.memory import MemoryDisk, MemoryStore
from tests.engine.rig import Rig
from tests.engine.test_undo import OPERATIONS, in_memory, prepare, stored

NEVER = 1 << 60


class AwayStore(MemoryStore):
    """As if a network was between: after so many reads none is answered."""

    remote = True
    left = NEVER

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise StoreAway(problem="a test")

    def read(self, reads: Sequence[Read]) -> list[Found]:
        self._count()
        return super().read(reads)

    def get_many(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        self._count()
        return super().get_many(table, keys)

    def scan(self, table: Table, start: bytes, end: bytes, limit: int, reverse: bool = False) -> Rows:
        self._count()
        return super().scan(table, start, end, limit, reverse)

    def scan_runs(self, table: Table, key: bytes, count: int) -> list[RecordRun]:
        self._count()
        return super().scan_runs(table, key, count)


def prepared(*, cold: bool) -> tuple[Rig, AwayStore]:
    """What there is, in memory or after the engine was opened again."""
    disk = MemoryDisk()
    rig = Rig(lambda: AwayStore(disk))
    prepare(rig)
    if cold:
        rig.restart()
    store = rig.engine.store
    assert isinstance(store, AwayStore)
    return rig, store


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_an_operation_that_has_changed_nothing_leaves_no_trace(operation: Callable[[Rig], object], cold: bool) -> None:
    control, _ = prepared(cold=cold)
    expected_in_memory = in_memory(control.engine)
    control.engine.write()
    expected = stored(control)
    for at in range(200):
        rig, store = prepared(cold=cold)
        engine = rig.engine
        engine.begin()
        store.left = at
        try:
            operation(rig)
        except StoreAway:
            store.left = NEVER
        else:
            return
        if not engine.unchanged:
            continue  # the engine is discarded, as after any failure of the store
        assert in_memory(engine) == expected_in_memory
        engine.write()
        assert stored(rig) == expected
        operation(rig)  # nothing of the first attempt is in the way
        engine.write()
        known = in_memory(engine)
        rig.restart()
        assert in_memory(rig.engine) == known
    raise AssertionError("it never ends")


def test_a_cold_lease_over_several_partitions_changes_nothing_whichever_read_is_not_answered() -> None:
    at = 0
    while True:
        rig, store = prepared(cold=True)
        rig.engine.begin()
        store.left = at
        try:
            OPERATIONS["lease"](rig)
        except StoreAway:
            assert rig.engine.unchanged
        else:
            break
        at += 1
    assert at >= 2


def test_an_operation_that_has_changed_something_is_known_to() -> None:
    rig, _ = prepared(cold=False)
    for operation in ("enqueue", "grow", "stage", "ack"):
        rig.engine.begin()
        assert rig.engine.unchanged
        OPERATIONS[operation](rig)
        assert not rig.engine.unchanged, operation
    rig.engine.begin()
    rig.consume(1, Verb.RELEASE)
    rig.engine.begin()
    assert rig.engine.unchanged
