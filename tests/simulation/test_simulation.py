"""A fixed set of seeds of the simulation. Any number of others: `make simulate SEEDS=1000`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from holdfast.core.effects import Op
from holdfast.core.records import Table
from holdfast.engine.engine import Engine
from holdfast.engine.schedules.schedules import Scheduled, Schedules
from tests.simulation import schedules
from tests.simulation.mail import Violation
from tests.simulation.run import run

MEMORY = range(1, 46)
ROCKS = range(1001, 1006)
POSTGRES = (2001, 2002)
FAR = range(3001, 3011)


@pytest.mark.parametrize("seed", MEMORY)
def test_nothing_is_lost_doubled_or_out_of_order(seed: int) -> None:
    assert run(seed).messages > 0


@pytest.mark.parametrize("seed", ROCKS)
def test_the_same_holds_over_the_store_that_people_use(seed: int) -> None:
    outcome = run(seed, store="rocks")
    assert outcome.messages > 0


@pytest.mark.parametrize("seed", POSTGRES)
def test_the_same_holds_in_a_database(seed: int) -> None:
    assert run(seed, 60, "postgres").messages > 0


@pytest.mark.parametrize("seed", FAR)
def test_the_same_holds_where_every_read_takes_a_millisecond(seed: int) -> None:
    assert run(seed, store="far").messages > 0


def test_the_seeds_meet_what_they_are_to_meet() -> None:
    outcomes = [run(seed) for seed in range(1, 9)]
    assert sum(outcome.restarts for outcome in outcomes) > 20
    assert sum(outcome.rows for outcome in outcomes) > 1000
    reasons = {reason for outcome in outcomes for reason in outcome.reasons}
    assert {"max_retries", "rejected", "expired"} <= reasons


def test_a_seed_runs_the_same_way_every_time() -> None:
    assert run(7) == run(7)


# --- schedules ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(1, 31))
def test_every_tick_of_a_schedule_is_enqueued_once(seed: int) -> None:
    assert schedules.run(seed).enqueued > 0


def test_schedules_meet_what_they_are_to_meet() -> None:
    outcomes = [schedules.run(seed) for seed in range(1, 13)]
    assert sum(outcome.restarts for outcome in outcomes) > 100
    met = {name for outcome in outcomes for name, count in outcome.outcomes.items() if count}
    assert {"enqueued", "overlap", "missed", "refused"} <= met


def states_are_not_stored(patch: pytest.MonkeyPatch) -> None:
    right = Schedules._state_op

    def wrong(self: Schedules, scheduled: Scheduled) -> Op:
        table, key, value = right(self, scheduled)
        known = self._engine.store.get(Table.SCHEDULE_STATES, key) is not None
        return (Table.META, b"lost", value) if known else (table, key, value)

    patch.setattr(Schedules, "_state_op", wrong)


def states_are_stored_a_turn_late(patch: pytest.MonkeyPatch) -> None:
    late: list[Op] = []
    add = Engine.add

    def wrong(self: Engine, ops: list[Op]) -> None:
        add(self, late + [op for op in ops if op[0] is not Table.SCHEDULE_STATES or not self.writes])
        late[:] = [op for op in ops if op[0] is Table.SCHEDULE_STATES]

    patch.setattr(Engine, "add", wrong)


@pytest.mark.parametrize("broken", [states_are_not_stored, states_are_stored_a_turn_late])
def test_schedules_that_are_broken_on_purpose_are_caught(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises(Violation):
        deque(map(schedules.run, range(1, 31)), maxlen=0)
