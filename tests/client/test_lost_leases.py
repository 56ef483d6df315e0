"""What becomes of a handler whose lease is lost: another consumer may have the message, so it must not go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import httpx
import pytest

from holdfast.client import Client, Message, Release, SyncMessage, Workers, lease_extender, worker
from holdfast.errors import LeaseLost
from holdfast.testing import Broker
from tests.waiting import PATIENCE_SECONDS, until


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as running:
        yield running


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Client]:
    async with broker.client() as opened:
        await opened.create_queue("jobs", {"retry.initial_backoff": "0s"})
        yield opened


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extensions follow each other immediately, however long a lease is."""
    monkeypatch.setattr(lease_extender, "EXTENSIONS_PER_LEASE", 10_000)


class Handler:
    """An async handler that waits for ever, and notes how it ended."""

    def __init__(self, **options: str) -> None:
        self.begun: list[int] = []
        self.cancelled = asyncio.Event()
        self.stop = asyncio.Event()

        @worker("jobs", **options)  # type: ignore[arg-type]
        async def handle(message: Message) -> None:
            self.begun.append(message.attempt)
            if len(self.begun) > 1:
                return
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                assert message.lost
                self.cancelled.set()
                raise

        self.workers = Workers(handle)


@pytest.mark.usefixtures("eager")
async def test_a_handler_whose_lease_is_lost_is_cancelled_and_the_message_is_worked_on_once_at_a_time(
    client: Client, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Handler(lease="60s")
    serving = asyncio.create_task(handler.workers.serve(client, handler.stop))
    await client.send("jobs", "x")
    await until(lambda: handler.begun)
    broker.advance("61s")
    await handler.cancelled.wait()
    await until(lambda: handler.begun == [1, 2])
    handler.stop.set()
    assert await serving
    assert "lease of" in caplog.text
    assert (await client.queue("jobs")).depth == 0


async def test_a_handler_that_takes_longer_than_hold_is_cancelled(client: Client) -> None:
    handler = Handler(lease="60s", hold="50ms")
    serving = asyncio.create_task(handler.workers.serve(client, handler.stop))
    await client.send("jobs", "x")
    await handler.cancelled.wait()
    handler.stop.set()
    assert await serving


class CuttableTransport(httpx.AsyncBaseTransport):
    """A connection that can be cut."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner
        self.cut = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.cut:
            raise httpx.ConnectError("unreachable", request=request)
        return await self._inner.handle_async_request(request)


async def test_a_handler_is_cancelled_when_its_lease_must_have_ended_though_nobody_can_be_asked(
    client: Client, broker: Broker
) -> None:
    transport = CuttableTransport(broker.transport())
    handler = Handler(lease="300ms")
    async with Client("http://localhost", transport=transport) as cut_off:
        serving = asyncio.create_task(handler.workers.serve(cut_off, handler.stop))
        await client.send("jobs", "x")
        await until(lambda: handler.begun)
        transport.cut = True
        await handler.cancelled.wait()
        transport.cut = False
        await until(lambda: len(handler.begun) == 2)
        handler.stop.set()
        assert await serving


@pytest.mark.usefixtures("eager")
async def test_an_ordinary_function_sees_that_its_lease_is_lost_and_its_place_stays_taken(
    client: Client, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    begun: list[tuple[int, str]] = []
    go_on = threading.Event()
    lost = threading.Event()
    stop = asyncio.Event()

    @worker("jobs", lease="60s")
    def handle(job: str, message: SyncMessage) -> str:
        begun.append((message.attempt, job))
        if len(begun) == 1:
            message.on_lost(lost.set)
            assert lost.wait(PATIENCE_SECONDS)
            assert message.lost
            assert go_on.wait(PATIENCE_SECONDS)
        return "a reply of the one that lost it"

    serving = asyncio.create_task(Workers(handle).serve(client, stop))
    await client.send("jobs", "x", reply_to="replies")
    await until(lambda: begun)
    broker.advance("61s")
    await until(lost.is_set)
    (other,) = await client.receive("jobs", wait="60s")  # the worker's only thread is busy: it has not taken it again
    assert other.attempt == 2
    await other.ack()
    go_on.set()
    await client.send("jobs", "y")
    await until(lambda: (1, "y") in begun)
    stop.set()
    assert await serving
    assert "lost" in caplog.text
    assert await client.groups("jobs")
    assert [queue.name for queue in await client.queues("repl")] == []


@pytest.mark.usefixtures("eager")
async def test_a_block_around_a_message_ends_with_lease_lost(client: Client, broker: Broker) -> None:
    await client.send("jobs", "x")
    (message,) = await client.receive("jobs", timeout="60s")

    async def work() -> None:
        async with message:
            broker.advance("61s")
            await asyncio.Event().wait()

    with pytest.raises(LeaseLost):
        await work()
    current = asyncio.current_task()
    assert current is not None
    assert not current.cancelling()
    with pytest.raises(LeaseLost):
        async with message:
            pytest.fail("nobody should work on it")


@pytest.mark.usefixtures("eager")
async def test_cancelling_a_block_for_another_reason_is_still_a_cancellation(client: Client) -> None:
    await client.send("jobs", "x")
    inside = asyncio.Event()

    async def work() -> None:
        (message,) = await client.receive("jobs", timeout="60s")
        async with message:
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(await client.receive("jobs")) == 1  # it was released


@pytest.mark.usefixtures("eager")
async def test_a_message_that_is_being_acked_is_not_lost_meanwhile(client: Client) -> None:
    """An extension that arrives after the ack is refused, which says nothing about the handler."""
    for _ in range(20):
        await client.send("jobs", "x")
        (message,) = await client.receive("jobs", timeout="60s")
        async with message:
            await asyncio.sleep(0.012)
            await asyncio.gather(message.ack(), message.extend("60s"), return_exceptions=True)
        assert (message.settled, message.lost) == ("ack", False)


# --- released ---------------------------------------------------------------------------------------------------------


async def test_release_without_a_delay_waits_a_little_longer_each_time(client: Client, broker: Broker) -> None:
    runs: list[int] = []

    @worker("jobs")
    async def handle(message: Message) -> None:
        runs.append(message.attempt)
        raise Release

    await client.send("jobs", "x")
    workers = Workers(handle)
    for delay_seconds in (1, 2, 4):
        assert await workers.work_off(client) == 1
        broker.advance(f"{delay_seconds * 1000 - 500}ms")
        assert await workers.work_off(client) == 0
        broker.advance("500ms")
    for _ in range(10):
        await workers.work_off(client)
        broker.advance("60s")
    assert runs == [1] * 13
    assert await workers.work_off(client) == 1


async def test_release_with_a_delay_waits_for_it(client: Client, broker: Broker) -> None:
    @worker("jobs")
    def handle(message: SyncMessage) -> None:
        if message.key == "sync":
            message.release("1h")
            return
        raise Release(delay="1h")

    await client.send("jobs", "x")
    await client.send("jobs", "x", key="sync")
    workers = Workers(handle)
    assert await workers.work_off(client) == 2
    broker.advance("59m")
    assert await workers.work_off(client) == 0
    broker.advance("1m")
    assert await workers.work_off(client) == 2
