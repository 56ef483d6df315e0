"""Syncs the store: on a separate thread, or on the loop itself where that is faster.

A sync on a thread does not block the loop. But the hand-over to the thread and back takes 0.1 to 0.2 ms, on a fast disk
as long as the sync itself, and where a single caller waits for it, the loop has no other work. So after some syncs in a
row that were fast and not contended (nothing else asked for a sync meanwhile), the next ones are done in place. Now and
then one is still given to the thread, to find out whether there is contention; a slow or contended one sends all syncs
to the thread for a while. A remote store needs no thread of ours, and is never synced in place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from holdfast import threads
from holdfast.store.contract import Store

# Syncs in a row that must be fast and not contended before some are done in place; then every so many go to the thread.
QUIET_SYNCS = 16

Done = Callable[[Exception | None, float], None]
"""Called on the loop's thread with the error, if there was one, and the seconds that the sync took."""


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
        self._worker = threads.WorkerThread("holdfast-sync")

    def start(self) -> None:
        """Sync everything that is written."""
        if self._calm >= QUIET_SYNCS and self._calm % QUIET_SYNCS:
            self._done(*self._sync())
        else:
            self._worker.start(self._sync_on_worker)

    def record_sync(self, seconds: float, contended: bool) -> None:
        """A sync took so long; `contended`: another one was wanted meanwhile."""
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
        except Exception as error:  # noqa: BLE001 - it is reported to `done`
            return error, self._clock() - started
        return None, self._clock() - started


class RemoteSyncer:
    """Syncs a remote store: several may be under way, and `done` is called for each, in order."""

    def __init__(self, store: Store, done: Done, clock: Callable[[], float] = time.perf_counter) -> None:
        self._store = store
        self._done = done
        self._clock = clock
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Sync everything that is written."""
        started = self._clock()

        def ended(error: Exception | None) -> None:
            if not self._loop.is_closed():  # else there is nobody left to notify
                self._loop.call_soon_threadsafe(self._done, error, self._clock() - started)

        self._store.sync_soon(ended)

    def record_sync(self, seconds: float, contended: bool) -> None:
        """Nothing depends on it."""

    def close(self) -> None:
        """Nothing is to be released."""
