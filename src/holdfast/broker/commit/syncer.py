"""Who syncs the store: a thread of its own, or the loop itself where that is sooner done.

On a thread a sync keeps nobody from working. But to hand it over and back takes 0.1 to 0.2 ms, on a fast disk as long
as the sync itself, and where one caller alone waits for it, nobody works meanwhile. So after some syncs in a row that
were fast and that nobody came to, the next ones are done in place. Now and then one is given to the thread all the
same, to see whether somebody would come; one that takes long, or has company, sends all to the thread for a while.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from holdfast import threads
from holdfast.store.contract import Store

# Syncs in a row that must be fast and alone before some are done in place; from then on every so many go to the thread.
QUIET_SYNCS = 16

Done = Callable[[Exception | None, float], None]
"""Hears on the loop's thread what went wrong, if something did, and how many seconds it took."""


class Syncer:
    """Syncs a store, one sync at a time. `done` is called for each; when it returns, `start` may be called again."""

    def __init__(
        self,
        store: Store,
        done: Done,
        in_place_max_seconds: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._store = store
        self._done = done
        self._in_place_max = in_place_max_seconds
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._calm = 0
        self._worker = threads.Worker("holdfast-sync")

    def start(self) -> None:
        """Sync everything that is written."""
        if self._calm >= QUIET_SYNCS and self._calm % QUIET_SYNCS:
            self._done(*self._sync())
        else:
            self._worker.start(self._sync_on_worker)
            time.sleep(0)  # lets the thread begin: else it waits for the GIL until the loop has nothing to do

    def record_sync(self, seconds: float, contended: bool) -> None:
        """A sync took so long; `contended`: somebody wanted another one meanwhile."""
        self._calm = 0 if contended or seconds > self._in_place_max else self._calm + 1

    def close(self) -> None:
        """End the thread. No sync is under way any more."""
        self._worker.end()

    def _sync_on_worker(self) -> None:
        error, seconds = self._sync()
        if not self._loop.is_closed():  # else there is nobody left to notify
            self._loop.call_soon_threadsafe(self._done, error, seconds)

    def _sync(self) -> tuple[Exception | None, float]:
        started = self._clock()
        try:
            self._store.sync()
        except Exception as error:  # noqa: BLE001 - whoever waits for the sync hears of it
            return error, self._clock() - started
        return None, self._clock() - started
