"""Many who wait: long polls and streams over HTTP, what they cost, and how soon they hear of a message.

    python -m benchmarks waiting

`holdfast serve` runs as a process of its own on fresh data; 1,000 long polls wait on 40 queues and 200 streams on 20,
each on a connection of its own. Messages are enqueued one at a time: from the moment before the request is written to
the moment the delivery is read, sync included. Then as many as there are polls at once: until the last is answered.
"""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections import Counter

import psutil
import uvloop

from benchmarks.fronts import answer, request
from benchmarks.load.servers import server

POLLS, POLL_QUEUES = 1_000, 40
STREAMS, STREAM_QUEUES = 200, 20
MESSAGES = 300
READY_SECONDS = 60.0
WAITING = ("holdfast_lease_waiting ", "holdfast_http_streams ")  # series whose sum is who waits


class WaitingClients:
    """Clients that wait, settle what they get, and wait again. `received` counts deliveries by their text."""

    def __init__(self, port: int) -> None:
        self.received: Counter[str] = Counter()
        self._port = port
        self._tasks: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._awaited: dict[str, asyncio.Future[float]] = {}

    async def __aenter__(self) -> WaitingClients:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < hard:  # each who waits is a file, and the usual soft limit is 1,024
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self._reader, self._writer = await self._connect()
        for queue in (*poll_queues(), *stream_queues()):
            await self._ask("/api/v1/queues", {"name": queue})
        for number in range(POLLS):
            self._tasks.append(asyncio.create_task(self._poll(f"polled-{number % POLL_QUEUES}")))
        for number in range(STREAMS):
            self._tasks.append(asyncio.create_task(self._stream(f"streamed-{number % STREAM_QUEUES}")))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    async def enqueue(self, queue: str, texts: list[str]) -> float:
        """Seconds until all of them have been received."""
        loop = asyncio.get_running_loop()
        self._awaited.update({text: loop.create_future() for text in texts})
        waited = [self._awaited[text] for text in texts]
        started = time.perf_counter()
        await self._ask(f"/api/v1/queues/{queue}/messages", {"messages": [{"text": text} for text in texts]})
        return max(await asyncio.gather(*waited)) - started

    async def waiting(self) -> int:
        """How many polls and streams the server knows of."""
        self._writer.write(request("GET", "/metrics", b""))
        lines = (await answer(self._reader)).decode().splitlines()
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith(WAITING))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers.append(writer)
        return reader, writer

    async def _ask(self, path: str, body: object) -> bytes:
        self._writer.write(request("POST", path, json.dumps(body).encode()))
        return await answer(self._reader)

    def _record(self, text: str) -> None:
        self.received[text] += 1
        waited = self._awaited.pop(text, None)
        if waited is not None:
            waited.set_result(time.perf_counter())

    async def _poll(self, queue: str) -> None:
        reader, writer = await self._connect()
        lease = request("POST", f"/api/v1/queues/{queue}/leases", json.dumps({"limit": 1, "wait": "5m"}).encode())
        while True:
            writer.write(lease)
            for delivery in json.loads(await answer(reader))["deliveries"]:
                self._record(delivery["text"])
                writer.write(settlement(queue, delivery))
                await answer(reader)

    async def _stream(self, queue: str) -> None:
        reader, writer = await self._connect()
        settling = await self._connect()
        writer.write(request("POST", f"/api/v1/queues/{queue}/stream?credit=10", b""))
        await reader.readuntil(b"\r\n\r\n")
        while line := await reader.readline():
            if not line.startswith(b"{"):
                continue  # the length of a chunk, or its end
            delivery = json.loads(line).get("delivery")
            if delivery is not None:
                self._record(delivery["text"])
                settling[1].write(settlement(queue, delivery))
                await answer(settling[0])


def settlement(queue: str, delivery: dict[str, str]) -> bytes:
    done = {"settlements": [{"id": delivery["id"], "lease_token": delivery["lease_token"]}]}
    return request("POST", f"/api/v1/queues/{queue}/settle", json.dumps(done).encode())


def poll_queues() -> list[str]:
    return [f"polled-{number}" for number in range(POLL_QUEUES)]


def stream_queues() -> list[str]:
    return [f"streamed-{number}" for number in range(STREAM_QUEUES)]


async def all_wait(clients: WaitingClients) -> None:
    """Until everybody waits (again)."""
    end = time.monotonic() + READY_SECONDS
    while await clients.waiting() < POLLS + STREAMS:
        if time.monotonic() > end:
            raise TimeoutError(f"{await clients.waiting()} of {POLLS + STREAMS} wait after {READY_SECONDS} s")
        await asyncio.sleep(0.1)


async def one_by_one(clients: WaitingClients, queues: list[str], messages: int) -> list[float]:
    """Seconds until each message is received, sorted."""
    return sorted([await clients.enqueue(queues[n % len(queues)], [f"{queues[0]}/{n}"]) for n in range(messages)])


async def all_together(clients: WaitingClients) -> float:
    """Seconds until all polls are answered: a message for each, in a request for each queue."""
    share = POLLS // POLL_QUEUES
    started = time.perf_counter()
    for queue in poll_queues():
        await clients.enqueue(queue, [f"at-once/{queue}/{number}" for number in range(share)])
    return time.perf_counter() - started


async def measure(port: int, pid: int) -> None:
    async with WaitingClients(port) as clients:
        await all_wait(clients)
        resident = psutil.Process(pid).memory_info().rss / 2**20
        print(f"{POLLS:,} long polls and {STREAMS} streams wait: {resident:.0f} MiB resident")
        for name, queues in (("long poll", poll_queues()), ("stream", stream_queues())):
            times = [1000 * seconds for seconds in await one_by_one(clients, queues, MESSAGES)]
            p99 = times[int(len(times) * 0.99)]
            print(f"{name:10} answered after {times[len(times) // 2]:5.1f} ms, p99 {p99:5.1f}, worst {times[-1]:5.1f}")
        await all_wait(clients)
        print(f"all {POLLS:,} polls answered after {1000 * await all_together(clients):5.0f} ms")


def main() -> None:
    with server() as served:
        uvloop.run(measure(served.http, served.pid))
