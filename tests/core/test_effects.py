"""Putting and deleting many records: together where they lie in a row, and never one that was not meant."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.effects import DeleteRun, DeleteUntil, deletions, puts
from holdfast.core.records import Table, ready_key, ready_prefix
from holdfast.core.runs import RecordRun
from holdfast.store.memory import MemoryStore

PREFIX = ready_prefix(7, 128)
numbers = st.lists(st.integers(0, 300), unique=True, max_size=200)


def key(number: int) -> bytes:
    return ready_key(7, 128, number)


@given(numbers)
def test_what_is_named_goes_and_nothing_else(named: list[int]) -> None:
    store = MemoryStore()
    epoch = store.acquire()
    store.write(epoch, [(Table.READY, key(number), b"") for number in range(302)])
    store.write(epoch, deletions(Table.READY, PREFIX, named))
    left = [stored for stored, _ in store.scan(Table.READY, key(0), key(1_000), 1_000)]
    assert left == [key(number) for number in range(302) if number not in named]


@given(numbers)
def test_what_lies_in_a_row_is_one_deletion(gaps: list[int]) -> None:
    row = range(1_000, 1_032)
    ops = deletions(Table.READY, PREFIX, [*row, *gaps])
    assert (Table.READY, key(1_000), DeleteRun(row)) in ops


def test_one_record_and_none() -> None:
    assert deletions(Table.READY, PREFIX, [7]) == [(Table.READY, key(7), None)]
    assert deletions(Table.READY, PREFIX, []) == []


def test_records_with_nothing_between_them_are_one_deletion() -> None:
    ((_, first, run),) = deletions(Table.READY, PREFIX, [3, 7, 20], adjacent=True)
    assert run == DeleteRun([3, 7, 20]) != DeleteRun([3, 7])
    assert isinstance(run, DeleteRun)
    assert run.keys(first) == [key(3), key(7), key(20)]
    assert run.until(first) == DeleteUntil(key(21))
    assert {run: len(run)} == {DeleteRun([3, 7, 20]): 3}
    assert repr(run) == "DeleteRun(3)"


@given(numbers.map(sorted))
def test_what_is_put_is_there(named: list[int]) -> None:
    store = MemoryStore()
    values = [b"%d" % number for number in named]
    store.write(store.acquire(), puts(Table.READY, PREFIX, named, values))
    assert store.scan(Table.READY, key(0), key(1_000), 1_000) == list(zip(map(key, named), values, strict=True))


def test_consecutive_records_are_one_run() -> None:
    values = [b"5", b"6", b"9"]
    run = RecordRun.of(values[:2])
    assert puts(Table.READY, PREFIX, [5, 6, 9], values) == [(Table.READY, key(5), run), (Table.READY, key(9), b"9")]
    assert run.rows(key(5)) == [(key(5), b"5"), (key(6), b"6")]
