"""Limits of deliveries, where a turn must not do all the work at once, and what they cost where there are none."""

from __future__ import annotations

import pytest

from holdfast.core.commands import Draft, Verb
from holdfast.core.records import Extra
from holdfast.engine.limits import throttling
from holdfast.units import SECOND
from tests.engine.counting import CountingRig
from tests.engine.rig import TASKS, Rig


def keyed(key: str, payload: bytes = b"") -> Draft:
    return Draft(payload, extra=Extra(key=key))


def test_a_lease_that_comes_to_many_keys_without_a_token_goes_on_in_the_next_turn(
    cell: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttling, "POSTPONED_MAX", 4)
    cell.create_queue(partitions=2, throttle={"key_rate": 0.1})
    for _ in range(2):
        for number in range(12):
            cell.enqueue(keyed(f"k{number}"))
    cell.settle(cell.lease(12))
    cell.enqueue(keyed("other", b"other"))
    turns = 1
    while not (found := cell.lease(1)):
        assert TASKS in cell.engine.unfinished
        turns += 1
    assert found[0].message.payload == b"other"
    assert turns == 4, "four keys a turn, and then the one that has a token"
    assert TASKS not in cell.engine.unfinished
    cell.settle(found)
    cell.advance(10 * SECOND)
    assert len(cell.lease(20)) == 12


def test_who_waits_for_a_rate_is_woken_once_for_all(cell: Rig) -> None:
    cell.create_queue(throttle={"rate": 1, "burst": 1})
    for _ in range(3):
        cell.enqueue(b"")
    assert len(cell.lease(3)) == 1
    assert cell.lease(3) == cell.lease(3, group="other")[1:] == []
    assert cell.engine.wake_at() == cell.now + SECOND
    cell.engine.take_dirty()
    cell.advance(SECOND)
    assert cell.engine.take_dirty() == [TASKS]
    assert len(cell.lease(1)) == 1


def test_a_queue_that_fails_is_paused_in_the_batch_that_has_its_last_dead_letter(cell: Rig) -> None:
    cell.create_queue(breaker={"dead_letters": 1}, retry={"max_retries": 0})
    cell.enqueue(b"")
    cell.settle(cell.lease(1), Verb.NACK)
    (tripped,) = cell.engine.tripped
    assert (tripped.queue, tripped.dead_letters, tripped.reason, tripped.url) == ("tasks", 1, "max_retries", "")
    cell.restart()
    assert cell.queue().config.paused


def test_a_message_that_dies_without_a_dead_queue_counts_too(cell: Rig) -> None:
    cell.create_queue(breaker={"dead_letters": 1}, dlq={"enabled": False})
    cell.enqueue(b"")
    cell.settle(cell.lease(1), Verb.REJECT)
    assert cell.queue().config.paused


@pytest.mark.parametrize("key", ["", "k"])
def test_limits_that_do_not_bind_read_and_write_nothing_more(key: str) -> None:
    def work(**limits: object) -> tuple[int, int]:
        cell = CountingRig()
        cell.create_queue(partitions=1, throttle=limits)
        cell.store.calls = cell.store.records = 0
        for number in range(20):
            cell.enqueue(keyed(f"k{number % 3}") if key else b"")
        while leased := cell.lease(5):
            cell.settle(leased)
        return cell.store.calls, cell.store.records

    assert work() == work(concurrency=1000, rate=1_000_000, key_concurrency=1)
