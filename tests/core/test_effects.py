"""Putting and deleting many records: together where they lie in a row, and never one that was not meant."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.effects import RANGE_MIN, RUN_MIN, DeleteUntil, deletions, puts
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
    row = list(range(1_000, 1_000 + RANGE_MIN))
    ops = deletions(Table.READY, PREFIX, [*row, *gaps])
    assert (Table.READY, key(1_000), DeleteUntil(key(1_000 + RANGE_MIN))) in ops


def test_a_short_row_goes_one_by_one() -> None:
    row = list(range(RANGE_MIN - 1))
    assert deletions(Table.READY, PREFIX, row) == [(Table.READY, key(number), None) for number in row]
    assert deletions(Table.READY, PREFIX, []) == []


@given(numbers.map(sorted), st.booleans())
def test_what_is_put_is_there_however_it_lies(named: list[int], in_two: bool) -> None:
    store = MemoryStore()
    heads, tails = [b"%d" % number for number in named], [b"-%d" % number for number in named]
    store.write(store.acquire(), puts(Table.READY, PREFIX, named, heads, tails if in_two else None))
    expected = map(b"".join, zip(heads, tails, strict=True)) if in_two else heads
    assert store.scan(Table.READY, key(0), key(1_000), 1_000) == list(zip(map(key, named), expected, strict=True))


def test_a_row_is_one_run_and_a_short_row_is_none() -> None:
    row = list(range(5, 5 + RUN_MIN))
    values = [b"%d" % number for number in row]
    run = RecordRun.of(values)
    assert puts(Table.READY, PREFIX, row, values) == [(Table.READY, key(5), run)]
    assert puts(Table.READY, PREFIX, row[1:], values[1:]) == [
        (Table.READY, key(number), b"%d" % number) for number in row[1:]
    ]
    assert run.rows(key(5)) == [(key(number), b"%d" % number) for number in row]
