"""Timers that end connections, and do not count time in which this process did not run.

After a pause (SIGSTOP, a suspended machine) an event loop runs the timers that are due before it reads its sockets, so
every peer seems to have been silent although what it sent is waiting. A timer that is late by more than a second gives
the loop another second to read first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

LATE_SECONDS: Final = 1.0
GRACE_SECONDS: Final = 1.0


class PatientTimer:
    """As what `loop.call_later` gives, see the module."""

    __slots__ = ("_callback", "_due", "_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[[], object]) -> None:
        self._loop = loop
        self._callback = callback
        self._start(seconds)

    def _start(self, seconds: float) -> None:
        self._due = time.time() + seconds  # not the loop's time, which stands still while the machine is suspended
        self._handle = self._loop.call_later(seconds, self._fire)

    def _fire(self) -> None:
        if time.time() - self._due > LATE_SECONDS:
            self._start(GRACE_SECONDS)
        else:
            self._callback()

    def cancel(self) -> None:
        self._handle.cancel()
