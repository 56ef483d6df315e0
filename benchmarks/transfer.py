"""What moving messages in bulk costs the server: staged in a transaction, published, read by a cursor group, committed.

    python -m benchmarks transfer

`holdfast serve` runs as a process of its own; messages have keys and come and go over HTTP in Arrow, as Spark sends and
reads them. Shown is processor time of the server for a message: of all its threads, and of its loop alone, which is
what bounds it. Beside it, the longest that somebody else waited meanwhile for an answer that costs nothing.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from benchmarks.load.servers import Served, loop_seconds, processor_seconds, server

MESSAGES = 200_000
REQUEST = 10_000
PARTITIONS = 4
KEYS = 1_000
PAYLOAD_BYTES = 200
ROUNDS = 2
JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"
QUEUE = "transfer"


class Client:
    """One connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)

    def call(
        self, method: str, path: str, body: bytes = b"", accept: str = "", kind: str = "application/json"
    ) -> bytes:
        headers = {"Content-Type": kind} | ({"Accept": accept} if accept else {})
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise RuntimeError(content)
        self.next = int(answer.headers.get("Holdfast-Next", 0))
        return content

    def send(self, method: str, path: str, request: object, accept: str = "") -> bytes:
        return self.call(method, path, json.dumps(request).encode(), accept)


class LatencyProbe:
    """Somebody else, who asks for something small all the time."""

    def __init__(self, port: int) -> None:
        self._client = Client(port)
        self._stop = threading.Event()
        self.longest = 0.0
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        while not self._stop.wait(0.002):
            began = time.perf_counter()
            self._client.call("GET", "/livez")
            self.longest = max(self.longest, time.perf_counter() - began)

    def stop(self) -> float:
        self._stop.set()
        self._thread.join()
        return self.longest


def busy(pid: int) -> tuple[float, float]:
    """Seconds of the processor so far: all threads, the loop's."""
    return processor_seconds(pid), loop_seconds(pid)


@contextmanager
def measure_step(what: str, served: Served, watched: bool) -> Iterator[None]:
    watch = LatencyProbe(served.http) if watched else None
    before = busy(served.pid)
    began = time.perf_counter()
    yield
    passed = time.perf_counter() - began
    spent = [(after - old) / MESSAGES * 1e6 for old, after in zip(before, busy(served.pid), strict=True)]
    pause = f", others waited up to {watch.stop() * 1000:.0f} ms" if watch else ""
    print(f"  {what:<24}{spent[0]:>6.1f} us, loop {spent[1]:>5.1f} us, {MESSAGES / passed:>8,.0f}/s{pause}")


def chunk(first: int) -> bytes:
    numbers = range(first, first + REQUEST)
    columns = {
        "payload": [str(number).ljust(PAYLOAD_BYTES, "x") for number in numbers],
        "key": [str(number % KEYS) for number in numbers],
    }
    batch = pa.record_batch(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def read(client: Client, columns: list[str]) -> dict[int, int]:
    """Read all partitions to their ends; the last sequence of each."""
    lasts: dict[int, int] = {}
    for partition in range(PARTITIONS):
        at = 1
        while True:
            request = {"partition": partition, "first": at, "limit": REQUEST, "columns": columns}
            client.send("POST", f"/api/v1/queues/{QUEUE}/groups/spark/read", request, ARROW)
            if client.next == at:
                break
            at = client.next
        lasts[partition] = at - 1
    return lasts


def measure(served: Served, watched: bool) -> None:
    client = Client(served.http)
    client.send("POST", "/api/v1/queues", {"name": QUEUE, "config": {"partitions": PARTITIONS, "max_depth": 0}})
    request = {"kind": "cursor", "start": "earliest"}
    client.send("PUT", f"/api/v1/queues/{QUEUE}/groups/spark", request)
    chunks = [chunk(first) for first in range(0, MESSAGES, REQUEST)]
    with measure_step("stage", served, watched):
        for number, body in enumerate(chunks):
            client.call("POST", f"/api/v1/transactions/t/stage?queue={QUEUE}&chunk={number}", body, kind=ARROW)
    with measure_step("publish", served, watched):
        client.send("POST", "/api/v1/transactions/t/publish", {})
    with measure_step("read, all columns", served, watched):
        lasts = read(client, [])
    with measure_step("read, key and payload", served, watched):
        read(client, ["key", "payload"])
    with measure_step("commit", served, watched):
        positions = [{"partition": partition, "sequence": last} for partition, last in lasts.items()]
        found = client.send("POST", f"/api/v1/queues/{QUEUE}/groups/spark/commit", {"positions": positions})
    assert json.loads(found)["messages"] == MESSAGES


def main() -> None:
    print(f"processor time a message, {PAYLOAD_BYTES} B with a key, Arrow, {REQUEST:,} in a request")
    for number in range(ROUNDS):
        with server() as served:
            print("with somebody else asking" if number else "alone")
            measure(served, watched=number > 0)


if __name__ == "__main__":
    main()
