"""A worker: a function that handles the messages of a queue."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

from holdfast import wire
from holdfast.client.client import HOLD, Client
from holdfast.client.consumer import RETRY_SECONDS
from holdfast.client.lease_scope import LeaseScope
from holdfast.client.messages import Message
from holdfast.client.portal import Portal
from holdfast.client.sync import SyncMessage
from holdfast.client.times import Duration, seconds
from holdfast.client.workers.arguments import Unreadable, call_of
from holdfast.client.workers.context import handling
from holdfast.client.workers.job_policy import TRACEBACK_LENGTH, Backoff, RetryRule, StartRate, Timeout
from holdfast.client.workers.jobs import Results
from holdfast.client.workers.outcomes import Reject, Release, ReleaseDelays, Retry
from holdfast.client.workers.sending import Sending, Unique
from holdfast.client.workers.thread_pool import ThreadPool
from holdfast.errors import HoldfastError, InvalidArgument, LeaseLost

log = logging.getLogger("holdfast.client")

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

Proceed = Callable[[], Awaitable[object]]
Middleware = Callable[[Message, Proceed], Awaitable[object]]
"""Wraps a handler: `async def timed(message, proceed): ... ; return await proceed()`. An exception that it raises has
the same effect as one of the handler."""

Settle = Callable[[], Awaitable[None]]
"""A call that settles a message."""

CONCURRENCY_MAX = 1_000  # the greatest prefetch of a consumer
ERROR_LENGTH = 1_000  # characters of an exception that are kept with the message


class Worker(Sending[Parameters, Result]):
    """A handler of a queue's messages. It can still be called as the function it is, and `send` enqueues a message for
    it."""

    def __init__(
        self,
        function: Callable[Parameters, Result],
        queue: str,
        *,
        group: str = "default",
        concurrency: int = 1,
        prefetch: int | None = None,
        lease: Duration | None = None,
        hold: Duration = HOLD,
        middleware: Sequence[Middleware] = (),
        timeout: Duration | None = None,
        retries: int | None = None,
        backoff: Backoff | None = None,
        rate: str | None = None,
        unique: Unique = False,
        results: Duration | None = None,
        local_names: dict[str, Any] | None = None,
    ) -> None:
        if not 1 <= concurrency <= CONCURRENCY_MAX:
            raise InvalidArgument(field="concurrency", problem=f"is 1 to {CONCURRENCY_MAX}, not {concurrency}")
        self.function = function
        self.asynchronous = inspect.iscoroutinefunction(function)
        self._call = call_of(function, self.asynchronous, local_names or {})
        super().__init__(queue, self._call, unique, group=group)
        self.results = None if results is None else Results(queue, results)
        self._function: Callable[..., Any] = function  # called by what its annotations say, not by its type
        self.concurrency = concurrency
        self.prefetch = prefetch
        self.lease = lease
        self.hold = hold
        self.middleware = tuple(middleware)
        self.timeout_seconds = None if timeout is None else seconds(timeout, "timeout")
        self.rate = None if rate is None else StartRate(rate)
        self._retry_rule = RetryRule(retries, backoff)
        self._release_delays = ReleaseDelays()
        functools.update_wrapper(self, function)

    def __call__(self, *args: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        return self.function(*args, **keywords)

    def call_within(self, block: Callable[[], AbstractContextManager[object]]) -> None:
        """Call a function that is not asynchronous inside such a block, on its thread: what a framework needs there."""
        if self.asynchronous:
            return
        inner = self._function

        @functools.wraps(inner)
        def within(*args: Any, **keywords: Any) -> object:
            with block():
                return inner(*args, **keywords)

        self._function = within

    @property
    def name(self) -> str:
        return getattr(self.function, "__qualname__", repr(self.function))

    def __repr__(self) -> str:
        return f"<Worker {self.name} of {self.queue!r} for {self.group!r}>"

    async def handle(
        self, message: Message, client: Client, threads: ThreadPool, portal: Portal, around: Sequence[Middleware] = ()
    ) -> Settle | None:
        """Call the function with a message. Returns how the message is to be settled; None: not at all.

        If the lease is lost, an asynchronous function is cancelled. A thread cannot be: the function sees it on its
        message, and its result is dropped. The same if its time is over; then the thread is abandoned.
        """
        with handling(message, client):
            return await self._handle(message, client, threads, portal, around)

    async def _handle(
        self, message: Message, client: Client, threads: ThreadPool, portal: Portal, around: Sequence[Middleware]
    ) -> Settle | None:
        proceed: Proceed = functools.partial(self._invoke, message, threads, portal)
        for middleware in reversed((*around, *self.middleware)):  # the first is the outermost
            proceed = functools.partial(middleware, message, proceed)
        try:
            result = await self._in_time(message, proceed)
            if message.lost:
                log.warning("%s has finished with %r after its lease was lost: it is not acked", self.name, message)
                return None
            if result is not None and message.reply_to and message.settled is None:
                await client.send(message.reply_to, result, correlation_id=message.correlation_id)
            kept = None if self.results is None else self.results.done(message, result)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises becomes of its message
            return self._ended(message, client, self._failed(message, error))
        except (SystemExit, asyncio.CancelledError) as error:
            # A library that calls sys.exit, or a wait that was cancelled inside the handler, is a failure of this one
            # message. If it ended the worker, the message would be delivered to the next worker and end that too.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self._ended(message, client, self._failed(message, error))
        self._release_delays.forget(message.id)
        settle = message.ack if message.settled is None else None
        return settle if kept is None else self._kept_first(client, kept, settle)

    def _ended(self, message: Message, client: Client, settle: Settle | None) -> Settle | None:
        """A failure ends a job if it is a reject: then there will be no result."""
        if self.results is None or not isinstance(settle, functools.partial) or settle.func != message.reject:
            return settle
        return self._kept_first(client, self.results.failed(message, settle.args[0]), settle)

    def _kept_first(self, client: Client, result: wire.Draft, settle: Settle | None) -> Settle:
        """Keep the result of a job, and then settle it: so that there is one however often this is done."""
        results = self.results
        assert results is not None

        async def keep_and_settle() -> None:
            try:
                await results.keep(client, result)
            except HoldfastError as refused:
                if refused.retryable:
                    raise
                log.error("%s: the result of a job is not kept: %s", self.name, refused)
            if settle is not None:
                await settle()

        return keep_and_settle

    async def _in_time(self, message: Message, proceed: Proceed) -> object:
        """What the function returns. Raises Timeout when its time is over."""
        timer = asyncio.timeout(self.timeout_seconds)
        try:
            if not self.asynchronous:
                async with timer:
                    return await proceed()
            async with LeaseScope(message), timer:
                return await proceed()
        except TimeoutError as error:
            if not timer.expired():
                raise
            message.time_out()
            if not self.asynchronous:
                log.error("%s has worked on %r for too long; its thread is abandoned", self.name, message)
            raise Timeout(f"took longer than {self.timeout_seconds:g} s") from error

    async def _invoke(self, message: Message, threads: ThreadPool, portal: Portal) -> object:
        if self.asynchronous:
            return await self._function(**self._call.arguments(message))
        arguments = self._call.arguments(SyncMessage(message, portal))
        return await threads.run(functools.partial(self._function, **arguments))

    def _failed(self, message: Message, error: BaseException) -> Settle | None:
        if isinstance(error, LeaseLost) and message.lost:
            log.warning("%s was stopped: the lease of %r is lost", self.name, message)
            return None
        if message.settled is not None or message.lost:
            log.warning("%s failed after %r was settled or lost", self.name, message, exc_info=error)
            return None
        if not isinstance(error, Release):
            self._release_delays.forget(message.id)
        match error:
            case Retry():
                return self._again(message, str(error), error.delay)
            case Reject():
                return functools.partial(message.reject, str(error))
            case Release():
                delay = self._release_delays.next_seconds(message.id) if error.delay is None else error.delay
                return functools.partial(message.release, delay)
            case Unreadable():
                log.warning("%s cannot read %r: %s", self.name, message, error)
                return functools.partial(message.reject, str(error)[:ERROR_LENGTH])
            case _:
                log.error("%s failed with %r", self.name, message, exc_info=error)
                return self._again(message, failure_text(error))

    def _again(self, message: Message, error: str, delay: Duration | None = None) -> Settle:
        """Repeat the job as the worker says, else the queue; or not, if this was the last attempt."""
        if self._retry_rule.is_last(message.attempt):
            return functools.partial(message.reject, error)
        pause = self._retry_rule.pause(message.attempt) if delay is None else delay
        return functools.partial(message.nack, pause, error)


def failure_text(error: BaseException) -> str:
    """What is kept of a failure with its message: the exception, and the end of its traceback, where it was raised."""
    told = f"{type(error).__name__}: {error}"[:ERROR_LENGTH]
    if error.__traceback__ is None:
        return told
    trace = "".join(traceback.format_tb(error.__traceback__))[-TRACEBACK_LENGTH:]
    return f"{told}\n{trace.rstrip()}"


async def settle_reliably(message: Message, settle: Settle) -> None:
    """Retry the settlement for as long as the server is unavailable: the work is done and should not be repeated. The
    lease is extended meanwhile. An error that is not retryable is logged, and the message is delivered again."""
    while True:
        try:
            await settle()
        except HoldfastError as refused:
            if refused.retryable:
                log.warning("%r cannot be settled for now: %s", message, refused)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            log.warning("%r could not be settled, and will be delivered again: %s", message, refused)
            message.abandon()
        return


def worker(
    queue: str,
    *,
    group: str = "default",
    concurrency: int = 1,
    prefetch: int | None = None,
    lease: Duration | None = None,
    hold: Duration = HOLD,
    middleware: Sequence[Middleware] = (),
    timeout: Duration | None = None,
    retries: int | None = None,
    backoff: Backoff | None = None,
    rate: str | None = None,
    unique: Unique = False,
    results: Duration | None = None,
) -> Callable[[Callable[Parameters, Result]], Worker[Parameters, Result]]:
    """Make a worker of a function; `async def` or an ordinary one, which is called on threads.

    It is called with each message of the queue, `concurrency` at the same time. Its annotations say what it takes (see
    `holdfast.client.workers.arguments`). When it returns, the message is acked; when it raises, it is nacked, unless by
    `Retry`, `Reject` or `Release` it says otherwise. What it returns is sent to the message's `reply_to`, if it has
    one.

    Up to `prefetch` messages are leased at a time, those included that are being settled. By default that is
    `concurrency`, and more where the function is quick (see `read_ahead` of `Client.consume`). Leases last for `lease`
    or the queue's `delivery_timeout`, and are extended while it runs, for `hold` at most.

    After `timeout` an `async def` is cancelled, and the thread of an ordinary function is abandoned: the job has
    failed. A failed job is repeated `retries` times, after `backoff` (the first pause, which doubles up to an hour, or
    a list of pauses); what is not given is as the queue's retry policy says. `rate`, as 100/s or 5/m, bounds how many
    start in this process.

    With `results` what it returns is kept for so long, and `await job.result()` waits for it.

    `send` enqueues a job; with `unique` not one with the same arguments as another that was sent within the queue's
    `dedup_window`. `unique` may be a function of the arguments that returns what is compared.
    """
    local_names = sys._getframe(1).f_locals  # noqa: SLF001 - types of payloads may be local to where the worker is made

    def decorate(function: Callable[Parameters, Result]) -> Worker[Parameters, Result]:
        return Worker(
            function,
            queue,
            group=group,
            concurrency=concurrency,
            prefetch=prefetch,
            lease=lease,
            hold=hold,
            middleware=middleware,
            timeout=timeout,
            retries=retries,
            backoff=backoff,
            rate=rate,
            unique=unique,
            results=results,
            local_names=dict(local_names),
        )

    return decorate
