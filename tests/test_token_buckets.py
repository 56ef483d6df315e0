"""Token buckets: however time passes, no more comes out than went in, and nobody waits longer than the rate says."""

from __future__ import annotations

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from holdfast import token_buckets
from holdfast.token_buckets import KEY_BUCKETS_MAX, REFILL_PAUSE, KeyBuckets, TokenBucket
from holdfast.units import MINUTE, SECOND

START = 1_772_323_200_000_000
paces = st.floats(0.001, 100_000)
sizes = st.integers(1, 1_000)


@given(paces, sizes, st.lists(st.tuples(st.integers(0, MINUTE), st.integers(0, 2_000)), max_size=30))
def test_what_comes_out_is_a_burst_and_what_the_time_brings(
    rate: float, size: int, asked: list[tuple[int, int]]
) -> None:
    bucket, now, taken = TokenBucket(START), START, 0
    for passed, count in asked:
        now += passed
        given_now = min(count, bucket.room(rate, size, now))
        bucket.take(given_now)
        taken += given_now
        assert taken <= size + (now - START) * rate / SECOND + 0.01


@given(paces, sizes)
def test_there_is_a_token_when_it_is_said_and_not_before(rate: float, size: int) -> None:
    bucket = TokenBucket(START)
    bucket.take(size)
    at = bucket.next_at(rate, size)
    assert at > START
    before, then = TokenBucket(START), TokenBucket(START)
    before.take(size)
    then.take(size)
    assert then.room(rate, size, at) >= 1
    assert before.room(rate, size, at - 2 - ceil(2 * SECOND / rate / 1_000_000)) == 0  # to a millionth of a token


def test_the_next_time_brings_several_where_they_come_fast() -> None:
    bucket = TokenBucket(START)
    bucket.take(1_000)
    assert bucket.next_at(1_000, 1_000) == START + 1_000
    assert bucket.next_at(1_000, 1_000, REFILL_PAUSE) == START + 10_000
    small = TokenBucket(START)
    small.take(2)
    assert small.next_at(1_000, 2, REFILL_PAUSE) == START + 2_000  # it holds no more


def test_a_clock_that_goes_back_brings_nothing_and_costs_no_more_than_the_rate() -> None:
    bucket = TokenBucket(START)
    assert bucket.room(1, 1, START) == 1
    bucket.take(1)
    earlier = START - 3600 * SECOND
    assert bucket.room(1, 1, earlier) == 0
    assert bucket.next_at(1, 1) == earlier + SECOND
    assert bucket.room(1, 1, earlier + SECOND) == 1


def test_each_key_has_its_bucket() -> None:
    buckets = KeyBuckets()
    assert [buckets.take(b"a", 1, 2, START) for _ in range(3)] == [0, 0, START + SECOND]
    assert buckets.take(b"b", 1, 2, START) == 0
    assert buckets.take(b"a", 1, 2, START + SECOND) == 0


def test_memory_is_bounded_and_full_buckets_are_forgotten_first() -> None:
    buckets = KeyBuckets()
    for number in range(KEY_BUCKETS_MAX):
        buckets.take(number.to_bytes(8, "big"), 1, 1, START)
    later = START + MINUTE
    last = (KEY_BUCKETS_MAX - 1).to_bytes(8, "big")
    assert buckets.take(last, 1, 1, later) == 0
    assert buckets.take(b"new", 1, 1, later) == 0
    assert len(buckets) == 2  # all others were full again
    assert buckets.take(last, 1, 1, later) > later


def test_of_those_that_are_not_full_the_newer_half_is_kept() -> None:
    buckets = KeyBuckets()
    for number in range(token_buckets.KEY_BUCKETS_MAX + 1):
        buckets.take(number.to_bytes(8, "big"), 1, 1, START)
    assert len(buckets) == KEY_BUCKETS_MAX // 2 + 1
    assert buckets.take((KEY_BUCKETS_MAX).to_bytes(8, "big"), 1, 1, START) > START
    assert buckets.take((0).to_bytes(8, "big"), 1, 1, START) == 0
