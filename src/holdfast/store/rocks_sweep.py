"""Removing the garbage that deleted records leave.

A delete in RocksDB is one more record, a tombstone; a compaction that finds both removes them. RocksDB compacts by its
own measure, which does not consider emptied ranges and ignores an idle database. The sweeper compacts what has garbage:
the ranges that were reported to it, and the files with many tombstones. While the disk is nearly full it alone
compacts, and only what fits beside what settling needs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from rocksdict import Rdict

from holdfast.core.records import Table
from holdfast.store.rocks_tuning import FAMILY_OF, sparing_changes, sweep_options

# Spans are merged when there are more than this many.
_SPANS_MAX = 256

# The table and a shard: records that are deleted in one partition of a queue are mostly neighbours, at its front.
_ONE_SHARD_BYTES = 5

# A file is worth compacting when one in this many of its entries is a tombstone.
_CROWDED = 4

# Tombstones in memtables below this number are left to the next ordinary flush, unless the disk is nearly full.
_MEMTABLE_DELETES_MIN = 1_000

# The family of what takes most of the room.
_LARGE = FAMILY_OF[Table.MESSAGES]

# Between the sweeps of a disk that is nearly full.
_SPARING_PAUSE_SECONDS = 1.0


class Span(NamedTuple):
    """A range of keys of one column family that has garbage."""

    family: str
    start: bytes
    end: bytes


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same ranges, overlapping and touching ones joined."""
    result: list[Span] = []
    for span in sorted(spans):
        last = result[-1] if result else None
        if last is not None and last.family == span.family and span.start <= last.end:
            result[-1] = Span(last.family, last.start, max(last.end, span.end))
        else:
            result.append(span)
    return result


def widened(spans: Iterable[Span], prefix_bytes: int) -> list[Span]:
    """One range that covers all of a family that begin with the same bytes: coarse, but few."""
    hulls: dict[tuple[str, bytes], Span] = {}
    for span in spans:
        name = (span.family, span.start[:prefix_bytes])
        hull = hulls.setdefault(name, span)
        hulls[name] = Span(span.family, min(hull.start, span.start), max(hull.end, span.end))
    return list(hulls.values())


class Sweeper:
    """Compacts garbage of one open database, on one thread at a time. `failed` is called with an error of that one.
    `sparing`: what the database was opened with (rocks_tuning.sparing_changes)."""

    def __init__(
        self,
        db: Rdict,
        families: Mapping[str, Rdict],
        failed: Callable[[Exception], object],
        free_bytes: Callable[[], int],
        *,
        sparing: bool,
    ) -> None:
        self._db = db
        self._families = families
        self._failed = failed
        self._free_bytes = free_bytes
        self.sparing = sparing
        self._spans: list[Span] = []
        self._left: list[Span] = []  # what the last sweep had no room for
        self._again_at = 0.0
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stopping = False
        self._stopped = False
        self.running = False

    def emptied(self, span: Span) -> None:
        """Remember a range whose records were deleted."""
        with self._lock:
            self._spans.append(span)
            if len(self._spans) > _SPANS_MAX:
                self._spans = merged(self._spans)
                for prefix_bytes in (_ONE_SHARD_BYTES, 0):
                    if len(self._spans) > _SPANS_MAX // 2:
                        self._spans = widened(self._spans, prefix_bytes)

    def start(self, *, everything: bool) -> None:
        """Sweep the reported ranges, and with `everything` also flush and find files with many tombstones."""
        with self._lock:
            if self.running or self._stopped:
                return
            self._start(self._sweep, self._take_spans(), everything)

    def spare(self, sparing: bool) -> None:
        """Begin or cease to spare the disk, or sweep what there was no room for. Call it again and again: it does
        nothing while a sweep is running."""
        with self._lock:
            if self.running or self._stopped:
                return
            if self.sparing is not sparing:
                self._start(self._change, sparing)
            elif sparing and (self._spans or self._left or self._deletes()) and time.monotonic() >= self._again_at:
                self._again_at = time.monotonic() + _SPARING_PAUSE_SECONDS
                self._start(self._sweep, self._take_spans(), True)

    def _take_spans(self) -> list[Span]:
        spans, self._spans = self._spans, []
        return spans

    def _start(self, work: Callable[..., None], *args: object) -> None:
        self.wait()
        self.running = True
        self._thread = threading.Thread(target=self._run, args=(work, *args), name="holdfast-sweep", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until no sweep is running."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def stop(self) -> bool:
        """End a sweep early. If there was one, the database's background work has ended for good: close it next."""
        with self._lock:
            self._stopped = True
        self._stopping = self.running
        if self._stopping:
            self._db.cancel_all_background(False)
        self.wait()
        return self._stopping

    def _run(self, work: Callable[..., None], *args: object) -> None:
        try:
            work(*args)
        except Exception as error:  # noqa: BLE001 - the binding raises nothing more specific
            if not self._stopping:
                self._failed(error)
        finally:
            self.running = False

    def _change(self, sparing: bool) -> None:
        for name, family in self._families.items():
            family.set_options(sparing_changes(name, sparing))
        self.sparing = sparing

    def _sweep(self, spans: list[Span], everything: bool) -> None:
        if everything and (spans or self._deletes() >= (1 if self.sparing else _MEMTABLE_DELETES_MIN)):
            # All of them, not only those with garbage: a log file is deleted when no memtable needs it.
            for name in [_LARGE] if self.sparing else self._families:
                self._families[name].flush(True)
        if everything:
            spans += self._crowded_files()
        spans, self._left = merged(spans + self._left), []
        for span, size_bytes in self._by_file(spans) if self.sparing else ((span, 0) for span in spans):
            if self._stopping:
                return
            if self._fits(size_bytes):
                self._families[span.family].compact_range(span.start, span.end, sweep_options())
            else:
                self._left.append(span)

    def _fits(self, size_bytes: int) -> bool:
        """Whether the disk has room for files of that size, and for as much again."""
        return not size_bytes or 2 * size_bytes <= self._free_bytes()

    def _by_file(self, spans: Iterable[Span]) -> Iterator[tuple[Span, int]]:
        """The parts of ranges that are in a file each, and the sizes of the files of which a compaction of a part
        writes new ones. One after the other needs less room, and the first makes some for the others."""
        for span in spans:
            files = sorted(
                (max(start, span.start), min(end, span.end), int(file["size"]))
                for file, start, end in self._files()
                if FAMILY_OF[start[0]] == span.family and start <= span.end and span.start <= end
            )
            for first, last, _ in files:
                size_bytes = sum(size for start, end, size in files if start <= last and first <= end)
                yield Span(span.family, first, last), size_bytes

    def _deletes(self) -> int:
        """Tombstones in memtables, of which a disk that is spared has use only if they are of what takes room."""
        families = [self._families[_LARGE]] if self.sparing else self._families.values()
        return sum(family.property_int_value("rocksdb.num-deletes-active-mem-table") or 0 for family in families)

    def _crowded_files(self) -> list[Span]:
        return [
            Span(FAMILY_OF[start[0]], start, end)
            for file, start, end in self._files()
            if file["num_deletions"] * _CROWDED >= max(file["num_entries"], 1)
        ]

    def _files(self) -> Iterator[tuple[Mapping[str, Any], bytes, bytes]]:
        """The files that have records of tables, with their first and last key."""
        for file in self._db.live_files():
            start, end = file["start_key"], file["end_key"]
            if start and start[0] in FAMILY_OF:
                yield file, start, end
