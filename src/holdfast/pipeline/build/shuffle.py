"""Events brought together by message: segments are sorted into pieces, and each task gets a range of messages from all.

A segment has its events in the order in which they happened, and a message may be in any number of them. So a task for
each segment writes what is needed of it aside, sorted by message id: its piece. From a sample of all ids follow ranges
with about as many events each, the shares; a task for each share maps the pieces into memory and takes its range of
each. That is a shuffle, by columns instead of rows: a fifth of the CPU, and ids are times, so what comes out is sorted
by time.

Pure but for the files it is told, and imports nothing of Holdfast: it travels to the executors by value.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SAMPLE_STEP = 512
"""One id of so many is looked at to find the shares."""

RANGE_ROWS = 250_000
"""Events of a share: some tens of MB in the memory of its task, and half a second of work."""

Ints = np.ndarray[Any, Any]
Range = tuple[int | None, int | None]
"""Ids from the first on and before the second; None: no bound."""


def new_file(directory: str, what: str, suffix: str) -> Path:
    """A name that no other attempt of the same task has."""
    return Path(directory) / f"{what}-{uuid4().hex}{suffix}"


def read_segment(path: str, columns: list[str], coded: list[str]) -> pa.Table:
    """Some columns of a segment, without those that are null throughout; repeated text coded."""
    table = pq.ParquetFile(path).read(columns=columns, use_threads=False).combine_chunks()
    found: dict[str, pa.Array] = {}
    for name in columns:
        column = table[name]
        if column.null_count < len(column):
            column = column.combine_chunks()
            found[name] = column.dictionary_encode() if name in coded else column
    return pa.table(found)


def write_shuffle_file(table: pa.Table, directory: str) -> dict[str, Any]:
    """Write a piece. Returns its file and a sample of its ids."""
    ids = table["message_id"].to_numpy()
    order = np.argsort(ids, kind="stable")
    shuffle_file = table.take(pa.array(order)).combine_chunks()
    path = new_file(directory, "piece", ".arrow")
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, shuffle_file.schema) as writer:
        writer.write_table(shuffle_file)
    return {"piece": str(path), "sample": ids[order][::SAMPLE_STEP].tolist()}


def read_shuffle_files(paths: list[str], low: int | None, high: int | None) -> pa.Table:
    """A range of messages from all pieces, in the order of the pieces."""
    found: list[pa.Table] = []
    for path in paths:
        batches = pa.ipc.open_file(pa.memory_map(path))
        for number in range(batches.num_record_batches):
            batch = batches.get_batch(number)
            first, last = bounds(batch.column("message_id").to_numpy(), low, high)
            if last > first:
                found.append(pa.Table.from_batches([batch.slice(first, last - first)]))
    if not found:
        return pa.table({"message_id": pa.array([], pa.int64())})
    return pa.concat_tables(found, promote_options="default").unify_dictionaries().combine_chunks()


def bounds(ids: Ints, low: int | None, high: int | None) -> tuple[int, int]:
    """Where a range begins and ends in sorted ids."""
    first = 0 if low is None else int(np.searchsorted(ids, low))
    last = len(ids) if high is None else int(np.searchsorted(ids, high))
    return first, last


def id_ranges(sample: list[int], parallelism: int) -> list[Range]:
    """Ranges of ids with about as many rows each, so many that `parallelism` tasks at a time end together."""
    count = max(-(-len(sample) * SAMPLE_STEP // RANGE_ROWS), 1)
    if len(sample) > parallelism:
        count = -(-count // parallelism) * parallelism
    ids = np.sort(np.array(sample, np.int64))
    cuts = np.unique(ids[[len(ids) * number // count for number in range(1, count)]]).tolist() if count > 1 else []
    return list(zip([None, *cuts], [*cuts, None], strict=True))
