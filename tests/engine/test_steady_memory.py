"""At a steady rate memory grows until the counted bounds are full, and no further. benchmarks/results has an hour of a
whole server; here the bounds are small, so that they are full after some rounds."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
from pathlib import Path

from holdfast.core.commands import Draft, Verb
from holdfast.core.records import Extra
from holdfast.engine.engine import Limits
from holdfast.engine.queues import create_queue
from holdfast.store.rocks import RocksStore
from holdfast.units import SECOND
from tests.engine.rig import TASKS, Rig
from tests.waiting import PATIENCE_SECONDS

ROUND = 20
WARM, MEASURED = 30, 50
BOUND = 300
SLACK_BYTES = 128 << 10
"""Dictionaries and lists that are resized: a third of what the measured rounds would leave without bounds."""


def work(rig: Rig, number: int) -> None:
    """A round: some messages with ids and keys, which two groups lease, and settle or fail."""
    extras = [Extra(message_id=f"{number}-{at}", key=f"k{number}-{at}" if at % 4 == 0 else None) for at in range(ROUND)]
    rig.enqueue(*[Draft(b"x" * 500, extra=extra) for extra in extras])
    for group in ("g", "h"):
        leased = rig.lease(2 * ROUND, group)  # with those that failed before
        rig.settle(leased[:2], Verb.NACK, group)
        rig.settle(leased[2:], Verb.ACK, group)
    rig.engine.drop_written_batch()
    rig.advance(SECOND)


def grown(path: Path) -> int:
    """How much more Python holds after the measured rounds."""
    tracemalloc.start()
    limits = Limits(
        hot_bytes=16 << 10, remembered_settlements=BOUND, settled_cache=BOUND, window_places=BOUND, max_queues=5
    )
    rig = Rig(lambda: RocksStore(path), limits)
    fields = {"partitions": 4, "dedup_window": "2s", "retry.initial_backoff": "1s", "retry.max_retries": 1}
    create_queue(rig.engine, TASKS, fields, rig.now)
    for group in ("g", "h"):
        rig.create_group(group)
    for number in range(WARM):
        work(rig, number)
    memory = rig.engine.memory
    assert memory.ended_leases.size > BOUND // 2, "it is full"
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(WARM, WARM + MEASURED):
        work(rig, number)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    for bound in (memory.ended_leases, memory.masks, memory.places):
        assert bound.size <= bound.limit
    assert memory.cache_used_bytes <= limits.hot_bytes
    rig.close()
    return after - before


def test_what_python_holds_at_a_steady_rate_is_flat_once_the_bounds_are_full(tmp_path: Path) -> None:
    """In a process of its own: what coverage and other tests hold is not counted."""
    command = [sys.executable, "-m", "tests.engine.test_steady_memory", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < SLACK_BYTES


if __name__ == "__main__":
    sys.stdout.write(str(grown(Path(sys.argv[1]))))
