"""Group commit: everything that was applied in one turn of the loop is one batch, and batches share syncs.

An operation changes the engine in memory: it is **applied**. At the end of the pass of the loop a turn puts everything
that was applied into one batch and gives it to the store: it is **written**. A sync makes everything written before it
**durable**. While a sync runs on its thread (syncer.py), further batches are written; they share the next sync. A
remote store has several under way, and every batch is sent to it, whether or not a caller waits for that.

Each moment has one name here: `on_written` and `on_durable` call back, in the same pass of the loop; `written` and
`durable` are the same as a future.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import structlog

from holdfast.broker.commit.slow_syncs import SlowSyncs
from holdfast.broker.commit.syncer import RemoteSyncer, Syncer
from holdfast.engine.engine import Engine
from holdfast.errors import HoldfastError, StoreError, StoreUnavailable
from holdfast.store.contract import Store

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

LAZY_SYNC_SECONDS = 1.0
"""What is answered before its sync is synced at most this much later: queues with durability `buffered` lose at most
this much when the machine dies (nothing when the process does)."""

COMMIT_MESSAGES_MIN = 256
"""From so many messages on a front has a turn run while a sync is in progress. Fewer wait for its end and are written
with what arrives until then (`schedule_after_sync`): they share the next sync anyway."""

COMMIT_ACKS_MIN = 64
"""From so many acks that nobody waits for on a front has a turn run: they make room for deliveries."""

UNAWAITED_SECONDS = 0.005
"""Work whose end nobody waits for joins the next turn, and has one of its own after this time (`schedule_within`)."""

DoneCallback = Callable[[HoldfastError | None], None]
"""Called with None when the moment has come, or with the error because of which it will not."""


class _RunningSync(NamedTuple):
    callbacks: list[DoneCallback]
    upto: tuple[Engine | None, int]  # the last write of an engine that it covers
    started: float


class Distribution:
    """A histogram: how many values were at most each bound; the last count has no bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class GroupCommit:
    """Writes and syncs what was applied to the engine.

    `before_write` runs first in every turn: it leases for consumers that wait. `after_write` runs when the batch is
    written; its argument says whether answers must wait for the sync too. `on_failure` is called when the store failed:
    the engine's state is then ahead of the store and must be discarded.
    """

    def __init__(
        self,
        store: Store,
        before_write: Callable[[], None],
        after_write: Callable[[bool], None],
        on_failure: Callable[[StoreError], None],
        sync_in_place_max_seconds: float = 0.0,
        slow_sync_seconds: float = math.inf,
    ) -> None:
        self.engine: Engine | None = None
        self.batches = 0
        self.syncs = 0
        self.sync_seconds = 0.0
        self.batch_rows = Distribution((1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000))
        self.sync_times = Distribution((0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0))
        self._slow_syncs = SlowSyncs(store.name, slow_sync_seconds)
        self._lsn = 0
        self._before_write = before_write
        self._after_write = after_write
        self._on_failure = on_failure
        self._store = store
        self._sync_in_place_max_seconds = sync_in_place_max_seconds
        self._loop: asyncio.AbstractEventLoop  # from `start` on
        self._syncer: Syncer | RemoteSyncer
        self._scheduled = False
        self._collecting = False  # in a turn, before its batch is written
        self._delivering = False  # in a turn, after that
        self._syncing = 0  # syncs that are under way
        self._turn_after_sync = False
        self._turn_within = False
        self._latest_turn: asyncio.TimerHandle | None = None  # when it fires, the turn may have been long ago
        self._synced_upto: tuple[Engine | None, int] = (None, 0)  # the last write of an engine that is synced
        self._required_upto: tuple[Engine | None, int] = (None, 0)  # the last write that no answer may precede
        # Callbacks go down this list: a turn writes, then the next sync starts, then it ends.
        self._on_written: list[DoneCallback] = []
        self._on_durable: list[DoneCallback] = []  # of what is applied, and perhaps not written
        self._on_next_sync: list[DoneCallback] = []  # of what is written
        self._running: deque[_RunningSync] = deque()  # in the order in which they were started, and end
        self._lazy_sync: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Use the loop that runs, and a thread for syncs."""
        self._loop = asyncio.get_running_loop()
        if self._store.remote:
            self._syncer = RemoteSyncer(self._store, self._synced)
        else:
            self._syncer = Syncer(self._store, self._synced, self._sync_in_place_max_seconds)

    def schedule(self) -> None:
        """Have a turn at the end of this pass of the loop."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.run_turn)

    def schedule_after_sync(self) -> None:
        """Have a turn when the sync that runs has ended; at the end of this pass, if none runs. For small work that
        waits for the next sync in any case: a turn of its own would cost more than the work."""
        if self._syncing >= self._store.in_flight_max:
            self._turn_after_sync = True
        else:
            self.schedule()

    def schedule_within(self) -> None:
        """Have a turn within `UNAWAITED_SECONDS`: the next one, whatever it is for, or one of its own."""
        self._turn_within = not self._scheduled
        if self._turn_within and self._latest_turn is None:
            self._latest_turn = self._loop.call_later(UNAWAITED_SECONDS, self._run_latest_turn)

    def _run_latest_turn(self) -> None:
        self._latest_turn = None
        if self._turn_within:
            self.schedule()

    def on_written(self, callback: DoneCallback) -> None:
        """Call back when everything applied so far is in the store, or will not be."""
        self._on_written.append(callback)
        if not self._collecting:  # else this very turn writes it
            self.schedule()

    def on_durable(self, callback: DoneCallback) -> None:
        """Call back when everything applied so far is synced, or will not be."""
        if self._delivering and self.engine is not None and not self.engine.pending:
            self._on_next_sync.append(callback)  # all of it is written: the sync at the end of this turn covers it
            return
        self._on_durable.append(callback)
        if not self._collecting:  # else this very turn writes it, and starts the sync
            self.schedule()

    def written(self) -> asyncio.Future[None]:
        """`on_written` as a future of the caller's own."""
        future: asyncio.Future[None] = self._loop.create_future()
        self.on_written(partial(resolve, future))
        return future

    def durable(self) -> asyncio.Future[None]:
        """`on_durable` as a future of the caller's own."""
        future: asyncio.Future[None] = self._loop.create_future()
        self.on_durable(partial(resolve, future))
        return future

    def sync_lazily(self) -> None:
        """Have everything applied so far synced within `LAZY_SYNC_SECONDS`."""
        if self._lazy_sync is None:
            self._lazy_sync = self._loop.call_later(LAZY_SYNC_SECONDS, self._sync_lazily)

    def _sync_lazily(self) -> None:
        self._lazy_sync = None
        if self.engine is not None:
            self.on_durable(_ignore)

    @property
    def clean(self) -> bool:
        """Whether everything that was applied is synced: what is in memory now will survive a crash."""
        engine = self.engine
        return engine is None or (not engine.pending and self._synced_upto == (engine, engine.writes))

    def run_turn(self) -> None:
        """One turn: lease for consumers that wait, write the batch, and start a sync if a callback waits for one."""
        self._scheduled = self._turn_within = False
        engine = self.engine
        if engine is None:
            return
        self._collecting = True
        try:
            self._run_turn(engine)
        finally:
            self._collecting = False

    def _run_turn(self, engine: Engine) -> None:
        try:
            self._before_write()
            if self.engine is not engine:  # the store failed meanwhile, and all callbacks were called
                return
            pending = engine.pending
            must_sync = self._must_sync(engine, engine.write())
        except StoreError as error:
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
        self._collecting, self._delivering = False, True
        on_written, self._on_written = self._on_written, []
        self._on_next_sync += self._on_durable
        self._on_durable = []
        if must_sync:
            self._on_next_sync += on_written or [_ignore]
        elif on_written:
            notify(on_written, None)
        if pending and self._store.remote and not self._on_next_sync:
            self._on_next_sync.append(_ignore)
        try:
            self._after_write(must_sync)
        finally:
            self._delivering = (
                False  # a sync in place calls back before this returns, and what that applies is not in it
            )
            self._start_sync()
            engine.drop_written_batch()

    def _must_sync(self, engine: Engine, required: bool) -> bool:
        """Whether all answers to this turn wait for a sync: because its batch requires that, or one before it does that
        is not synced yet. Ids that one batch reserves are given out in the turns after it."""
        if required:
            self._required_upto = (engine, engine.writes)
        required_by, upto = self._required_upto
        synced_of, synced = self._synced_upto
        return required_by is engine and (synced_of is not engine or synced < upto)

    def _start_sync(self) -> None:
        if not self._on_next_sync or self._syncing >= self._store.in_flight_max:
            return
        self._syncing += 1
        upto = (self.engine, self.engine.writes if self.engine is not None else 0)
        self._running.append(_RunningSync(self._on_next_sync, upto, self._loop.time()))
        self._on_next_sync = []
        self._syncer.start()

    def _synced(self, error: Exception | None, seconds: float) -> None:
        self._syncing -= 1
        callbacks, upto, _ = self._running.popleft()
        wanted = self._turn_after_sync or bool(self._on_durable) or bool(self._on_next_sync)
        self._turn_after_sync = False
        self.syncs += 1
        self.sync_seconds += seconds
        self.sync_times.add(seconds)
        self._slow_syncs.ended(seconds, self._loop.time())
        self._syncer.record_sync(seconds, contended=wanted or self._scheduled)
        if error is not None:
            failure = error if isinstance(error, StoreError) else StoreUnavailable(problem=str(error))
            self._fail(failure, callbacks)
            return
        self._synced_upto = upto
        notify(callbacks, None)
        if wanted:
            self.schedule()

    def look_at_syncs(self) -> None:
        """Have the log say if they have become slow, or fast again; also of one that hangs."""
        self._slow_syncs.look(self._running[0].started if self._running else None, self._loop.time())

    def fail(self, error: StoreError) -> None:
        """The store failed: everything that waits ends with the error, and the engine must be opened again. What a sync
        that runs covers is reported when that sync ends."""
        self._fail(error, [])

    def _fail(self, error: StoreError, callbacks: list[DoneCallback]) -> None:
        self.engine = None
        self._lsn = 0
        callbacks = callbacks + self._on_written + self._on_durable + self._on_next_sync
        self._on_written, self._on_durable, self._on_next_sync = [], [], []
        try:
            self._on_failure(error)  # first: a callback that submits something must be refused
        finally:
            notify(callbacks, error)

    async def close(self) -> None:
        """Wait for the syncs that run; no more are started."""
        for timer in (self._lazy_sync, self._latest_turn):
            if timer is not None:
                timer.cancel()
        if self._running:
            ended: asyncio.Future[None] = self._loop.create_future()
            self._running[-1].callbacks.append(partial(resolve, ended))
            await asyncio.wait([ended])
        self._syncer.close()


def notify(callbacks: list[DoneCallback], error: HoldfastError | None) -> None:
    """Call all of them: one that raises does not keep it from the others."""
    for callback in callbacks:
        try:
            callback(error)
        except Exception:
            log.exception("a completion callback failed")


def resolve(future: asyncio.Future[None], error: HoldfastError | None) -> None:
    """End a future, unless it was cancelled because its caller has stopped waiting."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        future.exception()  # marks it as retrieved: the caller may never await it


def _ignore(error: HoldfastError | None) -> None:
    """For a sync without a caller that waits for it."""
