"""The work that a server does in one pass of its loop, counted: calls of functions, which stand for what Python code
does, and bytes allocated at the most, which stand for what one call of a decoder makes. Neither depends on the machine,
nor on what else it does.
"""

from __future__ import annotations

import asyncio
import cProfile
import selectors
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.units import MIB

CALLS_MAX = 200_000
ALLOCATED_MAX = 10 * MIB
"""In one pass of the loop. The whole of any of these bodies, decoded in one call, is more."""

STORED_CALLS_MAX = 1_000_000
STORED_ALLOCATED_MAX = 20 * MIB
"""In one pass of the loop where the messages of a body are stored: 10,000 of them are one commit."""

THREAD_CALLS_MAX = 1_000_000
THREAD_ALLOCATED_MAX = 24 * MIB
"""In one call on a thread more may be done: others run in between, some milliseconds later."""


class Work:
    """The most work that one pass of the loop did, or one call that is meant for a thread.

    Such calls run on the loop here, each as a pass of its own: what a thread allocates at the same time would be
    counted with the loop's. `threads` has the method that makes them, `on_thread`.
    """

    def __init__(self, threads: object = None) -> None:
        self.calls = self.allocated = self.thread_calls = self.thread_allocated = 0
        self.calls_by_name: Counter[str] = Counter()
        """Of functions that are not written in Python."""
        self._threads = threads
        self._begin = 0
        self._profile = cProfile.Profile()

    @asynccontextmanager
    async def counted(self, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, asyncio.SelectorEventLoop)
        selector: selectors.BaseSelector = loop._selector  # type: ignore[attr-defined]
        select = selector.select  # called once in each pass

        def counted_select(timeout: float | None = None) -> Any:
            self._end_pass()
            try:
                return select(timeout)
            finally:
                self._begin_pass()

        async def counted_call(make: Callable[[], Any]) -> Any:
            self._end_pass()
            self._begin_pass()
            try:
                return make()
            finally:
                calls, allocated = self._counted()
                self.thread_calls = max(self.thread_calls, calls)
                self.thread_allocated = max(self.thread_allocated, allocated)
                self._begin_pass()

        with monkeypatch.context() as patch:
            patch.setattr(selector, "select", counted_select)
            if self._threads is not None:
                patch.setattr(self._threads, "on_thread", counted_call)
            tracemalloc.start()
            self._begin_pass()
            try:
                yield
            finally:
                self._end_pass()
                tracemalloc.stop()

    def _begin_pass(self) -> None:
        self._profile.clear()
        tracemalloc.reset_peak()
        self._begin = tracemalloc.get_traced_memory()[0]
        self._profile.enable()

    def _end_pass(self) -> None:
        calls, allocated = self._counted()
        self.calls, self.allocated = max(self.calls, calls), max(self.allocated, allocated)

    def _counted(self) -> tuple[int, int]:
        self._profile.disable()
        stats = self._profile.getstats()
        calls = sum(entry.callcount for entry in stats)
        for entry in stats:
            if isinstance(entry.code, str):
                self.calls_by_name[entry.code] += entry.callcount
        return calls, tracemalloc.get_traced_memory()[1] - self._begin

    def excessive(self, *, stored: bool) -> bool:
        return (
            self.calls > (STORED_CALLS_MAX if stored else CALLS_MAX)
            or self.allocated > (STORED_ALLOCATED_MAX if stored else ALLOCATED_MAX)
            or self.thread_calls > THREAD_CALLS_MAX
            or self.thread_allocated > THREAD_ALLOCATED_MAX
        )

    def __repr__(self) -> str:
        on_loop = f"{self.calls} calls and {self.allocated} bytes in a pass of the loop"
        return f"{on_loop}, {self.thread_calls} and {self.thread_allocated} on a thread"
