"""`holdfast bench`: how fast a server is, seen from here."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.cli.support.connection import settings
from holdfast.cli.support.options import output_format
from holdfast.cli.support.output import progress_bar, show_note, show_rows

if TYPE_CHECKING:
    from holdfast.client import Client

Progress = Callable[[int], None]


@click.command()
@click.option("-n", "--messages", type=click.IntRange(1), default=20_000, show_default=True, help="How many messages.")
@click.option("--size", type=click.IntRange(0), default=256, show_default=True, help="Bytes of each payload.")
@click.option("--batch", type=click.IntRange(1, 1_000), default=100, show_default=True, help="Messages in one request.")
@click.option(
    "-c",
    "--connections",
    type=click.IntRange(1, 1_000),
    default=4,
    show_default=True,
    help="Requests at the same time.",
)
@click.option("--queue", help="The queue to use; its messages are consumed. [default: a new one, deleted afterwards]")
@click.option("--partitions", type=click.IntRange(1, 1_024), default=10, show_default=True, help="Of the new queue.")
@click.option(
    "--durability",
    type=click.Choice(["fsync", "buffered"]),
    default="fsync",
    show_default=True,
    help="Of the new queue.",
)
@output_format
def bench(
    messages: int,
    size: int,
    batch: int,
    connections: int,
    queue: str | None,
    partitions: int,
    durability: str,
    output: str,
) -> None:
    """Measure a server: store messages, then lease and ack them.

    The results include the client's own time: one Python process is often slower than the server.
    """
    config = {"partitions": partitions, "durability": durability, "max_depth": 0}
    stats = asyncio.run(_bench(messages, size, batch, connections, queue, config))
    if output == "table":
        show_rows(output, list(_COLUMNS), [_row(each) for each in stats])
    else:
        show_rows(output, [], [msgspec.to_builtins(each) for each in stats])


class StepStats(msgspec.Struct, frozen=True):
    """The results of a step."""

    step: str
    messages_per_second: float
    mib_per_second: float
    requests: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    seconds: float


_COLUMNS = {
    "step": "{0.step}",
    "messages/s": "{0.messages_per_second:,.0f}",
    "MiB/s": "{0.mib_per_second:,.1f}",
    "requests": "{0.requests:,}",
    "p50 ms": "{0.p50_ms:,.1f}",
    "p95 ms": "{0.p95_ms:,.1f}",
    "p99 ms": "{0.p99_ms:,.1f}",
    "seconds": "{0.seconds:.2f}",
}
"""The columns of the table."""


def _row(stats: StepStats) -> dict[str, object]:
    return {column: form.format(stats) for column, form in _COLUMNS.items()}


async def _bench(
    messages: int, size: int, batch: int, connections: int, queue: str | None, config: dict[str, object]
) -> list[StepStats]:
    name = queue or f"bench/{secrets.token_hex(4)}"
    async with settings().open_async() as client:
        if queue is None:
            await client.create_queue(name, config)
        try:
            show_note(f"{messages:,} messages of {size:,} bytes in batches of {batch}, {connections} at a time.")
            run = _Benchmark(client, name, messages, batch, connections)
            payload = os.urandom(size)
            return [
                await run.measure("enqueue", run.enqueue(payload), size),
                await run.measure("lease and ack", run.work_off, size),
            ]
        finally:
            if queue is None:
                await client.delete_queue(name, missing_ok=True)


class _Benchmark:
    """Steps of a benchmark, each run by `connections` loops that share the work."""

    def __init__(self, client: Client, queue: str, messages: int, batch: int, connections: int) -> None:
        self._client = client
        self._queue = queue
        self._messages = messages
        self._batch = batch
        self._connections = connections
        self._left = 0

    def enqueue(self, payload: bytes) -> Callable[[int], Awaitable[int]]:
        from holdfast.client import calls  # noqa: PLC0415
        from holdfast.wire import Draft  # noqa: PLC0415

        # the same for each request: encoded once
        call = calls.enqueue(self._queue, [Draft(base64=payload)] * self._batch)

        async def step(wanted: int) -> int:
            if wanted == self._batch:
                await self._client.call(call)
            else:
                await self._client.call(calls.enqueue(self._queue, [Draft(base64=payload)] * wanted))
            return wanted

        return step

    async def work_off(self, wanted: int) -> int:
        from holdfast.wire import Settlement  # noqa: PLC0415

        found = await self._client.lease(self._queue, limit=wanted, wait="5s")
        if found:
            settlements = [
                Settlement(id=each.id, lease_token=each.lease_token, partition=each.partition) for each in found
            ]
            await self._client.settle(self._queue, settlements)
        return len(found)

    async def measure(self, what: str, step: Callable[[int], Awaitable[int]], size: int) -> StepStats:
        self._left = self._messages
        times: list[float] = []
        with progress_bar(what.capitalize(), self._messages, hidden=False) as advance:
            started = time.perf_counter()
            await asyncio.gather(*(self._loop(step, times, advance) for _ in range(self._connections)))
            elapsed = time.perf_counter() - started
        done = self._messages - max(self._left, 0)
        times.sort()
        p50, p95, p99 = (round(_quantile(times, share) * 1000, 3) for share in (50, 95, 99))
        return StepStats(
            step=what,
            messages_per_second=round(done / elapsed, 1),
            mib_per_second=round(done * size / elapsed / (1 << 20), 6),
            requests=len(times),
            p50_ms=p50,
            p95_ms=p95,
            p99_ms=p99,
            seconds=round(elapsed, 3),
        )

    async def _loop(self, step: Callable[[int], Awaitable[int]], times: list[float], advance: Progress) -> None:
        while self._left > 0:
            wanted = min(self._batch, self._left)
            self._left -= wanted
            started = time.perf_counter()
            done = await step(wanted)
            times.append(time.perf_counter() - started)
            self._left += wanted - done
            if not done:
                return  # no message arrived for long: another consumer took them
            advance(self._messages - self._left)


def _quantile(ordered: list[float], share: int) -> float:
    return ordered[min(len(ordered) * share // 100, len(ordered) - 1)] if ordered else 0.0
