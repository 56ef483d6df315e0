"""Backoff."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.queue import RetryPolicy, backoff
from holdfast.units import MINUTE, SECOND
from tests.core.strategies import retry_policies, u63

failures = st.integers(1, 1_000)


def test_backoff_doubles_up_to_its_cap() -> None:
    waits = [backoff(RetryPolicy(), failure, seed=1) // SECOND for failure in range(1, 10)]
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]


@given(retry_policies(), failures, u63)
def test_without_jitter_backoff_never_shrinks_and_never_exceeds_its_cap(
    policy: RetryPolicy, failure: int, seed: int
) -> None:
    plain = replace(policy, jitter=0.0)
    wait, longer = backoff(plain, failure, seed), backoff(plain, failure + 1, seed)
    assert 0 <= wait <= longer <= plain.max_backoff
    assert backoff(plain, 1, seed) == plain.initial_backoff


@given(retry_policies(), failures, u63)
def test_jitter_stays_within_its_share_and_repeats(policy: RetryPolicy, failure: int, seed: int) -> None:
    plain = backoff(replace(policy, jitter=0.0), failure, seed)
    wait = backoff(policy, failure, seed)
    assert plain * (1 - policy.jitter) - 1 <= wait <= plain * (1 + policy.jitter) + 1
    assert wait == backoff(policy, failure, seed)


def test_jitter_spreads_messages_that_failed_together() -> None:
    policy = RetryPolicy(jitter=0.5)
    waits = {backoff(policy, 1, seed) for seed in range(1000)}
    assert len(waits) > 990
    assert min(waits) < 2.6 * SECOND
    assert max(waits) > 7.4 * SECOND


@given(retry_policies(), st.integers(1, 1 << 62))
def test_no_number_of_failures_is_too_large(policy: RetryPolicy, failure: int) -> None:
    policy = replace(policy, multiplier=max(policy.multiplier, 1.5), initial_backoff=max(policy.initial_backoff, 1))
    policy = replace(policy, max_backoff=max(policy.max_backoff, policy.initial_backoff))
    assert backoff(policy, failure, 1) <= 2 * policy.max_backoff


def test_a_multiplier_of_one_and_an_initial_backoff_of_nothing_stay_what_they_are() -> None:
    huge = 1 << 62
    assert backoff(RetryPolicy(multiplier=1.0), huge, 1) == 5 * SECOND
    assert backoff(RetryPolicy(initial_backoff=0), huge, 1) == 0
    assert backoff(RetryPolicy(), huge, 1) == 5 * MINUTE
