"""An event loop in a background thread, and calls to it from other threads."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, Self, TypeVar

Result = TypeVar("Result")

_END = object()


class Portal:
    """A loop that runs from `open` to `close`. Any thread may submit work to it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> Self:
        """A portal to a loop that is already running."""
        portal = cls()
        portal._loop = loop
        return portal

    def open(self) -> None:
        if self._loop is not None:
            return
        started = threading.Event()

        def run() -> None:
            with asyncio.Runner() as runner:
                self._loop = runner.get_loop()
                self._loop.call_soon(started.set)
                self._loop.run_forever()

        self._thread = threading.Thread(target=run, name="holdfast-client", daemon=True)
        self._thread.start()
        started.wait()

    @property
    def running(self) -> bool:
        return self._loop is not None and self._pid == os.getpid()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the loop and wait for it. Ctrl-C while waiting cancels it."""
        if self._loop is None or not self.running:
            work.close()
            if self._loop is None:
                raise RuntimeError("the client is closed")
            # A fork copies the loop, but not the thread that runs it: the wait would never end.
            raise RuntimeError("the client was opened before this process was forked; open one in each process")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], Result]) -> Result:
        """Call an ordinary function on the loop."""

        async def called() -> Result:
            return function()

        return self.run(called())

    def iterate(self, source: AsyncGenerator[Result, None]) -> Iterator[Result]:
        """What an asynchronous generator yields, one by one."""
        try:
            while (item := self.run(anext(source, _END))) is not _END:
                yield item  # type: ignore[misc]
        finally:
            if self.running:  # otherwise the generator ended when the client closed
                self.run(source.aclose())

    def close(self) -> None:
        if self._loop is None or self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop = None
