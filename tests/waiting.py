"""Waiting for what must happen, on a machine that may have much else to do.

Only a test that fails waits for as long as this; one that passes goes on as soon as its condition holds.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

PATIENCE_SECONDS = 120.0
"""More than anything here takes with fifteen busy processes beside it; less than the time limit of a test."""

SPARK_SECONDS = 500
"""The same for a job of Spark, which takes ten seconds on a machine that has nothing else to do."""


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until it is so; for what has no event to wait for."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.001)


def until_sync(condition: Callable[[], object]) -> None:
    """The same for a test that has no loop: it waits for other processes."""
    pause = threading.Event()
    ends = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < ends, "what the test waits for does not happen"
        pause.wait(0.02)
