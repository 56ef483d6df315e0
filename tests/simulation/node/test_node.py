"""Fixed seeds of the simulation of a whole node. Any number of others: `make simulate SEEDS=1000`."""

from __future__ import annotations

import pytest

from tests.simulation.node.run import run

SEEDS = range(1, 21)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_answered_before_it_is_durable_and_nothing_answered_is_lost(seed: int) -> None:
    assert run(seed).messages > 0


def test_the_seeds_meet_what_they_are_to_meet() -> None:
    outcomes = [run(seed) for seed in range(21, 31)]
    assert sum(outcome.failures for outcome in outcomes) > 0
    assert sum(outcome.cuts for outcome in outcomes) > 3
    answers = {name for outcome in outcomes for name in outcome.answers}
    assert {"ack", "administration", "enqueue", "exists", "extend", "lease", "publish", "read", "release"} <= answers


def test_a_seed_runs_the_same_way_every_time() -> None:
    assert run(7) == run(7)
