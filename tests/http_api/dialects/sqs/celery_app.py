"""The Celery application of test_celery.py: the worker and the beat are processes of their own, which import it.

Tasks write what happened into files, since they run in another process: one file for each event.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import Celery, Task

EVENTS = Path(os.environ["CELERY_EVENTS"])

app = Celery("jobs", broker=os.environ["CELERY_BROKER"], backend=f"file://{EVENTS}/results")
app.conf.update(
    broker_transport_options={
        "region": "eu-central-1",
        "visibility_timeout": 60,
        "wait_time_seconds": 1,
        "polling_interval": 0.1,
    },
    task_default_queue="jobs",
    task_acks_late=True,
    worker_enable_remote_control=False,
    broker_connection_retry_on_startup=True,
    beat_schedule={"tick": {"task": "tick", "schedule": 0.2}},
    beat_max_loop_interval=1,
)


def note(name: str, content: str = "") -> None:
    (EVENTS / name).write_text(content)


@app.task(name="add")  # type: ignore[untyped-decorator]
def add(left: int, right: int) -> int:
    return left + right


@app.task(name="fail_twice", bind=True, max_retries=5)  # type: ignore[untyped-decorator]
def fail_twice(self: Task, name: str) -> str:
    note(f"{name}-{self.request.retries}")
    if self.request.retries < 2:
        raise self.retry(countdown=0.2)
    return "done"


@app.task(name="late")  # type: ignore[untyped-decorator]
def late(name: str) -> float:
    note(name)
    return time.time()


@app.task(name="tick")  # type: ignore[untyped-decorator]
def tick() -> None:
    note(f"tick-{time.time_ns()}")
