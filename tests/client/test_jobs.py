"""What the sender of a job has in hand: its result, its progress, and the means to cancel it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from holdfast.client import (
    Client,
    Message,
    Progress,
    Reject,
    Retry,
    SyncMessage,
    Workers,
    calls,
    report_progress,
    report_progress_sync,
    use_client,
    worker,
)
from holdfast.errors import InvalidArgument, MessageNotFound, NoResult, QueueNotFound, ResultTimeout
from holdfast.testing import Broker
from tests.waiting import PATIENCE_SECONDS


@pytest.fixture(params=[False, True], ids=["in-process", "http"])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    async with Broker(http=request.param) as running:
        yield running


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Client]:
    async with broker.client() as opened:
        with use_client(opened):
            yield opened


@worker("sums", results="1h", retries=1, backoff="1ms")
async def add(first: int, second: int) -> int:
    if first < 0:
        raise ValueError("negative")
    return first + second


@worker("reports", results="1h")
def report(kind: str) -> object:
    report_progress_sync(50, "half")
    if kind == "bad":
        raise Reject("no such report")
    return {"bytes": b"\x00\xff", "text": "done", "none": None}[kind]


PATIENCE = f"{PATIENCE_SECONDS:g}s"


async def test_a_result_is_there_for_everybody_who_has_the_id_and_for_as_long_as_it_is_kept(
    client: Client, broker: Broker
) -> None:
    job = await add.send(2, 3)
    waiting = asyncio.create_task(job.result(PATIENCE))
    assert await Workers(add).work_off(client) == 1
    assert await waiting == 5
    assert await add.job(job.id).result("0s") == 5
    broker.advance("2h")
    with pytest.raises(NoResult, match="has left its queue without one"):
        await job.result("0s")


@pytest.mark.parametrize(("kind", "expected"), [("bytes", b"\x00\xff"), ("text", "done"), ("none", None)])
async def test_a_result_is_what_was_returned(client: Client, kind: str, expected: object) -> None:
    job = await report.send(kind)
    await Workers(report).work_off(client)
    assert await job.result("0s") == expected
    assert await job.progress() is None, "it has ended"


async def test_a_job_that_failed_for_good_says_why(client: Client) -> None:
    rejected, failed = await report.send("bad"), await add.send(-1, 0)
    await Workers(report).work_off(client)
    with pytest.raises(NoResult, match="no such report"):
        await rejected.result("0s")
    serving = asyncio.create_task(Workers(add).serve(client, stop := asyncio.Event()))
    with pytest.raises(NoResult, match="ValueError: negative"):
        await failed.result(PATIENCE)
    stop.set()
    assert await serving


async def test_a_job_that_has_not_ended_is_waited_for_and_one_that_died_is_not(client: Client, broker: Broker) -> None:
    job = await add.options(ttl="1s").send(1, 1)
    with pytest.raises(ResultTimeout, match="not ended within 0"):
        await job.result("0s")
    broker.advance("2s")
    (dead,) = await client.receive("dlq/sums", wait=PATIENCE)
    await dead.ack()
    with pytest.raises(NoResult, match="died, expired or was deleted"):
        await job.result(PATIENCE)


async def test_a_result_is_kept_once_however_often_the_job_is_done(client: Client) -> None:
    counts = iter(range(10))

    @worker("counts", results="1h")
    async def count(message: Message | None = None) -> int:
        return next(counts)

    job = await count.send()
    (message,) = await client.receive("counts")
    assert count.results is not None
    await count.results.open(client)
    await count.results.keep(client, count.results.done(message, await count()))  # and then the worker dies
    await message.release()
    await Workers(count).work_off(client)
    assert await job.result("0s") == 0
    assert (await client.queue("results/counts")).depth == 1


async def test_progress_is_seen_while_a_job_runs_and_over_the_api(client: Client) -> None:
    reported, proceed = asyncio.Event(), asyncio.Event()

    @worker("images", results="1h")
    async def resize(size: int) -> None:
        await report_progress(40, "resizing")
        reported.set()
        await proceed.wait()

    job = await resize.send(3)
    assert await job.progress() is None
    work = asyncio.create_task(Workers(resize).work_off(client))
    await reported.wait()
    assert await job.progress() == Progress(40, "resizing")
    proceed.set()
    assert await work == 1


async def test_progress_survives_an_attempt(client: Client) -> None:
    @worker("slow")
    async def fail() -> None:
        await report_progress(10)
        raise Retry("not yet", delay="1h")

    job = await fail.send()
    await Workers(fail).work_off(client)
    assert await job.progress() == Progress(10)


async def test_progress_is_for_the_function_of_a_worker() -> None:
    with pytest.raises(RuntimeError, match="while it handles a message"):
        await report_progress(1)
    with pytest.raises(RuntimeError, match="while it handles a message"):
        await asyncio.to_thread(report_progress_sync, 1)


async def test_a_job_that_waits_is_cancelled(client: Client) -> None:
    job = await add.delay("1h").send(1, 2)
    assert await job.cancel()
    assert not await job.cancel()
    assert (await client.queue("sums")).depth == 0


async def test_a_job_that_runs_is_cancelled(client: Client) -> None:
    await client.create_queue("long", {"delivery_timeout": "2s"})
    started, cancelled = asyncio.Event(), asyncio.Event()

    @worker("long")
    async def run() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    job = await run.send()
    serving = asyncio.create_task(Workers(run).serve(client, stop := asyncio.Event()))
    await started.wait()
    assert await job.cancel()
    await cancelled.wait()
    stop.set()
    assert await serving
    assert (await client.queue("long")).depth == 0
    with pytest.raises(QueueNotFound):
        await client.queue("dlq/long")


async def test_from_code_that_is_not_asynchronous(broker: Broker, client: Client) -> None:
    outcome: list[object] = []
    done = threading.Event()

    @worker("callers")
    def call(message: SyncMessage | None = None) -> None:
        job = add.send_sync(20, 22)
        outcome.append(job.result_sync(PATIENCE))
        later = add.delay("1h").send_sync(1, 1)
        outcome.append(later.progress_sync())
        outcome.append(later.cancel_sync())
        done.set()

    await call.send()
    serving = asyncio.create_task(Workers(add, call).serve(client, stop := asyncio.Event()))
    await asyncio.to_thread(done.wait, PATIENCE_SECONDS)
    stop.set()
    assert await serving
    assert outcome == [42, None, True]


async def test_a_message_is_found_by_its_producers_id_and_waited_for(client: Client, broker: Broker) -> None:
    waiting = asyncio.create_task(client.call(calls.named_message("later", "mine", PATIENCE_SECONDS)))
    other = await client.send("later", "other", message_id="other")
    sent = await client.send("later", "x", message_id="mine")
    assert (await waiting).id == sent.id != other.id
    with pytest.raises(MessageNotFound, match="nobody's"):
        await client.call(calls.named_message("later", "nobody's", 0))
    with pytest.raises(InvalidArgument, match="wait"):
        await client.call(calls.named_message("later", "mine", 100_000))
