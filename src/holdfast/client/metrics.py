"""Metrics of workers, for Prometheus (`pip install "holdfast[metrics]"`).

    app = Workers(send_email, middleware=[WorkerMetrics()])

counts and times each call of a worker's function, in Prometheus' registry of the process. `holdfast worker --metrics`
does that, and serves them. What the server knows of jobs is in its own metrics; these are what a worker sees.
"""

from __future__ import annotations

import time

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from holdfast.client.messages import Message
from holdfast.client.workers.arguments import Unreadable
from holdfast.client.workers.outcomes import Reject, Release, Retry
from holdfast.client.workers.worker import Proceed

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
"""The buckets of durations: from a function that only looks something up to one that renders a film."""
LABELS = ("queue", "group")
OUTCOMES: dict[type[Exception], str] = {
    Retry: "retried",
    Reject: "rejected",
    Unreadable: "rejected",
    Release: "released",
}


class WorkerMetrics:
    """Middleware that measures. One is enough for all workers of a process."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._jobs = Counter(
            "holdfast_worker_jobs",
            "Calls of a worker's function, by what became of them: done, failed, retried, rejected or released.",
            (*LABELS, "outcome"),
            registry=registry,
        )
        self._seconds = Histogram(
            "holdfast_worker_job_seconds", "How long the calls took.", LABELS, registry=registry, buckets=SECONDS
        )
        self._running = Gauge("holdfast_worker_running", "Calls that run.", LABELS, registry=registry)

    async def __call__(self, message: Message, proceed: Proceed) -> object:
        labels = (message.queue, message.group)
        running = self._running.labels(*labels)
        running.inc()
        started = time.monotonic()
        outcome = "failed"  # also if it is cancelled
        try:
            result = await proceed()
            outcome = "done"
        except (Retry, Reject, Unreadable, Release) as error:
            outcome = next(name for kind, name in OUTCOMES.items() if isinstance(error, kind))
            raise
        else:
            return result
        finally:
            self._seconds.labels(*labels).observe(time.monotonic() - started)
            self._jobs.labels(*labels, outcome).inc()
            running.dec()
