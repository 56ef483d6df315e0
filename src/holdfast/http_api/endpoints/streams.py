"""Streams: deliveries pushed to a client as they become ready, as NDJSON lines or as server-sent events.

A stream is a member of its group. It has at most `credit` deliveries unsettled; they are settled by ordinary requests.
When the client disconnects, what it has not settled is released (or failed, if it asked for that); when the server
stops, the last line of the stream says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Literal

import msgspec

from holdfast import wire
from holdfast.auth.fronts.long_requests import expired
from holdfast.broker.dispatch.members import GroupName
from holdfast.broker.parts.subscriptions import Subscription
from holdfast.core.commands import Leased, Verb
from holdfast.engine.catalog import QueueName
from holdfast.errors import (
    GroupNotFound,
    HoldfastError,
    InvalidArgument,
    LimitExceeded,
    QueueNotFound,
    ShuttingDown,
    StreamEnded,
    WrongGroupKind,
)
from holdfast.http_api.codecs.shapes import delivery_to_wire, read_consumer
from holdfast.http_api.codecs.values import duration
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import EVENTS, NDJSON, Response, encode, problem_of
from holdfast.http_api.server.routes import Right, Routes
from holdfast.units import SECOND, format_instant

ROUTES = Routes("Deliveries")
PROTOCOL = "http"
CHUNK_BYTES = 256 << 10  # payloads in one write
NO_BUFFERING = ((b"x-accel-buffering", b"no"),)


class StreamQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to be sent."""

    group: str = "default"
    credit: int = 10
    """Deliveries that may be unsettled at a time."""
    timeout: str = ""
    """How long the leases last. Without it: the queue's `delivery_timeout`."""
    consumer: str = ""
    """The member's name. A second stream of the same caller under the same name takes over from the first."""
    gone: Literal["release", "fail", "keep"] = "release"
    """What becomes of unsettled deliveries when the client disconnects: released, an attempt spent, or kept: they
    can be settled until their leases end."""
    limit: int = 0
    """End after so many deliveries; `0`: never."""
    create: bool = True
    """Whether a group that does not exist is created, and its queue."""
    encoding: wire.Encoding = "auto"


ON_DISCONNECT = {"release": Verb.RELEASE, "fail": Verb.DISCONNECT, "keep": None}

Line = list[Leased] | HoldfastError | None
"""Deliveries, the end, or None as a sign of life."""


class Stream:
    """One client that is being sent to."""

    def __init__(self, request: Request, query: StreamQuery, queue: QueueName) -> None:
        self.request = request
        self.query = query
        self.queue = queue
        principal = request.principal
        self.member = read_consumer(query.consumer, principal) or principal.consumer(f"http-{request.correlation_id}")
        self.group: GroupName = (self.queue, query.group)
        self.ended: HoldfastError | None = None
        self.client_gone = False
        self.subscription: Subscription | None = None
        self._arrived: list[Leased] = []
        self._wake = asyncio.Event()

    def take(self, deliveries: list[Leased]) -> None:
        """From the node, on the loop."""
        self._arrived += deliveries
        self._wake.set()

    def end(self, why: HoldfastError) -> None:
        """End it, with this error as its last line."""
        self.ended = self.ended or why
        self._wake.set()

    def take_over(self) -> None:
        """End the stream that this consumer has. Its leases end with it: nobody works on what it was sent, as far as
        the new one knows."""
        before = self.request.api.streams.get((self.group, self.member))
        if before is not None:
            before.end(StreamEnded(reason="another stream of the same consumer has taken over"))
            before.leave()

    def close(self) -> None:
        """It has ended."""
        streams = self.request.api.streams
        if streams.get((self.group, self.member)) is self:
            del streams[self.group, self.member]
        self.leave()

    def leave(self) -> None:
        """Leave the group, which ends the leases."""
        if self.subscription is not None:
            if self.query.gone == "keep":  # but not what was never sent
                self.subscription.release_deliveries(self._arrived)
            self._arrived = []
            self.subscription.leave(ON_DISCONNECT[self.query.gone])

    def _gone(self, _: asyncio.Future[None]) -> None:
        self.client_gone = True
        self._wake.set()

    async def lines(self) -> AsyncGenerator[Line, None]:
        """What is to be sent."""
        heartbeat = self.request.api.config.http.heartbeat / SECOND
        disconnected = self.request.disconnected
        disconnected.add_done_callback(self._gone)
        left = self.query.limit or 1 << 62
        long_requests, principal = self.request.api.long_requests, self.request.principal
        if self.request.api.closing:
            self.end(ShuttingDown())
        try:
            with long_requests.until(principal, self.end):
                yield None  # so that the client knows that it has joined
                while not self.client_gone:
                    try:
                        async with asyncio.timeout(heartbeat):
                            await self._wake.wait()
                    except TimeoutError:
                        self.check()
                        if self.ended is None:
                            yield None
                            continue
                    self._wake.clear()
                    if self._arrived and not long_requests.is_valid(principal):
                        self.ended = expired()
                    elif self._arrived and not self.client_gone:
                        batch, self._arrived = self._arrived, []
                        left -= len(batch)
                        yield batch
                    if self.ended is not None:
                        yield self.ended
                        return
                    if left <= 0:
                        yield StreamEnded(reason="it has sent as many deliveries as were asked for")
                        return
        finally:
            disconnected.remove_done_callback(self._gone)

    def check(self) -> None:
        """End it if there is no more reason to go on."""
        try:
            self.request.node.queues.get(self.queue)
        except HoldfastError as error:
            self.end(error)
            return
        if self.subscription is not None and not self.subscription.joined:
            self.end(StreamEnded(reason="its group was deleted, or its membership was ended"))


def _line(item: Line, stream: Stream) -> bytes:
    """As NDJSON."""
    if item is None:
        return encode(wire.StreamLine(heartbeat=format_instant(stream.request.node.clock()))) + b"\n"
    if isinstance(item, HoldfastError):
        return encode(wire.StreamLine(end=problem_of(item, stream.request.correlation_id))) + b"\n"
    name, encoding = stream.queue[1], stream.query.encoding
    return b"".join(
        encode(wire.StreamLine(delivery=delivery_to_wire(leased, name, encoding))) + b"\n" for leased in item
    )


def _event(item: Line, stream: Stream) -> bytes:
    """As server-sent events."""
    if item is None:
        return b": heartbeat\n\n"
    if isinstance(item, HoldfastError):
        return b"event: end\ndata: " + encode(problem_of(item, stream.request.correlation_id)) + b"\n\n"
    name, encoding = stream.queue[1], stream.query.encoding
    return b"".join(
        b"event: delivery\nid: %d\ndata: %s\n\n" % (leased.message.id, encode(delivery_to_wire(leased, name, encoding)))
        for leased in item
    )


@ROUTES(
    "POST",
    "/api/v1/queues/{name}/stream",
    Right.CONSUME,
    query=StreamQuery,
    gives=wire.StreamLine,
    response_types=("application/x-ndjson", "text/event-stream"),
    errors=(QueueNotFound, GroupNotFound, WrongGroupKind, LimitExceeded),
    waits=True,
)
async def stream(request: Request) -> Response:
    """Be sent deliveries as they become ready, one line each, never more unsettled than `credit`.

    With `Accept: text/event-stream` as server-sent events (`event: delivery`, then at the end `event: end`), else as
    NDJSON: lines with `delivery`, `heartbeat` or `end`. Settle with ordinary requests; each makes room for another
    delivery. When the client disconnects, what it has not settled is released immediately.
    """
    query = request.query(StreamQuery)
    if not query.create:
        request.node.groups.get(request.queue, query.group)
    opened = await open_stream(request, query, request.queue)
    events = "text/event-stream" in (request.header(b"accept") or "")
    write, content_type = (_event, EVENTS) if events else (_line, NDJSON)
    return Response(_parts(opened, write), 200, content_type, NO_BUFFERING, opened.close)


async def open_stream(request: Request, query: StreamQuery, queue: QueueName, protocol: str = PROTOCOL) -> Stream:
    """A stream that has joined its group. The caller has to close it."""
    streams = request.api.streams
    if len(streams) >= request.api.config.http.max_streams:
        raise LimitExceeded(
            what="The number of streams", limit=request.api.config.http.max_streams, advice="Close some, or long-poll"
        )
    request.api.long_requests.check(request.principal)
    if query.limit < 0:
        raise InvalidArgument(field="limit", problem="cannot be negative")
    timeout = duration(query.timeout, "timeout") if query.timeout else -1
    request.node.messages.check_lease_timeout(timeout)
    opened = Stream(request, query, queue)
    credit = min(query.credit, query.limit) if query.limit else query.credit
    submission = request.node.subscriptions.join(
        opened.queue,
        query.group,
        opened.member,
        opened.take,
        credit=credit,
        lease_timeout=timeout,
        protocol=protocol,
        max_bytes=request.api.config.http.stream_bytes,
        removed=opened.check,
        end=lambda reason: opened.end(StreamEnded(reason=reason)),
        with_queue=True,
        take_over=opened.take_over,
    )
    streams[opened.group, opened.member] = opened
    opened.subscription = submission.result
    try:
        await submission
    except BaseException:
        opened.close()
        raise
    return opened


async def _parts(opened: Stream, write: Callable[[Line, Stream], bytes]) -> AsyncIterator[bytes]:
    async with aclosing(opened.lines()) as lines:
        async for line in lines:
            if not isinstance(line, list):
                yield write(line, opened)
                continue
            for some in _chunks(line):
                yield write(some, opened)


def _chunks(deliveries: list[Leased]) -> Iterator[list[Leased]]:
    """Deliveries a few at a time, so that large ones do not all lie in memory as text."""
    first = size = 0
    for index, leased in enumerate(deliveries, 1):
        size += len(leased.message.payload)
        if size >= CHUNK_BYTES or index == len(deliveries):
            yield deliveries[first:index]
            first, size = index, 0
