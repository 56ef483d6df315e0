"""`build --follow`: the tables kept up to date for as long as the server runs.

Each look takes in the segments that are new, joins small files, lets go of what is old and deletes files that nobody
needs. Whatever kills it, the next one goes on: a look is a build, and a build is exactly once.
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
from holdfast.pipeline.lake import maintenance as upkeep
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.spark.stages import Stages

SWEEP_HOURS = 1
"""How long files stay that a rewrite replaced: long enough for whoever is reading them."""

RETAIN_SECONDS = (60.0, 3600.0)
"""Between two looks for rows that are too old: a fiftieth of the age, but within this."""


class Upkeep(msgspec.Struct, frozen=True, kw_only=True):
    """What is done beside taking in segments."""

    batch_rows: int = BATCH_ROWS
    compact: bool = True
    small_files: int = upkeep.SMALL_FILES
    """Files of a table that are joined when there are so many small ones."""
    keep_seconds: float = 0.0
    """Let go of what ended longer ago; 0: keep everything."""


class RefreshResult(msgspec.Struct, kw_only=True):
    """What one look did."""

    built: Built
    compacted: dict[str, int] = {}
    """Files that were joined, by table."""
    let_go: dict[str, int] = {}
    """Rows that were too old."""
    swept: int = 0
    """Files that were deleted."""


class Stopped(Exception):
    """Somebody wants it to end, and a batch has just been committed."""


class Builder:
    """Builds again and again. The lake must be locked."""

    def __init__(
        self,
        lake: Lake,
        spark: SparkSession,
        stages: Stages,
        wanted: Upkeep,
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
        """Take in what is new, and keep the tables in shape."""
        lake, spark, stages, wanted = self._lake, self._spark, self._stages, self._wanted
        build = Build(lake, spark, stages, batch_rows=wanted.batch_rows, progress=self._committed)
        done = RefreshResult(built=build.run())
        if wanted.compact:
            done.compacted = upkeep.compact(lake, spark, stages, wanted.small_files)
        if wanted.keep_seconds and self._is_time_to_retain():
            before = datetime.now(UTC) - timedelta(seconds=wanted.keep_seconds)
            done.let_go = upkeep.retain(lake, spark, stages, before)
        if done.built.batches or done.compacted or done.let_go:
            done.swept = upkeep.sweep(lake, stages, SWEEP_HOURS)
        return done

    def _committed(self, events: int, of: int) -> None:
        """A batch is in the tables."""
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
        """Look until `stop` is set, and tell of each look. Before the first segment there is nothing to look at yet."""
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
