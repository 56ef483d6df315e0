"""The asynchronous client.

    async with Client("http://127.0.0.1:8080", token=...) as client:
        await client.send("emails", {"to": "a@example.com"})
        async for message in client.consume("emails", group="mailer"):
            ...
            await message.ack()

Everything it puts on the wire is described in `holdfast.client.calls`. The synchronous `SyncClient` wraps
this client and runs it on an event loop in a background thread (see `holdfast.client.sync` for why).
"""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Literal, Self, TypeVar

import httpx

from holdfast import __version__, wire
from holdfast.client import calls
from holdfast.client.batchers import CallBatcher, add_bounded
from holdfast.client.connections import Connections
from holdfast.client.consumer import Consumer, release_all
from holdfast.client.drafts import Properties, chunks, draft, each, grouped, size_of
from holdfast.client.lease_extender import LeaseExtender
from holdfast.client.messages import Message, Reply
from holdfast.client.operations import Operations
from holdfast.client.problems import error_of
from holdfast.client.retries import CONSUMER_RETRIES, LAST_RETRIES, Retries
from holdfast.client.schedules import Schedules
from holdfast.client.sent import Sent, SentMany
from holdfast.client.times import Duration, Instant, duration, instant, optional_duration, seconds
from holdfast.client.tls import Tls, as_context
from holdfast.client.transactions import Transaction
from holdfast.client.transport import Token, Transport, checked_url
from holdfast.client.workflow_state import State, as_bytes
from holdfast.errors import InvalidArgument, LeaseLost, QueueExists, QueueNotFound
from holdfast.wire import Queue

URL = "http://127.0.0.1:8080"
CONNECTIONS_MAX = 100
"""Connections at the same time; each long poll takes one. Further calls wait for one to be free."""
CONNECTIONS_IDLE = 20  # kept open for the next call
TIMEOUT_SECONDS = 30.0
CHUNK_MESSAGES = 1_000
"""Messages in one request of `send_many`: enough that the request costs little beside them, few enough that progress
shows and that a retry repeats little."""
CHUNK_BYTES = 4 << 20
PAGE_MESSAGES = 100
PAGE_ENDLESS = 1 << 62
HELD_MAX = 10_000
"""Unsettled messages that the client remembers, to release them when it closes. Beyond it the oldest are forgotten:
their leases then expire."""
OUTCOMES_PAGE = 1_000  # dead letters of a redrive in one request
HOLD = "12h"
"""How long a message's lease is extended at most: as long as the server allows one lease to be."""
LEASE_LENGTH_SECONDS = 60.0  # how long a queue's `delivery_timeout` is cached

Answer = TypeVar("Answer")
Progress = Callable[[int], None]
"""Called with the number of messages that are done so far."""


class Client:
    """A client of one server, with a pool of connections. Use it in one event loop.

    Without an address it takes that of `HOLDFAST_URL`, else http://127.0.0.1:8080; without credentials the token in
    `HOLDFAST_TOKEN`, if there is one. A token may be a function that returns one, asked for each request.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: Token | None = None,
        user: str | None = None,
        password: str | None = None,
        tls: Tls | ssl.SSLContext | None = None,
        retries: Retries = Retries(),
        timeout: Duration = TIMEOUT_SECONDS,
        connections: int = CONNECTIONS_MAX,
        name: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        address = checked_url(url or os.environ.get("HOLDFAST_URL") or URL)
        if user is None and address.username:
            user, password = address.username, address.password
        if token is None and user is None:
            token = os.environ.get("HOLDFAST_TOKEN") or None
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        """The consumer's name, which others see beside its leases."""
        timeout_seconds = seconds(timeout, "timeout")
        if transport is None:
            context = as_context(tls or Tls()) if address.scheme == "https" else None
            transport = Connections(address, context, CONNECTIONS_IDLE)
        headers = {"user-agent": f"holdfast-python/{__version__}"}
        if user is not None:
            headers["authorization"] = "Basic " + b64encode(f"{user}:{password or ''}".encode()).decode()
        self._transport = Transport(transport, address, headers, retries, timeout_seconds, connections, token)
        self._retries = retries
        self._settling: dict[tuple[str, str], CallBatcher[wire.Settlement, str | None]] = {}
        self._sending: dict[str, CallBatcher[wire.Draft, Sent]] = {}
        self._extender = LeaseExtender()
        self._consumers: set[Consumer] = set()
        self._owners: dict[Message, Consumer | None] = {}
        self._lease_lengths: dict[str, tuple[float, float]] = {}
        self._closed = False
        self.schedules = Schedules(self)
        self.operations = Operations(self)

    @property
    def url(self) -> str:
        return self._transport.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Release every message that is not settled, and close the connections."""
        if self._closed:
            return
        self._closed = True
        try:
            for consumer in list(self._consumers):
                await consumer.close()
            await release_all(list(self._owners))
            for settling in self._settling.values():
                await settling.close()
            for sending in self._sending.values():
                await sending.close()
        finally:
            await self._extender.close()
            await self._transport.close()

    async def call(self, call: calls.Call[Answer]) -> Answer:
        """Perform a call of `holdfast.client.calls`."""
        return await self._transport.perform(call, LAST_RETRIES if self._closed else None)

    # --- sending ----------------------------------------------------------------------------------------------------

    async def send(
        self,
        queue: str,
        payload: object = b"",
        *,
        key: str | None = None,
        priority: int = 128,
        delay: Duration | None = None,
        deliver_at: Instant | None = None,
        ttl: Duration | None = None,
        message_id: str | None = None,
        content_type: str | None = None,
        properties: Properties | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
    ) -> Sent:
        """Store one message. When this returns it is durable.

        Bytes are sent as they are, a str as text, anything else as JSON. A retry after a lost response stores nothing
        twice: the message has an id, yours or a new one, that the queue remembers for its `dedup_window`.
        """
        message = draft(
            payload,
            key=key,
            priority=priority,
            delay=delay,
            deliver_at=deliver_at,
            ttl=ttl,
            message_id=message_id,
            content_type=content_type,
            properties=properties,
            correlation_id=correlation_id,
            reply_to=reply_to,
        )
        batcher = self._sending.get(queue)
        if batcher is None:
            batcher = CallBatcher(functools.partial(self._send_batch, queue), size_of, CHUNK_BYTES)
            add_bounded(self._sending, queue, batcher)
        return await batcher.put(message)

    async def _send_batch(self, queue: str, batch: list[wire.Draft]) -> list[Sent | Exception]:
        result = SentMany(ids=[None] * len(batch), duplicates=[], errors={})
        await self._send_part(queue, batch, 0, False, result)
        duplicates = set(result.duplicates)
        return [
            Sent(stored, index in duplicates) if stored is not None else result.errors[index]
            for index, stored in enumerate(result.ids)
        ]

    async def send_many(
        self,
        queue: str,
        messages: Iterable[object] | AsyncIterable[object],
        *,
        chunk: int = CHUNK_MESSAGES,
        atomic: bool = False,
        check: bool = True,
        progress: Progress | None = None,
    ) -> SentMany:
        """Store many messages, in their order: payloads, or drafts made by `draft` for messages with further fields.

        They go in chunks, each one request and one commit. A message that is refused does not stop the others; at the
        end `BatchIncomplete` is raised, or with `check=False` the result names it. `atomic` makes each chunk all or
        nothing.
        """
        if chunk < 1:
            raise InvalidArgument(field="chunk", problem=f"is at least 1, not {chunk}")
        result = SentMany(ids=[], duplicates=[], errors={})
        async for part in chunks(messages, chunk, CHUNK_BYTES):
            start = len(result.ids)
            result.ids.extend([None] * len(part))
            await self._send_part(queue, part, start, atomic, result)
            if progress is not None:
                progress(len(result.ids))
        if check:
            result.check()
        return result

    async def _send_part(self, queue: str, part: list[wire.Draft], start: int, atomic: bool, result: SentMany) -> None:
        """Send one chunk. Items with a retryable error (a full queue) are sent again, as retries allow."""
        places = list(range(len(part)))
        began = time.monotonic()
        attempt = 0
        while places:
            attempt += 1
            receipt = await self.call(calls.enqueue(queue, [part[place] for place in places], atomic=atomic))
            errors = {places[item.index]: error_of(item) for item in receipt.errors}
            for place, stored in zip(places, receipt.ids, strict=True):
                result.ids[start + place] = stored
            result.duplicates.extend(start + places[index] for index in receipt.duplicates)
            pause = self._retries.pause(attempt, 0.0, 1.0)
            elapsed = time.monotonic() - began
            again = [
                place
                for place, error in errors.items()
                if error.retryable and self._retries.another(error, attempt, elapsed, pause)
            ]
            if len(again) == len(places):  # the transport has already retried the request
                again = []
            result.errors.update((start + place, error) for place, error in errors.items() if place not in again)
            places = sorted(again)
            if places:
                await asyncio.sleep(pause)

    async def import_items(self, queue: str, items: Iterable[wire.ImportItem], *, check: bool = True) -> SentMany:
        """Import items with the place they come from. An item whose source was imported before is not stored again.

        They go in chunks, each one request and one commit; `check` as in `send_many`.
        """
        result = SentMany(ids=[], duplicates=[], errors={})
        async for part in grouped(each(items), CHUNK_MESSAGES, CHUNK_BYTES):
            start = len(result.ids)
            receipt = await self.call(calls.import_items(queue, part))
            result.ids.extend(receipt.ids)
            result.duplicates.extend(start + index for index in receipt.duplicates)
            result.errors.update((start + item.index, error_of(item)) for item in receipt.errors)
        if check:
            result.check()
        return result

    def transaction(self, transaction_id: str = "") -> Transaction:
        """Messages for any queues that become visible together: `async with client.transaction() as transaction:`.

        Leaving the block publishes what `transaction.stage` was given; an exception aborts it.
        """
        return Transaction(self, transaction_id)

    async def request(
        self,
        queue: str,
        payload: object = b"",
        *,
        timeout: Duration = "30s",  # noqa: ASYNC109 - the server's, who takes the request back from waiting
        key: str | None = None,
        priority: int = 128,
        ttl: Duration | None = None,
        content_type: str | None = None,
        properties: Properties | None = None,
        correlation_id: str | None = None,
    ) -> Reply:
        """Send a message and wait for the reply to it; `ReplyTimeout` if none comes in time.

        The consumer sends the reply to the message's `reply_to` with the same correlation id; a worker's return value
        is sent so. If the connection breaks, the request is not repeated: it may already have been processed.
        """
        message = draft(
            payload,
            key=key,
            priority=priority,
            ttl=ttl,
            content_type=content_type,
            properties=properties,
            correlation_id=correlation_id,
        )
        fields = {name: getattr(message, name) for name in message.__struct_fields__}
        request = wire.Request(timeout=duration(timeout), encoding="base64", **fields)
        return Reply(await self.call(calls.request(queue, request, seconds(timeout, "timeout"))))

    # --- receiving --------------------------------------------------------------------------------------------------

    async def receive(
        self,
        queue: str,
        *,
        group: str = "default",
        limit: int = 1,
        wait: Duration = 0,
        timeout: Duration | None = None,  # noqa: ASYNC109 - how long the lease is for
        max_bytes: int = 0,
        create: bool = True,
    ) -> list[Message]:
        """Lease up to `limit` messages; if there are none, wait up to `wait` for the first.

        The leases last for `timeout`, else for the queue's `delivery_timeout`. They are extended
        automatically only inside `async with message:`. Unsettled messages are released when the client closes. A group
        that does not exist is created, and so is its queue; with `create=False` that is `GroupNotFound` or
        `QueueNotFound`.
        """
        deliveries = await self.lease(
            queue, group=group, limit=limit, wait=wait, timeout=timeout, max_bytes=max_bytes, create=create
        )
        length = None if timeout is None else seconds(timeout, "timeout")
        return [self._own(Message(delivery, self, length)) for delivery in deliveries]

    def consume(
        self,
        queue: str,
        *,
        group: str = "default",
        prefetch: int = 1,
        lease: Duration | None = None,
        hold: Duration = HOLD,
        stream: bool = False,
        create: bool = True,
        read_ahead: bool = False,
    ) -> Consumer:
        """An endless stream of messages: `async for message in client.consume("jobs"):`.

        The consumer holds up to `prefetch` unsettled messages. It extends their leases (which last for `lease`, or for
        the queue's `delivery_timeout`) until they are settled, for `hold` at most. Leaving the loop releases what is
        not settled. With `stream` the server sends messages over one connection as they become ready, which saves a
        round trip for each batch; otherwise they are leased by long polls. `create` as in `receive`.

        With `read_ahead` it holds as many messages as were settled in the last tenth of a second, if those are more
        than `prefetch`, up to 250: quick work then waits for no request, and slow work is left to other consumers. A
        stream has no need of it.
        """
        lease_seconds = None if lease is None else seconds(lease, "lease")
        hold_seconds = seconds(hold, "hold")
        consumer = Consumer(self, queue, group, prefetch, lease_seconds, hold_seconds, stream, create, read_ahead)
        self._consumers.add(consumer)
        return consumer

    async def lease(
        self,
        queue: str,
        *,
        group: str = "default",
        limit: int = 1,
        wait: Duration = 0,
        timeout: Duration | None = None,  # noqa: ASYNC109 - how long the lease is for
        max_bytes: int = 0,
        consumer: str | None = None,
        create: bool = True,
    ) -> list[wire.Delivery]:
        """Lease deliveries; the client neither extends nor releases them. See `receive`."""
        call = self._lease_call(queue, group, limit, wait, timeout, max_bytes, consumer, create)
        return (await self.call(call)).deliveries

    def _lease_call(
        self,
        queue: str,
        group: str,
        limit: int,
        wait: Duration,
        timeout: Duration | None,
        max_bytes: int = 0,
        consumer: str | None = None,
        create: bool = True,
    ) -> calls.Call[wire.Leased]:
        request = wire.Lease(
            group=group,
            limit=limit,
            wait=duration(wait),
            timeout=optional_duration(timeout),
            consumer=self.name if consumer is None else consumer,
            max_bytes=max_bytes,
            encoding="base64",
            create=create,
        )
        return calls.lease(queue, request, seconds(wait, "wait"))

    async def settle(
        self, queue: str, settlements: Iterable[wire.Settlement], *, group: str = "default"
    ) -> wire.Settled:
        """Settle deliveries by their ids and tokens, as one commit; the result says which were refused, and why."""
        return await self.call(calls.settle(queue, group, list(settlements)))

    async def state(self, queue: str, message_id: str, *, group: str = "default", lease_token: str = "") -> State:
        """The workflow state of a delivery. With a token it must be that of the current lease."""
        return await self.call(calls.state(queue, message_id, group, lease_token))

    async def put_state(
        self,
        queue: str,
        message_id: str,
        data: object,
        *,
        lease_token: str,
        group: str = "default",
        etag: int | None = None,
    ) -> State:
        """Store a workflow state beside a delivery, under its lease: bytes as they are, a str as text, else as JSON.

        With `etag` only if the current state has this ETag (0: there is none), else `StateChanged`.
        """
        return await self.call(calls.put_state(queue, message_id, group, lease_token, as_bytes(data), etag))

    async def clear_state(
        self, queue: str, message_id: str, *, lease_token: str, group: str = "default", etag: int | None = None
    ) -> None:
        """Delete the workflow state beside a delivery, under its lease; with `etag` only if the state has this ETag."""
        await self.call(calls.drop_state(queue, message_id, group, lease_token, etag))

    # What messages and consumers call on their client.

    def _own(self, message: Message, consumer: Consumer | None = None) -> Message:
        self._owners[message] = consumer
        while len(self._owners) > HELD_MAX:
            self._owners.pop(next(iter(self._owners)))
        return message

    def abandon(self, message: Message) -> None:
        self._extender.drop(message)
        owner = self._owners.pop(message, None)
        if owner is not None:
            owner.done(message)

    def lose(self, message: Message) -> None:
        self._extender.drop(message)
        owner = self._owners.pop(message, None)
        if owner is not None:
            owner.lose(message)

    async def settle_one(self, message: Message, settlement: wire.Settlement) -> str | None:
        """Settle a message; used by the message itself."""
        to = (message.queue, message.group)
        batcher = self._settling.get(to)
        if batcher is None:
            batcher = CallBatcher(functools.partial(self._settle_batch, *to))
            add_bounded(self._settling, to, batcher)
        try:
            deadline = await batcher.put(settlement)
        except LeaseLost:
            if settlement.action != "extend":
                self.abandon(message)
            raise
        if settlement.action != "extend":
            self.abandon(message)
        return deadline

    async def _settle_batch(self, queue: str, group: str, batch: list[wire.Settlement]) -> list[str | Exception | None]:
        settled = await self.call(calls.settle(queue, group, batch))
        refused = {item.index: error_of(item) for item in settled.errors}
        return [
            refused[index] if index in refused else settled.deadlines.get(settlement.id)
            for index, settlement in enumerate(batch)
        ]

    async def hold(self, message: Message) -> None:
        """Extend a message's lease until it is settled; used by `async with message`."""
        if self._extender.is_extending(message):
            return
        length = message.lease_seconds
        if length is None:
            length = await self.lease_seconds(message.queue)
        self._extender.keep(message, length, seconds(HOLD, "hold"))

    def keep(self, message: Message, lease_seconds: float, longest_seconds: float) -> None:
        self._extender.keep(message, lease_seconds, longest_seconds)

    async def lease_messages(
        self, consumer: Consumer, limit: int, wait_seconds: float, lease_seconds: float
    ) -> list[Message]:
        queue, group, create = consumer.queue, consumer.group, consumer.create
        call = self._lease_call(queue, group, limit, wait_seconds, lease_seconds, create=create)
        leased = await self._transport.perform(call, CONSUMER_RETRIES)
        return [self._own(Message(delivery, self, lease_seconds), consumer) for delivery in leased.deliveries]

    async def stream_messages(
        self, consumer: Consumer, credit: int, lease_seconds: float
    ) -> AsyncGenerator[Message, None]:
        """Messages as the server sends them, until it ends the stream."""
        name = f"{self.name}-{secrets.token_hex(4)}"
        call = calls.stream(consumer.queue, consumer.group, credit, lease_seconds, name, create=consumer.create)
        async with aclosing(self._transport.lines(call)) as lines:
            async for line in lines:
                if line.end is not None:
                    raise error_of(line.end)
                if line.delivery is not None:
                    yield self._own(Message(line.delivery, self, lease_seconds), consumer)

    async def lease_seconds(self, queue: str) -> float:
        """How long leases of a queue last by its configuration."""
        known = self._lease_lengths.get(queue)
        now = time.monotonic()
        if known is None or known[1] < now:
            config = (await self.queue(queue)).config
            known = (seconds(config.delivery_timeout, "delivery_timeout"), now + LEASE_LENGTH_SECONDS)
            self._lease_lengths[queue] = known
        return known[0]

    def forget(self, consumer: Consumer) -> None:
        self._consumers.discard(consumer)

    # --- browsing ---------------------------------------------------------------------------------------------------

    async def browse(
        self, queue: str, *, state: str = "", group: str = "", limit: int | None = None
    ) -> AsyncGenerator[wire.MessageView, None]:
        """Live messages, oldest first, page by page; nothing is leased. `limit` is how many at most."""

        def page(cursor: str, size: int) -> calls.Call[wire.MessagePage]:
            return calls.browse(queue, state=state, group=group, cursor=cursor, limit=size)

        async for message in self._pages(page, limit):
            yield message

    async def _pages(
        self, page: Callable[[str, int], calls.Call[wire.MessagePage]], limit: int | None
    ) -> AsyncGenerator[wire.MessageView, None]:
        """Messages, page by page. A page may be empty without being the last."""
        cursor = ""
        left = PAGE_ENDLESS if limit is None else limit
        while left > 0:
            found = await self.call(page(cursor, min(left, PAGE_MESSAGES)))
            for message in found.messages:
                yield message
            left -= len(found.messages)
            cursor = found.cursor
            if not cursor:
                return

    async def message(self, queue: str, message_id: str) -> wire.MessageView:
        """One live message, and its delivery status in each group."""
        return await self.call(calls.message(queue, message_id))

    async def history(self, queue: str, message_id: str, *, related: bool = False) -> wire.History:
        """Every step of a message's life, as the journal has it. `related`: across deaths and redrives, both ways."""
        return await self.call(calls.history(queue, message_id, related))

    async def edit(
        self, queue: str, message_id: str, *, priority: int | None = None, deliver_at: Instant | None = None
    ) -> wire.Message:
        """Change a waiting message."""
        return await self.call(calls.edit(queue, message_id, wire.MessageEdit(priority, instant(deliver_at))))

    async def delete(self, queue: str, message_id: str) -> None:
        """Delete a waiting message, for all groups."""
        await self.call(calls.delete_message(queue, message_id))

    # --- queues -----------------------------------------------------------------------------------------------------

    async def create_queue(
        self, queue: str, config: Mapping[str, object] | None = None, *, exist_ok: bool = False
    ) -> Queue:
        """Create a queue; fields of `config` are those of `QueueConfig`, nested or as `retry.max_retries`.

        With `exist_ok` one that exists already is returned as it is.
        """
        try:
            return await self.call(calls.create_queue(queue, config or {}))
        except QueueExists:
            if not exist_ok:
                raise
            return await self.queue(queue)

    async def queue(self, queue: str) -> Queue:
        """A queue: its configuration, groups and depth."""
        return await self.call(calls.get_queue(queue))

    async def queues(self, prefix: str = "") -> list[Queue]:
        """All queues, by name."""
        found: list[Queue] = []
        cursor = ""
        while True:
            page = await self.call(calls.list_queues(prefix=prefix, cursor=cursor))
            found += page.queues
            cursor = page.cursor
            if not cursor:
                return found

    async def update_queue(self, queue: str, config: Mapping[str, object]) -> Queue:
        """Change a queue's configuration; what is not named stays as it is."""
        return await self.call(calls.update_queue(queue, config))

    async def delete_queue(self, queue: str, *, missing_ok: bool = False) -> int:
        """Delete a queue with all its messages. Returns how many there were."""
        try:
            return (await self.call(calls.delete_queue(queue))).messages
        except QueueNotFound:
            if not missing_ok:
                raise
            return 0

    async def pause_queue(self, queue: str) -> Queue:
        """Pause deliveries; the queue still accepts messages."""
        return await self.call(calls.pause_queue(queue))

    async def resume_queue(self, queue: str) -> Queue:
        """Resume deliveries."""
        return await self.call(calls.resume_queue(queue))

    async def purge_queue(self, queue: str) -> int:
        """Delete the messages that wait now. Returns how many there were."""
        return (await self.call(calls.purge_queue(queue))).messages

    async def stats(self, queue: str) -> wire.QueueStats:
        """Stats of a queue and its groups."""
        return await self.call(calls.stats(queue))

    async def consumers(self, queue: str) -> wire.ConsumerList:
        """The push consumers of a queue, and how many lease requests wait."""
        return await self.call(calls.consumers(queue))

    async def overview(self) -> wire.Overview:
        """An overview of the node; its `namespace` is that of this client's credentials."""
        return await self.call(calls.overview())

    async def quotas(self, namespace: str = "") -> wire.QuotaList:
        """How much a namespace may have and has; empty: that of this client's credentials."""
        return await self.call(calls.quotas(namespace))

    async def set_quotas(self, namespace: str, limits: Mapping[str, int | None]) -> wire.QuotaList:
        """Set quotas of a namespace by name; 0: no limit, None: the default again."""
        return await self.call(calls.set_quotas(namespace, limits))

    async def health(self) -> wire.Health:
        """The health of each part of the node."""
        return await self.call(calls.health())

    # --- groups -----------------------------------------------------------------------------------------------------

    async def groups(self, queue: str) -> list[wire.Group]:
        """The groups of a queue."""
        return (await self.call(calls.groups(queue))).groups

    async def create_group(
        self,
        queue: str,
        group: str,
        *,
        kind: Literal["lease", "cursor"] = "lease",
        start: Literal["earliest", "latest"] | None = None,
        max_lag_messages: int = 0,
        max_lag_age: Duration = 0,
    ) -> wire.Group:
        """Create a group before it is used. Without `start` the first group of a queue begins with the oldest message,
        a later one with the next message."""
        request = wire.GroupCreate(
            kind=kind, start=start, max_lag_messages=max_lag_messages, max_lag_age=duration(max_lag_age)
        )
        return await self.call(calls.create_group(queue, group, request))

    async def delete_group(self, queue: str, group: str) -> None:
        """Delete a group, and the messages that only this group had not settled."""
        await self.call(calls.delete_group(queue, group))

    async def read(
        self, queue: str, group: str, partition: int = 0, *, first: int = 0, limit: int = 1_000
    ) -> wire.CursorRange:
        """Read a partition as a log, as a cursor group: from sequence `first`, or after the committed one."""
        request = wire.CursorRead(partition=partition, first=first, limit=limit, encoding="base64")
        return await self.call(calls.cursor_read(queue, group, request))

    async def commit(self, queue: str, group: str, positions: Mapping[int, int]) -> int:
        """Commit a cursor group's sequences, by partition. Returns how many messages that settled."""
        request = [wire.Position(partition, sequence) for partition, sequence in positions.items()]
        return (await self.call(calls.cursor_commit(queue, group, request))).messages

    # --- dead letters -----------------------------------------------------------------------------------------------

    async def dead_letters(
        self, queue: str, *, reason: str = "", error: str = "", group: str = "", limit: int | None = None
    ) -> AsyncGenerator[wire.MessageView, None]:
        """The dead letters of a queue, oldest first; nothing is leased. `error` is a part of the last error."""

        def page(cursor: str, size: int) -> calls.Call[wire.MessagePage]:
            return calls.dead_letters(queue, reason=reason, error=error, group=group, cursor=cursor, limit=size)

        async for dead_letter in self._pages(page, limit):
            yield dead_letter

    async def retry_dead(
        self, queue: str, dead_letter: str, *, to: str = "", group: str = "", all_groups: bool = False
    ) -> wire.Retried:
        """Redrive one dead letter, to its source queue or to another queue. In its source queue it goes to the group in
        which it died, or to `group`, or to all."""
        return await self.call(calls.retry_dead(queue, dead_letter, to, group, all_groups))

    async def redrive(
        self,
        queue: str,
        which: wire.DeadFilter = wire.DeadFilter(),
        *,
        to: str = "",
        group: str = "",
        all_groups: bool = False,
        rate: float = 0,
        limit: int = 0,
        dry_run: bool = False,
    ) -> wire.RedriveJob:
        """Start a redrive of dead letters, in the order in which they died, at most `rate` a second. In its source
        queue each goes to the group in which it died, or to `group`, or to all. `dry_run` only counts them."""
        request = wire.Redrive(
            filter=which, to=to, group=group, all_groups=all_groups, rate=rate, limit=limit, dry_run=dry_run
        )
        return await self.call(calls.redrive(queue, request))

    async def redrives(self, queue: str) -> list[wire.RedriveJob]:
        """Redrives of a queue, newest first."""
        return (await self.call(calls.redrives(queue))).redrives

    async def redrive_progress(self, queue: str, job: str) -> wire.RedriveJob:
        """The progress of a redrive."""
        return await self.call(calls.redrive_progress(queue, job))

    async def cancel_redrive(self, queue: str, job: str) -> wire.RedriveJob:
        """Cancel a redrive; what it has moved stays moved."""
        return await self.call(calls.cancel_redrive(queue, job))

    async def audited_redrive(
        self,
        queue: str,
        audit: str,
        dead_letters: Mapping[str, bytes | None],
        *,
        to: str = "",
        note: str = "",
    ) -> list[wire.RedriveOutcome]:
        """Redrive up to 1,000 dead letters under an audit id; each is moved once, however often the call is repeated. A
        payload that is not None replaces that of the dead letter."""
        chosen = [
            wire.AuditedDeadLetter(id=dead_letter, base64=payload) for dead_letter, payload in dead_letters.items()
        ]
        request = wire.AuditedMove(dead_letters=chosen, to=to, note=note)
        return (await self.call(calls.audited_redrive(queue, audit, request))).dead_letters

    async def redrive_audits(self, queue: str) -> list[wire.RedriveAudit]:
        """Audited redrives of a queue's dead letters, newest first."""
        return (await self.call(calls.redrive_audits(queue))).audits

    async def redrive_audit(self, queue: str, audit: str) -> wire.RedriveAudit:
        """Who started an audited redrive, when and why, and how many dead letters it moved."""
        return await self.call(calls.redrive_audit(queue, audit))

    async def redriven(self, queue: str, audit: str) -> AsyncGenerator[wire.RedriveOutcome, None]:
        """The dead letters that an audited redrive moved, and the delivery status of their messages now."""
        async for outcome in self._outcomes(lambda cursor: calls.redriven(queue, audit, cursor, OUTCOMES_PAGE)):
            yield outcome

    async def undo_redrive(self, queue: str, audit: str) -> AsyncGenerator[wire.RedriveOutcome, None]:
        """Undo an audited redrive: messages that nobody has consumed become dead letters again. Returns what became of
        each."""
        async for outcome in self._outcomes(lambda cursor: calls.undo_redrive(queue, audit, cursor, OUTCOMES_PAGE)):
            yield outcome

    async def _outcomes(
        self, page_at: Callable[[str], calls.Call[wire.RedriveOutcomes]]
    ) -> AsyncGenerator[wire.RedriveOutcome, None]:
        cursor = ""
        while True:
            page = await self.call(page_at(cursor))
            for outcome in page.dead_letters:
                yield outcome
            cursor = page.cursor
            if not cursor:
                return

    async def purge_dead(self, queue: str, which: wire.DeadFilter = wire.DeadFilter()) -> int:
        """Delete dead letters of a queue. Returns how many there were."""
        return (await self.call(calls.purge_dead(queue, which))).messages
