"""Executes no-op jobs by a worker of dramatiq on RabbitMQ and prints how many a second.

    python worker_dramatiq.py URL JOBS

The Python that runs it needs `dramatiq[rabbitmq]`, and nothing of Holdfast.
"""

from __future__ import annotations

import sys
import time
from threading import Event

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

CONCURRENCY = 8


def main(url: str, jobs: int) -> None:
    moments: list[float] = []
    done = Event()

    def job() -> None:
        moments.append(time.perf_counter())
        if len(moments) == jobs:
            done.set()

    broker = RabbitmqBroker(url=url, confirm_delivery=True)
    dramatiq.set_broker(broker)
    actor = dramatiq.actor(job, broker=broker)
    for _ in range(jobs):
        actor.send()
    worker = dramatiq.Worker(broker, worker_threads=CONCURRENCY)
    worker.start()
    done.wait()
    worker.stop()
    broker.close()
    print((jobs - 1) / (max(moments) - min(moments)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
