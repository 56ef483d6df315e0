"""Ids only ever grow, whatever the clock does; hashes are part of contracts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ids import (
    CELL_MAX,
    EPOCH_MS,
    IDS_A_MS,
    IdGenerator,
    due_stamp,
    fnv1a32,
    key_hash,
    route_of,
    time_of_id,
)

START = EPOCH_MS * 1000 + 86_400_000_000
moments = st.lists(st.tuples(st.integers(-5_000_000, 5_000_000), st.integers(0, 10_000)), max_size=12)


def flat(groups: list[list[int]]) -> list[int]:
    return [value for group in groups for value in group]


@given(moments, st.integers(0, CELL_MAX))
def test_ids_grow_whatever_the_clock_does(steps: list[tuple[int, int]], cell: int) -> None:
    ids = IdGenerator(cell)
    now = START
    taken: list[list[int]] = []
    for jump, count in steps:
        now += jump
        floor = ids.floor
        taken.append(ids.take(now, count))
        assert len(taken[-1]) == count
        assert all(value >= floor for value in taken[-1])
        assert ids.floor > max(taken[-1], default=0)
    every = flat(taken)
    assert every == sorted(set(every))
    assert all((value >> 12) & CELL_MAX == cell and value < 1 << 63 for value in every)


@given(moments, st.integers(0, 2_000_000))
def test_ids_grow_over_a_restart_within_the_same_millisecond(steps: list[tuple[int, int]], back: int) -> None:
    before = IdGenerator(7)
    now = START
    reserved = 0
    taken: list[list[int]] = []
    for jump, count in steps:
        now += jump
        taken.append(before.take(now, count))
        reserved = before.ahead(1_000)
    after = IdGenerator(7, after=reserved)
    assert after.take(now - back)[0] > max(flat(taken), default=-1)


def test_a_millisecond_that_is_full_borrows_the_next() -> None:
    ids = IdGenerator(1)
    taken = ids.take(START, IDS_A_MS + 1)
    assert len(set(taken)) == IDS_A_MS + 1
    assert time_of_id(taken[0]) == time_of_id(taken[-2]) == START
    assert time_of_id(taken[-1]) == START + 1000


def test_what_was_reserved_covers_the_time_it_was_reserved_for() -> None:
    ids = IdGenerator(1)
    ids.take(START)
    ahead = ids.ahead(1_000)
    assert ids.take(START + 1_000_000)[0] < ahead < ids.take(START + 1_001_000)[0]


@pytest.mark.parametrize("cell", [-1, CELL_MAX + 1])
def test_a_cell_number_must_fit(cell: int) -> None:
    with pytest.raises(ValueError, match=r"cell must be 0\.\.1023"):
        IdGenerator(cell)


@given(st.integers(0, 1 << 62), st.integers(0, 1 << 52))
def test_a_due_stamp_stands_where_an_id_of_that_time_would(message_id: int, due_at: int) -> None:
    stamp = due_stamp(message_id, due_at)
    assert time_of_id(stamp) == max(due_at // 1000, EPOCH_MS) * 1000


def test_the_partition_hash_is_fnv1a32() -> None:
    # From the test suite of its authors: clients and other nodes compute the same.
    assert [fnv1a32(text) for text in (b"", b"a", b"foobar")] == [0x811C9DC5, 0xE40C292C, 0xBF9CF968]
    assert route_of("foobar") == 0xBF9CF968


@given(st.text())
def test_a_key_hash_is_eight_bytes_and_always_the_same(key: str) -> None:
    assert key_hash(key) == key_hash(key)
    assert len(key_hash(key)) == 8
