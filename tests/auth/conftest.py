"""Shared by the tests of the auth room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from holdfast.units import SECOND


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The server's loop: its way with sockets is not quite asyncio's own."""
    return {"uvloop": uvloop.new_event_loop}


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
