"""A synthetic journal of any size, made fast: segments and manifest as the exporter writes them.

Messages arrive evenly over a stretch of time, are leased and acked; some fail and are tried again, a few die.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.core.ids import EPOCH_MS, TIME_SHIFT
from holdfast.journal.manifest import SCHEMA, Manifest, SegmentEntry, manifest_path, segment_name
from holdfast.journal.segment import COLUMNS, digest, write_segment
from holdfast.units import SECOND, format_instant, parse_instant

Numbers = np.ndarray[Any, Any]

START = parse_instant("2026-03-01T06:00:00Z")
QUEUES = ["orders", "emails", "images", "billing/invoices"]
PARTITIONS = 10
GROUP, CONSUMERS = "workers", [f"worker-{number}" for number in range(8)]
FAILING, DEAD_SHARE = 0.06, 0.01
ENQUEUED, LEASED, ACKED, FAILED, DEAD = range(5)
EVENTS = np.array(["enqueued", "leased", "acked", "failed", "dead"])
SOURCE_BIT = 1 << 11  # ids of dead letters: the upper half of a millisecond's


def write_journal(lake: Path, events: int, seconds: int = 3600, segment_rows: int = 250_000, seed: int = 1) -> int:
    """Write about `events` events of `seconds` of traffic. Returns how many there are."""
    rng = np.random.default_rng(seed)
    count = events * 10 // 32
    born = START + np.sort(rng.integers(0, seconds * SECOND, count))
    ids = ((born // 1000 - EPOCH_MS) << TIME_SHIFT) + _within(born // 1000)
    kind = rng.random(count)
    dead, failing = kind < DEAD_SHARE, (kind >= DEAD_SHARE) & (kind < FAILING)
    wait = rng.exponential(0.2 * SECOND, count).astype(np.int64) + 500
    work = rng.exponential(1.5 * SECOND, count).astype(np.int64) + 1000
    parts = [
        (np.arange(count), born, ENQUEUED, 0),
        (np.arange(count), born + wait, LEASED, 1),
        (np.flatnonzero(~dead & ~failing), (born + wait + work)[~dead & ~failing], ACKED, 1),
        (np.flatnonzero(failing), (born + wait + work)[failing], FAILED, 1),
        (np.flatnonzero(failing), (born + wait + work)[failing] + 5 * SECOND, LEASED, 2),
        (np.flatnonzero(failing), (born + wait + 2 * work)[failing] + 5 * SECOND, ACKED, 2),
        (np.flatnonzero(dead), (born + wait + work)[dead], DEAD, 1),
        (np.flatnonzero(dead), (born + wait + work)[dead], -1, 0),  # the dead letter, stored with the death
    ]
    index = np.concatenate([part[0] for part in parts])
    at = np.concatenate([part[1] for part in parts])
    event = np.concatenate([np.full(len(part[0]), part[2]) for part in parts])
    attempt = np.concatenate([np.full(len(part[0]), part[3]) for part in parts])
    order = np.lexsort((event, at))
    rows = _Rows(index[order], at[order], event[order], attempt[order], ids, rng)
    _write(lake, rows, segment_rows)
    return len(order)


def _within(milliseconds: Numbers) -> Numbers:
    """A running number within each millisecond."""
    position = np.arange(len(milliseconds))
    first = np.r_[True, milliseconds[1:] != milliseconds[:-1]]
    return position - np.maximum.accumulate(np.where(first, position, 0))


class _Rows:
    def __init__(
        self,
        index: Numbers,
        at: Numbers,
        event: Numbers,
        attempt: Numbers,
        ids: Numbers,
        rng: np.random.Generator,
    ) -> None:
        self.index, self.at, self.event, self.attempt, self.ids = index, at, event, attempt, ids
        dead_letter_rows = np.flatnonzero(event == -1)
        born = at[dead_letter_rows] // 1000
        self.dead_letter_ids = np.zeros(len(at), np.int64)
        self.dead_letter_ids[dead_letter_rows] = ((born - EPOCH_MS) << TIME_SHIFT) + SOURCE_BIT + _within(born)
        bodies = [b'{"order": %d, "amount": %d.50, "user": "u-%d"}' % (n, n % 97, n % 1000) for n in range(4096)]
        self.bodies = pa.array(
            [body + b" " * int(pad) for body, pad in zip(bodies, rng.integers(0, 160, 4096), strict=True)]
        )

    def batch(self, first: int, last: int, lsn: int) -> pa.RecordBatch:
        index, event, at = self.index[first:last], self.event[first:last], self.at[first:last]
        is_dead_letter, enqueued = event == -1, (event == ENQUEUED) | (event == -1)
        bad = (event == FAILED) | (event == DEAD)
        count = len(index)
        queue = pa.array(QUEUES).take(pa.array(index % len(QUEUES)))
        dead = pa.array([f"dlq/{name}" for name in QUEUES]).take(pa.array(index % len(QUEUES)))
        ids = np.where(is_dead_letter, self.dead_letter_ids[first:last], self.ids[index])
        error = pa.array([f"timeout after {n} ms calling 10.0.0.{n % 9}" for n in range(1000)])
        columns: dict[str, pa.Array] = {
            "lsn": pa.array(np.arange(lsn, lsn + count)),
            "at": pa.array(at).cast(COLUMNS.field("at").type),
            "node": pa.array(np.zeros(count, np.int32)),
            "namespace": pa.repeat("default", count),
            "queue": pa.compute.if_else(pa.array(is_dead_letter), dead, queue),
            "partition": pa.array((index % PARTITIONS).astype(np.int32)),
            "group": pa.array(np.full(count, GROUP), pa.string(), mask=enqueued),
            "message_id": pa.array(ids),
            "event": pa.array(EVENTS[np.where(is_dead_letter, ENQUEUED, event)]),
            "attempt": pa.array(self.attempt[first:last].astype(np.int32), mask=enqueued),
            "reason": pa.array(np.where(event == FAILED, "nack", "rejected"), mask=~bad),
            "error": pa.compute.if_else(
                pa.array(bad), error.take(pa.array(index % 1000)), pa.scalar(None, pa.string())
            ),
            "consumer": pa.compute.if_else(
                pa.array(~enqueued), pa.array(CONSUMERS).take(pa.array(index % 8)), pa.scalar(None, pa.string())
            ),
            "protocol": pa.array(np.where(is_dead_letter, "broker", "http")),
            "priority": pa.array(np.full(count, 128, np.int32), mask=~enqueued),
            "key": pa.compute.if_else(
                pa.array(enqueued),
                pa.array([f"customer-{n}" for n in range(5000)]).take(pa.array(index % 5000)),
                pa.scalar(None, pa.string()),
            ),
            "size_bytes": pa.array(np.full(count, 128), mask=~enqueued),
            "source_id": pa.array(self.ids[index], mask=~is_dead_letter),
            "source_queue": pa.compute.if_else(pa.array(is_dead_letter), queue, pa.scalar(None, pa.string())),
            "payload": pa.compute.if_else(
                pa.array(enqueued), self.bodies.take(pa.array(index % 4096)), pa.scalar(None, pa.binary())
            ),
        }
        return _batch(columns, count)


def _write(lake: Path, rows: _Rows, segment_rows: int) -> None:
    journal = lake / "journal"
    journal.mkdir(parents=True, exist_ok=True)
    manifest = Manifest(manifest_path(journal, 0))
    manifest.read()
    if manifest.last is None:
        _append(manifest, _groups(int(rows.at[0])), 1)
    for first in range(0, len(rows.at), segment_rows):
        assert manifest.last is not None
        lsn = manifest.last.last_lsn + 1
        _append(manifest, rows.batch(first, min(first + segment_rows, len(rows.at)), lsn), lsn)


def _groups(at: int) -> pa.RecordBatch:
    """The creation of the group in each partition."""
    places = [(queue, partition) for queue in QUEUES for partition in range(PARTITIONS)]
    count = len(places)
    columns: dict[str, pa.Array] = {
        "lsn": pa.array(range(1, count + 1)),
        "at": pa.array([at] * count),
        "node": pa.array([0] * count),
        "namespace": pa.repeat("default", count),
        "queue": pa.array([queue for queue, _ in places]),
        "partition": pa.array([partition for _, partition in places]),
        "group": pa.repeat(GROUP, count),
        "message_id": pa.array([0] * count),
        "event": pa.repeat("group_created", count),
        "group_kind": pa.repeat("lease", count),
        "start_after": pa.array([0] * count),
    }
    return _batch(columns, count)


def _batch(columns: dict[str, pa.Array], count: int) -> pa.RecordBatch:
    arrays = [
        columns[field.name].cast(field.type) if field.name in columns else pa.nulls(count, field.type)
        for field in COLUMNS
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=COLUMNS)


def _append(manifest: Manifest, rows: pa.RecordBatch, lsn: int) -> None:
    """Write a segment, and its entry."""
    journal = manifest.path.parent
    last = lsn + rows.num_rows - 1
    at = rows["at"].cast(pa.int64())
    name = f"date={format_instant(at[0].as_py())[:10]}/{segment_name(0, lsn, last)}"
    path = journal / name
    path.parent.mkdir(exist_ok=True)
    write_segment(path, [rows])
    block = (manifest.last.last_block if manifest.last else 0) + 1
    manifest.append(
        SegmentEntry(
            segment=name,
            rows=rows.num_rows,
            size_bytes=path.stat().st_size,
            first_lsn=lsn,
            last_lsn=last,
            first_block=block,
            last_block=block,
            sha256=digest(path),
            previous=manifest.head,
            schema=SCHEMA,
            written_at=format_instant(at[rows.num_rows - 1].as_py()),
        )
    )


def fingerprint(lake: Path) -> str:
    """Of all segments, to tell whether two journals are the same."""
    found = hashlib.sha256()
    for path in sorted((lake / "journal").rglob("*.parquet")):
        found.update(digest(path).encode())
    return found.hexdigest()
