"""A job that fails, is retried, and ends in the dead queue: Holdfast inside your own process.

.venv/bin/python examples/in_process.py
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from holdfast.broker.node import Node
from holdfast.config import Config
from holdfast.config.settings import NodeSettings
from holdfast.core.commands import Draft, Settlement, Verb
from holdfast.core.records import Extra
from holdfast.store import open_store

JOBS = ("default", "jobs")  # namespace, queue


async def main(directory: Path) -> list[str]:
    lines: list[str] = []
    store = open_store("rocks", directory / "store")
    node = Node(Config(node=NodeSettings(data_dir=directory)), store)
    await node.start()
    await node.queues.create(JOBS, {"retry": {"max_retries": 1, "initial_backoff": "50ms"}})

    # Answered when it is on disk. Jobs of one key are worked on one after another, in order.
    stored = await node.messages.enqueue(JOBS, [Draft(b"resize 4711.png", extra=Extra(key="user-7"))])
    lines.append(f"stored as {stored.durability}")

    for _ in range(2):
        # Waits for a job, also for one that becomes due; nothing polls.
        (job,) = await node.messages.lease(JOBS, "workers", wait=5_000_000, consumer="worker-1")
        lines.append(f"attempt {job.attempt}: {job.message.payload.decode()}")
        failed = Settlement(job.message.id, job.token, Verb.NACK, error="out of memory")
        await node.messages.settle(JOBS, "workers", [failed])

    (dead_letter,) = await node.messages.lease(("default", "dlq/jobs"), "operators")
    origin = dead_letter.message.extra.origin
    assert origin is not None
    lines.append(f"dead after {origin.attempts} attempts: {origin.reason}, {origin.error}")

    await node.stop()
    store.close()
    return lines


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        for line in asyncio.run(main(Path(temporary))):
            print(line)
