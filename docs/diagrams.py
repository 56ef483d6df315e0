"""Draws the state diagram of a delivery from the table in core/states.py."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.states import ENDED, DeliveryState, Transition


def state_diagram(transitions: Iterable[Transition]) -> str:
    """A Mermaid state diagram: an arrow for each pair of states, with every event that leads from one to the other."""
    arrows: dict[tuple[DeliveryState, DeliveryState], list[str]] = {}
    for row in transitions:
        arrows.setdefault((row.state, row.to), []).append(row.event.value)
    lines = ["stateDiagram-v2", "    direction LR"]
    for (state, to), events in arrows.items():
        start = "[*]" if state is DeliveryState.NEW else state.value
        lines.append(f"    {start} --> {to.value}: {' · '.join(events)}")
    reached = dict.fromkeys(to for _, to in arrows)
    lines += [f"    {state.value} --> [*]" for state in reached if state in ENDED]
    return "\n".join(lines)
