"""Removing the garbage that deleted records leave.

A delete in RocksDB is one more record, a tombstone; a compaction that finds both removes them. RocksDB compacts by its
own measure, which does not consider emptied ranges and ignores an idle database. The sweeper compacts what has garbage:
the ranges that were reported to it, and the files with many tombstones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from rocksdict import Rdict

from holdfast.store.rocks_tuning import FAMILY_OF, sweep_options

# Spans are merged when there are more than this many.
_SPANS_MAX = 256

# The table and a shard: records that are deleted in one partition of a queue are mostly neighbours, at its front.
_ONE_SHARD_BYTES = 5

# A file is worth compacting when one in this many of its entries is a tombstone.
_CROWDED = 4

# Tombstones in memtables below this number are left to the next ordinary flush.
_MEMTABLE_DELETES_MIN = 1_000


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
    """Compacts garbage of one open database, on one thread at a time. `failed` is called with an error of that one."""

    def __init__(self, db: Rdict, families: Mapping[str, Rdict], failed: Callable[[Exception], object]) -> None:
        self._db = db
        self._families = families
        self._failed = failed
        self._spans: list[Span] = []
        self._thread: threading.Thread | None = None
        self._stopping = False
        self.running = False

    def emptied(self, span: Span) -> None:
        """Remember a range whose records were deleted."""
        self._spans.append(span)
        if len(self._spans) > _SPANS_MAX:
            self._spans = merged(self._spans)
            for prefix_bytes in (_ONE_SHARD_BYTES, 0):
                if len(self._spans) > _SPANS_MAX // 2:
                    self._spans = widened(self._spans, prefix_bytes)

    def start(self, *, everything: bool) -> None:
        """Sweep the reported ranges, and with `everything` also flush and find files with many tombstones."""
        if self.running:
            return
        self.wait()
        self.running = True
        spans, self._spans = self._spans, []
        self._thread = threading.Thread(target=self._run, args=(spans, everything), name="holdfast-sweep", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until no sweep is running."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def stop(self) -> bool:
        """End a sweep early. If there was one, the database's background work has ended for good: close it next."""
        self._stopping = self.running
        if self._stopping:
            self._db.cancel_all_background(False)
        self.wait()
        return self._stopping

    def _run(self, spans: list[Span], everything: bool) -> None:
        try:
            if everything and (spans or self._memtable_deletes() >= _MEMTABLE_DELETES_MIN):
                # All of them, not only those with garbage: a log file is deleted when no memtable needs it.
                for family in self._families.values():
                    family.flush(True)
            if everything:
                spans += self._crowded_files()
            for span in merged(spans):
                if not self._stopping:
                    self._families[span.family].compact_range(span.start, span.end, sweep_options())
        except Exception as error:  # noqa: BLE001 - the binding raises nothing more specific
            if not self._stopping:
                self._failed(error)
        finally:
            self.running = False

    def _memtable_deletes(self) -> int:
        return sum(
            family.property_int_value("rocksdb.num-deletes-active-mem-table") or 0 for family in self._families.values()
        )

    def _crowded_files(self) -> list[Span]:
        found: list[Span] = []
        for file in self._db.live_files():
            start, end = file["start_key"], file["end_key"]
            if file["num_deletions"] * _CROWDED >= max(file["num_entries"], 1) and start and start[0] in FAMILY_OF:
                found.append(Span(FAMILY_OF[start[0]], start, end))
        return found
