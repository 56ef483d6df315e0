"""Rates of namespaces, under a clock that stands still until told to move."""

from __future__ import annotations

import pytest

from holdfast.auth.gate import Gate
from holdfast.config import Config, RateSettings
from holdfast.config.kinds import Rate
from holdfast.errors import RateLimited
from holdfast.units import MILLISECOND, SECOND
from tests.auth.conftest import Clock


def gate(clock: Clock, **settings: object) -> Gate:
    return Gate(Config(rates=RateSettings(**settings)), clock)  # type: ignore[arg-type]


def refusal(gate: Gate, namespace: str = "default", messages: int = 1, size_bytes: int = 0) -> int:
    with pytest.raises(RateLimited) as caught:
        gate.admit(namespace, messages, size_bytes)
    wait = caught.value.details["retry_after_ms"]
    assert isinstance(wait, int)
    return wait


def test_without_settings_there_is_no_limit(clock: Clock) -> None:
    door = gate(clock)
    for _ in range(1000):
        door.admit("default", 1_000_000, 1 << 40)
    assert (door.limited, door.counts.rate_limited) == (False, 0)


def test_the_burst_passes_then_the_rate_holds(clock: Clock) -> None:
    door = gate(clock, messages_per_second=10, burst=2 * SECOND)
    for _ in range(20):
        door.admit("default", 1, 0)
    wait = refusal(door)
    assert 1 <= wait <= 100
    assert door.counts.rate_limited == 1
    clock.advance(wait * MILLISECOND)
    door.admit("default", 1, 0)
    refusal(door)

    taken = 0
    for _ in range(100):  # ten seconds
        clock.advance(100 * MILLISECOND)
        try:
            door.admit("default", 1, 0)
            taken += 1
        except RateLimited:
            continue
    assert 99 <= taken <= 100


def test_a_batch_larger_than_the_burst_is_taken_and_paid_for_later(clock: Clock) -> None:
    door = gate(clock, messages_per_second=10, burst=SECOND)
    door.admit("default", 1000, 0)
    assert 99_000 <= refusal(door) <= 99_001
    clock.advance(98 * SECOND)
    refusal(door)
    clock.advance(2 * SECOND)
    door.admit("default", 1000, 0)


def test_bytes_are_limited_too_and_a_refusal_takes_nothing_from_either(clock: Clock) -> None:
    door = gate(clock, messages_per_second=10, bytes_per_second=1000, burst=SECOND)
    door.admit("default", 1, 1000)
    for _ in range(50):
        refusal(door, messages=9)
    clock.advance(SECOND)
    door.admit("default", 9, 999)
    door.admit("default", 1, 1)


def test_namespaces_do_not_touch_each_other_and_may_have_a_rate_of_their_own(clock: Clock) -> None:
    door = gate(clock, messages_per_second=1, burst=SECOND, namespaces=(Rate("acme", 100, 0), Rate("free", 0, 0)))
    door.admit("default", 1, 0)
    refusal(door)
    door.admit("other", 1, 0)
    for _ in range(100):
        door.admit("acme", 1, 0)
        door.admit("free", 1_000_000, 0)
    refusal(door, "acme")


def test_a_clock_that_goes_back_gives_nothing_away_and_takes_nothing(clock: Clock) -> None:
    door = gate(clock, messages_per_second=10, burst=SECOND)
    door.admit("default", 10, 0)
    clock.advance(-3600 * SECOND)
    refusal(door)
    clock.advance(SECOND)
    door.admit("default", 10, 0)
    refusal(door)


def test_the_memory_is_bounded(clock: Clock) -> None:
    door = gate(clock, messages_per_second=1, namespaces_tracked=10)
    for number in range(1000):
        door.admit(f"ns{number}", 1, 0)
    assert len(door._rates._buckets) == 10
