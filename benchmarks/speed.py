"""How fast one node takes, leases and settles messages in process, beside a bare loop that only writes them.

    python -m benchmarks speed

256-byte payloads, batches of 100, every batch synced. The bare loop puts one record a message into RocksDB with the
store's own options and syncs each batch: the least anything durable can cost here. Rounds are interleaved and medians
are compared, because the machine is noisy; the ratios are what to look at.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from benchmarks.raw import bare_loop
from holdfast.broker.node import Node
from holdfast.config import Config
from holdfast.config.settings import JournalSettings, NodeSettings
from holdfast.core.commands import Draft, Settlement
from holdfast.store import open_store

BATCH = 100
PAYLOAD_BYTES = 256
Q = ("default", "bench")
GROUP = "workers"


async def with_node(path: Path, work: Callable[[Node], Awaitable[None]], **queue: object) -> float:
    """Seconds that `work` takes on a fresh node."""
    store = open_store("rocks", path / "store")
    config = Config(node=NodeSettings(data_dir=path), journal=JournalSettings())
    node = Node(config, store)
    await node.start()
    await node.queues.create(Q, {"max_depth": 0, **queue})
    await node.groups.create(Q, GROUP)
    started = time.perf_counter()
    await work(node)
    elapsed = time.perf_counter() - started
    await node.stop()
    store.close()
    return elapsed


def split(messages: int, clients: int) -> int:
    """Batches for each client."""
    return messages // BATCH // clients


async def enqueue_all(node: Node, messages: int, clients: int) -> None:
    payload = os.urandom(PAYLOAD_BYTES)

    async def client() -> None:
        for _ in range(split(messages, clients)):
            await node.messages.enqueue(Q, [Draft(payload) for _ in range(BATCH)])

    await asyncio.gather(*[client() for _ in range(clients)])


async def live_all(node: Node, messages: int, clients: int) -> None:
    """The whole life of every message: enqueue, lease, ack, all journalled."""
    payload = os.urandom(PAYLOAD_BYTES)

    async def client() -> None:
        for _ in range(split(messages, clients)):
            await node.messages.enqueue(Q, [Draft(payload) for _ in range(BATCH)])
            leased = await node.messages.lease(Q, GROUP, BATCH)
            settlements = [Settlement(item.message.id, item.token, partition=item.partition) for item in leased]
            await node.messages.settle(Q, GROUP, settlements)

    await asyncio.gather(*[client() for _ in range(clients)])


def measure(messages: int, clients: int, work: Callable[[Node, int, int], Awaitable[None]]) -> float:
    """Messages a second."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as path:

        async def run() -> float:
            return await with_node(Path(path), lambda node: work(node, messages, clients))

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return messages / runner.run(run())


def bare(messages: int) -> float:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as path:
        return bare_loop(path, messages, BATCH, PAYLOAD_BYTES, sync=True)


def run(messages: int = 50_000, rounds: int = 5) -> dict[str, float]:
    """Medians of messages a second, by name."""
    cases: dict[str, Callable[[], float]] = {
        "bare RocksDB loop": lambda: bare(messages),
        "enqueue, 1 client": lambda: measure(messages, 1, enqueue_all),
        "enqueue, 4 clients": lambda: measure(messages, 4, enqueue_all),
        "whole life, 1 client": lambda: measure(messages, 1, live_all),
        "whole life, 4 clients": lambda: measure(messages, 4, live_all),
    }
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            rates[name].append(case())
    return {name: statistics.median(values) for name, values in rates.items()}


GOALS = {"enqueue, 1 client": 0.5, "whole life, 1 client": 0.2}


def main() -> None:
    medians = run()
    base = medians["bare RocksDB loop"]
    print(f"{PAYLOAD_BYTES} B payloads, batches of {BATCH}, every batch synced; medians")
    for name, rate in medians.items():
        goal = f"  (goal {GOALS[name]:.1f})" if name in GOALS else ""
        print(f"  {name:<24}{rate:>10,.0f} messages/s{rate / base:>8.2f} x{goal}")


if __name__ == "__main__":
    main()
