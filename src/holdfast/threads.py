"""Daemon threads, for calls that a hanging disk can block for ever.

asyncio's own threads are few and shared, and a loop that closes waits for all of them: one disk that hangs would hold
up the work of others, and the end of the process. The threads here are daemons and are left behind if they do not end.
`start_thread` runs one function on a thread of its own; the caller bounds how many there are at a time. A
`WorkerThread` is one thread that runs many functions, one after another.

The simulation replaces `WorkerThread` and `start_thread` in this module, so callers use them as `threads.WorkerThread`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import ParamSpec, TypeVar

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


def start_thread(
    name: str, function: Callable[_Args, _Result], *args: _Args.args, **keywords: _Args.kwargs
) -> Future[_Result]:
    """Start a thread of this name. The function runs to its end, also if the caller stops waiting."""
    future: Future[_Result] = Future()
    future.set_running_or_notify_cancel()  # from here on nobody can cancel it
    Thread(target=_complete, name=name, args=(future, function, *args), kwargs=keywords, daemon=True).start()
    return future


async def run_in_thread(
    name: str, function: Callable[_Args, _Result], *args: _Args.args, **keywords: _Args.kwargs
) -> _Result:
    """Wait for what a thread of this name does."""
    return await asyncio.wrap_future(start_thread(name, function, *args, **keywords))


class WorkerThread:
    """A thread that runs what it is given, in order."""

    def __init__(self, name: str) -> None:
        self._orders: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread = Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def start(self, work: Callable[[], object]) -> None:
        """Run `work`, which must not raise. The thread begins immediately."""
        self._orders.put(work)
        time.sleep(0)  # else it waits for the GIL until the caller's thread has nothing to do

    def submit(
        self, function: Callable[_Args, _Result], *args: _Args.args, **keywords: _Args.kwargs
    ) -> Future[_Result]:
        """Run a function; the future has its result."""
        future: Future[_Result] = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                _complete(future, function, *args, **keywords)

        self._orders.put(work)
        return future

    def end(self, timeout_seconds: float | None = None) -> bool:
        """Take no more work and wait for the thread to end. False: it did not end in time."""
        self._orders.put(None)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        while (work := self._orders.get()) is not None:
            work()


def _complete(
    future: Future[_Result], function: Callable[_Args, _Result], *args: _Args.args, **keywords: _Args.kwargs
) -> None:
    try:
        result = function(*args, **keywords)
    except BaseException as error:  # noqa: BLE001 - the future raises it in whoever waits
        future.set_exception(error)
    else:
        future.set_result(result)
