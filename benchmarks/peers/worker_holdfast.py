"""Executes no-op jobs by a worker of the Python client and prints how many a second.

python worker_holdfast.py URL JOBS
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

from holdfast.client import Client, Workers, worker

CONCURRENCY = 8
QUEUE = "jobs"


async def enqueue(url: str, jobs: int) -> None:
    async with Client(url) as client:
        await client.send_many(QUEUE, [{}] * jobs)


def main(url: str, jobs: int) -> None:
    moments: list[float] = []

    @worker(QUEUE, concurrency=CONCURRENCY)
    def job(payload: dict[str, str]) -> None:  # noqa: ARG001 - a no-op
        moments.append(time.perf_counter())
        if len(moments) == jobs:
            os.kill(os.getpid(), signal.SIGTERM)  # drains: the last acks are sent

    asyncio.run(enqueue(url, jobs))
    Workers(job).run(lambda: Client(url))
    print((jobs - 1) / (max(moments) - min(moments)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
