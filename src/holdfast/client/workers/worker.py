"""A worker: a function that handles the messages of a queue."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

from holdfast.client.client import HOLD, Client
from holdfast.client.consumer import RETRY_SECONDS
from holdfast.client.lease_scope import LeaseScope
from holdfast.client.messages import Message
from holdfast.client.portal import Portal
from holdfast.client.sync import SyncMessage
from holdfast.client.times import Duration
from holdfast.client.workers.arguments import Unreadable, call_of
from holdfast.client.workers.outcomes import Reject, Release, ReleaseDelays, Retry
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


class Worker(Generic[Parameters, Result]):
    """A handler of a queue's messages. It can still be called as the function it is."""

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
        local_names: dict[str, Any] | None = None,
    ) -> None:
        if not 1 <= concurrency <= CONCURRENCY_MAX:
            raise InvalidArgument(field="concurrency", problem=f"is 1 to {CONCURRENCY_MAX}, not {concurrency}")
        self.function = function
        self._function: Callable[..., Any] = function  # called by what its annotations say, not by its type
        self.queue = queue
        self.group = group
        self.concurrency = concurrency
        self.prefetch = prefetch
        self.lease = lease
        self.hold = hold
        self.middleware = tuple(middleware)
        self.asynchronous = inspect.iscoroutinefunction(function)
        self._release_delays = ReleaseDelays()
        self._call = call_of(function, self.asynchronous, local_names or {})
        functools.update_wrapper(self, function)

    def __call__(self, *args: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        return self.function(*args, **keywords)

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
        message, and its result is dropped.
        """
        proceed: Proceed = functools.partial(self._invoke, message, threads, portal)
        for middleware in reversed((*around, *self.middleware)):  # the first is the outermost
            proceed = functools.partial(middleware, message, proceed)
        try:
            if self.asynchronous:
                async with LeaseScope(message):
                    result = await proceed()
            else:
                result = await proceed()
            if message.lost:
                log.warning("%s has finished with %r after its lease was lost: it is not acked", self.name, message)
                return None
            if result is not None and message.reply_to and message.settled is None:
                await client.send(message.reply_to, result, correlation_id=message.correlation_id)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises becomes of its message
            return self._failed(message, error)
        except (SystemExit, asyncio.CancelledError) as error:
            # A library that calls sys.exit, or a wait that was cancelled inside the handler, is a failure of this one
            # message. If it ended the worker, the message would be delivered to the next worker and end that too.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self._failed(message, error)
        self._release_delays.forget(message.id)
        return message.ack if message.settled is None else None

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
                return functools.partial(message.nack, error.delay, str(error))
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
                error_text = f"{type(error).__name__}: {error}"[:ERROR_LENGTH]
                return functools.partial(message.nack, error=error_text)


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
) -> Callable[[Callable[Parameters, Result]], Worker[Parameters, Result]]:
    """Make a worker of a function; `async def` or an ordinary one, which is called on threads.

    It is called with each message of the queue, `concurrency` at the same time. Its annotations say what it takes (see
    `holdfast.client.workers.arguments`). When it returns, the message is acked; when it raises, it is nacked, unless by
    `Retry`, `Reject` or `Release` it says otherwise. What it returns is sent to the message's `reply_to`, if it has
    one.

    Up to `prefetch` messages are leased at a time, those included that are being settled. By default that is
    `concurrency`, and more where the function is quick (see `read_ahead` of `Client.consume`). Leases last for `lease`
    or the queue's `delivery_timeout`, and are extended while it runs, for `hold` at most.
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
            local_names=dict(local_names),
        )

    return decorate
