"""Many who wait at the same time, on a server of its own: `benchmarks.waiting` measures the same how soon they hear."""

from __future__ import annotations

import psutil

from benchmarks.load.servers import server
from benchmarks.waiting import (
    POLLS,
    STREAMS,
    WaitingClients,
    all_together,
    all_wait,
    one_by_one,
    poll_queues,
    stream_queues,
)

MEMORY_MAX = 300 << 20


async def test_a_thousand_long_polls_and_two_hundred_streams_are_held_and_each_message_goes_to_one() -> None:
    with server() as served:
        async with WaitingClients(served.http) as clients:
            await all_wait(clients)
            assert psutil.Process(served.pid).memory_info().rss < MEMORY_MAX
            await one_by_one(clients, poll_queues(), 40)
            await one_by_one(clients, stream_queues(), 40)
            await all_wait(clients)
            await all_together(clients)
            assert await clients.waiting() >= STREAMS
            assert len(clients.received) == 80 + POLLS
            assert set(clients.received.values()) == {1}
            assert psutil.Process(served.pid).memory_info().rss < MEMORY_MAX
