"""A consumer: holds up to `prefetch` unsettled messages, extends their leases, and releases what is left when it ends.

It leases by long polls, so that an empty queue costs nothing, or reads a stream that the server sends. A server that is
unavailable for a while does not end it: it retries. Errors that are not retryable (no permission, no queue) are raised.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from types import TracebackType
from typing import Protocol, Self

from holdfast.client.messages import Message, release_unsettled
from holdfast.errors import HoldfastError, InvalidArgument, QueueNotFound

log = logging.getLogger("holdfast.client")

PREFETCH_MAX = 1_000  # as many as one lease request may ask for
AHEAD_SECONDS = 0.1
"""A consumer that reads ahead holds as many messages as were settled in this time: enough to fill the time of a
request, little enough that other consumers would not have begun with them much sooner."""
AHEAD_MAX = 250
"""But no more than this, however quick the work is: beside so many a request costs little, and no more wait behind one
that suddenly takes long."""
POLL_SECONDS = 20.0
"""How long one long poll waits: shorter than the timeouts of proxies, long enough to cost nothing."""
LEASE_SECONDS = 30.0
"""How long leases last on a queue that does not exist yet: what a queue's `delivery_timeout` is by default."""
GRACE_SECONDS = 0.5
"""How old a lease request must be to be cancelled when the consumer stops: by then it waits at the server, because no
message was ready."""
RETRY_SECONDS = 1.0  # between rounds of retries while the server is unavailable


class Source(Protocol):
    """What a consumer calls on its client."""

    async def lease_messages(
        self, consumer: Consumer, limit: int, wait_seconds: float, lease_seconds: float
    ) -> list[Message]: ...

    def stream_messages(
        self, consumer: Consumer, credit: int, lease_seconds: float
    ) -> AsyncGenerator[Message, None]: ...

    async def lease_seconds(self, queue: str) -> float: ...

    def keep(self, message: Message, lease_seconds: float, longest_seconds: float) -> None: ...

    def forget(self, consumer: Consumer) -> None: ...


class Consumer:
    """See the module. Iterate over it; use `async with` too where messages must be released at a certain point.

    Every message must be settled: unsettled ones count against `prefetch`, and at `prefetch` of them no further ones
    arrive.
    """

    def __init__(
        self,
        source: Source,
        queue: str,
        group: str,
        prefetch: int,
        lease_seconds: float | None,
        hold_seconds: float,
        stream: bool = False,
        create: bool = True,
        read_ahead: bool = False,
    ) -> None:
        if not 1 <= prefetch <= PREFETCH_MAX:
            raise InvalidArgument(field="prefetch", problem=f"is 1 to {PREFETCH_MAX}, not {prefetch}")
        self.queue = queue
        self.group = group
        self.create = create
        self._source = source
        self._prefetch = prefetch
        self._lease_seconds = lease_seconds
        self._hold_seconds = hold_seconds
        self._stream = stream
        self._read_ahead = read_ahead
        self._settled = 0  # since `_settled_recently` was reckoned
        self._settled_recently = 0.0  # in the last `AHEAD_SECONDS`, by a moving average
        self._reckoned_at = time.monotonic()
        self._ready: deque[Message] = deque()
        self._open: set[Message] = set()  # leased and not settled, whether returned by `next` or not
        self._lost: set[Message] = set()  # of the open ones, those whose leases were lost after `next` returned them
        self._reserved = 0  # places of messages that are lost, but still worked on
        self._changed = asyncio.Event()  # a message arrived or was settled, none waits any more, or the consumer ended
        self._failure: Exception | None = None
        self._ended = False
        self._asked_at = 0.0  # when the last lease request was sent
        self._task: asyncio.Task[None] | None = None

    @property
    def unsettled(self) -> int:
        """Messages that are leased and not settled."""
        return len(self._open)

    # --- the iterator -----------------------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[Message]:
        try:
            while (message := await self.next()) is not None:
                yield message
        finally:
            await self.close()

    async def next(self) -> Message | None:
        """The next message, as soon as there is one; None when the consumer has been stopped."""
        if self._task is None and not self._ended:
            self._task = asyncio.create_task(self._run())
        if self._lost:
            for message in list(self._lost):
                self.done(message)
        while True:
            while self._ready:
                message = self._ready.popleft()
                if not self._ready:
                    self._changed.set()
                if not message.lost:
                    return message
            if self._failure is not None:
                raise self._failure
            if self._ended:
                return None
            self._changed.clear()
            await self._changed.wait()

    async def stop(self) -> None:
        """Lease no further messages, release those that no handler has started; the others can still be settled."""
        self._ended = True
        self._changed.set()
        if self._task is not None:
            # The server may have leased messages for a recent request: if it were cancelled, nobody would work on them
            # until their leases end.
            grace = self._asked_at + GRACE_SECONDS - time.monotonic()
            await asyncio.wait((self._task,), timeout=max(grace, 0.0))
            self._task.cancel()
            await asyncio.wait((self._task,))
        unstarted = list(self._ready)
        self._ready.clear()
        await release_all(unstarted)

    async def close(self) -> None:
        """Stop, and release everything that is not settled."""
        await self.stop()
        await release_all(list(self._open))
        self._open.clear()
        self._source.forget(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def done(self, message: Message) -> None:
        """A message was settled, or its lease was lost: there is room for another."""
        self._open.discard(message)
        self._lost.discard(message)
        self._settled += 1
        self._changed.set()

    def lose(self, message: Message) -> None:
        """The lease of a message was lost. If somebody works on it, its place is free when they ask for another."""
        if message in self._ready:
            self._ready.remove(message)
            self.done(message)
        else:
            self._lost.add(message)

    def reserve(self) -> None:
        """A message was lost, but what works on it cannot be stopped: its place stays taken until `free`."""
        self._reserved += 1

    def free(self) -> None:
        self._reserved -= 1
        self._changed.set()

    # --- the background task ----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await (self._follow() if self._stream else self._fetch())
        except Exception as error:  # noqa: BLE001 - raised where the loop waits
            self._failure = error
        finally:
            self._changed.set()

    async def _fetch(self) -> None:
        """Lease by long polls, each for as many messages as there is room for, and for no fewer than wait here: a
        request for each message that was settled would cost more than quick work does."""
        while not self._ended:
            room = self._limit() - len(self._open) - self._reserved
            if room <= 0 or room < len(self._ready):
                self._changed.clear()
                await self._changed.wait()
                continue
            for message in await self._lease_patiently(room):
                self._take(message)

    def _limit(self) -> int:
        """How many unsettled messages to hold now."""
        if not self._read_ahead:
            return self._prefetch
        now = time.monotonic()
        remembered = max(1.0 - (now - self._reckoned_at) / AHEAD_SECONDS, 0.0)
        self._settled_recently = self._settled_recently * remembered + self._settled
        self._settled, self._reckoned_at = 0, now
        return max(self._prefetch, min(int(self._settled_recently), AHEAD_MAX))

    async def _follow(self) -> None:
        """Read a stream: the server knows what is settled, and sends no more than there is room for."""
        while not self._ended:
            try:
                lease_seconds = self._lease_seconds or await self._source.lease_seconds(self.queue)
            except QueueNotFound:  # the stream may create the queue, with the default
                lease_seconds = LEASE_SECONDS
            except HoldfastError as error:
                await self._wait_out(error)
                continue
            try:
                async with aclosing(self._source.stream_messages(self, self._prefetch, lease_seconds)) as messages:
                    async for message in messages:
                        self._take(message)
            except HoldfastError as error:
                await self._wait_out(error)

    def _take(self, message: Message) -> None:
        self._open.add(message)
        self._ready.append(message)
        self._source.keep(message, message.lease_seconds or LEASE_SECONDS, self._hold_seconds)
        self._changed.set()

    async def _wait_out(self, error: HoldfastError) -> None:
        if not error.retryable:
            raise error
        log.warning("no messages of %r for now: %s", self.queue, error)
        await asyncio.sleep(RETRY_SECONDS)

    async def _lease(self, room: int) -> list[Message]:
        self._asked_at = time.monotonic()
        if self._lease_seconds is None:
            try:
                self._lease_seconds = await self._source.lease_seconds(self.queue)
            except QueueNotFound:  # the first lease may create the queue, with the default
                return await self._source.lease_messages(self, room, 0.0, LEASE_SECONDS)
        return await self._source.lease_messages(self, room, POLL_SECONDS, self._lease_seconds)

    async def _lease_patiently(self, room: int) -> list[Message]:
        while True:
            try:
                return await self._lease(room)
            except HoldfastError as error:
                await self._wait_out(error)


async def release_all(messages: list[Message]) -> None:
    """Release; if that fails, the leases expire by themselves."""
    unsettled = [message for message in messages if message.settled is None and not message.lost]
    results = await asyncio.gather(*(release_unsettled(message) for message in unsettled), return_exceptions=True)
    for message, result in zip(unsettled, results, strict=True):
        if isinstance(result, HoldfastError):
            log.warning("%r could not be released: %s", message, result)
        elif isinstance(result, BaseException):
            raise result
