"""Alerts about dead letters, and about queues that paused because of them: a JSON POST to the queue's
`dlq.alert_webhook`.

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
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec
import structlog

from holdfast import threads
from holdfast.broker.webhook_receivers import Resolve, resolve
from holdfast.config import WebhookSettings
from holdfast.engine.dead_lettering import Alert
from holdfast.engine.limits.circuit_breaker import Tripped
from holdfast.units import SECOND, format_duration, format_instant

if TYPE_CHECKING:
    from holdfast.broker.webhook_client import WebhookClient

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

STOP_SECONDS = 2.0  # for calls under way to end when the node stops
WARN_EVERY_SECONDS = 60.0


class Counters(msgspec.Struct):
    """Alerts since the start by outcome, and how many wait or are under way now."""

    sent: int = 0
    failed: int = 0
    """Abandoned: refused, unreachable for too long, or cancelled when the node stopped."""
    dropped: int = 0
    """Not sent, because too many were waiting."""
    retried: int = 0
    waiting: int = 0


class Webhooks:
    """See the module. `start` and `stop` belong to the event loop that `offer` is called on."""

    def __init__(
        self,
        settings: WebhookSettings,
        trusted: Callable[[], ssl.SSLContext] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        resolve: Resolve = resolve,
    ) -> None:
        self.counters = Counters()
        self._settings = settings
        self._trusted = trusted
        self._resolve = resolve
        self._sleep = sleep
        self._clock = clock
        self._client: WebhookClient | None = None  # from the first alert on
        self._opening = asyncio.Lock()
        self._calls = asyncio.Semaphore(settings.concurrency)
        self._tasks: set[asyncio.Task[None]] = set()
        self._backing_off: set[asyncio.Task[None]] = set()  # those that wait to try again
        self._stopping = True  # until it is started
        self._warned_at: float | None = None
        self._unreported = 0

    async def start(self) -> None:
        """Take alerts from here on."""
        self._stopping = False

    def offer(self, alert: Alert | Tripped) -> None:
        """Send an alert in the background, or drop it when too many wait. Never blocks and never raises."""
        if self._stopping or self.counters.waiting >= self._settings.queue_size:
            self._drop(alert)
            return
        self.counters.waiting += 1
        task = asyncio.get_running_loop().create_task(self._deliver(alert), name="webhook")
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
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    # --- one alert --------------------------------------------------------------------------------------------------

    async def _deliver(self, alert: Alert | Tripped) -> None:
        settings = self._settings
        client = await self._opened_client()
        body = _body(alert)
        pause = settings.backoff
        attempt = 1
        while True:
            async with self._calls:
                outcome = await client.post(alert.url, body)
            if not outcome.problem:
                self.counters.sent += 1
                return
            if outcome.final or attempt >= settings.attempts or self._stopping:
                self._give_up(client.receiver(alert.url), alert, outcome.problem, attempt)
                return
            wait = min(max(pause / SECOND, outcome.retry_after), settings.max_backoff / SECOND)
            await self._back_off(wait)
            pause = min(pause * 2, settings.max_backoff)
            attempt += 1
            self.counters.retried += 1

    async def _opened_client(self) -> WebhookClient:
        async with self._opening:
            if self._client is None:
                self._client = await threads.run_in_thread("holdfast-webhooks", self._open_client)
            return self._client

    def _open_client(self) -> WebhookClient:
        from holdfast.broker.webhook_client import WebhookClient  # noqa: PLC0415 - most servers never need it

        return WebhookClient(self._settings, self._resolve, self._trusted)

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

    def _give_up(self, receiver: str, alert: Alert | Tripped, problem: str, attempts: int) -> None:
        self.counters.failed += 1
        log.warning(
            "webhook given up",
            receiver=receiver,
            queue=alert.queue,
            dead_letter_id=alert.dead_letter_id if isinstance(alert, Alert) else None,
            problem=problem,
            attempts=attempts,
        )

    def _drop(self, alert: Alert | Tripped) -> None:
        self.counters.dropped += 1
        self._unreported += 1
        now = self._clock()
        if self._warned_at is None or now - self._warned_at >= WARN_EVERY_SECONDS:
            log.warning("webhooks dropped: too many wait", queue=alert.queue, dropped=self._unreported)
            self._warned_at = now
            self._unreported = 0


def _body(alert: Alert | Tripped) -> bytes:
    if isinstance(alert, Tripped):
        return msgspec.json.encode(
            {
                "event": "queue_paused",
                "namespace": alert.namespace,
                "queue": alert.queue,
                "dead_letters": alert.dead_letters,
                "window": format_duration(alert.window),
                "reason": alert.reason,
                "error": alert.error,
                "at": format_instant(alert.at),
            }
        )
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
