"""A columnar shuffle of events by message: segments are sorted into shuffle files, and each task reads a range of ids.

A segment has its events in the order in which they happened, and a message may be in any number of segments. So a task
for each pack of consecutive segments writes the columns that are needed to a shuffle file, sorted by message id: many
small segments make few files. A sample of all ids gives ranges with about the same number of events each; a task for
each range maps the shuffle files into memory and takes its range of each. It needs half of the CPU of Spark's shuffle
by rows; and since ids grow with time, the result is ordered by time.

Reads and writes only the files it is given, and imports nothing of Holdfast: it is pickled by value and sent to the
executors.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SAMPLE_STEP = 512
"""One id in this many is sampled to find the ranges."""

RANGE_ROWS = 250_000
"""Events of a range: some tens of MB in the memory of its task, and half a second of work."""

PACK_ROWS = 250_000
"""Events of a pack: what one task reads and sorts. A segment of this size is a pack of its own."""

Ints = np.ndarray[Any, Any]
Range = tuple[int | None, int | None]
"""Ids from the first (inclusive) to the second (exclusive); None: no bound."""


def new_file(directory: str, what: str, suffix: str) -> Path:
    """A name that no other attempt of the same task has."""
    return Path(directory) / f"{what}-{uuid4().hex}{suffix}"


def digest_of(path: str) -> str:
    """The SHA-256 of a file, in hex."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_segment(path: str, columns: list[str], coded: list[str]) -> pa.Table:
    """Columns of a segment, except those without values; the columns `coded` are dictionary-encoded."""
    table = pq.ParquetFile(path).read(columns=columns, use_threads=False).combine_chunks()
    found: dict[str, pa.Array] = {}
    for name in columns:
        column = table[name]
        if column.null_count < len(column):
            column = column.combine_chunks()
            found[name] = column.dictionary_encode() if name in coded else column
    return pa.table(found)


def joined(tables: list[pa.Table]) -> pa.Table:
    """Rows of several segments, in their order; columns that some do not have are null there."""
    if len(tables) == 1:
        return tables[0]
    return pa.concat_tables(tables, promote_options="default").unify_dictionaries().combine_chunks()


def write_shuffle_file(table: pa.Table, directory: str) -> dict[str, Any]:
    """Write a shuffle file. Returns its path and a sample of its ids."""
    ids = table["message_id"].to_numpy()
    order = np.argsort(ids, kind="stable")
    shuffle_file = table.take(pa.array(order)).combine_chunks()
    path = new_file(directory, "shuffle", ".arrow")
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, shuffle_file.schema) as writer:
        writer.write_table(shuffle_file)
    return {"shuffle_file": str(path), "sample": ids[order][::SAMPLE_STEP].tolist()}


def sample_of(path: str) -> list[int]:
    """A sample of the ids of a shuffle file that was written earlier."""
    batches = pa.ipc.open_file(pa.memory_map(path))
    found: list[int] = []
    for number in range(batches.num_record_batches):
        found += batches.get_batch(number).column("message_id").to_numpy()[::SAMPLE_STEP].tolist()
    return found


def read_shuffle_files(paths: list[str], low: int | None, high: int | None) -> pa.Table:
    """A range of messages from all shuffle files, file by file."""
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
    """The bounds of a range in sorted ids."""
    first = 0 if low is None else int(np.searchsorted(ids, low))
    last = len(ids) if high is None else int(np.searchsorted(ids, high))
    return first, last


def id_ranges(sample: list[int], parallelism: int) -> list[Range]:
    """Ranges of ids with about the same number of rows each; their number is a multiple of `parallelism`, if
    possible."""
    count = max(-(-len(sample) * SAMPLE_STEP // RANGE_ROWS), 1)
    if len(sample) > parallelism:
        count = -(-count // parallelism) * parallelism
    ids = np.sort(np.array(sample, np.int64))
    cuts = np.unique(ids[[len(ids) * number // count for number in range(1, count)]]).tolist() if count > 1 else []
    return list(zip([None, *cuts], [*cuts, None], strict=True))
