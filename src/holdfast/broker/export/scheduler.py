"""When the journal is exported: by age or by size, on a thread of its own, and what follows in the store.

The exporter itself (exporter.py) is synchronous and has no clock. The scheduler calls it when a segment is full or the
oldest record is old enough; then the exported blocks, and the messages that were only kept for them, are deleted from
the store.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from typing import Any, NamedTuple, TypeVar

import structlog

from holdfast import threads
from holdfast.broker.export.conversion import Converter, InProcess
from holdfast.broker.export.exporter import Exported, Exporter
from holdfast.broker.export.lake_room import LakeRoom
from holdfast.broker.export.retention import Removed, RetentionPolicy
from holdfast.broker.lookout.disk_forecast import DiskForecast
from holdfast.config import Config
from holdfast.core.queue import JournalMode
from holdfast.engine.engine import Engine
from holdfast.errors import HoldfastError, LakeDamaged, LakeFull, LakeUnavailable
from holdfast.store.contract import Store
from holdfast.units import SECOND

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

_Result = TypeVar("_Result")

RETRY_SECONDS = 5.0  # after an export that failed: a full disk or an unavailable lake
THROTTLE_FACTOR = 3.0  # while others write: the exporter pauses so many times as long as it worked
THROTTLE_MAX_SECONDS = 0.1
IDLE_SECONDS = (
    10.0  # without an export, after which the process that converts is ended: it has more memory than the node
)
LOOK_SECONDS = 60.0  # between looks at the lake: how large it is, and what is too old
LEAVE_SECONDS = 2.0  # for the thread to notice that the export was abandoned, before it counts as hung in the system


class LakeState(NamedTuple):
    """What a look at the lake found."""

    journal_bytes: int = 0
    """Of its segments."""
    free_bytes: int = 0
    """On its disk."""
    full_seconds: float = math.inf
    """When that is full, if it goes on filling as it has."""
    removed_bytes: int = 0
    """Of segments that `journal.retention` removed, since the node began."""
    waits_for: str = ""
    """Why segments that are old enough are not removed."""


class ExportScheduler:
    """Exports the journal of a cell. `engine` gives the open engine or None, `durable` waits for a commit."""

    def __init__(
        self,
        config: Config,
        store: Store,
        engine: Callable[[], Engine | None],
        durable: Callable[[], Awaitable[None]],
        clock: Callable[[], int],
    ) -> None:
        self._clock = clock
        self._settings = config.journal
        self._store = store
        self._engine = engine
        self._durable = durable
        self._exporter = Exporter(
            store,
            config.lake_dir,
            config.node.node_id,
            self._settings.segment_rows,
            self._settings.segment_bytes,
            converter=self._converter(),
            room=LakeRoom(store, config.node.data_dir, config.lake_dir, config.store.write_buffer_bytes),
            retention=RetentionPolicy(
                self._settings.retention, self._settings.retention_bytes, self._settings.retention_force
            ),
            throttle=self._throttle,
        )
        self._lake = config.lake_dir
        self._forecast = DiskForecast()
        self.lake = LakeState()
        self._seen_writes = 0
        self._worker: threads.WorkerThread  # from `start` on
        self._under_way: Future[Any] | None = None
        self._wanted = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._lock = asyncio.Lock()
        self._bytes = 0
        self._waits = False  # the last failure was that the disk has no room
        self.failed: str = ""

    def _converter(self) -> Converter:
        settings = self._settings
        if settings.conversion == "process":
            return InProcess(settings.conversion_timeout / SECOND)
        from holdfast.broker.export.worker import InThread  # noqa: PLC0415 - Arrow and Parquet, 35 MiB

        return InThread()

    def _throttle(self, seconds: float) -> None:
        """Between two ranges of blocks, on the exporter's thread: while others write, leave them the processors
        and the GIL for most of the time. The backlog waits in the store meanwhile, as long as it is small."""
        engine = self._engine()
        if engine is None:
            return
        busy, self._seen_writes = engine.writes != self._seen_writes, engine.writes
        if busy and self.behind < self._settings.max_behind // 4:
            time.sleep(min(THROTTLE_FACTOR * seconds, THROTTLE_MAX_SECONDS))

    @property
    def behind(self) -> int:
        """Journal rows that are not in the lake yet."""
        engine = self._engine()
        return engine.record.next_lsn - 1 - engine.record.exported_lsn if engine is not None else 0

    def add_payload_bytes(self, payload_bytes: int) -> None:
        """Payloads that will be part of the next segment."""
        self._bytes += payload_bytes

    def check_due(self) -> None:
        """After a commit: export now if a segment is full, else when it is old enough. After a failure only the retry
        that is due."""
        if self.failed:
            return
        engine = self._engine()
        if engine is None or (record := engine.record).next_block - 1 <= record.exported_block:
            return
        if self._exporter.fills_segment(record.next_lsn - 1 - record.exported_lsn, self._bytes):
            self._wanted.set()
        elif self._timer is None:
            self._arm(self._settings.segment_age / SECOND)

    def _arm(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._wanted.set)

    async def start(self) -> None:
        """Before anything is written: blocks that reached the lake before a crash are deleted from the store.

        A lake that cannot be read does not keep the node from working: the journal stays in the store meanwhile.
        """
        self._worker = threads.WorkerThread("holdfast-export")
        engine = self._engine()
        if engine is None or not self._settings.enabled:
            return
        record = engine.record
        try:
            position = await self._run(self._exporter.recover, record.exported_lsn)
            if position.last_block <= record.exported_block:
                if not record.chain_length and position.last_lsn == record.exported_lsn:  # of before it was kept
                    record.chain_hash, record.chain_length = position.chain
                return
            # A store that is younger than its lake (new, or restored from a backup) must not reuse the numbers of
            # blocks and rows that are in the lake.
            last_block = min(position.last_block, record.next_block - 1)
            removal = await self._run(self._exporter.removal_between, record.exported_block + 1, last_block)
        except (LakeUnavailable, LakeDamaged) as error:
            self._record_failure(error)
            return
        record.next_block = max(record.next_block, position.last_block + 1)
        record.next_lsn = max(record.next_lsn, position.last_lsn + 1)
        engine.exported(position.last_block, position.last_lsn, removal, position.chain)
        await self._durable()

    def _record_failure(self, error: Exception) -> None:
        expected = isinstance(error, HoldfastError)
        waited, self._waits = self._waits, isinstance(error, LakeFull)
        self.failed = str(error) if expected else f"internal error: {error!r}"
        if not isinstance(error, LakeFull):
            log.error(
                "journal export failed; it will be tried again",
                error=self.failed,
                rows_behind=self.behind,
                exc_info=None if expected else error,
            )
        elif not waited:
            log.error("the journal waits for room on the disk", rows_behind=self.behind, **error.details)
        self._arm(RETRY_SECONDS)

    async def run(self) -> None:
        """Export whenever it is time, for as long as the node runs."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            try:
                await self.export()
            except Exception as error:  # noqa: BLE001 - whatever it is (out of memory, say), the export is tried again
                self._record_failure(error)
            else:
                if self.failed:
                    log.info("the journal is exported again", rows_behind=self.behind)
                self.failed, self._waits = "", False
                self.check_due()

    async def keep_lake(self) -> None:
        """Look after the lake every minute, for as long as the node runs."""
        while self._settings.enabled:
            try:
                await self.look_after_lake()
            except Exception as error:
                expected = isinstance(error, (HoldfastError, OSError))
                log.error("the lake cannot be looked after", error=str(error), exc_info=None if expected else error)
            await asyncio.sleep(LOOK_SECONDS)

    async def look_after_lake(self) -> None:
        """Remove segments that are too old, and measure what is left."""
        more = True
        while more:
            async with self._lock:  # an export comes between two steps
                self._cancel_idle_timer()
                try:
                    more = await self._run(self._look, self._journalled())
                finally:
                    self._arm_idle_timer()

    def _journalled(self) -> list[int] | None:
        """The partitions of queues that keep a journal; None: the store is away."""
        engine = self._engine()
        if engine is None:
            return None
        queues = [queue for queue in engine.queues.values() if queue.config.journal is not JournalMode.OFF]
        return [number for queue in queues for number in queue.shard_numbers]

    def _look(self, shards: list[int] | None) -> bool:
        """On the thread that exports. Returns whether there is more to remove."""
        removed = self._exporter.remove_old(shards) if shards is not None else Removed()
        before, disk = self.lake, os.statvfs(self._lake)
        free_bytes = disk.f_bavail * disk.f_frsize
        self._forecast.add(self._clock(), free_bytes)
        if removed.waits_for and removed.waits_for != before.waits_for:
            log.warning("old segments stay", waits_for=removed.waits_for)
        self.lake = LakeState(
            journal_bytes=self._exporter.journal_bytes,
            free_bytes=free_bytes,
            full_seconds=self._forecast.seconds_left(0),
            removed_bytes=before.removed_bytes + removed.size_bytes,
            waits_for=removed.waits_for,
        )
        return removed.more

    async def export(self) -> None:
        """Export everything that is in the journal now."""
        async with self._lock:
            self._cancel_idle_timer()
            try:
                await self._export_all()
            except Exception:
                self._arm_idle_timer()
                raise
            self._arm_idle_timer()

    async def _export_all(self) -> None:
        engine = self._engine()
        if engine is None:
            return
        last_block = engine.record.next_block - 1
        while engine is self._engine() and engine.record.exported_block < last_block:
            self._bytes = 0
            exported = await self._next(engine)
            if exported is None or engine is not self._engine():
                return
            engine.exported(exported.last_block, exported.last_lsn, exported.removal, exported.chain)
            await self._durable()
        self._store.reclaim()

    def _arm_idle_timer(self) -> None:
        self._idle_timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._end_conversion)

    def _end_conversion(self) -> None:
        """On the thread that exports, so that no export is under way."""
        self._idle_timer = None
        self._worker.submit(self._exporter.close)

    def _cancel_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    async def _next(self, engine: Engine) -> Exported | None:
        after = engine.record.exported_block
        if self._settings.enabled:
            return await self._run(self._exporter.export, after, True)
        return await self._run(self._exporter.drop, after)

    async def _run(self, function: Callable[..., _Result], *args: int | list[int] | None) -> _Result:
        under_way = self._under_way = self._worker.submit(function, *args)
        return await asyncio.wrap_future(under_way)

    async def close(self) -> None:
        """Wait for an export under way, but not for long: `start` finds what it wrote, and what it did not write is in
        the store."""
        if self._timer is not None:
            self._timer.cancel()
        self._cancel_idle_timer()
        if self._under_way is not None and not self._under_way.cancel():
            await threads.run_in_thread("holdfast-stop", wait, [self._under_way], self._settings.stop_timeout / SECOND)
            if not self._under_way.done():
                log.warning("a segment of the journal is left for the next start", rows_behind=self.behind)
                self._exporter.abandon()
        await threads.run_in_thread("holdfast-stop", self._end)

    def _end(self) -> None:
        if self._worker.end(LEAVE_SECONDS):
            self._exporter.close()
        else:
            log.warning("the lake does not respond; a thread that hangs there is abandoned")
