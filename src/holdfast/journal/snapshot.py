"""A snapshot: what is live in a node at one lsn. `reconcile` compares it with the journal.

It has the last lsn, every live delivery, the groups that exist, and the journal's rows that are not exported yet. It is
taken between two commits, so it is consistent. As files:

    snapshot.json    node, last lsn, when, queues with their groups and whether they are journalled
    live.parquet     namespace, queue, group, message_id, state, attempt
    tail.parquet     rows of the journal after the last segment, with a segment's columns

A running node sends one as two Arrow streams (broker/snapshot_dump.py). This module has the format and the reader.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.journal.segment import COLUMNS

STATE_KEY = b"holdfast.snapshot"

LIVE = pa.schema(
    [
        pa.field("namespace", pa.string()),
        pa.field("queue", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("group", pa.string()),
        pa.field("message_id", pa.int64()),
        pa.field("state", pa.string()),
        pa.field("attempt", pa.int32()),
    ]
)


class QueueState(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    journalled: bool
    groups: list[str]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """See the module; the rows are in the other files."""

    node: int
    last_lsn: int
    exported_lsn: int
    taken_at: int
    queues: list[QueueState]
    chain_hash: str = ""
    """Of the manifest's last line when the store last heard of it, and the number of that line; 0: it knows of none."""
    chain_length: int = 0


def read_stream(source: BinaryIO, directory: Path) -> Snapshot:
    """Read the streams of `write_stream`, and write the files as `take` does. ValueError: they are incomplete."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with pa.ipc.open_stream(source) as live:
            state = (live.schema.metadata or {}).get(STATE_KEY)
            if state is None:
                raise ValueError("it is not a snapshot")
            with pq.ParquetWriter(directory / "live.parquet", LIVE) as writer:
                for batch in live:
                    writer.write_batch(batch.replace_schema_metadata(None))
        with pa.ipc.open_stream(source) as tail, pq.ParquetWriter(directory / "tail.parquet", COLUMNS) as writer:
            for batch in tail:
                writer.write_batch(batch)
        if source.read(1):
            raise ValueError("there is something after its end")
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"it was cut short: {error}") from error
    (directory / "snapshot.json").write_bytes(state)
    return msgspec.json.decode(state, type=Snapshot)
