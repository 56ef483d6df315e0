"""How fast the server is from outside: messages over MQTT, HTTP and gRPC, beside what the disk and RocksDB can do.

    python -m benchmarks fronts

`holdfast serve` runs as a process of its own on fresh data. The load comes from this process: plain sockets, requests
and packets encoded once, so that the client is not what is measured. Everything is synced before it is confirmed. The
bare loop of `raw` (one record a message, batches of 100, each synced) is the ratio's base.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import uvloop

from benchmarks.load.servers import Served, processor_seconds, server
from benchmarks.raw import bare_loop
from holdfast.grpc_api.generated import queue_pb2 as pb
from holdfast.mqtt.codec import V5, Connect, Publish, encode

BATCH = 100
PAYLOAD_BYTES = 256
SECONDS = 3.0
ROUNDS = 3
PAYLOAD = os.urandom(PAYLOAD_BYTES // 2).hex()


# --- loads ----------------------------------------------------------------------------------------------------------


async def mqtt_publish(port: int, connections: int, window: int) -> tuple[float, list[float]]:
    """Messages a second and seconds a window."""
    packets = [encode(Publish("$queue/bench", PAYLOAD.encode(), 1, number), V5) for number in range(1, window + 1)]
    data, expected = b"".join(packets), 4 * window

    async def client(number: int) -> list[float]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(encode(Connect(f"bench-{number}", V5), V5))
        await reader.read(1000)
        return await repeat(reader, writer, data, expected)

    return await together(client, connections, window)


async def repeat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes, expected: int) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while (started := time.perf_counter()) < end:
        writer.write(data)
        await reader.readexactly(expected)
        times.append(time.perf_counter() - started)
    writer.close()
    return times


def request(method: str, path: str, body: bytes, content_type: str = "application/json") -> bytes:
    lines = (
        f"{method} {path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def answer(reader: asyncio.StreamReader) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    at = head.index(b"content-length:") + 15
    body = await reader.readexactly(int(head[at : head.index(b"\r\n", at)]))
    if not head.startswith(b"http/1.1 2"):
        raise RuntimeError(body)
    return body


async def http_enqueue(port: int, connections: int, batch: int) -> tuple[float, list[float]]:
    body = json.dumps({"messages": [{"text": PAYLOAD}] * batch}).encode()
    return await http_repeat(port, connections, batch, request("POST", "/api/v1/queues/bench/messages", body))


async def http_arrow(port: int, connections: int, batch: int) -> tuple[float, list[float]]:
    sink = pa.BufferOutputStream()
    table = pa.table({"payload": pa.array([PAYLOAD.encode()] * batch, pa.binary())})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    body = sink.getvalue().to_pybytes()
    data = request("POST", "/api/v1/queues/bench/messages", body, "application/vnd.apache.arrow.stream")
    return await http_repeat(port, connections, batch, data)


async def http_repeat(port: int, connections: int, batch: int, data: bytes) -> tuple[float, list[float]]:
    async def client(_: int) -> list[float]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        times: list[float] = []
        end = time.perf_counter() + SECONDS
        while (started := time.perf_counter()) < end:
            writer.write(data)
            await answer(reader)
            times.append(time.perf_counter() - started)
        writer.close()
        return times

    return await together(client, connections, batch)


async def http_lease_and_ack(port: int, connections: int, batch: int) -> tuple[float, list[float]]:
    lease = request("POST", "/api/v1/queues/bench/leases", json.dumps({"limit": batch}).encode())

    async def client(_: int) -> list[float]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        times: list[float] = []
        end = time.perf_counter() + SECONDS
        while (started := time.perf_counter()) < end:
            writer.write(lease)
            found = json.loads(await answer(reader))["deliveries"]
            if not found:
                break
            done = [{"id": one["id"], "lease_token": one["lease_token"]} for one in found]
            writer.write(request("POST", "/api/v1/queues/bench/settle", json.dumps({"settlements": done}).encode()))
            await answer(reader)
            times.append(time.perf_counter() - started)
        writer.close()
        return times

    return await together(client, connections, batch)


# --- gRPC: messages encoded once, so that of the client only its library is measured ---------------------------------


def _method(channel: grpc.aio.Channel, kind: str, name: str) -> Any:
    return getattr(channel, kind)(f"/holdfast.v1.QueueService/{name}")


def _drafts(batch: int) -> list[pb.Draft]:
    return [pb.Draft(payload=PAYLOAD.encode())] * batch


async def grpc_produce(port: int, streams: int, batch: int, window: int) -> tuple[float, list[float]]:
    """Streams of batches, each with so many that are not confirmed yet."""
    data = pb.ProduceRequest(batch=1, queue="bench", messages=_drafts(batch)).SerializeToString()

    async def client(_: int) -> list[float]:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            call = _method(channel, "stream_stream", "Produce")()
            times: list[float] = []
            sent: deque[float] = deque()
            end = time.perf_counter() + SECONDS
            while True:
                while len(sent) < window and time.perf_counter() < end:
                    sent.append(time.perf_counter())
                    await call.write(data)
                if not sent:
                    break
                await call.read()
                times.append(time.perf_counter() - sent.popleft())
            await call.done_writing()
            return times

    return await together(client, streams, batch)


async def grpc_enqueue(port: int, connections: int, batch: int) -> tuple[float, list[float]]:
    data = pb.EnqueueRequest(queue="bench", messages=_drafts(batch)).SerializeToString()

    async def client(_: int) -> list[float]:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            call = _method(channel, "unary_unary", "Enqueue")
            times: list[float] = []
            end = time.perf_counter() + SECONDS
            while (started := time.perf_counter()) < end:
                await call(data)
                times.append(time.perf_counter() - started)
            return times

    return await together(client, connections, batch)


async def grpc_lease_and_ack(port: int, connections: int, batch: int) -> tuple[float, list[float]]:
    async def client(_: int) -> list[float]:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            lease, settle = _method(channel, "unary_unary", "Lease"), _method(channel, "unary_unary", "Settle")
            request = pb.LeaseRequest(queue="bench", limit=batch).SerializeToString()
            times: list[float] = []
            end = time.perf_counter() + SECONDS
            while (started := time.perf_counter()) < end:
                found = pb.LeaseResponse.FromString(await lease(request)).deliveries
                if not found:
                    break
                acks = [pb.Settlement(id=one.message.id, lease_token=one.lease_token) for one in found]
                await settle(pb.SettleRequest(queue="bench", settlements=acks).SerializeToString())
                times.append(time.perf_counter() - started)
            return times

    return await together(client, connections, batch)


async def together(
    client: Callable[[int], Awaitable[list[float]]], connections: int, batch: int
) -> tuple[float, list[float]]:
    started = time.perf_counter()
    lists = await asyncio.gather(*map(client, range(connections)))
    times = sorted(one for times in lists for one in times)
    return len(times) * batch / (time.perf_counter() - started), times


# --- the table ------------------------------------------------------------------------------------------------------

Load = Callable[[Served], Coroutine[None, None, tuple[float, list[float]]]]
LOADS: dict[str, Load] = {
    "MQTT publish, QoS 1, 4 connections × window 100": lambda to: mqtt_publish(to.mqtt, 4, 100),
    "MQTT publish, QoS 1, 16 connections × window 1": lambda to: mqtt_publish(to.mqtt, 16, 1),
    "HTTP enqueue, batches of 100, 4 connections": lambda to: http_enqueue(to.http, 4, 100),
    "HTTP enqueue, single, 16 connections": lambda to: http_enqueue(to.http, 16, 1),
    "HTTP enqueue, batches of 100, 1 connection": lambda to: http_enqueue(to.http, 1, 100),
    "HTTP enqueue, Arrow, 10,000 a request, 1 connection": lambda to: http_arrow(to.http, 1, 10_000),
    "HTTP enqueue, Arrow, 10,000 a request, 4 connections": lambda to: http_arrow(to.http, 4, 10_000),
    "HTTP lease and ack, batches of 100, 4 connections": lambda to: http_lease_and_ack(to.http, 4, 100),
    "gRPC Produce, batches of 100, 4 streams × window 1": lambda to: grpc_produce(to.grpc, 4, 100, 1),
    "gRPC Produce, batches of 100, 4 streams × window 8": lambda to: grpc_produce(to.grpc, 4, 100, 8),
    "gRPC Produce, batches of 1,000, 4 streams × window 2": lambda to: grpc_produce(to.grpc, 4, 1_000, 2),
    "gRPC Enqueue, batches of 100, 4 connections": lambda to: grpc_enqueue(to.grpc, 4, 100),
    "gRPC Enqueue, single, 16 connections": lambda to: grpc_enqueue(to.grpc, 16, 1),
    "gRPC Lease and Settle, batches of 100, 4 connections": lambda to: grpc_lease_and_ack(to.grpc, 4, 100),
}


ARROW_BESIDE_JSON = (
    ("HTTP enqueue, Arrow, 10,000 a request, 1 connection", "HTTP enqueue, batches of 100, 1 connection"),
    ("HTTP enqueue, Arrow, 10,000 a request, 4 connections", "HTTP enqueue, batches of 100, 4 connections"),
)


def main() -> None:
    rates: dict[str, list[float]] = {name: [] for name in LOADS}
    worst: dict[str, list[float]] = {name: [] for name in LOADS}
    spent: dict[str, list[float]] = {name: [] for name in LOADS}
    bare: list[float] = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as directory:
            bare.append(bare_loop(Path(directory) / "raw", 50_000, BATCH, PAYLOAD_BYTES, sync=True))
        with server(grpc=True) as served:
            for name, load in LOADS.items():
                before, began = processor_seconds(served.pid), time.perf_counter()
                rate, times = uvloop.run(load(served))
                messages = rate * (time.perf_counter() - began)
                spent[name].append((processor_seconds(served.pid) - before) / messages * 1e6)
                rates[name].append(rate)
                worst[name].append(times[int(len(times) * 0.99)] * 1000)
    base = statistics.median(bare)
    print(f"{PAYLOAD_BYTES} B, all synced before it is confirmed; medians of {ROUNDS} rounds")
    print(f"{'bare RocksDB loop, batches of 100':52} {base:10,.0f}/s  1.00")
    for name in LOADS:
        rate = statistics.median(rates[name])
        p99, cost = statistics.median(worst[name]), statistics.median(spent[name])
        print(f"{name:52} {rate:10,.0f}/s  {rate / base:4.2f}  p99 {p99:6.1f} ms  server {cost:6.1f} us a message")
    for arrow, batches in ARROW_BESIDE_JSON:
        beside = ", ".join(f"{one / other:.1f}" for one, other in zip(rates[arrow], rates[batches], strict=True))
        print(f"Arrow beside JSON, {arrow.rpartition(', ')[2]}, round by round: {beside} times as many")
