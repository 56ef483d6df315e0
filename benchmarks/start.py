"""What a server costs that nobody uses: its start, its memory and its wake-ups, with nothing, many queues or a backlog.

    python -m benchmarks start [--queues 10000] [--messages 1000000]

`holdfast serve` starts on data that another process left when it was killed, and again on what it closed itself. The
start is processor time until it serves; memory is that of the process, pages that it shares with others divided among
them. Then it is left alone for some seconds, and asked for `/metrics` and the overview, first and once more.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil

from benchmarks.load.servers import HOLDFAST, free_port, processor_seconds, resident_mib, running, wait_for
from holdfast.core.commands import Draft
from holdfast.core.queue import GroupKind
from holdfast.engine.engine import Engine, Limits
from holdfast.engine.groups import ensure_group
from holdfast.engine.queues import create_queue
from holdfast.store import open_store

IDLE_SECONDS = 5.0
SETTLE_SECONDS = 2.0  # after a kill the store has logs to write as sorted files
QUEUES_PER_WRITE = 100
MESSAGES_PER_WRITE = 1_000
PAYLOAD_BYTES = 256
PATHS = ("/metrics", "/api/v1/overview")
COLUMNS = ("start", "memory", "idle", "wake-ups", *(f"{path.rpartition('/')[2]}, again" for path in PATHS))


def now() -> int:
    return time.time_ns() // 1000


def fill(path: Path, queues: int, messages: int) -> None:
    """Queues of one partition, and messages that wait in one more; then end as a process that is killed."""
    path.mkdir(mode=0o700)
    store = open_store("rocks", path / "store")
    engine = Engine(store, 0, Limits(max_queues=queues + 1))
    engine.open(now())
    for number in range(queues):
        name = ("default", f"bench-{number}")
        create_queue(engine, name, {"partitions": 1}, now())
        ensure_group(engine, engine.queues[name], "bench", GroupKind.LEASE, now())
        if number % QUEUES_PER_WRITE == 0:
            engine.write()
    if messages:
        create_queue(engine, ("default", "backlog"), {"max_depth": 0}, now())
    for _ in range(0, messages, MESSAGES_PER_WRITE):
        drafts = [Draft(os.urandom(PAYLOAD_BYTES)) for _ in range(MESSAGES_PER_WRITE)]
        engine.enqueue(("default", "backlog"), drafts, "bench", now())
        engine.write()
    engine.write()
    store.sync()
    os._exit(0)


def wake_ups(pid: int) -> int:
    """How often threads of the process have begun to wait, so far."""
    threads = psutil.Process(pid).threads()
    return sum(int(psutil.Process(thread.id).num_ctx_switches().voluntary) for thread in threads)


def measure(title: str, data: Path) -> None:
    """Print a line for one start."""
    mqtt, http = free_port(), free_port()
    command = [*HOLDFAST, "serve", "--data-dir", str(data), "--log-level", "warning"]
    command += ["--mqtt", f"127.0.0.1:{mqtt}", "--http", f"127.0.0.1:{http}"]
    with running(command) as process:
        wait_for(http, process)
        wait_for(mqtt, process)
        started = processor_seconds(process.pid)
        time.sleep(SETTLE_SECONDS)
        memory = resident_mib(process.pid)
        before, woken = processor_seconds(process.pid), wake_ups(process.pid)
        time.sleep(IDLE_SECONDS)
        idle, woken = processor_seconds(process.pid) - before, wake_ups(process.pid) - woken
        asked = [f"{ask(process.pid, http, path):.2f}, {ask(process.pid, http, path):.2f} s" for path in PATHS]
    row = (f"{started:.2f} s", f"{memory:.0f} MiB", f"{idle:.2f} s", str(woken), *asked)
    print(f"{title:34}" + "".join(f"{field:>18}" for field in row), flush=True)


def ask(pid: int, port: int, path: str) -> float:
    """Seconds of the processor for a request."""
    before = processor_seconds(pid)
    urllib.request.urlopen(f"http://127.0.0.1:{port}{path}").read()
    return processor_seconds(pid) - before


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks start")
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--messages", type=int, default=1_000_000)
    options = parser.parse_args(arguments)
    print(f"seconds of the processor; idle and wake-ups in {IDLE_SECONDS:g} s")
    print(f"{'':34}" + "".join(f"{column:>18}" for column in COLUMNS))
    for title, queues, messages in (
        ("nothing", 0, 0),
        (f"{options.queues:,} queues", options.queues, 0),
        (f"{options.messages:,} messages", 0, options.messages),
    ):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as directory:
            data = Path(directory) / "data"
            filling = [sys.executable, "-m", "benchmarks.start", str(data), str(queues), str(messages)]
            subprocess.run(filling, check=True)
            measure(f"{title}, killed before", data)
            measure(f"{title}, stopped before", data)


if __name__ == "__main__":
    fill(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
