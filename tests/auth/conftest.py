"""Shared by the tests of the auth room."""

from __future__ import annotations

import pytest

from holdfast.units import SECOND


class Clock:
    """Stands still until told to move."""

    def __init__(self, now: int = 1_800_000_000 * SECOND) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, duration: int) -> None:
        self.now += duration


@pytest.fixture
def clock() -> Clock:
    return Clock()
