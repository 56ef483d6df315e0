"""The table of transitions is sound, and the diagram shows all of it."""

from __future__ import annotations

from docs.diagrams import state_diagram
from docs.generate import DOCS, render
from holdfast.core.states import (
    ABOUT_GROUPS,
    ENDED,
    NEXT,
    TRANSITIONS,
    DeliveryState,
    Event,
    JournalEvent,
    journal_names,
)

PAGE = "explanation/life-of-a-delivery.md"


def test_a_state_and_an_event_lead_to_one_state() -> None:
    assert len(NEXT) == len(TRANSITIONS)


def test_every_state_is_reached_and_every_life_can_end() -> None:
    reached = {DeliveryState.NEW}
    for _ in DeliveryState:
        reached |= {row.to for row in TRANSITIONS if row.state in reached}
    assert reached == set(DeliveryState)
    ending = set(ENDED)
    for _ in DeliveryState:
        ending |= {row.state for row in TRANSITIONS if row.to in ending}
    assert ending == set(DeliveryState)


def test_what_has_ended_stays_ended() -> None:
    assert not [row for row in TRANSITIONS if row.state in ENDED]


def test_every_event_happens_and_has_one_name_in_the_journal() -> None:
    for event in Event:
        names = {row.journal for row in TRANSITIONS if row.event is event}
        assert names == {journal_names(event)}


def test_every_name_in_the_journal_is_used() -> None:
    # A duplicate is no event of a delivery: nothing was stored.
    others = {JournalEvent.DUPLICATE, *ABOUT_GROUPS}
    assert {row.journal for row in TRANSITIONS} == {*JournalEvent, None} - others


def test_only_falling_due_is_not_journalled() -> None:
    assert {row.event for row in TRANSITIONS if row.journal is None} == {Event.FALL_DUE}


def test_the_diagram_shows_every_transition() -> None:
    lines = state_diagram(TRANSITIONS).splitlines()
    assert lines[0] == "stateDiagram-v2"
    for row in TRANSITIONS:
        start = "[*]" if row.state is DeliveryState.NEW else row.state
        assert any(line.startswith(f"    {start} --> {row.to}: ") and row.event in line for line in lines)
    assert all(f"    {state} --> [*]" in lines for state in ENDED)


def test_the_page_is_fresh() -> None:
    assert (DOCS / PAGE).read_text() == render(PAGE), "run `make docs`"
