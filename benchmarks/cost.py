"""What a message costs the processor: each step of its life through the engine, beside a bare loop that only writes it.

    python -m benchmarks cost

Time of this thread, not of the clock, and the bare loop's batches between the engine's: on a machine that others use
too, the multiples of the bare loop hold, the microseconds do not. Nothing is synced.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rocksdict import Cache, Rdict, WriteBatch

from holdfast.core.commands import Draft
from holdfast.core.queue import GroupKind
from holdfast.engine.engine import Engine
from holdfast.engine.groups import ensure_group
from holdfast.engine.queues import create_queue
from holdfast.store import open_store
from holdfast.store.rocks_tuning import CACHE_BYTES, WRITE_BUFFER_BYTES, database_options, family_options

BATCH = 100
BATCHES = 300
PAYLOAD_BYTES = 256
LEASE_BYTES = 16 << 20
Q = ("default", "bench")
GROUP = "workers"


def now() -> int:
    return time.time_ns() // 1000


class Bare:
    """A RocksDB of its own, with the store's options."""

    def __init__(self, path: Path) -> None:
        families = {"messages": family_options("messages", WRITE_BUFFER_BYTES, Cache(CACHE_BYTES))}
        self._db = Rdict(str(path), database_options(WRITE_BUFFER_BYTES, create=True), families)
        self._home = self._db.get_column_family_handle("messages")
        self._next = 0

    def write(self, payload: bytes) -> None:
        batch = WriteBatch(raw_mode=True)
        for number in range(self._next, self._next + BATCH):
            batch.put(number.to_bytes(13, "big"), payload, self._home)
        self._db.write(batch)
        self._next += BATCH


def run(path: Path) -> dict[str, float]:
    """Microseconds a message, by step, in the median."""
    store = open_store("rocks", path / "store")
    engine = Engine(store, 0)
    engine.open(now())
    create_queue(engine, Q, {"max_depth": 0}, now())
    ensure_group(engine, engine.queues[Q], GROUP, GroupKind.LEASE, now())
    engine.write()
    bare = Bare(path / "bare")
    payload = os.urandom(PAYLOAD_BYTES)
    times: dict[str, list[float]] = {}

    @contextmanager
    def timed(step: str) -> Iterator[None]:
        started = time.thread_time()
        yield
        times.setdefault(step, []).append(time.thread_time() - started)

    for _ in range(BATCHES):
        with timed("bare"):
            bare.write(payload)
        drafts = [Draft(payload) for _ in range(BATCH)]
        with timed("enqueue"):
            engine.enqueue(Q, drafts, "", now())
        with timed("enqueue, store"):
            engine.write()
        with timed("lease"):
            leased = engine.lease(Q, GROUP, BATCH, -1, "", "", now(), None, LEASE_BYTES)
        with timed("lease, store"):
            engine.write()
        ids, tokens = [item.message.id for item in leased], [item.token for item in leased]
        with timed("ack"):
            engine.ack(Q, GROUP, ids, tokens, now())
        with timed("ack, store"):
            engine.write()
    store.close()
    return {step: statistics.median(values) / BATCH * 1e6 for step, values in times.items()}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as path:
        costs = run(Path(path))
    bare = costs["bare"]
    print(f"processor time a message, {PAYLOAD_BYTES} B, batches of {BATCH}")
    for step, cost in costs.items():
        print(f"  {step:<16}{cost:>6.2f} us{cost / bare:>7.2f} x bare")
    print(f"  {'whole life':<16}{sum(costs.values()) - bare:>6.2f} us{sum(costs.values()) / bare - 1:>7.2f} x bare")


if __name__ == "__main__":
    main()
