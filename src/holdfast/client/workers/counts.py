"""What a worker process has done: for its health and its metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec


class QueueCounts(msgspec.Struct):
    """Of one queue."""

    running: int = 0
    done: int = 0
    failed: int = 0
    seconds: float = 0.0


class Job(msgspec.Struct):
    """A job that runs."""

    failed: bool = True


class Counts:
    """Since the process started, by queue."""

    def __init__(self) -> None:
        self.queues: dict[str, QueueCounts] = {}

    @contextmanager
    def counting(self, queue: str) -> Iterator[Job]:
        """A job runs in this block. It has failed unless the block says otherwise."""
        counts = self.queues.setdefault(queue, QueueCounts())
        counts.running += 1
        began = time.monotonic()
        job = Job()
        try:
            yield job
        finally:
            counts.running -= 1
            counts.seconds += time.monotonic() - began
            if job.failed:
                counts.failed += 1
            else:
                counts.done += 1
