"""What only the memory store has: crashes, several stores on one disk; and the sorted keys under it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.effects import DeleteRun, DeleteUntil, Op
from holdfast.core.records import Table
from holdfast.errors import Fenced
from holdfast.store import MemoryDisk, MemoryStore
from holdfast.store.sorted_keys import SortedKeys

END = b"\xff" * 8


def content(store: MemoryStore) -> dict[bytes, bytes]:
    return dict(store.scan(Table.READY, b"", END, 1_000_000))


def test_a_crash_loses_what_was_not_synced() -> None:
    store = MemoryStore()
    epoch = store.acquire()
    store.write(epoch, [(Table.READY, b"a", b"1"), (Table.READY, b"b", b"1")])
    store.sync()
    store.write(epoch, [(Table.READY, b"a", b"2"), (Table.READY, b"b", None), (Table.READY, b"c", b"2")])
    store.write(epoch, [(Table.READY, b"", DeleteUntil(END))])
    store.crash()
    assert content(store) == {b"a": b"1", b"b": b"1"}


def test_a_deleted_run_with_another_record_in_it_is_refused() -> None:
    store = MemoryStore()
    epoch = store.acquire()
    keys = [number.to_bytes(8, "big") for number in range(3)]
    store.write(epoch, [(Table.READY, key, b"") for key in keys])
    with pytest.raises(AssertionError, match="no other record"):
        store.write(epoch, [(Table.READY, keys[0], DeleteRun([0, 2]))])
    assert list(content(store)) == keys


@pytest.mark.parametrize("keep", range(5))
def test_a_crash_keeps_the_first_unsynced_writes_each_whole(keep: int) -> None:
    store = MemoryStore()
    epoch = store.acquire()
    for number in range(4):
        store.write(epoch, [(Table.READY, b"k", bytes([number])), (Table.READY, bytes([number]), b"")])
    assert store.disk.unsynced == 4
    store.crash(keep)
    expected = {bytes([number]): b"" for number in range(keep)}
    if keep:
        expected[b"k"] = bytes([keep - 1])
    assert content(store) == expected
    assert store.disk.unsynced == 0


def test_a_crash_ends_the_epoch_and_does_not_give_it_out_again() -> None:
    store = MemoryStore()
    epoch = store.acquire()
    store.crash()
    with pytest.raises(Fenced):
        store.write(epoch, [])
    assert MemoryStore(store.disk).acquire() > epoch


def test_what_was_closed_survives_a_crash() -> None:
    store = MemoryStore()
    store.write(store.acquire(), [(Table.READY, b"k", b"v")])
    store.close()
    store.disk.crash()
    assert content(MemoryStore(store.disk)) == {b"k": b"v"}


def test_the_last_store_to_acquire_a_disk_fences_the_others() -> None:
    disk = MemoryDisk()
    first, second = MemoryStore(disk), MemoryStore(disk)
    old = first.acquire()
    first.write(old, [(Table.READY, b"a", b"1")])
    new = second.acquire()
    assert new > old
    for epoch in (old, new):
        with pytest.raises(Fenced):
            first.write(epoch, [(Table.READY, b"a", b"2")])
    first.close()  # a holder that lost the disk must not disturb the one that has it
    second.write(new, [(Table.READY, b"b", b"2")])
    assert content(second) == {b"a": b"1", b"b": b"2"}


def test_a_disk_that_cannot_crash_remembers_no_writes() -> None:
    store = MemoryStore(MemoryDisk(crashable=False))
    store.write(store.acquire(), [(Table.READY, b"k", b"v")])
    assert store.disk.unsynced == 0
    with pytest.raises(AssertionError):
        store.crash()


ops = st.one_of(
    st.tuples(st.just(Table.READY), st.binary(max_size=2), st.one_of(st.none(), st.binary(max_size=2))),
    st.tuples(st.just(Table.READY), st.binary(max_size=2), st.binary(max_size=2).map(DeleteUntil)),
)


writes = st.lists(st.lists(ops, max_size=5), max_size=5)


@given(before=writes, after=writes, data=st.data())
def test_a_crash_leaves_what_the_kept_writes_alone_would_have_left(
    before: list[list[Op]], after: list[list[Op]], data: st.DataObject
) -> None:
    keep = data.draw(st.integers(0, len(after)))
    crashed, expected = MemoryStore(), MemoryStore()
    for store, writes in ((crashed, after), (expected, after[:keep])):
        epoch = store.acquire()
        for write in before:
            store.write(epoch, write)
        store.sync()
        for write in writes:
            store.write(epoch, write)
    crashed.crash(keep)
    assert content(crashed) == content(expected)


@given(
    script=st.lists(st.tuples(st.booleans(), st.binary(min_size=1, max_size=2)), max_size=60),
    start=st.binary(max_size=2),
    end=st.binary(max_size=2),
)
def test_sorted_keys_are_a_sorted_set(script: list[tuple[bool, bytes]], start: bytes, end: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.store.sorted_keys._BLOCK_MAX", 4)  # many small blocks: every split and merge is met
        keys, model = SortedKeys(), set[bytes]()
        for adding, key in script:
            if adding and key not in model:
                keys.add(key)
                model.add(key)
            elif not adding and model:
                victim = min(model, key=lambda each: (each < key, each))
                keys.remove(victim)
                model.remove(victim)
    inside = sorted(key for key in model if start <= key < end)
    assert list(keys.ascending(start, end)) == inside
    assert list(keys.descending(start, end)) == inside[::-1]
    assert list(keys.ascending(b"", END)) == sorted(model)
