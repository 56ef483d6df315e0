"""The store that fails on demand does so as the contract says."""

from __future__ import annotations

from random import Random

import pytest

from holdfast.core.records import Table
from holdfast.errors import StoreFull, StoreUnavailable
from holdfast.store import Fault, FaultyStore, MemoryStore
from holdfast.store.faulty import queued, scattered

FULL = StoreFull(path="(simulated)")
BROKEN = StoreUnavailable(problem="simulated I/O error")


@pytest.mark.parametrize("after", [False, True])
def test_a_write_fails_before_or_after_it_was_applied(after: bool) -> None:
    store = FaultyStore(MemoryStore(), write=queued([None, Fault(FULL, after=after)]))
    epoch = store.acquire()
    store.write(epoch, [(Table.META, b"a", b"1")])
    with pytest.raises(StoreFull):
        store.write(epoch, [(Table.META, b"b", b"1")])
    assert store.get_many(Table.META, [b"a", b"b"]) == [b"1", b"1" if after else None]


@pytest.mark.parametrize("after", [False, True])
def test_a_sync_fails_before_or_after_it_was_done(after: bool) -> None:
    inner = MemoryStore()
    store = FaultyStore(inner, sync=queued([Fault(BROKEN, after=after)]))
    store.write(store.acquire(), [(Table.META, b"a", b"1")])
    with pytest.raises(StoreUnavailable):
        store.sync()
    inner.crash()
    assert store.get(Table.META, b"a") == (b"1" if after else None)


def test_after_a_failure_writes_and_syncs_are_refused_with_the_same_error_until_reopen() -> None:
    store = FaultyStore(MemoryStore(), write=queued([Fault(FULL)]), reopen=queued([Fault(BROKEN)]))
    epoch = store.acquire()
    with pytest.raises(StoreFull):
        store.write(epoch, [])
    for call in (lambda: store.write(epoch, []), store.sync, store.acquire):
        with pytest.raises(StoreFull):
            call()
    with pytest.raises(StoreUnavailable):
        store.reopen()
    with pytest.raises(StoreUnavailable):
        store.sync()
    store.reopen()
    store.write(store.acquire(), [(Table.META, b"a", b"1")])
    store.sync()
    assert store.get(Table.META, b"a") == b"1"


def test_a_seed_gives_the_same_faults_again_and_about_as_many_as_asked() -> None:
    def faults(seed: int) -> list[tuple[str, bool] | None]:
        plan = scattered(Random(seed), 0.25)
        return [(fault.error.code, fault.after) if fault else None for fault in (plan() for _ in range(400))]

    assert faults(7) == faults(7)
    assert faults(7) != faults(8)
    kinds = {fault for fault in faults(7) if fault}
    assert kinds == {
        ("store_full", False),
        ("store_full", True),
        ("store_unavailable", False),
        ("store_unavailable", True),
    }
    assert 60 < sum(fault is not None for fault in faults(7)) < 140
