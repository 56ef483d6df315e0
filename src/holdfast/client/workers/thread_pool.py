"""A thread pool for synchronous handlers.

Like the standard library's, but with daemon threads: that one joins every thread when the program ends, so that a
handler that hangs would keep a worker from exiting. And a function whose caller has gone loses its place: another
thread takes it, as long as no more than `size` functions are abandoned.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue


class _Call:
    """A function, who waits for it, and what it returned or raised."""

    __slots__ = ("abandoned", "context", "done", "ended", "failure", "function", "result", "started")

    def __init__(self, function: Callable[[], object], done: asyncio.Future[object]) -> None:
        self.function = function
        self.done = done
        self.context = contextvars.copy_context()
        self.result: object = None
        self.failure: BaseException | None = None
        self.started = self.ended = self.abandoned = False  # under the pool's lock

    def run(self) -> None:
        try:
            self.result = self.context.run(self.function)
        except BaseException as error:  # noqa: BLE001 - it is handed to whoever waits
            self.failure = error


class ThreadPool:
    """Runs functions on up to `size` threads, which it starts as they are needed and keeps. Used from one loop."""

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._ended: list[_Call] = []  # under the lock
        self._lock = threading.Lock()
        self._threads = 0
        self._started = 0
        self._busy = 0
        self._abandoned = 0
        self._room = asyncio.Event()
        self._room.set()

    @property
    def abandoned(self) -> int:
        """How many functions run on although their callers have gone."""
        return self._abandoned

    @property
    def full(self) -> bool:
        """Whether no further function may be abandoned: new ones might find no thread."""
        return self._abandoned >= self._size

    async def room(self) -> None:
        """Wait until the pool is not full."""
        await self._room.wait()

    async def run(self, function: Callable[[], object]) -> object:
        """Run a function and return its result. If the caller is cancelled, the function runs on: a thread cannot be
        stopped. One that has not begun is dropped."""
        call = _Call(function, self._loop.create_future())
        self._busy += 1
        if self._busy > self._threads and self._threads < self._size:
            self._start()
        self._calls.put(call)
        try:
            return await call.done
        except asyncio.CancelledError:
            self._abandon(call)
            raise
        finally:
            self._busy -= 1

    def _abandon(self, call: _Call) -> None:
        with self._lock:
            if call.ended:
                return
            call.abandoned = True
            if not call.started:
                return
        self._abandoned += 1
        self._threads -= 1  # its thread ends with it
        if not self._calls.empty():
            self._start()
        if self.full:
            self._room.clear()

    def _finish(self) -> None:
        """Functions have ended. On the loop, which is woken once for all that end until it looks: waking it costs more
        than a quick function."""
        with self._lock:
            ended, self._ended = self._ended, []
        for call in ended:
            if call.abandoned:
                self._abandoned -= 1
                self._room.set()
            _resolve(call)

    def _start(self) -> None:
        self._threads += 1
        self._started += 1
        threading.Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True).start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            with self._lock:
                if call.abandoned:
                    continue
                call.started = True
            call.run()
            with self._lock:
                call.ended = True
                last: bool = call.abandoned
                first = not self._ended
                self._ended.append(call)
            if first and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._finish)
            if last:
                return

    def close(self) -> None:
        """End the threads after their current functions. Nobody waits for room any more."""
        self._room.set()
        for _ in range(self._threads):
            self._calls.put(None)


def _resolve(call: _Call) -> None:
    if call.done.done():
        return
    if call.failure is None:
        call.done.set_result(call.result)
    elif isinstance(call.failure, StopIteration):  # a future cannot hold it
        call.done.set_exception(RuntimeError("the handler raised StopIteration"))
    else:
        call.done.set_exception(call.failure)
