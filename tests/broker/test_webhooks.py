"""Webhooks: alerts reach a real HTTP server, are tried again when that may help, and are never in the way."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from holdfast import __version__
from holdfast.broker.webhook_client import ANSWER_BYTES_MAX
from holdfast.broker.webhook_receivers import Resolve, resolve
from holdfast.broker.webhooks import Webhooks
from holdfast.config import WebhookSettings
from holdfast.engine.dead_lettering import Alert
from holdfast.units import SECOND, parse_instant

AT = parse_instant("2026-03-01T12:00:00.250Z")

Answer = tuple[int, dict[str, str]]


class Receiver:
    """An HTTP server on loopback that answers as told, and remembers who called."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.answers: list[Answer | None] = []  # the next ones; None hangs up; 204 when there is none left
        self.body = b""
        self.hold: asyncio.Event | None = None  # answers wait for it
        self.busy = 0
        self.busiest = 0
        self.called = asyncio.Event()
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/hook?secret=x"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await self._answer(head.decode(), reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone, or is to be hung up on
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await reader.readexactly(int(headers["content-length"]))
        self.requests.append((request, headers, json.loads(body)))
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        self.called.set()
        if self.hold is not None:
            await self.hold.wait()
        self.busy -= 1
        answer = self.answers.pop(0) if self.answers else (204, {})
        if answer is None:
            raise ConnectionResetError
        status, extra = answer
        fields = "".join(f"{name}: {value}\r\n" for name, value in extra.items())
        length = "" if status == 204 else f"Content-Length: {len(self.body)}\r\n"
        writer.write(f"HTTP/1.1 {status} Whatever\r\n{length}{fields}\r\n".encode())
        writer.write(b"" if status == 204 else self.body)
        await writer.drain()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    server = Receiver()
    await server.start()
    yield server
    await server.stop()


class Pauses:
    """A sleep that takes no time, and remembers how long it was asked for; `held` ones last until cancelled."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.held = False
        self.began = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)
        self.began.set()
        if self.held:
            await asyncio.Event().wait()


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


Make = Callable[..., Awaitable[Webhooks]]


LOOPBACK = ("127.0.0.0/8",)
"""Where the receivers of the tests are."""


def trusting_nobody() -> ssl.SSLContext:
    """Reading the system's certificates takes longer than most of these tests."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@pytest.fixture
async def make(pauses: Pauses) -> AsyncIterator[Make]:
    made: list[Webhooks] = []

    async def start(clock: Callable[[], float] = lambda: 0.0, resolve: Resolve = resolve, **settings: Any) -> Webhooks:
        webhooks = Webhooks(WebhookSettings(**{"allow": LOOPBACK, **settings}), trusting_nobody, pauses, clock, resolve)
        await webhooks.start()
        made.append(webhooks)
        return webhooks

    yield start
    for webhooks in made:
        await webhooks.stop(0)


def alert(url: str, dead_letter: int = 2) -> Alert:
    return Alert(
        url, "default", "tasks", "workers", (1 << 62) + 1, "dlq/tasks", dead_letter, "max_retries", "broke", 11, AT
    )


async def settled(webhooks: Webhooks) -> None:
    """Until nothing waits."""
    tasks = set(webhooks._tasks)
    if tasks:
        await asyncio.wait(tasks)


async def test_an_alert_is_a_json_post(receiver: Receiver, make: Make) -> None:
    webhooks = await make()

    webhooks.offer(alert(receiver.url))
    await settled(webhooks)

    [(request, headers, body)] = receiver.requests
    assert request == "POST /hook?secret=x HTTP/1.1"
    assert headers["content-type"] == "application/json"
    assert headers["user-agent"] == f"holdfast/{__version__}"
    assert body == {
        "event": "dead_letter",
        "namespace": "default",
        "queue": "tasks",
        "group": "workers",
        "message_id": "4611686018427387905",
        "dead_queue": "dlq/tasks",
        "dead_letter_id": "2",
        "reason": "max_retries",
        "error": "broke",
        "attempts": 11,
        "at": "2026-03-01T12:00:00.250Z",
    }
    assert (webhooks.counters.sent, webhooks.counters.waiting) == (1, 0)


async def test_redirects_are_not_followed(receiver: Receiver) -> None:
    webhooks = Webhooks(WebhookSettings(allow=LOOPBACK))
    await webhooks.start()
    receiver.answers = [(302, {"Location": receiver.url})]

    webhooks.offer(alert(receiver.url))
    await settled(webhooks)
    await webhooks.stop()

    assert len(receiver.requests) == 1
    assert webhooks.counters.failed == 1


@pytest.mark.parametrize("answer", [(500, {}), (503, {}), (408, {}), (429, {}), None])
async def test_what_may_pass_is_tried_again(
    receiver: Receiver, make: Make, pauses: Pauses, answer: Answer | None
) -> None:
    receiver.answers = [answer, answer, (200, {})]
    webhooks = await make()

    webhooks.offer(alert(receiver.url))
    await settled(webhooks)

    counters = webhooks.counters
    assert (counters.sent, counters.retried, counters.failed, counters.waiting) == (1, 2, 0, 0)
    assert pauses.asked == [1.0, 2.0]


@pytest.mark.parametrize("status", [301, 400, 401, 404, 410, 422])
async def test_what_is_wrong_is_not_tried_again(receiver: Receiver, make: Make, status: int) -> None:
    receiver.answers = [(status, {})]
    webhooks = await make()

    with capture_logs() as logs:
        webhooks.offer(alert(receiver.url))
        await settled(webhooks)

    assert len(receiver.requests) == 1
    assert (webhooks.counters.sent, webhooks.counters.failed, webhooks.counters.retried) == (0, 1, 0)
    assert logs[0]["problem"] == f"answered {status}"
    assert "secret" not in str(logs)


@pytest.mark.parametrize("url", ["", "nonsense", "ftp://example.com/", "http://", "http://[::1"])
async def test_a_url_that_cannot_be_called_is_given_up_immediately(make: Make, url: str) -> None:
    webhooks = await make()

    webhooks.offer(alert(url))
    await settled(webhooks)

    assert (webhooks.counters.failed, webhooks.counters.retried, webhooks.counters.waiting) == (1, 0, 0)


async def test_pauses_double_up_to_the_longest_and_attempts_are_bounded(
    receiver: Receiver, make: Make, pauses: Pauses
) -> None:
    receiver.answers = [(500, {})] * 10
    webhooks = await make(attempts=6, backoff=SECOND, max_backoff=5 * SECOND)

    webhooks.offer(alert(receiver.url))
    await settled(webhooks)

    assert pauses.asked == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert len(receiver.requests) == 6
    assert (webhooks.counters.failed, webhooks.counters.retried) == (1, 5)


@pytest.mark.parametrize(
    ("value", "pause"),
    [("7", 7.0), ("0", 1.0), ("9999", 60.0), ("soon", 1.0), ("-5", 1.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 1.0)],
)
async def test_retry_after_is_honoured_within_bounds(
    receiver: Receiver, make: Make, pauses: Pauses, value: str, pause: float
) -> None:
    receiver.answers = [(429, {"Retry-After": value})]
    webhooks = await make()

    webhooks.offer(alert(receiver.url))
    await settled(webhooks)

    assert pauses.asked == [pause]
    assert webhooks.counters.sent == 1


async def test_retry_after_may_be_a_date(receiver: Receiver, make: Make, pauses: Pauses) -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True)
    receiver.answers = [(503, {"Retry-After": later})]
    webhooks = await make()

    webhooks.offer(alert(receiver.url))
    await settled(webhooks)

    assert pauses.asked == [60.0]


async def test_a_receiver_that_nobody_runs_is_given_up(make: Make) -> None:
    server = Receiver()
    await server.start()
    url = server.url
    await server.stop()
    webhooks = await make(attempts=2)

    webhooks.offer(alert(url))
    await settled(webhooks)

    assert (webhooks.counters.failed, webhooks.counters.retried) == (1, 1)


async def test_a_receiver_that_does_not_answer_in_time_is_given_up(receiver: Receiver, make: Make) -> None:
    receiver.hold = asyncio.Event()
    webhooks = await make(attempts=2, timeout=100_000)

    with capture_logs() as logs:
        webhooks.offer(alert(receiver.url))
        await settled(webhooks)

    assert logs[0]["problem"] == "no answer in time"
    assert (webhooks.counters.failed, webhooks.counters.retried) == (1, 1)


async def test_connections_are_used_again_unless_an_answer_has_no_end_in_sight(receiver: Receiver, make: Make) -> None:
    webhooks = await make()
    receiver.body = b"thanks"
    for _ in range(3):
        receiver.answers = [(200, {})]
        webhooks.offer(alert(receiver.url))
        await settled(webhooks)
    assert receiver.connections == 1

    receiver.body = bytes(ANSWER_BYTES_MAX * 4)
    for _ in range(2):
        receiver.answers = [(200, {})]
        webhooks.offer(alert(receiver.url))
        await settled(webhooks)
    assert receiver.connections == 2
    assert webhooks.counters.sent == 5


async def test_no_more_calls_are_under_way_than_allowed(receiver: Receiver, make: Make) -> None:
    receiver.hold = asyncio.Event()
    webhooks = await make(concurrency=3)
    for dead_letter in range(10):
        webhooks.offer(alert(receiver.url, dead_letter))
    while receiver.busy < 3:
        receiver.called.clear()
        await receiver.called.wait()

    receiver.hold.set()
    await settled(webhooks)

    assert receiver.busiest == 3
    assert webhooks.counters.sent == 10
    assert {body["dead_letter_id"] for _, _, body in receiver.requests} == {
        str(dead_letter) for dead_letter in range(10)
    }


async def test_an_alert_that_waits_to_be_tried_again_holds_nobody_up(
    receiver: Receiver, make: Make, pauses: Pauses
) -> None:
    pauses.held = True
    receiver.answers = [(500, {})]
    webhooks = await make(concurrency=1)
    webhooks.offer(alert(receiver.url, 1))
    await pauses.began.wait()

    receiver.called.clear()
    webhooks.offer(alert(receiver.url, 2))
    await receiver.called.wait()

    assert [body["dead_letter_id"] for _, _, body in receiver.requests] == ["1", "2"]
    assert webhooks.counters.waiting == 2


async def test_the_newest_is_dropped_when_too_many_wait_and_one_line_a_minute_says_so(
    receiver: Receiver, make: Make
) -> None:
    receiver.hold = asyncio.Event()
    now = 0.0
    webhooks = await make(lambda: now, queue_size=2)
    with capture_logs() as logs:
        for dead_letter in range(5):
            webhooks.offer(alert(receiver.url, dead_letter))
        now = 59.0
        webhooks.offer(alert(receiver.url))
        now = 61.0
        webhooks.offer(alert(receiver.url))

    assert (webhooks.counters.dropped, webhooks.counters.waiting) == (5, 2)
    assert [line["dropped"] for line in logs] == [1, 4]
    receiver.hold.set()
    await settled(webhooks)
    assert sorted(body["dead_letter_id"] for _, _, body in receiver.requests) == ["0", "1"]  # called side by side
    webhooks.offer(alert(receiver.url))
    await settled(webhooks)
    assert webhooks.counters.sent == 3


async def test_before_the_start_and_after_the_end_alerts_are_dropped(receiver: Receiver) -> None:
    webhooks = Webhooks(WebhookSettings(), trusting_nobody)
    webhooks.offer(alert(receiver.url))
    await webhooks.start()
    await webhooks.stop()
    webhooks.offer(alert(receiver.url))

    assert webhooks.counters.dropped == 2
    assert receiver.requests == []


async def test_a_stop_lets_calls_under_way_end(receiver: Receiver, make: Make) -> None:
    receiver.hold = asyncio.Event()
    webhooks = await make()
    webhooks.offer(alert(receiver.url))
    await receiver.called.wait()

    stopping = asyncio.create_task(webhooks.stop(60))
    receiver.hold.set()
    await stopping

    assert (webhooks.counters.sent, webhooks.counters.failed) == (1, 0)


async def test_a_stop_does_not_wait_for_another_attempt(receiver: Receiver, make: Make, pauses: Pauses) -> None:
    pauses.held = True
    receiver.answers = [(500, {})]
    webhooks = await make()
    webhooks.offer(alert(receiver.url))
    await pauses.began.wait()

    with capture_logs() as logs:
        await webhooks.stop(60)

    assert (webhooks.counters.failed, webhooks.counters.waiting) == (1, 0)
    assert [line["count"] for line in logs] == [1]


async def test_a_call_that_fails_during_the_stop_is_not_tried_again(
    receiver: Receiver, make: Make, pauses: Pauses
) -> None:
    receiver.hold = asyncio.Event()
    receiver.answers = [(500, {})]
    webhooks = await make()
    webhooks.offer(alert(receiver.url))
    await receiver.called.wait()

    stopping = asyncio.create_task(webhooks.stop(60))
    await asyncio.sleep(0)
    receiver.hold.set()
    await stopping

    assert webhooks.counters.failed == 1
    assert pauses.asked == []


async def test_a_stop_gives_up_calls_that_take_too_long(receiver: Receiver, make: Make) -> None:
    receiver.hold = asyncio.Event()
    webhooks = await make()
    webhooks.offer(alert(receiver.url))
    await receiver.called.wait()

    with capture_logs() as logs:
        await webhooks.stop(0)

    assert (webhooks.counters.failed, webhooks.counters.waiting) == (1, 0)
    assert [line["count"] for line in logs] == [1]


async def test_a_fault_of_our_own_is_logged_and_counted(make: Make) -> None:
    webhooks = await make()

    with capture_logs() as logs:
        webhooks.offer(replace(alert("http://127.0.0.1:1/"), at=1 << 80))  # a time that nobody can write down
        await settled(webhooks)

    assert logs[0]["log_level"] == "error"
    assert (webhooks.counters.failed, webhooks.counters.waiting) == (1, 0)
