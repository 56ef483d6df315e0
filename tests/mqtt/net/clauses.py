"""Which test proves which normative statement of the standards. `index` makes the page in the reference from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])

Clause = tuple[str, str]
"""The version of the standard, and the statement's number without `MQTT-`."""


def covers(v5: str = "", v311: str = "") -> Callable[[F], F]:
    """Numbers apart by blanks: `@covers("3.1.2-22", v311="3.1.2-24")`."""

    def note(test: F) -> F:
        found: set[Clause] = {("5.0", number) for number in v5.split()}
        found |= {("3.1.1", number) for number in v311.split()}
        test.clauses = found  # type: ignore[attr-defined]
        return test

    return note
