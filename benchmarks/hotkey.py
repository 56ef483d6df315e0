"""What a hot key costs the others: one key with N messages, then one message of another key behind them.

    python -m benchmarks hotkey

The first lease takes the head of the hot key; the second must find the other message. It passes by the whole backlog of
the hot key once; after that the others are found at once.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from holdfast.core.commands import Draft
from holdfast.core.queue import GroupKind
from holdfast.core.records import Extra
from holdfast.engine.engine import Engine
from holdfast.engine.groups import ensure_group
from holdfast.engine.queues import create_queue
from holdfast.store import open_store

SIZES = (10_000, 100_000, 1_000_000)
Q = ("default", "bench")


def now() -> int:
    return time.time_ns() // 1000


def measure(path: Path, messages: int) -> tuple[float, float]:
    """Milliseconds until the other key's first and second message are leased."""
    store = open_store("rocks", path)
    engine = Engine(store, 0)
    engine.open(now())
    create_queue(engine, Q, {"max_depth": 0, "partitions": 1}, now())
    ensure_group(engine, engine.queues[Q], "g", GroupKind.LEASE, now())
    hot = [Draft(b"x" * 64, extra=Extra(key="hot")) for _ in range(1000)]
    for _ in range(0, messages, 1000):
        engine.enqueue(Q, hot, "bench", now())
        engine.write()
    engine.enqueue(Q, [Draft(b"other", extra=Extra(key=key)) for key in ("cold", "colder")], "bench", now())
    engine.write()
    engine.lease(Q, "g", 1, -1, "c", "bench", now())
    times: list[float] = []
    for _ in range(2):
        started = time.perf_counter()
        found = engine.lease(Q, "g", 1, -1, "c", "bench", now())
        while not found:  # the engine pauses now and then, so that a node can serve others meanwhile
            found = engine.lease(Q, "g", 1, -1, "c", "bench", now())
        times.append((time.perf_counter() - started) * 1000)
        assert found[0].message.payload == b"other"
        engine.write()
    store.close()
    return times[0], times[1]


def main() -> None:
    print("a message behind the backlog of a hot key")
    for messages in SIZES:
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as path:
            first, second = measure(Path(path), messages)
        line = f"  {messages:>10,} messages of the key: first lease {first:>9.1f} ms, the next {second:>6.2f} ms"
        print(line, flush=True)


if __name__ == "__main__":
    main()
