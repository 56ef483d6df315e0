"""`build --follow`: keeps the tables up to date for as long as the server runs.

Each refresh builds the new segments, compacts small files, removes expired rows and deletes files that nobody needs. It
can be killed at any time: a refresh is a build, and a build is exactly once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec
from pyspark.sql import SparkSession

from holdfast.errors import LakeNotFound
from holdfast.pipeline.build.build import BATCH_ROWS, Build, Built
from holdfast.pipeline.lake import maintenance
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.spark.stages import Stages

RETENTION_HOURS = 1
"""How long replaced files stay at least: long enough for readers that have them open."""

RETAIN_SECONDS = (60.0, 3600.0)
"""Between two searches for expired rows: a fiftieth of the age, but within these bounds."""


class RefreshOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a refresh."""

    batch_rows: int = BATCH_ROWS
    compact: bool = True
    small_files: int = maintenance.SMALL_FILES
    """A table is compacted when it has this many small files."""
    keep_seconds: float = 0.0
    """Remove rows that ended longer ago; 0: keep everything."""
    retention_hours: int = RETENTION_HOURS
    """How long replaced files stay: so long a table can be read as it was."""


class RefreshResult(msgspec.Struct, kw_only=True):
    """What one refresh did."""

    built: Built
    compacted: dict[str, int] = {}
    """Compacted files, by table."""
    expired_rows: dict[str, int] = {}
    """Rows that were removed because they were too old, by table."""
    swept: int = 0
    """Files that were deleted."""


class Stopped(Exception):
    """A stop was requested, and a batch has just been committed."""


class Builder:
    """Refreshes the tables, once or continuously. The lake must be locked."""

    def __init__(
        self,
        lake: Lake,
        spark: SparkSession,
        stages: Stages,
        wanted: RefreshOptions,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._lake = lake
        self._spark = spark
        self._stages = stages
        self._wanted = wanted
        self._progress = progress
        self._stop: threading.Event | None = None
        self._retained_at = -RETAIN_SECONDS[1]

    def refresh(self) -> RefreshResult:
        """Build what is new, then compact, expire and sweep."""
        lake, spark, stages, wanted = self._lake, self._spark, self._stages, self._wanted
        build = Build(lake, spark, stages, batch_rows=wanted.batch_rows, progress=self._committed)
        done = RefreshResult(built=build.run())
        if wanted.compact:
            done.compacted = maintenance.compact(lake, spark, stages, wanted.small_files)
        if wanted.keep_seconds and self._is_time_to_retain():
            before = datetime.now(UTC) - timedelta(seconds=wanted.keep_seconds)
            done.expired_rows = maintenance.retain(lake, spark, stages, before)
        if done.built.batches or done.compacted or done.expired_rows:
            done.swept = maintenance.sweep(lake, stages, wanted.retention_hours)
        return done

    def _committed(self, events: int, of: int) -> None:
        """Called when a batch is committed."""
        if self._progress is not None:
            self._progress(events, of)
        if self._stop is not None and self._stop.is_set():
            raise Stopped

    def _is_time_to_retain(self) -> bool:
        low, high = RETAIN_SECONDS
        pause = min(max(self._wanted.keep_seconds / 50, low), high)
        if time.monotonic() - self._retained_at < pause:
            return False
        self._retained_at = time.monotonic()
        return True

    def follow(
        self, stop: threading.Event, pause_seconds: float, on_refresh: Callable[[RefreshResult], None]
    ) -> RefreshResult:
        """Refresh until `stop` is set, and call `on_refresh` after each. Before the first segment there is no lake
        yet."""
        done = RefreshResult(built=Built())
        self._stop = stop
        try:
            while True:
                try:
                    done = self.refresh()
                    on_refresh(done)
                except LakeNotFound:
                    pass  # the server has not exported anything
                if stop.wait(pause_seconds):
                    break
        except Stopped:
            pass
        finally:
            self._stop = None
        return done
