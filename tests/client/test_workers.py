"""Workers: what handlers are given, what becomes of their messages, and how they stop."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pydantic
import pytest

from holdfast.client import (
    Client,
    Message,
    Proceed,
    Reject,
    Release,
    Retries,
    Retry,
    SyncMessage,
    Workers,
    consumer,
    worker,
)
from holdfast.config import Config
from holdfast.config.settings import HttpSettings, JournalSettings
from holdfast.errors import InvalidArgument, ReplyTimeout
from holdfast.testing import Broker
from tests.ports import reserved_port
from tests.waiting import PATIENCE_SECONDS, until

WAIT = "60s"


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as running:
        yield running


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Client]:
    async with broker.client() as opened:
        yield opened


class Order(msgspec.Struct):
    number: int


class Model(pydantic.BaseModel):
    number: int


@dataclasses.dataclass
class Data:
    number: int


# --- payloads -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "payload", "value"),
    [
        (Order, {"number": 1}, Order(1)),
        (Model, {"number": 1}, Model(number=1)),
        (Data, {"number": 1}, Data(1)),
        (dict[str, int], {"number": 1}, {"number": 1}),
        (list[int], [1, 2], [1, 2]),
        (bytes, b"\x00", b"\x00"),
        (str, "text", "text"),
        (int, 5, 5),
        (Any, {"a": 1}, {"a": 1}),
        (Any, "text", "text"),
        (Any, b"\xff", b"\xff"),
    ],
)
@pytest.mark.parametrize("asynchronous", [True, False])
async def test_a_handler_is_given_what_its_annotation_says(
    client: Client, kind: Any, payload: object, value: object, asynchronous: bool
) -> None:
    seen: list[object] = []

    if asynchronous:

        @worker("jobs")
        async def handle(job: kind) -> None:
            seen.append(job)

    else:

        @worker("jobs")
        def handle(job: kind) -> None:
            seen.append(job)
            assert threading.current_thread() is not threading.main_thread()

    await client.send("jobs", payload)
    assert await Workers(handle).work_off(client) == 1
    assert seen == [value]
    assert (await client.queue("jobs")).depth == 0


async def test_a_handler_may_take_the_message_too(client: Client) -> None:
    seen: list[tuple[object, str, str | None]] = []

    @worker("async")
    async def one(message: Message, job: Order) -> None:
        seen.append((job, message.queue, message.key))
        await message.ack()

    @worker("sync")
    def two(job: str, message: SyncMessage) -> None:
        seen.append((job, message.queue, message.key))
        message.extend("1m")
        message.reject("by hand")

    @worker("bare")
    async def three(message: Message) -> None:
        seen.append((message.body, message.queue, message.key))

    await client.send("async", Order(1), key="k")
    await client.send("sync", "x")
    await client.send("bare", b"y")
    assert await Workers(one, two, three).work_off(client) == 3
    assert seen == [(Order(1), "async", "k"), ("x", "sync", None), (b"y", "bare", None)]
    assert (await client.queue("dlq/sync")).depth == 1


def test_a_worker_is_still_the_function() -> None:
    @worker("jobs")
    def double(number: int) -> int:
        """Twice as much."""
        return number * 2

    assert double(4) == 8
    assert double.__doc__ == "Twice as much."
    assert "double" in repr(double)


def test_a_function_that_no_message_fits_is_refused_when_it_is_made() -> None:
    def starred(*args: int) -> None: ...

    def mixed(message: Message) -> None: ...

    async def mixed_too(message: SyncMessage) -> None: ...

    for function, problem in (
        (starred, "given by name"),
        (mixed, "takes a SyncMessage"),
        (mixed_too, "takes a Message"),
    ):
        with pytest.raises(TypeError, match=problem):
            worker("jobs")(function)
    with pytest.raises(InvalidArgument, match="concurrency is 1 to 1000"):
        worker("jobs", concurrency=0)(lambda job: None)


# --- outcomes -------------------------------------------------------------------------------------------------------


async def test_what_a_handler_raises_decides(client: Client, broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    await client.create_queue("jobs", {"retry": {"max_retries": 1, "initial_backoff": "1h", "max_backoff": "1h"}})

    @worker("jobs")
    async def handle(job: str, message: Message) -> None:
        match job:
            case "reject":
                raise Reject("no good")
            case "retry" if message.attempt == 1:
                raise Retry("later", delay="2h")
            case "release" if "seen" not in released:
                released.append("seen")
                raise Release
            case "fail":
                raise ZeroDivisionError("oh")

    released: list[str] = []
    await client.send_many("jobs", ["good", "reject", "retry", "release", "fail", b"\xff"])
    await Workers(handle).work_off(client)
    dead = {dead_letter.body(): dead_letter.origin async for dead_letter in client.dead_letters("jobs")}
    assert {body: origin.error for body, origin in dead.items() if origin} == {
        b"reject": "no good",
        b"\xff": dead[b"\xff"].error,  # type: ignore[union-attr]
    }
    assert "payload is not UTF-8" in dead[b"\xff"].error  # type: ignore[union-attr]
    waiting = {view.body(): view.deliveries[0] async for view in client.browse("jobs")}
    assert {body: (status.state, status.error.partition("\n")[0]) for body, status in waiting.items()} == {
        b"retry": ("scheduled", "later"),
        b"fail": ("scheduled", "ZeroDivisionError: oh"),
        b"release": ("scheduled", ""),
    }
    assert "ZeroDivisionError" in caplog.text
    broker.advance("1s")
    assert await Workers(handle).work_off(client) == 1
    assert released == ["seen"]

    broker.advance("90m")
    assert await Workers(handle).work_off(client) == 1
    assert [
        dead_letter.origin.error.partition("\n")[0]
        async for dead_letter in client.dead_letters("jobs", error="zero")
        if dead_letter.origin
    ] == ["ZeroDivisionError: oh"]
    broker.advance("1h")
    assert await Workers(handle).work_off(client) == 1
    assert (await client.queue("jobs")).depth == 0


async def test_a_handler_that_exits_or_is_cancelled_inside_fails_its_message_and_nothing_else(client: Client) -> None:
    await client.create_queue("jobs", {"retry": {"max_retries": 0}})
    await client.create_queue("threads", {"retry": {"max_retries": 0}})

    @worker("jobs")
    async def handle(job: str) -> None:
        if job == "exit":
            sys.exit("bye")
        if job == "cancelled":
            waiting = asyncio.ensure_future(asyncio.Event().wait())
            waiting.cancel()
            await waiting

    @worker("threads")
    def threaded(job: str) -> None:
        if job == "exit":
            sys.exit(3)

    await client.send_many("jobs", ["exit", "cancelled", "good"])
    await client.send_many("threads", ["exit", "good"])
    assert await Workers(handle, threaded).work_off(client) == 5
    assert await _dead_errors(client, "jobs") == ["SystemExit: bye", "CancelledError: "]
    assert await _dead_errors(client, "threads") == ["SystemExit: 3"]


async def _dead_errors(client: Client, queue: str) -> list[str]:
    """The errors of dead letters, without their tracebacks."""
    found = [dead_letter.origin.error async for dead_letter in client.dead_letters(queue) if dead_letter.origin]
    return [error.partition("\n")[0] for error in found]


async def test_what_it_returns_goes_to_whoever_asked(client: Client) -> None:
    @worker("questions")
    def answer(question: int) -> dict[str, int]:
        return {"answer": question * 2}

    await client.send("questions", 21, reply_to="answers", correlation_id="c")
    await Workers(answer).work_off(client)
    (reply,) = await client.receive("answers")
    assert (reply.json(), reply.correlation_id) == ({"answer": 42}, "c")


async def test_middleware_stands_around_the_handler(client: Client) -> None:
    calls: list[str] = []

    async def outer(message: Message, proceed: Proceed) -> object:
        calls.append(f"outer {message.text()}")
        result = await proceed()
        calls.append("outer after")
        return result

    async def inner(message: Message, proceed: Proceed) -> object:
        calls.append("inner")
        if message.text() == "no":
            raise Reject("not allowed")
        return await proceed()

    @worker("jobs", middleware=[inner])
    async def handle(job: str) -> None:
        calls.append(f"handler {job}")

    await client.send_many("jobs", ["yes", "no"])
    await Workers(handle, middleware=[outer]).work_off(client)
    assert calls == ["outer yes", "inner", "handler yes", "outer after", "outer no", "inner"]
    assert (await client.queue("dlq/jobs")).depth == 1


# --- running --------------------------------------------------------------------------------------------------------


async def test_as_many_run_at_the_same_time_as_told_and_no_more(client: Client) -> None:
    running = most = 0
    all_in = asyncio.Event()
    stop = asyncio.Event()

    @worker("jobs", concurrency=3)
    async def handle(job: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            all_in.set()
        await all_in.wait()
        running -= 1
        if job == 8:
            stop.set()

    await client.send_many("jobs", range(9))
    assert await Workers(handle).serve(client, stop)
    assert most == 3


class RecordingTransport(httpx.AsyncBaseTransport):
    """Counts requests by the last part of their path, and can hold settlements back."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner
        self.requests: Counter[str] = Counter()
        self.settling = asyncio.Event()
        self.settling.set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.rpartition("/")[2]
        self.requests[path] += 1
        if path == "settle":
            await self.settling.wait()
        return await self._inner.handle_async_request(request)


async def test_the_next_message_does_not_wait_until_the_last_is_settled(client: Client, broker: Broker) -> None:
    transport = RecordingTransport(broker.transport())
    transport.settling.clear()
    seen: list[int] = []
    stop = asyncio.Event()

    @worker("jobs", concurrency=1, prefetch=2)
    async def handle(job: int) -> None:
        seen.append(job)
        if len(seen) == 2:
            transport.settling.set()
            stop.set()

    await client.send_many("jobs", range(2))
    async with Client("http://localhost", transport=transport) as other:
        assert await Workers(handle).serve(other, stop)
    assert sorted(seen) == [0, 1]
    assert (await client.queue("jobs")).depth == 0


async def test_quick_functions_read_ahead(client: Client, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "AHEAD_SECONDS", 3600.0)  # whatever else this machine does, they are quick
    transport = RecordingTransport(broker.transport())
    seen: list[int] = []
    stop = asyncio.Event()

    @worker("jobs", concurrency=1)
    async def handle(job: int) -> None:
        seen.append(job)
        if len(seen) == 64:
            stop.set()

    await client.send_many("jobs", range(64))
    async with Client("http://localhost", transport=transport) as other:
        assert await Workers(handle).serve(other, stop)
    assert sorted(seen) == list(range(64))
    assert transport.requests["leases"] < 32
    assert (await client.queue("jobs")).depth == 0


async def test_room_for_one_is_not_worth_a_request_while_messages_wait(client: Client, broker: Broker) -> None:
    transport = RecordingTransport(broker.transport())
    await client.send_many("jobs", range(100))
    async with (
        Client("http://localhost", transport=transport) as other,
        other.consume("jobs", prefetch=20) as messages,
    ):
        for _ in range(100):
            message = await messages.next()
            assert message is not None
            await message.ack()
        assert transport.requests["leases"] < 30
    assert (await client.queue("jobs")).depth == 0


async def test_slow_functions_leave_to_others_what_they_cannot_begin_with(client: Client) -> None:
    begun: list[int] = []
    go_on = asyncio.Event()
    stop = asyncio.Event()

    @worker("jobs", concurrency=2)
    async def handle(job: int) -> None:
        begun.append(job)
        await go_on.wait()

    await client.send_many("jobs", range(10))
    serving = asyncio.create_task(Workers(handle).serve(client, stop))
    await until(lambda: len(begun) == 2)
    assert len(await client.receive("jobs", limit=10)) == 8
    go_on.set()
    stop.set()
    assert await serving


async def test_ordinary_functions_run_on_threads_of_their_own(client: Client) -> None:
    together = threading.Barrier(3, timeout=PATIENCE_SECONDS)
    names: set[str] = set()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    @worker("jobs", concurrency=3)
    def handle(job: int) -> None:
        names.add(threading.current_thread().name)
        together.wait()
        if job >= 6:
            loop.call_soon_threadsafe(stop.set)

    await client.send_many("jobs", range(9))
    await Workers(handle).serve(client, stop)
    assert len(names) == 3
    assert (await client.queue("jobs")).depth == 0


async def test_stopping_finishes_what_was_begun_and_gives_back_the_rest(client: Client) -> None:
    begun = asyncio.Event()
    go_on = asyncio.Event()
    stop = asyncio.Event()

    @worker("jobs", concurrency=1, prefetch=3)
    async def handle(job: int) -> None:
        begun.set()
        await go_on.wait()

    await client.send_many("jobs", range(3))
    serving = asyncio.create_task(Workers(handle).serve(client, stop))
    await begun.wait()
    stop.set()
    returned: list[int] = []
    while len(returned) < 2:
        returned += [message.attempt for message in await client.receive("jobs", limit=3, wait=WAIT)]
    assert returned == [1, 1]  # given back while the first is still being worked on, no attempt spent
    go_on.set()
    assert await serving
    assert (await client.queue("jobs")).depth == 2


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_what_does_not_finish_in_time_goes_back(
    client: Client, caplog: pytest.LogCaptureFixture, asynchronous: bool
) -> None:
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    never = threading.Event()

    if asynchronous:

        @worker("jobs")
        async def handle(job: int) -> None:
            begun.set()
            await asyncio.Event().wait()

    else:

        @worker("jobs")
        def handle(job: int) -> None:
            loop.call_soon_threadsafe(begun.set)
            never.wait()

    await client.send("jobs", 1)
    serving = asyncio.create_task(Workers(handle, drain="50ms").serve(client, stop))
    await begun.wait()
    stop.set()
    assert not await serving
    assert "did not finish" in caplog.text
    (again,) = await client.receive("jobs", wait=WAIT)
    assert again.attempt == 1
    never.set()


async def test_an_error_that_no_waiting_can_mend_ends_all_of_them(client: Client) -> None:
    @worker("jobs", group="$not-allowed")
    async def handle(job: int) -> None: ...

    @worker("others")
    async def other(job: int) -> None: ...

    with pytest.raises(InvalidArgument, match="name"):
        await Workers(handle, other).serve(client)
    with pytest.raises(InvalidArgument, match="are none"):
        await Workers().serve(client)


async def test_an_error_that_is_not_the_servers_ends_them_too(broker: Broker) -> None:
    def broken() -> str:
        raise LookupError("no token today")

    @worker("jobs")
    async def handle(job: int) -> None: ...

    async with Client("http://localhost", token=broken, transport=broker.transport()) as client:
        with pytest.raises(LookupError, match="no token today"):
            await Workers(handle).serve(client)


async def test_a_server_that_comes_back_is_served_again(caplog: pytest.LogCaptureFixture) -> None:
    seen: asyncio.Queue[str] = asyncio.Queue()
    stop = asyncio.Event()

    @worker("jobs")
    async def handle(job: str) -> None:
        seen.put_nowait(job)

    address = HttpSettings(listen=f"127.0.0.1:{reserved_port()}")
    config = Config(journal=JournalSettings(enabled=False), http=address)
    async with Broker(http=True, config=config) as broker:
        client = Client(broker.url, retries=Retries(attempts=2, first_seconds=0.01))
        await client.send("jobs", "before")
        serving = asyncio.create_task(Workers(handle).serve(client, stop))
        assert await seen.get() == "before"
    assert not serving.done()  # nobody is there now
    await until(lambda: "cannot be settled for now" in caplog.text)
    async with Broker(http=True, config=config):
        await client.send("jobs", "after")
        assert await seen.get() == "after"
        stop.set()
        assert await serving
        await client.close()


APP = """
from holdfast.client import Workers, worker

@worker("jobs", concurrency=2)
def handle(job: str) -> None:
    print("did", job, flush=True)
    if job == "hang":
        import time
        time.sleep(600)

app = Workers(handle, drain={drain!r})
"""


@pytest.mark.parametrize(("job", "drain", "code"), [("quick", "60s", 0), ("hang", "200ms", 1)])
async def test_a_worker_process_drains_on_sigterm(tmp_path: Path, job: str, drain: str, code: int) -> None:
    (tmp_path / "my_app.py").write_text(APP.format(drain=drain))
    async with Broker(http=True) as broker, broker.client() as client:
        await client.send("jobs", job)
        process = await asyncio.create_subprocess_exec(
            Path(sys.executable).parent / "holdfast",
            *("--url", broker.url, "worker", "my_app:app"),
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == f"did {job}\n".encode()
        process.send_signal(signal.SIGTERM)
        _, said = await process.communicate()
        assert process.returncode == code, said
        depth = (await client.queue("jobs")).depth
        assert depth == code
        if depth:
            (back,) = await client.receive("jobs", wait=WAIT)
            assert back.attempt == 1


async def test_a_request_is_answered_by_what_a_worker_returns(client: Client) -> None:
    @worker("questions")
    async def double(number: int) -> int:
        return number * 2

    stop = asyncio.Event()
    serving = asyncio.create_task(Workers(double).serve(client, stop))
    replies = await asyncio.gather(*(client.request("questions", number, timeout=WAIT) for number in range(5)))
    assert [reply.json(int) for reply in replies] == [0, 2, 4, 6, 8]
    assert all(reply.request_id for reply in replies)
    stop.set()
    await serving
    with pytest.raises(ReplyTimeout):
        await client.request("nobody", "x", timeout="50ms")
