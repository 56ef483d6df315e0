"""The raw limit: how fast a bare loop writes messages to RocksDB, with the store's options and nothing around it.

What the broker does for a message is measured against this, in the same run on the same machine:

    python -m benchmarks.raw
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from rocksdict import Cache, Rdict, WriteBatch

from holdfast.store.rocks_tuning import CACHE_BYTES, WRITE_BUFFER_BYTES, database_options, family_options


def bare_loop(path: str | Path, messages: int, batch: int, payload_bytes: int, sync: bool) -> float:
    """Write `messages` records in batches, one put each, every batch synced if `sync`. Returns messages a second."""
    options = database_options(WRITE_BUFFER_BYTES, create=True)
    families = {"messages": family_options("messages", WRITE_BUFFER_BYTES, Cache(CACHE_BYTES))}
    db = Rdict(str(path), options, families)
    home = db.get_column_family_handle("messages")
    payload = os.urandom(payload_bytes)
    started = time.perf_counter()
    for first in range(0, messages, batch):
        writes = WriteBatch(raw_mode=True)
        put = writes.put
        for number in range(first, min(first + batch, messages)):
            put(number.to_bytes(13, "big"), payload, home)
        db.write(writes)
        if sync:
            db.flush_wal(True)
    elapsed = time.perf_counter() - started
    del home
    db.close()
    return messages / elapsed


def main() -> None:
    print("bare RocksDB loop, 256 B payloads")
    for sync in (True, False):
        for batch in (1, 10, 100, 1000):
            with tempfile.TemporaryDirectory() as path:
                rate = bare_loop(path, min(200_000, 2_000 * batch), batch, 256, sync)
            print(f"  batches of {batch:>4}, {'synced  ' if sync else 'buffered'}: {rate:>10,.0f} messages/s")


if __name__ == "__main__":
    main()
