"""Deadlines that are moved and cancelled: the next one is right, and memory does not grow."""

from __future__ import annotations

from holdfast.timers import Timers


def test_a_deadline_that_is_moved_or_cancelled_is_not_due() -> None:
    timers: Timers[str] = Timers()
    timers.set("moved", 1)
    timers.set("cancelled", 2)
    timers.set("moved", 9)
    timers.cancel("cancelled")
    assert timers.due == 9
    assert timers.pop(8) is None
    assert timers.pop(9) == "moved"
    assert timers.due is None


def test_what_was_moved_is_forgotten_behind_one_that_stays() -> None:
    timers: Timers[str] = Timers()
    timers.set("first", 1)
    for due in range(2, 10_000):
        timers.set("moved", due)
    assert len(timers) < 100
    assert [timers.pop(10_000), timers.pop(10_000), timers.pop(10_000)] == ["first", "moved", None]


def test_a_deadline_that_is_set_again_as_it_was_takes_no_more_memory() -> None:
    timers: Timers[str] = Timers()
    for _ in range(10_000):
        timers.set("same", 5)
    assert len(timers) == 1


def test_one_that_was_cancelled_and_set_again_is_due_once() -> None:
    timers: Timers[str] = Timers()
    timers.set("again", 5)
    timers.cancel("again")
    timers.set("again", 5)
    assert [timers.pop(5), timers.pop(5)] == ["again", None]
