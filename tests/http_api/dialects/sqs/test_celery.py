"""Celery over its SQS transport, as people use it: a worker, a beat, retries, ETAs, groups."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from holdfast.broker.node import Node
from holdfast.http_api import HttpFront
from tests.waiting import PATIENCE_SECONDS, until

APP = "tests.http_api.dialects.sqs.celery_app"
SEND = f"""
import sys
from {APP} import add, app, fail_twice, late
from celery import group

kind, *given = sys.argv[1:]
match kind:
    case "add":
        result = add.delay(1, 2)
    case "retry":
        result = fail_twice.delay("retry")
    case "eta":
        result = late.apply_async(("late",), countdown=1.5)
    case "group":
        result = group(add.s(number, number) for number in range(5))()
print(result.get(timeout={PATIENCE_SECONDS}))
"""


class Jobs:
    """A worker and a beat, and what they have done."""

    def __init__(self, path: Path, url: str) -> None:
        self.path = path
        (path / "results").mkdir()
        broker = url.replace("http://", "sqs://key:secret@")
        self.environment = {**os.environ, "CELERY_EVENTS": str(path), "CELERY_BROKER": broker, "PYTHONWARNINGS": ""}
        self._processes = [
            self._start("worker", "-P", "solo", "--without-gossip", "--without-mingle", "--without-heartbeat"),
            self._start("beat", "-s", str(path / "beat")),
        ]

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.path / f"{arguments[0]}.log").open("wb") as log:
            command = [sys.executable, "-m", "celery", "-A", APP, *arguments]
            return subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)

    async def send(self, kind: str) -> str:
        """The result of a task that another process sends."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SEND, kind, env=self.environment, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        return output.decode().strip()

    def events(self, prefix: str) -> list[str]:
        return sorted(file.name for file in self.path.iterdir() if file.name.startswith(prefix))

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()


@pytest_asyncio.fixture(loop_scope="session")
async def jobs(front: HttpFront, tmp_path: Path) -> AsyncIterator[Jobs]:
    found = Jobs(tmp_path, front.url)
    yield found
    await asyncio.to_thread(found.stop)


@pytest.mark.slow
async def test_tasks_retries_etas_groups_and_schedules(jobs: Jobs, node: Node) -> None:
    began = time.time()
    results: list[Any] = await asyncio.gather(*[jobs.send(kind) for kind in ("add", "retry", "eta", "group")])
    assert results[0] == "3"
    assert (results[1], jobs.events("retry-")) == ("done", ["retry-0", "retry-1", "retry-2"])
    assert float(results[2]) >= began + 1.5
    assert results[3] == "[0, 2, 4, 6, 8]"
    await until(lambda: len(jobs.events("tick-")) >= 2)
    name = ("default", "jobs")
    assert node.queues.get(name).config.delivery_timeout == 60_000_000, "the visibility timeout of the application"
    await asyncio.to_thread(jobs.stop)
    await node.queues.purge(name)
    stats = await node.inspection.stats(name)
    [group] = stats.groups
    assert group.acked >= 10, "what was worked on is deleted"
