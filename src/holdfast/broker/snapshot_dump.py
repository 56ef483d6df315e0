"""Writes the snapshot of a store: every live delivery and the rows of the journal that are not exported yet.

The format is that of journal/snapshot.py. `holdfast pipeline reconcile` uses it on the store of a stopped node; for a
running node a separate process reads a copy of the store (snapshots.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.core.queue import JournalMode
from holdfast.engine.engine import Engine
from holdfast.engine.leases import live_deliveries
from holdfast.errors import StoreCorrupt
from holdfast.journal.columns import Columns
from holdfast.journal.reader import BlockReader
from holdfast.journal.segment import COLUMNS, record_batch
from holdfast.journal.snapshot import LIVE, STATE_KEY, QueueState, Snapshot
from holdfast.store import open_store

_encode = msgspec.json.Encoder().encode


def take(engine: Engine, node: int, now: int, directory: Path) -> Snapshot:
    """Write a snapshot of an open engine into `directory`. Nothing is changed, and nothing may happen meanwhile."""
    snapshot = _state(engine, node, now)
    directory.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(directory / "live.parquet", LIVE) as writer:
        for batch in _live_batches(engine, now):
            writer.write_batch(batch)
    with pq.ParquetWriter(directory / "tail.parquet", COLUMNS) as writer:
        for batch in _tail(engine, node):
            writer.write_batch(batch)
    (directory / "snapshot.json").write_bytes(_encode(snapshot))
    return snapshot


def write_stream(engine: Engine, node: int, now: int, sink: BinaryIO) -> None:
    """The same as two Arrow streams, one after the other: live deliveries, with the state in the metadata of their
    schema, and rows."""
    state = _encode(_state(engine, node, now))
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, LIVE.with_metadata({STATE_KEY: state}), options=options) as writer:
        for batch in _live_batches(engine, now):
            writer.write_batch(batch)
    with pa.ipc.new_stream(sink, COLUMNS, options=options) as writer:
        for batch in _tail(engine, node):
            writer.write_batch(batch)


def _state(engine: Engine, node: int, now: int) -> Snapshot:
    if engine.pending:
        engine.write()
    record = engine.record
    return Snapshot(
        node=node,
        last_lsn=record.next_lsn - 1,
        exported_lsn=record.exported_lsn,
        taken_at=now,
        chain_hash=record.chain_hash,
        chain_length=record.chain_length,
        queues=[
            QueueState(
                queue.record.namespace,
                queue.record.name,
                queue.config.journal is not JournalMode.OFF,
                [group.name for group in queue.record.groups],
            )
            for queue in engine.queues.values()
        ],
    )


def _live_batches(engine: Engine, now: int) -> Iterator[pa.RecordBatch]:
    for rows in live_deliveries(engine, now):
        if rows:
            columns = [
                pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), LIVE, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=LIVE)


def _tail(engine: Engine, node: int) -> Iterator[pa.RecordBatch]:
    """The rows that have not been exported."""
    record, reader = engine.record, BlockReader(engine.store)
    for block_range in reader.block_ranges(record.exported_block + 1, record.next_block - 1):
        columns = Columns()
        fetch = reader.raw(block_range).fetcher()
        try:
            for block, entries in zip(block_range.blocks, block_range.entries, strict=True):
                columns.add(block, entries, fetch)
        except ValueError as error:
            raise StoreCorrupt(path=f"the journal in the {engine.store.name} store", problem=str(error)) from error
        if columns.rows:
            yield record_batch(columns, node)


def main() -> None:
    """`python -m holdfast.broker.snapshot_dump COPY NODE NOW`: of a copy of a store, to standard output."""
    copy, node, now = sys.argv[1:]
    store = open_store("rocks", copy)
    try:
        engine = Engine(store, int(node))
        engine.open(int(now))
        write_stream(engine, int(node), int(now), sys.stdout.buffer)
        sys.stdout.buffer.flush()
    finally:
        store.close()


if __name__ == "__main__":
    main()
