"""Alerts about dead letters: a JSON POST to the queue's `dlq.alert_webhook`.

An alert is best effort; the dead letter itself is durable in its queue. So alerts are kept in memory only, bounded, and
abandoned when their receiver cannot be reached for long. A receiver may get an alert twice (its response was lost) and
recognizes it by the id of the dead letter.

Each alert is a task. While it backs off it does not count against the limit of concurrent calls, so that a receiver
that is down delays the alerts of others only by its timeouts. Without alerts nothing runs.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from http import HTTPStatus

import httpcore
import httpx
import msgspec
import structlog

from holdfast import __version__
from holdfast.broker.webhook_receivers import CheckedNetwork, ReceiverNotAllowed, ReceiverPolicy, Resolve, resolve
from holdfast.config import WebhookSettings
from holdfast.engine.dead_lettering import Alert
from holdfast.units import SECOND, format_instant

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

STOP_SECONDS = 2.0  # for calls under way to end when the node stops
WARN_EVERY_SECONDS = 60.0
ANSWER_BYTES_MAX = 1 << 16  # more of a response is not read; the connection is closed instead

# Refusals that are worth a retry: everything else below 500 says that the call itself is wrong.
_TEMPORARY = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})
_HEADERS = [(b"content-type", b"application/json"), (b"user-agent", f"holdfast/{__version__}".encode())]


class Counters(msgspec.Struct):
    """Alerts since the start by outcome, and how many wait or are under way now."""

    sent: int = 0
    failed: int = 0
    """Abandoned: refused, unreachable for too long, or cancelled when the node stopped."""
    dropped: int = 0
    """Not sent, because too many were waiting."""
    retried: int = 0
    waiting: int = 0


class _Outcome(msgspec.Struct, frozen=True):
    """How one call ended. `problem` is empty when the receiver accepted it."""

    problem: str = ""
    final: bool = False
    retry_after: float = 0.0


@cache
def _trusted() -> ssl.SSLContext:
    """Shared: reading the certificates of the authorities takes 25 ms, most of a node's start."""
    return httpx.create_ssl_context()


class Webhooks:
    """See the module. `start` and `stop` belong to the event loop that `offer` is called on."""

    def __init__(
        self,
        settings: WebhookSettings,
        trusted: Callable[[], ssl.SSLContext] = _trusted,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        resolve: Resolve = resolve,
    ) -> None:
        self.counters = Counters()
        self._settings = settings
        self._trusted = trusted
        self._network = CheckedNetwork(ReceiverPolicy(settings.allow), resolve)
        self._sleep = sleep
        self._clock = clock
        self._connections: httpcore.AsyncConnectionPool | None = None
        self._calls = asyncio.Semaphore(settings.concurrency)
        self._tasks: set[asyncio.Task[None]] = set()
        self._backing_off: set[asyncio.Task[None]] = set()  # those that wait to try again
        self._stopping = False
        self._warned_at: float | None = None
        self._unreported = 0

    async def start(self) -> None:
        """Create the pool of connections. That reads the certificates, which is better done before there is traffic."""
        self._connections = httpcore.AsyncConnectionPool(
            self._trusted(), max_connections=self._settings.concurrency, network_backend=self._network
        )
        self._stopping = False

    def offer(self, alert: Alert) -> None:
        """Send an alert in the background, or drop it when too many wait. Never blocks and never raises."""
        if self._connections is None or self._stopping or self.counters.waiting >= self._settings.queue_size:
            self._drop(alert)
            return
        self.counters.waiting += 1
        task = asyncio.get_running_loop().create_task(self._deliver(alert, self._connections), name="webhook")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def stop(self, grace_seconds: float = STOP_SECONDS) -> None:
        """Wait for calls under way, for a moment. Alerts that back off are abandoned immediately."""
        self._stopping = True
        for task in list(self._backing_off):
            task.cancel()
        tasks = list(self._tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        given_up = sum(task.cancelled() for task in tasks)
        if given_up:
            log.warning("webhooks given up: the node stops", count=given_up)
        connections, self._connections = self._connections, None
        if connections is not None:
            await connections.aclose()

    # --- one alert --------------------------------------------------------------------------------------------------

    async def _deliver(self, alert: Alert, connections: httpcore.AsyncConnectionPool) -> None:
        settings = self._settings
        body = _body(alert)
        pause = settings.backoff
        attempt = 1
        while True:
            async with self._calls:
                outcome = await self._call(connections, alert.url, body)
            if not outcome.problem:
                self.counters.sent += 1
                return
            if outcome.final or attempt >= settings.attempts or self._stopping:
                self._give_up(alert, outcome.problem, attempt)
                return
            wait = min(max(pause / SECOND, outcome.retry_after), settings.max_backoff / SECOND)
            await self._back_off(wait)
            pause = min(pause * 2, settings.max_backoff)
            attempt += 1
            self.counters.retried += 1

    async def _call(self, connections: httpcore.AsyncConnectionPool, url: str, body: bytes) -> _Outcome:
        try:
            async with asyncio.timeout(self._settings.timeout / SECOND):
                return await self._post(connections, httpx.URL(url), body)
        except (httpx.InvalidURL, httpcore.UnsupportedProtocol, httpcore.LocalProtocolError) as error:
            return _Outcome(f"cannot be called: {error}", final=True)
        except ReceiverNotAllowed as error:
            return _Outcome(str(error), final=True)
        except (TimeoutError, httpcore.TimeoutException):
            return _Outcome("no answer in time")
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            return _Outcome(str(error) or type(error).__name__)

    async def _post(self, connections: httpcore.AsyncConnectionPool, url: httpx.URL, body: bytes) -> _Outcome:
        if not url.host:
            raise httpx.InvalidURL("it names no host")
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        headers = [(b"host", url.netloc), *_HEADERS, *_authorization(url), (b"content-length", b"%d" % len(body))]
        async with connections.stream("POST", target, headers=headers, content=body) as response:
            status = response.status
            read = 0
            async for chunk in response.aiter_stream():  # to its end, so that the connection can be used again
                read += len(chunk)
                if read > ANSWER_BYTES_MAX:
                    break
        if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            return _Outcome()
        final = status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in _TEMPORARY
        after = next((value for name, value in response.headers if name.lower() == b"retry-after"), b"")
        return _Outcome(f"answered {status}", final, _retry_after(after.decode("latin-1")))

    async def _back_off(self, seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._backing_off.add(task)
        try:
            await self._sleep(seconds)
        finally:
            self._backing_off.discard(task)

    # --- what did not work ------------------------------------------------------------------------------------------

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.counters.waiting -= 1
        if task.cancelled():
            self.counters.failed += 1
        elif (error := task.exception()) is not None:
            self.counters.failed += 1
            log.error("webhook failed", exc_info=error)

    def _give_up(self, alert: Alert, problem: str, attempts: int) -> None:
        self.counters.failed += 1
        log.warning(
            "webhook given up",
            receiver=_receiver(alert.url),
            queue=alert.queue,
            dead_letter_id=alert.dead_letter_id,
            problem=problem,
            attempts=attempts,
        )

    def _drop(self, alert: Alert) -> None:
        self.counters.dropped += 1
        self._unreported += 1
        now = self._clock()
        if self._warned_at is None or now - self._warned_at >= WARN_EVERY_SECONDS:
            log.warning("webhooks dropped: too many wait", queue=alert.queue, dropped=self._unreported)
            self._warned_at = now
            self._unreported = 0


def _body(alert: Alert) -> bytes:
    return msgspec.json.encode(
        {
            "event": "dead_letter",
            "namespace": alert.namespace,
            "queue": alert.queue,
            "group": alert.group,
            "message_id": str(alert.message_id),
            "dead_queue": alert.dead_queue,
            "dead_letter_id": str(alert.dead_letter_id),
            "reason": alert.reason,
            "error": alert.error,
            "attempts": alert.attempts,
            "at": format_instant(alert.at),
        }
    )


def _authorization(url: httpx.URL) -> list[tuple[bytes, bytes]]:
    """The user and password of an address, as a caller sends them."""
    if not url.userinfo:
        return []
    return [(b"authorization", b"Basic " + b64encode(f"{url.username}:{url.password}".encode()))]


def _retry_after(value: str) -> float:
    """Seconds to wait, from a number of them or a date; 0 if it says neither."""
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    return max((moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds(), 0.0)


def _receiver(url: str) -> str:
    """The receiver, for the log: without path, query and password, which may be secrets."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return "(invalid URL)"
    return f"{parsed.scheme}://{parsed.netloc.decode()}"
