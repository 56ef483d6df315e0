"""What every row of the journal must be for the tables to be right. A batch with a row that is not is not built.

The broker writes no such rows; a segment that was restored in part, written by hand, or by a newer version may have
them. Imports nothing of Holdfast but the tables' columns: it is pickled by value and sent to the executors.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.pipeline.lake.tables import EVENT_KINDS

EXPECTATIONS = {
    "filled": "No row lacks its lsn, instant, node, namespace, queue, partition, message or event",
    "in_order": "Rows are in the order of their lsn, without gaps, from the first to the last that the manifest names",
    "known_event": "The event is one that this version knows",
    "known_priority": "A priority is from 0 to 255",
}

FILLED = ("lsn", "at", "node", "namespace", "queue", "partition", "message_id", "event")

QUARANTINED_MAX = 1_000
"""Rows of a segment that are put into quarantine. Further ones are only counted."""

Ints = np.ndarray[Any, Any]


def failing(rows: pa.Table, first_lsn: int, last_lsn: int) -> dict[str, Ints]:
    """By expectation, the numbers of the rows that fail it. Columns without values may be missing. A segment with too
    few rows fails with its last row. `first_lsn` 0: it has some of the rows up to the last."""
    count = rows.num_rows
    found: dict[str, Ints] = {}
    empty = np.zeros(count, bool)
    for name in FILLED:
        if name not in rows.column_names:
            empty[:] = True
        elif rows[name].null_count:
            empty |= rows[name].is_null().to_numpy()
    found["filled"] = np.flatnonzero(empty)
    if "lsn" in rows.column_names:
        lsn = pc.fill_null(rows["lsn"], -1).to_numpy()
        wrong = lsn != first_lsn + np.arange(count) if first_lsn else np.diff(lsn, prepend=0) <= 0
        if first_lsn and count and count != last_lsn - first_lsn + 1:
            wrong[-1] = True
        found["in_order"] = np.flatnonzero(wrong & ~empty)
    if "event" in rows.column_names:
        known = pc.is_in(rows["event"].cast(pa.string()), pa.array(EVENT_KINDS)).to_numpy()
        found["known_event"] = np.flatnonzero(~known & ~empty)
    if "priority" in rows.column_names:
        priority = pc.fill_null(rows["priority"], 0).to_numpy()
        found["known_priority"] = np.flatnonzero((priority < 0) | (priority > 255))
    return {name: numbers for name, numbers in found.items() if len(numbers)}


def described(path: str, name: str, failed: dict[str, Ints]) -> dict[str, Any]:
    """The failing rows of a segment, as plain values."""
    wanted = np.unique(np.concatenate(list(failed.values())))[:QUARANTINED_MAX]
    content = pq.read_table(path, use_threads=False).drop_columns(["payload"]).take(pa.array(wanted)).to_pylist()
    by_number = dict(zip(wanted.tolist(), content, strict=True))
    rows = [
        [expectation, number, by_number[number]["lsn"], json.dumps(by_number[number], default=str)]
        for expectation, numbers in failed.items()
        for number in numbers.tolist()
        if number in by_number
    ]
    counts = {expectation: len(numbers) for expectation, numbers in failed.items()}
    return {"segment": name, "counts": counts, "rows": rows}
