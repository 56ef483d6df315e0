"""What a backlog costs: resident memory, open time, lease rate and disk, at 10k, 100k and 1M messages of 1 KiB.

    python -m benchmarks backlog              10k, 100k and 1M
    python -m benchmarks backlog 10000000     10M as well

Each size is filled by one process and opened by a fresh one, so that the memory shown is what a node needs that has the
backlog, not what filling it left behind. The lease rate must not depend on the backlog.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from holdfast.core.commands import Draft, Settlement
from holdfast.core.queue import GroupKind
from holdfast.engine.engine import Engine
from holdfast.engine.groups import ensure_group
from holdfast.engine.queues import create_queue
from holdfast.store import open_store

SIZES = (10_000, 100_000, 1_000_000)
PAYLOAD_BYTES = 1024
LEASED = 5_000
Q = ("default", "bench")
GROUP = "workers"


def now() -> int:
    return time.time_ns() // 1000


def fill(path: Path, messages: int) -> None:
    store = open_store("rocks", path)
    engine = Engine(store, 0)
    engine.open(now())
    create_queue(engine, Q, {"max_depth": 0}, now())
    ensure_group(engine, engine.queues[Q], GROUP, GroupKind.LEASE, now())
    for first in range(0, messages, 1000):
        payloads = [os.urandom(PAYLOAD_BYTES) for _ in range(min(1000, messages - first))]
        engine.enqueue(Q, [Draft(payload) for payload in payloads], "bench", now())
        engine.write()
    store.close()


def serve(path: Path) -> dict[str, float]:
    """Open a backlog and lease from it, as a node does after a restart."""
    process = psutil.Process()
    started = time.perf_counter()
    store = open_store("rocks", path)
    engine = Engine(store, 0)
    engine.open(now())
    opened = time.perf_counter() - started
    first = time.perf_counter()
    engine.lease(Q, GROUP, 1, -1, "c", "bench", now())
    first_lease = time.perf_counter() - first
    leased = 0
    started = time.perf_counter()
    while leased < LEASED:
        batch = engine.lease(Q, GROUP, 100, -1, "c", "bench", now())
        engine.write()
        engine.settle(Q, GROUP, [Settlement(x.message.id, x.token, partition=x.partition) for x in batch], now())
        engine.write()
        leased += len(batch)
    elapsed = time.perf_counter() - started
    memory = process.memory_info().rss
    disk = store.disk_bytes()
    store.close()
    return {
        "open_seconds": opened,
        "first_lease_ms": first_lease * 1000,
        "lease_and_ack_rate": leased / elapsed,
        "resident_mib": memory / (1 << 20),
        "disk_bytes": disk,
    }


def child(what: str, path: Path, messages: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.backlog", what, str(path), str(messages)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return dict(json.loads(output)) if output.strip() else {}


def main(sizes: tuple[int, ...] = SIZES) -> None:
    print(f"{PAYLOAD_BYTES} B payloads; a fresh process opens the backlog and leases {LEASED} of it")
    print(f"  {'messages':>12}{'resident':>12}{'open':>10}{'first lease':>14}{'lease+ack':>14}{'disk/message':>14}")
    for messages in sizes:
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as path:
            child("fill", Path(path), messages)
            found = child("serve", Path(path), messages)
        print(
            f"  {messages:>12,}{found['resident_mib']:>8.0f} MiB{found['open_seconds']:>8.2f} s"
            f"{found['first_lease_ms']:>11.1f} ms{found['lease_and_ack_rate']:>12,.0f}/s"
            f"{found['disk_bytes'] / messages:>12,.0f} B",
            flush=True,
        )


if __name__ == "__main__":
    if sys.argv[1] == "fill":
        fill(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        print(json.dumps(serve(Path(sys.argv[2]))))
