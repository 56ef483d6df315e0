"""A queue's past, played again under another policy."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from holdfast.cli.main import main
from holdfast.core.queue import RetryPolicy
from holdfast.pipeline.jobs.what_if import Attempt, Delivery, Policy, Rates, as_it_was, deliveries, delivery_of, play
from holdfast.pipeline.lake.lake import Lake
from holdfast.units import HOUR, MINUTE, SECOND
from tests.pipeline.scenes import Built

RETRY = RetryPolicy(max_retries=2, initial_backoff=SECOND, max_backoff=2 * SECOND)


def lived(number: int, results: str, *, at: int = 0, takes: int = SECOND, reason: str = "max_retries") -> Delivery:
    """A delivery by what became of its attempts: `a` acked, `f` failed, `t` timed out; a backoff of 1 s, then 2 s."""
    attempts: list[Attempt] = []
    ready = at
    for failures, result in enumerate(results):
        attempts.append(Attempt(ready, ready, ready + takes, result == "a", result == "t", False))
        ready += takes + min(1 << failures, 2) * SECOND
    outcome = "acked" if results.endswith("a") else "dead"
    return Delivery(number, at, at, tuple(attempts), outcome, "" if outcome == "acked" else reason)


LIVES = st.lists(
    st.tuples(st.sampled_from(["a", "fa", "ffa", "fff"]), st.integers(0, 3 * HOUR), st.integers(1, 20 * SECOND)),
    min_size=1,
    max_size=30,
)


@given(LIVES)
def test_under_its_own_policy_everything_is_as_it_was(lives: list[tuple[str, int, int]]) -> None:
    group = [lived(number, results, at=at, takes=takes) for number, (results, at, takes) in enumerate(lives)]
    assert play(group, Policy(retry=RETRY), best=False) == as_it_was(group)


@given(LIVES, st.integers(0, 6))
def test_every_delivery_ends_and_at_best_no_fewer_are_acked_than_with_fewer_retries(
    lives: list[tuple[str, int, int]], retries: int
) -> None:
    group = [lived(number, results, at=at, takes=takes) for number, (results, at, takes) in enumerate(lives)]
    played = [
        play(group, Policy(retry=RetryPolicy(max_retries=more, initial_backoff=0, max_backoff=0)), best=False)
        for more in (retries, retries + 1)
    ]
    assert all(one.acked + sum(one.dead.values()) == len(group) for one in played)
    assert played[0].acked <= played[1].acked


def test_fewer_retries_kill_what_they_had_saved_and_more_save_at_best() -> None:
    group = [lived(1, "a"), lived(2, "fa"), lived(3, "ffa"), lived(4, "fff")]
    fewer = play(group, Policy(retry=RetryPolicy(max_retries=1)), best=False)
    assert (fewer.acked, fewer.dead, fewer.attempts) == (2, {"max_retries": 2}, 7)
    more = Policy(retry=RetryPolicy(max_retries=9, initial_backoff=SECOND))
    worst = play(group, more, best=False)
    assert (worst.acked, worst.dead, worst.attempts) == (3, {"max_retries": 1}, 6 + 10)
    assert play(group, more, best=True).acked == 4


def test_a_backoff_that_outlasts_an_outage_saves_what_died_in_it() -> None:
    outage = [lived(number, "fff", at=number * SECOND) for number in range(60)]
    fine = [lived(number, "a", at=HOUR + number * SECOND) for number in range(600)]
    group = [*outage, *fine]
    long = Policy(retry=RetryPolicy(max_retries=2, initial_backoff=HOUR, max_backoff=HOUR, total_timeout=0))
    assert play(group, long, best=False).dead == {"max_retries": 60}
    saved = play(group, long, best=True)
    assert (saved.acked, saved.dead) == (660, {})
    assert saved.total_p95_ms is not None
    assert saved.total_p95_ms > HOUR / 1000, "and they were acked an hour later"
    timeout = Policy(retry=RetryPolicy(max_retries=9, initial_backoff=HOUR, max_backoff=HOUR, total_timeout=MINUTE))
    assert play(outage, timeout, best=False).dead == {"total_timeout": 60}


def test_what_was_rejected_stays_dead_and_consumers_make_others_wait() -> None:
    rejected = lived(1, "f", reason="rejected")
    assert play([rejected], Policy(retry=RetryPolicy(max_retries=9)), best=True).dead == {"rejected": 1}
    group = [lived(number, "a", takes=10 * SECOND) for number in range(6)]
    alone = play(group, Policy(retry=RETRY, consumers=1), best=False)
    assert (alone.at_work, alone.wait_p50_ms, alone.total_p95_ms) == (1, 20_000, 60_000)
    three = play(group, Policy(retry=RETRY, consumers=3), best=False)
    assert (three.at_work, three.total_p95_ms) == (3, 20_000)


def test_a_shorter_lease_fails_what_took_longer_and_a_longer_one_may_save_what_timed_out() -> None:
    group = [
        lived(1, "a", takes=10 * SECOND),
        lived(2, "ttt", takes=30 * SECOND),
        *(lived(n, "a") for n in range(9, 99)),
    ]
    shorter = play(group, Policy(retry=RETRY, lease_time=5 * SECOND), best=False)
    assert shorter.dead == {"max_retries": 2}
    longer = Policy(retry=RETRY, lease_time=MINUTE)
    assert play(group, longer, best=False).dead == {"max_retries": 1}
    assert play(group, longer, best=True).dead == {}
    assert Rates(group).of(0) == pytest.approx(3 / 20), "of the nearest twenty"


def test_a_released_lease_is_no_attempt() -> None:
    history = [
        {"at": at, "event": event, "next": None, "reason": None}
        for at, event in ((5, "leased"), (6, "released"), (9, "leased"), (10, "extended"), (20, "acked"))
    ]
    row = {"message_id": 1, "enqueued_at": 1, "ready_at": 2, "outcome": "acked", "reason": None, "history": history}
    assert delivery_of(row).attempts == (Attempt(6, 9, 20, True, False, True),)


def test_the_past_of_a_queue_is_found_in_the_lake(built: Built, spark: SparkSession) -> None:
    lake = Lake(built.lake)
    messages, events = lake.read(spark, "messages"), lake.read(spark, "events")
    here = "namespace = 'default' AND queue = 'tasks' AND group = 'workers'"
    found = [delivery_of(row) for row in deliveries(messages.where(here), events.where(here)).toArrow().to_pylist()]
    rows = [row for key, row in built.model.rows().items() if row["queue"] == "tasks" and key[1] == "workers"]
    assert {one.id: one.outcome for one in found} == {row["message_id"]: row["outcome"] or "" for row in rows}
    failed = {row["message_id"]: row["failures"] for row in rows if row["outcome"] == "acked"}
    assert {one.id: len(one.attempts) - 1 for one in found if one.outcome == "acked"} == failed
    words = [
        "pipeline",
        "what-if",
        "--lake",
        str(lake.path),
        "--queue",
        "tasks",
        "--retries",
        "0",
        "--group",
        "workers",
    ]
    result = CliRunner().invoke(main, [*words, "-o", "json"], catch_exceptions=False)
    (one,) = json.loads(result.stdout)
    assert one["was"]["acked"] == len(failed)
    assert one["at_worst"]["acked"] == sum(not failures for failures in failed.values()) < len(failed)
    assert "at worst" in CliRunner().invoke(main, words).stdout
    for wrong, problem in (
        (["--queue", "nothing", "--retries", "1"], "no delivery ended"),
        (["--queue", "tasks"], "Say what would have been different"),
        (["--queue", "tasks", "--retries", "many"], "max_retries"),
    ):
        refused = CliRunner().invoke(main, ["pipeline", "what-if", "--lake", str(lake.path), *wrong])
        assert refused.exit_code != 0
        assert problem in refused.stderr
