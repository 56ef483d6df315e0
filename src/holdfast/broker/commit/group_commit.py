"""Group commit: everything that happened in a turn of the loop is one batch, and batches share syncs.

Operations change the engine at once and then wait for one of two things: `written` (the batch that holds them is in
the store) or `durable` (and synced). While a sync runs on its thread (syncer.py), further batches are written;
they share the next sync. Nobody waits for a future of his own: there is one for each batch and one for each sync. Who
needs no future hears of it by a callback (`on_written`, `on_durable`), in the same pass of the loop.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable

import structlog

from holdfast.broker.commit.syncer import Syncer
from holdfast.engine.engine import Engine
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.store.contract import Store

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


DoneCallback = Callable[[HoldfastError | None], None]
"""Hears that what was gathered before is safe, or what went wrong instead."""


class Distribution:
    """How often what was counted: by upper bound, the last one without."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class GroupCommit:
    """Writes and syncs what the engine gathers.

    `before` runs first in every turn: it leases what waiters may have. `after` runs when the batch is written, and is
    told whether answers must wait for the sync too. `on_failure` is told when the store failed: the engine's state is
    then ahead of the store and must go.
    """

    def __init__(
        self,
        store: Store,
        before: Callable[[], None],
        after: Callable[[bool], None],
        on_failure: Callable[[HoldfastError], None],
        sync_in_place_max_seconds: float = 0.0,
    ) -> None:
        self.engine: Engine | None = None
        self.batches = 0
        self.syncs = 0
        self.sync_seconds = 0.0
        self.batch_rows = Distribution((1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000))
        self.sync_times = Distribution((0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0))
        self._lsn = 0
        self._before = before
        self._after = after
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._syncer = Syncer(store, self._synced, sync_in_place_max_seconds)
        self._scheduled = False
        self._in_write = False
        self._synced_upto: tuple[Engine | None, int] = (None, 0)  # the last write of an engine that is synced
        self._syncing_upto: tuple[Engine | None, int] = (None, 0)  # when the sync that runs is over
        self._written: asyncio.Future[None] | None = None
        self._durable: asyncio.Future[None] | None = None
        self._syncing: asyncio.Future[None] | None = None
        self._on_synced: list[Callable[[], None]] = []  # with the next sync
        self._on_syncing: list[Callable[[], None]] = []  # with the one that runs
        self._on_written: list[DoneCallback] = []
        self._on_durable: list[DoneCallback] = []  # with the next sync
        self._on_durable_running: list[DoneCallback] = []  # with the one that runs

    def schedule(self) -> None:
        """Have a turn at the end of this pass of the loop."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.write_batch)

    def schedule_after_sync(self) -> None:
        """Have a turn when the sync that runs is over; soon, if none does. For what is little, and waits for the next
        sync in any case: a turn of its own would cost more than it does."""
        if self._syncing is None:
            self.schedule()
        elif self._durable is None:
            self._durable = self._loop.create_future()

    def written(self) -> asyncio.Future[None]:
        """Done when everything gathered so far is in the store."""
        if self._written is None:
            self._written = self._loop.create_future()
            self.schedule()
        return self._written

    def durable(self) -> asyncio.Future[None]:
        """Done when everything gathered so far is synced."""
        if self._durable is None:
            self._durable = self._loop.create_future()
            if not self._in_write:  # else this very turn starts the sync at its end
                self.schedule()
        return self._durable

    def until_durable(self) -> asyncio.Future[None]:
        """As `durable`, for one who may stop waiting: his own future. (As `asyncio.shield`, at half its price.)"""
        return self._own(self.durable())

    def until_written(self) -> asyncio.Future[None]:
        """As `written`, for one who may stop waiting."""
        return self._own(self.written())

    def _own(self, shared: asyncio.Future[None]) -> asyncio.Future[None]:
        own: asyncio.Future[None] = self._loop.create_future()
        shared.add_done_callback(lambda done: _copy(done, own))
        return own

    @property
    def clean(self) -> bool:
        """Whether everything that was gathered is synced: what is in memory now will survive a crash."""
        engine = self.engine
        return engine is None or (not engine.pending and self._synced_upto == (engine, engine.writes))

    def when_synced(self, callback: Callable[[], None]) -> None:
        """Call back when everything gathered so far is synced: for bookkeeping, not for answers."""
        self.durable()
        self._on_synced.append(callback)

    def on_durable(self, callback: DoneCallback) -> None:
        """Call back when everything gathered so far is synced, or will not be."""
        self.durable()
        self._on_durable.append(callback)

    def on_written(self, callback: DoneCallback) -> None:
        """Call back when everything gathered so far is in the store, or will not be."""
        self.schedule()
        self._on_written.append(callback)

    def write_batch(self) -> None:
        """Hand out what is ready, write the batch, and see that it is synced if somebody waits for that."""
        self._scheduled = False
        engine = self.engine
        if engine is None:
            return
        self._in_write = True
        try:
            self._write_batch(engine)
        finally:
            self._in_write = False

    def _write_batch(self, engine: Engine) -> None:
        try:
            self._before()
            if self.engine is not engine:  # the store failed meanwhile, and everybody was told
                return
            pending = engine.pending
            must_sync = engine.write()
        except HoldfastError as error:
            self.fail(error)
            return
        except Exception as error:
            log.exception("a turn failed")
            self.fail(StoreUnavailable(problem=f"internal error: {error!r}"))
            return
        self.batches += pending
        if pending:
            lsn = engine.record.next_lsn
            if self._lsn:
                self.batch_rows.add(lsn - self._lsn)
            self._lsn = lsn
        written, self._written = self._written, None
        on_written, self._on_written = self._on_written, []
        if must_sync:
            durable = self.durable()
            self._on_durable += on_written
            on_written = []
            if written is not None:
                durable.add_done_callback(lambda done: _copy(done, written))
        elif written is not None and not written.done():
            written.set_result(None)
        notify(on_written, None)
        try:
            self._after(must_sync)
        finally:
            self._start_sync()
            engine.drop_written_batch()

    def _start_sync(self) -> None:
        if self._durable is None or self._syncing is not None:
            return
        self._syncing, self._durable = self._durable, None
        self._syncing_upto = (self.engine, self.engine.writes if self.engine is not None else 0)
        self._on_syncing, self._on_synced = self._on_synced, []
        self._on_durable_running, self._on_durable = self._on_durable, []
        self._syncer.start()

    def _synced(self, error: Exception | None, seconds: float) -> None:
        waiting, self._syncing = self._syncing, None
        callbacks, self._on_syncing = self._on_syncing, []
        pending_callbacks, self._on_durable_running = self._on_durable_running, []
        self.syncs += 1
        self.sync_seconds += seconds
        self.sync_times.add(seconds)
        self._syncer.record_sync(seconds, contended=self._durable is not None or self._scheduled)
        if error is not None:
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)
                waiting.exception()
            failure = error if isinstance(error, HoldfastError) else StoreUnavailable(problem=str(error))
            notify(pending_callbacks, failure)
            self.fail(failure)
            return
        self._synced_upto = self._syncing_upto
        for callback in callbacks:
            notify([lambda _: callback()], None)  # noqa: B023 - called at once
        notify(pending_callbacks, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
        if self._durable is not None:
            self.schedule()

    def fail(self, error: HoldfastError) -> None:
        """The store failed: whoever waits is told, and the node must open again."""
        self.engine = None
        self._lsn = 0
        for future in (self._written, self._durable):
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # somebody may have stopped waiting; that is no error of the loop's
        self._written = self._durable = None
        self._on_synced = []
        pending_callbacks = self._on_written + self._on_durable
        self._on_written, self._on_durable = [], []
        notify(pending_callbacks, error)
        self._on_failure(error)

    async def close(self) -> None:
        """Wait for the sync that runs; no more are started."""
        if self._syncing is not None:
            await asyncio.wait([self._syncing])
        self._syncer.close()


def notify(pending_callbacks: list[DoneCallback], error: HoldfastError | None) -> None:
    """One who fails to hear it is not to keep it from the others."""
    for callback in pending_callbacks:
        try:
            callback(error)
        except Exception:
            log.exception("an answer failed")


def _copy(source: asyncio.Future[None], target: asyncio.Future[None]) -> None:
    if target.done():
        return
    error = source.exception() if not source.cancelled() else StoreUnavailable(problem="the sync was interrupted")
    if error is None:
        target.set_result(None)
    else:
        target.set_exception(error)
        target.exception()
