"""The synchronous wrapper of the client, for ordinary code and threads.

It has no logic of its own. It runs the asynchronous client on an event loop in a background thread; each method submits
its call to that loop and waits. The alternatives were worse: a second transport would still need a second thread,
because leases must be extended and messages fetched while the caller's handler runs; and a generated copy is a second
program to test. The price is a hop between threads, about 0.1 ms a call, little beside a durable write.

A test compares every signature with the asynchronous client's, so the two cannot drift apart.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import httpx

from holdfast import wire
from holdfast.client.client import CHUNK_MESSAGES, CONNECTIONS_MAX, HOLD, TIMEOUT_SECONDS, Client, Progress
from holdfast.client.consumer import Consumer
from holdfast.client.drafts import Properties
from holdfast.client.messages import Message, Received, Reply
from holdfast.client.operations import SyncOperations
from holdfast.client.portal import Portal
from holdfast.client.retries import Retries
from holdfast.client.schedules import SyncSchedules
from holdfast.client.sent import Sent, SentMany
from holdfast.client.times import Duration, Instant
from holdfast.client.tls import Tls
from holdfast.client.transactions import Transaction
from holdfast.client.transport import Token
from holdfast.client.workflow_state import State
from holdfast.wire import Queue

Value = TypeVar("Value")


class SyncMessage(Received):
    """A delivery. Settle it once: ack, nack, reject or release.

    `with message:` extends its lease while the block runs, and releases it if the block leaves it unsettled.
    """

    def __init__(self, message: Message, portal: Portal) -> None:
        super().__init__(message.delivery)
        self._message = message
        self._portal = portal

    @property
    def settled(self) -> wire.Action | None:
        """How it was settled."""
        return self._message.settled

    @property
    def lost(self) -> bool:
        """True when the lease was lost, or the time of the job is over: another consumer may be working on the message
        now. A function that runs long should look at it and stop, since a thread cannot be cancelled."""
        return self._message.lost or self._message.timed_out

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Call this, on the client's thread, when the lease is lost while the message is not settled, or when the time
        of the job is over."""
        self._portal.call(lambda: self._message.on_stop(callback))

    def ack(self) -> None:
        """Done for this group. Durable when this returns."""
        self._portal.run(self._message.ack())

    def nack(self, delay: Duration | None = None, error: str = "") -> None:
        """Failed: deliver again after `delay`, or as the queue's retry policy says; the attempt counts."""
        self._portal.run(self._message.nack(delay, error))

    def reject(self, error: str = "") -> None:
        """Never processable: move it to the dead queue now."""
        self._portal.run(self._message.reject(error))

    def release(self, delay: Duration | None = None) -> None:
        """Return it to the queue for other consumers, immediately or after `delay`; the attempt does not count."""
        self._portal.run(self._message.release(delay))

    def extend(self, timeout: Duration | None = None) -> datetime:
        """Extend the lease to `timeout` from now, or to the queue's `delivery_timeout`. Returns the new deadline."""
        return self._portal.run(self._message.extend(timeout))

    def state(self) -> State:
        """The workflow state of this delivery, as earlier attempts stored it. Each group has its own."""
        return self._portal.run(self._message.state())

    def put_state(self, data: object, *, etag: int | None = None) -> State:
        """Store a workflow state for later attempts; with `etag` only if the current state has this ETag."""
        return self._portal.run(self._message.put_state(data, etag=etag))

    def clear_state(self, *, etag: int | None = None) -> None:
        """Delete the workflow state; with `etag` only if the state has this ETag."""
        self._portal.run(self._message.clear_state(etag=etag))

    def abandon(self) -> None:
        """Stop extending the lease, without settling: it expires, and the message is delivered again. The last
        resort."""
        self._portal.call(self._message.abandon)

    def __enter__(self) -> Self:
        self._portal.run(self._message.hold())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.run(self._message.finish())


class SyncConsumer:
    """An endless stream of messages; leaving the loop releases what is not settled."""

    def __init__(self, consumer: Consumer, portal: Portal) -> None:
        self._consumer = consumer
        self._portal = portal

    def __iter__(self) -> Iterator[SyncMessage]:
        try:
            while (message := self.next()) is not None:
                yield message
        finally:
            self.close()

    def next(self) -> SyncMessage | None:
        """The next message, as soon as there is one; None when the consumer has been stopped."""
        message = self._portal.run(self._consumer.next())
        return None if message is None else SyncMessage(message, self._portal)

    def stop(self) -> None:
        """Lease no further messages, release those that no handler has started. Any thread may call it."""
        self._portal.run(self._consumer.stop())

    def close(self) -> None:
        """Stop, and release everything that is not settled."""
        self._portal.run(self._consumer.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SyncTransaction:
    """Messages for any queues that become visible together, or never. `with` it: leaving the block publishes."""

    def __init__(self, transaction: Transaction, portal: Portal) -> None:
        self._transaction = transaction
        self._portal = portal

    @property
    def id(self) -> str:
        return self._transaction.id

    def stage(
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
    ) -> None:
        """Stage a message. It is neither visible nor durable until the transaction is published."""
        self._portal.run(
            self._transaction.stage(
                queue,
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
        )

    def stage_many(self, queue: str, messages: Iterable[object]) -> int:
        """Stage many messages: payloads, or drafts made by `draft`. Returns how many."""
        return self._portal.run(self._transaction.stage_many(queue, messages))

    def publish(self) -> wire.Transaction:
        """Make all staged messages visible in one step. Publishing again returns the same result."""
        return self._portal.run(self._transaction.publish())

    def look(self) -> wire.Transaction:
        """The transaction's status: open or published. `TransactionNotFound` if nothing was staged yet."""
        return self._portal.run(self._transaction.look())

    def abort(self) -> bool:
        """Abort: delete what was staged. Returns False if there was nothing."""
        return self._portal.run(self._transaction.abort())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.run(self._transaction.__aexit__(kind, error, trace))


class SyncClient:
    """A client of one server. Any thread may use it. See `Client` for what the arguments mean."""

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
        self._portal = Portal()
        self._client = Client(
            url,
            token=token,
            user=user,
            password=password,
            tls=tls,
            retries=retries,
            timeout=timeout,
            connections=connections,
            name=name,
            transport=transport,
        )
        self.schedules = SyncSchedules(self._client.schedules, self._portal)
        self.operations = SyncOperations(self._client.operations, self._portal)
        self._portal.open()

    def run(self, work: Callable[[Client], Coroutine[Any, Any, Value]]) -> Value:
        """Do asynchronous work with the client beneath this one."""
        return self._portal.run(work(self._client))

    @property
    def url(self) -> str:
        return self._client.url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release every message that is not settled, close the connections, end the thread."""
        if self._portal.running:
            try:
                self._portal.run(self._client.close())
            finally:
                self._portal.close()

    def receive(
        self,
        queue: str,
        *,
        group: str = "default",
        limit: int = 1,
        wait: Duration = 0,
        timeout: Duration | None = None,
        max_bytes: int = 0,
        create: bool = True,
    ) -> list[SyncMessage]:
        """Lease up to `limit` messages; if there are none, wait up to `wait` for the first."""
        messages = self._portal.run(
            self._client.receive(
                queue, group=group, limit=limit, wait=wait, timeout=timeout, max_bytes=max_bytes, create=create
            )
        )
        return [SyncMessage(message, self._portal) for message in messages]

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
    ) -> SyncConsumer:
        """An endless stream of messages: `for message in client.consume("jobs"):`."""
        consumer = self._client.consume(
            queue,
            group=group,
            prefetch=prefetch,
            lease=lease,
            hold=hold,
            stream=stream,
            create=create,
            read_ahead=read_ahead,
        )
        return SyncConsumer(consumer, self._portal)

    def browse(
        self, queue: str, *, state: str = "", group: str = "", limit: int | None = None
    ) -> Iterator[wire.MessageView]:
        """Live messages, oldest first, page by page; nothing is leased."""
        return self._portal.iterate(self._client.browse(queue, state=state, group=group, limit=limit))

    def send_many(
        self,
        queue: str,
        messages: Iterable[object],
        *,
        chunk: int = CHUNK_MESSAGES,
        atomic: bool = False,
        check: bool = True,
        progress: Progress | None = None,
    ) -> SentMany:
        """Store many messages, in their order. `progress` is called from the background thread."""
        return self._portal.run(
            self._client.send_many(
                queue, _pulled(messages, chunk), chunk=chunk, atomic=atomic, check=check, progress=progress
            )
        )

    def send(
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
        """Store one message. When this returns it is durable."""
        return self._portal.run(
            self._client.send(
                queue,
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
        )

    def import_items(self, queue: str, items: Iterable[wire.ImportItem], *, check: bool = True) -> SentMany:
        """Import items with the place they come from. An item whose source was imported before is not stored
        again."""
        return self._portal.run(self._client.import_items(queue, items, check=check))

    def transaction(self, transaction_id: str = "") -> SyncTransaction:
        """Messages for any queues that become visible together: `with client.transaction() as transaction:`."""
        return SyncTransaction(self._client.transaction(transaction_id), self._portal)

    def request(
        self,
        queue: str,
        payload: object = b"",
        *,
        timeout: Duration = "30s",
        key: str | None = None,
        priority: int = 128,
        ttl: Duration | None = None,
        content_type: str | None = None,
        properties: Properties | None = None,
        correlation_id: str | None = None,
    ) -> Reply:
        """Send a message and wait for the reply to it; `ReplyTimeout` if none comes in time."""
        return self._portal.run(
            self._client.request(
                queue,
                payload,
                timeout=timeout,
                key=key,
                priority=priority,
                ttl=ttl,
                content_type=content_type,
                properties=properties,
                correlation_id=correlation_id,
            )
        )

    def lease(
        self,
        queue: str,
        *,
        group: str = "default",
        limit: int = 1,
        wait: Duration = 0,
        timeout: Duration | None = None,
        max_bytes: int = 0,
        consumer: str | None = None,
        create: bool = True,
    ) -> list[wire.Delivery]:
        """Lease deliveries; the client neither extends nor releases them. See `receive`."""
        return self._portal.run(
            self._client.lease(
                queue,
                group=group,
                limit=limit,
                wait=wait,
                timeout=timeout,
                max_bytes=max_bytes,
                consumer=consumer,
                create=create,
            )
        )

    def settle(self, queue: str, settlements: Iterable[wire.Settlement], *, group: str = "default") -> wire.Settled:
        """Settle deliveries by their ids and tokens, as one commit; the result says which were refused, and why."""
        return self._portal.run(self._client.settle(queue, settlements, group=group))

    def state(self, queue: str, message_id: str, *, group: str = "default", lease_token: str = "") -> State:
        """The workflow state of a delivery. With a token it must be that of the current lease."""
        return self._portal.run(self._client.state(queue, message_id, group=group, lease_token=lease_token))

    def put_state(
        self,
        queue: str,
        message_id: str,
        data: object,
        *,
        lease_token: str,
        group: str = "default",
        etag: int | None = None,
    ) -> State:
        """Store a workflow state beside a delivery, under its lease; with `etag` only if the state has this ETag."""
        return self._portal.run(
            self._client.put_state(queue, message_id, data, lease_token=lease_token, group=group, etag=etag)
        )

    def clear_state(
        self, queue: str, message_id: str, *, lease_token: str, group: str = "default", etag: int | None = None
    ) -> None:
        """Delete the workflow state beside a delivery, under its lease; with `etag` only if the state has this ETag."""
        self._portal.run(self._client.clear_state(queue, message_id, lease_token=lease_token, group=group, etag=etag))

    def message(self, queue: str, message_id: str) -> wire.MessageView:
        """One live message, and its delivery status in each group."""
        return self._portal.run(self._client.message(queue, message_id))

    def history(self, queue: str, message_id: str, *, related: bool = False) -> wire.History:
        """Every step of a message's life, as the journal has it. `related`: across deaths and redrives, both ways."""
        return self._portal.run(self._client.history(queue, message_id, related=related))

    def edit(
        self, queue: str, message_id: str, *, priority: int | None = None, deliver_at: Instant | None = None
    ) -> wire.Message:
        """Change a waiting message."""
        return self._portal.run(self._client.edit(queue, message_id, priority=priority, deliver_at=deliver_at))

    def delete(self, queue: str, message_id: str) -> None:
        """Delete a waiting message, for all groups."""
        return self._portal.run(self._client.delete(queue, message_id))

    def create_queue(self, queue: str, config: Mapping[str, object] | None = None, *, exist_ok: bool = False) -> Queue:
        """Create a queue; fields of `config` are those of `QueueConfig`, nested or as `retry.max_retries`."""
        return self._portal.run(self._client.create_queue(queue, config, exist_ok=exist_ok))

    def queue(self, queue: str) -> Queue:
        """A queue: its configuration, groups and depth."""
        return self._portal.run(self._client.queue(queue))

    def queues(self, prefix: str = "") -> list[Queue]:
        """All queues, by name."""
        return self._portal.run(self._client.queues(prefix))

    def update_queue(self, queue: str, config: Mapping[str, object]) -> Queue:
        """Change a queue's configuration; what is not named stays as it is."""
        return self._portal.run(self._client.update_queue(queue, config))

    def delete_queue(self, queue: str, *, missing_ok: bool = False) -> int:
        """Delete a queue with all its messages. Returns how many there were."""
        return self._portal.run(self._client.delete_queue(queue, missing_ok=missing_ok))

    def pause_queue(self, queue: str) -> Queue:
        """Pause deliveries; the queue still accepts messages."""
        return self._portal.run(self._client.pause_queue(queue))

    def resume_queue(self, queue: str) -> Queue:
        """Resume deliveries."""
        return self._portal.run(self._client.resume_queue(queue))

    def purge_queue(
        self,
        queue: str,
    ) -> int:
        """Delete the messages that wait now. Returns how many there were."""
        return self._portal.run(self._client.purge_queue(queue))

    def stats(
        self,
        queue: str,
    ) -> wire.QueueStats:
        """Stats of a queue and its groups."""
        return self._portal.run(self._client.stats(queue))

    def consumers(
        self,
        queue: str,
    ) -> wire.ConsumerList:
        """The push consumers of a queue, and how many lease requests wait."""
        return self._portal.run(self._client.consumers(queue))

    def overview(self) -> wire.Overview:
        """An overview of the node; its `namespace` is that of this client's credentials."""
        return self._portal.run(self._client.overview())

    def quotas(self, namespace: str = "") -> wire.QuotaList:
        """How much a namespace may have and has; empty: that of this client's credentials."""
        return self._portal.run(self._client.quotas(namespace))

    def set_quotas(self, namespace: str, limits: Mapping[str, int | None]) -> wire.QuotaList:
        """Set quotas of a namespace by name; 0: no limit, None: the default again."""
        return self._portal.run(self._client.set_quotas(namespace, limits))

    def health(self) -> wire.Health:
        """The health of each part of the node."""
        return self._portal.run(self._client.health())

    def groups(
        self,
        queue: str,
    ) -> list[wire.Group]:
        """The groups of a queue."""
        return self._portal.run(self._client.groups(queue))

    def create_group(
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
        return self._portal.run(
            self._client.create_group(
                queue, group, kind=kind, start=start, max_lag_messages=max_lag_messages, max_lag_age=max_lag_age
            )
        )

    def delete_group(
        self,
        queue: str,
        group: str,
    ) -> None:
        """Delete a group, and the messages that only this group had not settled."""
        return self._portal.run(self._client.delete_group(queue, group))

    def read(
        self,
        queue: str,
        group: str,
        partition: int = 0,
        *,
        first: int = 0,
        limit: int = 1000,
    ) -> wire.CursorRange:
        """Read a partition as a log, as a cursor group: from sequence `first`, or after the committed one."""
        return self._portal.run(self._client.read(queue, group, partition, first=first, limit=limit))

    def commit(
        self,
        queue: str,
        group: str,
        positions: Mapping[int, int],
    ) -> int:
        """Commit a cursor group's sequences, by partition. Returns how many messages that settled."""
        return self._portal.run(self._client.commit(queue, group, positions))

    def dead_letters(
        self,
        queue: str,
        *,
        reason: str = "",
        error: str = "",
        group: str = "",
        limit: int | None = None,
    ) -> Iterator[wire.MessageView]:
        """The dead letters of a queue, oldest first; nothing is leased. `error` is a part of the last error."""
        return self._portal.iterate(
            self._client.dead_letters(queue, reason=reason, error=error, group=group, limit=limit)
        )

    def retry_dead(
        self,
        queue: str,
        dead_letter: str,
        *,
        to: str = "",
        group: str = "",
        all_groups: bool = False,
    ) -> wire.Retried:
        """Redrive one dead letter, to its source queue or to another queue. In its source queue it goes to the group in
        which it died, or to `group`, or to all."""
        return self._portal.run(self._client.retry_dead(queue, dead_letter, to=to, group=group, all_groups=all_groups))

    def redrive(
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
        return self._portal.run(
            self._client.redrive(
                queue,
                which,
                to=to,
                group=group,
                all_groups=all_groups,
                rate=rate,
                limit=limit,
                dry_run=dry_run,
            )
        )

    def redrives(
        self,
        queue: str,
    ) -> list[wire.RedriveJob]:
        """Redrives of a queue, newest first."""
        return self._portal.run(self._client.redrives(queue))

    def redrive_progress(
        self,
        queue: str,
        job: str,
    ) -> wire.RedriveJob:
        """The progress of a redrive."""
        return self._portal.run(self._client.redrive_progress(queue, job))

    def cancel_redrive(
        self,
        queue: str,
        job: str,
    ) -> wire.RedriveJob:
        """Cancel a redrive; what it has moved stays moved."""
        return self._portal.run(self._client.cancel_redrive(queue, job))

    def audited_redrive(
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
        return self._portal.run(self._client.audited_redrive(queue, audit, dead_letters, to=to, note=note))

    def redrive_audits(
        self,
        queue: str,
    ) -> list[wire.RedriveAudit]:
        """Audited redrives of a queue's dead letters, newest first."""
        return self._portal.run(self._client.redrive_audits(queue))

    def redrive_audit(
        self,
        queue: str,
        audit: str,
    ) -> wire.RedriveAudit:
        """Who started an audited redrive, when and why, and how many dead letters it moved."""
        return self._portal.run(self._client.redrive_audit(queue, audit))

    def redriven(
        self,
        queue: str,
        audit: str,
    ) -> Iterator[wire.RedriveOutcome]:
        """The dead letters that an audited redrive moved, and the delivery status of their messages now."""
        return self._portal.iterate(self._client.redriven(queue, audit))

    def undo_redrive(
        self,
        queue: str,
        audit: str,
    ) -> Iterator[wire.RedriveOutcome]:
        """Undo an audited redrive: messages that nobody has consumed become dead letters again. Returns what became of
        each."""
        return self._portal.iterate(self._client.undo_redrive(queue, audit))

    def purge_dead(
        self,
        queue: str,
        which: wire.DeadFilter = wire.DeadFilter(),
    ) -> int:
        """Delete dead letters of a queue. Returns how many there were."""
        return self._portal.run(self._client.purge_dead(queue, which))


async def _pulled(messages: Iterable[object], count: int) -> AsyncIterator[object]:
    """An ordinary iterable may block (a file, a pipe): a thread reads it in chunks, not the event loop."""
    rest = iter(messages)
    while part := await asyncio.to_thread(lambda: list(islice(rest, max(count, 1)))):
        for message in part:
            yield message
