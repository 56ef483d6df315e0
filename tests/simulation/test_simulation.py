"""A fixed set of seeds of the simulation. Any number of others: `make simulate SEEDS=1000`."""

from __future__ import annotations

import pytest

from tests.simulation.run import run

MEMORY = range(1, 46)
ROCKS = range(1001, 1006)


@pytest.mark.parametrize("seed", MEMORY)
def test_nothing_is_lost_doubled_or_out_of_order(seed: int) -> None:
    assert run(seed).messages > 0


@pytest.mark.parametrize("seed", ROCKS)
def test_the_same_holds_over_the_store_that_people_use(seed: int) -> None:
    outcome = run(seed, store="rocks")
    assert outcome.messages > 0


def test_the_seeds_meet_what_they_are_to_meet() -> None:
    outcomes = [run(seed) for seed in range(1, 9)]
    assert sum(outcome.restarts for outcome in outcomes) > 20
    assert sum(outcome.rows for outcome in outcomes) > 1000
    reasons = {reason for outcome in outcomes for reason in outcome.reasons}
    assert {"max_retries", "rejected", "expired"} <= reasons


def test_a_seed_runs_the_same_way_every_time() -> None:
    assert run(7) == run(7)
