"""Work on threads that nobody has to wait for: for what a disk that hangs can keep for ever.

asyncio's own threads are few and everybody's, and a loop that closes waits for all of them: one disk that hangs would
hold up the work of others, and the end of the process. Here each piece of work has a thread of its own, which is left
behind if it does not end. How many there may be at a time is for the caller to bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import ParamSpec, TypeVar

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


def start_thread(
    name: str, function: Callable[_Args, _Result], *args: _Args.args, **keywords: _Args.kwargs
) -> Future[_Result]:
    """Start a thread of this name. What it does is done to its end, whoever waits for it."""
    future: Future[_Result] = Future()
    future.set_running_or_notify_cancel()  # from here on nobody can cancel it

    def work() -> None:
        try:
            result = function(*args, **keywords)
        except BaseException as error:  # noqa: BLE001 - whoever waits for it hears of it
            future.set_exception(error)
        else:
            future.set_result(result)

    Thread(target=work, name=name, daemon=True).start()
    return future


async def run_in_thread(
    name: str, function: Callable[_Args, _Result], *args: _Args.args, **keywords: _Args.kwargs
) -> _Result:
    """Wait for what a thread of this name does."""
    return await asyncio.wrap_future(start_thread(name, function, *args, **keywords))
