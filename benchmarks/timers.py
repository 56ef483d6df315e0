"""How late the node acts on what is due: delays that end and leases that run out.

    python -m benchmarks timers

The goal is 50 ms. Measured from the due time to the moment a waiting consumer has the message.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from pathlib import Path

import uvloop

from benchmarks.speed import GROUP, Q, with_node
from holdfast.broker.node import Node, wall_clock
from holdfast.core.commands import Draft

MESSAGES = 200


async def late(node: Node, lateness: list[float]) -> None:
    """Milliseconds between the time a message is due and the time a long poll has it."""
    start = wall_clock() + 200_000
    await node.messages.enqueue(Q, [Draft(b"x", deliver_at=start + n * 10_000) for n in range(MESSAGES)])
    for _ in range(MESSAGES):
        (leased,) = await node.messages.lease(Q, GROUP, wait=10_000_000)
        lateness.append((wall_clock() - leased.message.deliver_at) / 1000)


def main() -> None:
    lateness: list[float] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as path:

        async def run() -> float:
            return await with_node(Path(path), lambda node: late(node, lateness))

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())
    print(f"{MESSAGES} delayed messages, time from due to delivered")
    print(f"  median {statistics.median(lateness):.1f} ms, worst {max(lateness):.1f} ms")


if __name__ == "__main__":
    main()
