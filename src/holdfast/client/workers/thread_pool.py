"""A thread pool for synchronous handlers.

Like the standard library's, but with daemon threads: that one joins every thread when the program ends, so that a
handler that hangs would keep a worker from exiting.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue

Job = Callable[[], None]

Ended = tuple["asyncio.Future[object]", object, BaseException | None]
"""What waits for a function that has ended, and what it returned or raised."""


class ThreadPool:
    """Runs functions on up to `size` threads, which it starts as they are needed and keeps. Used from one loop."""

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._ended: list[Ended] = []  # under the lock
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._busy = 0

    async def run(self, function: Callable[[], object]) -> object:
        """Run a function and return its result. If the caller is cancelled, the function runs on: a thread cannot be
        stopped."""
        done: asyncio.Future[object] = self._loop.create_future()
        context = contextvars.copy_context()

        def job() -> None:
            result: object = None
            failure: BaseException | None = None
            try:
                result = context.run(function)
            except BaseException as error:  # noqa: BLE001 - it is handed to whoever waits
                failure = error
            self._end(done, result, failure)

        self._busy += 1
        if self._busy > len(self._threads) and len(self._threads) < self._size:
            self._start()
        self._jobs.put(job)
        try:
            return await done
        finally:
            self._busy -= 1

    def _end(self, done: asyncio.Future[object], result: object, failure: BaseException | None) -> None:
        """A function has ended, on its thread. The loop is woken once for all that end until it looks: waking it costs
        more than a quick function."""
        with self._lock:
            first = not self._ended
            self._ended.append((done, result, failure))
        if first and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        """On the loop."""
        with self._lock:
            ended, self._ended = self._ended, []
        for done, result, failure in ended:
            _resolve(done, result, failure)

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads) + 1}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def close(self) -> None:
        """End the threads after their current functions."""
        for _ in self._threads:
            self._jobs.put(None)


def _resolve(done: asyncio.Future[object], result: object, failure: BaseException | None) -> None:
    if done.done():
        return
    if failure is None:
        done.set_result(result)
    elif isinstance(failure, StopIteration):  # a future cannot hold it
        done.set_exception(RuntimeError("the handler raised StopIteration"))
    else:
        done.set_exception(failure)
