"""Histograms of how long things took."""

from __future__ import annotations

from holdfast.core.groups import AGE_MAX_MS, bound_ms, bucket_of, from_powers_of_two, observe_ages


def test_buckets_follow_each_other_and_are_at_most_a_quarter_wide() -> None:
    for age_ms in (*range(2_000), 12_345, 1 << 20, (1 << 20) - 1, AGE_MAX_MS):
        bound = bound_ms(bucket_of(age_ms))
        assert age_ms <= bound <= age_ms * 1.25
        assert bound == 0 or bucket_of(bound) == bucket_of(age_ms)
        assert bucket_of(bound + 1) == bucket_of(age_ms) + 1 or bound == AGE_MAX_MS


def test_ages_beyond_both_ends_are_counted_at_the_ends() -> None:
    assert bucket_of(-5) == 0
    assert bucket_of(AGE_MAX_MS * 9) == bucket_of(AGE_MAX_MS)


def test_a_histogram_is_as_long_as_it_must_be() -> None:
    histogram: list[int] = []
    observe_ages(histogram, 5_000, [0, 0, 3_000])
    assert histogram == [0, 0, 1, 0, 0, 2]
    observe_ages(histogram, 5_000, [5_000])
    assert histogram == [1, 0, 1, 0, 0, 2]


def test_histograms_of_powers_of_two_are_read() -> None:
    assert from_powers_of_two([]) == []
    histogram = from_powers_of_two([3, 0, 2, 1])
    assert {bound_ms(index): count for index, count in enumerate(histogram) if count} == {0: 3, 3: 2, 7: 1}
