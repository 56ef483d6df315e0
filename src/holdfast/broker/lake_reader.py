"""Reads of the lake on behalf of callers, with a limit on their number and on their time.

The lake may be on another disk, or on the network. If it hangs, the threads that read from it hang too; their callers
get an error in time, and nothing but these reads is affected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Semaphore
from typing import ParamSpec, TypeVar

import structlog

from holdfast import threads
from holdfast.config import Config
from holdfast.errors import LakeUnreadable
from holdfast.units import SECOND, format_duration

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


class LakeReads:
    """See the module."""

    def __init__(self, config: Config) -> None:
        self._settings = config.journal
        self._lake = config.lake_dir
        self._free = Semaphore(config.journal.max_reads)

    async def read(self, function: Callable[_Args, _Result], *args: _Args.args, **keywords: _Args.kwargs) -> _Result:
        """Call `function` on a thread. A read whose caller has stopped waiting counts until it ends."""
        if not self._free.acquire(blocking=False):
            raise self._refusal(f"{self._settings.max_reads} reads are under way, the limit (journal.max_reads)")
        try:
            reading = threads.start_thread("holdfast-lake", function, *args, **keywords)
        except BaseException:
            self._free.release()
            raise
        reading.add_done_callback(lambda _: self._free.release())
        limit = self._settings.read_timeout
        time = asyncio.timeout(limit / SECOND)
        try:
            async with time:
                return await asyncio.wrap_future(reading)
        except OSError as error:  # TimeoutError is one
            late = f"it took more than {format_duration(limit)} (journal.read_timeout)"
            raise self._refusal(late if time.expired() else error.strerror or str(error)) from error

    def _refusal(self, problem: str) -> LakeUnreadable:
        log.warning("the lake cannot be read", lake=str(self._lake), problem=problem)
        return LakeUnreadable(problem=problem)
