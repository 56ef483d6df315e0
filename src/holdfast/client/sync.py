"""The synchronous twin of the client, for ordinary code and threads.

It has no logic of its own. It runs the asynchronous client on an event loop in a background thread, and each method
hands its call over and waits. The other ways were worse: a second transport would still need a second thread, because
leases must be extended and messages fetched while the caller's handler runs; and a generated copy of everything is a
second program to test. The price is a hop between threads, some 0.1 ms a call, little beside a durable write.

A test compares every signature with the asynchronous client's, so the two cannot drift apart.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from types import TracebackType
from typing import Literal, Self

import httpx

from holdfast import wire
from holdfast.client.batches import Sent, SentMany
from holdfast.client.client import CHUNK_MESSAGES, CONNECTIONS_MAX, HOLD, TIMEOUT_SECONDS, Client, Progress
from holdfast.client.consuming import Consumer
from holdfast.client.drafts import Properties
from holdfast.client.messages import Message, Received, Reply
from holdfast.client.portal import Portal
from holdfast.client.retries import Retries
from holdfast.client.states import State
from holdfast.client.times import Duration, Instant
from holdfast.client.tls import Tls
from holdfast.client.transactions import Transaction
from holdfast.client.transport import Token
from holdfast.wire import Queue


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
        """True when the lease was found to be somebody else's."""
        return self._message.lost

    def ack(self) -> None:
        """Done: it is gone for this group, durably when this returns."""
        self._portal.run(self._message.ack())

    def nack(self, delay: Duration | None = None, error: str = "") -> None:
        """Failed: try again after `delay`, or as the queue's retry policy says; the attempt counts."""
        self._portal.run(self._message.nack(delay, error))

    def reject(self, error: str = "") -> None:
        """Hopeless: to the dead queue at once."""
        self._portal.run(self._message.reject(error))

    def release(self) -> None:
        """Not now: back to the others as if it had never been leased; the attempt does not count."""
        self._portal.run(self._message.release())

    def extend(self, timeout: Duration | None = None) -> datetime:
        """Keep it for `timeout` from now, or for the queue's `delivery_timeout`. Returns the new deadline."""
        return self._portal.run(self._message.extend(timeout))

    def state(self) -> State:
        """The workflow state kept beside it: what earlier attempts have put. It is for this group alone."""
        return self._portal.run(self._message.state())

    def put_state(self, data: object, *, etag: int | None = None) -> State:
        """Keep a workflow state beside it, for the attempts to come; with `etag` only over the state that has it."""
        return self._portal.run(self._message.put_state(data, etag=etag))

    def clear_state(self, *, etag: int | None = None) -> None:
        """Keep nothing any more, as if nothing had been put; with `etag` only if the state has it."""
        self._portal.run(self._message.clear_state(etag=etag))

    def abandon(self) -> None:
        """Give it up without a word: its lease is no longer extended and ends by itself. The last resort."""
        self._portal.call(self._message.abandon)

    def __enter__(self) -> Self:
        self._portal.run(self._message.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.run(self._message.__aexit__(kind, error, trace))


class SyncConsumer:
    """Messages one after another, for ever; leaving the loop releases what is not settled."""

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
        """Take no further messages, give back those that nobody has begun with. Any thread may call it."""
        self._portal.run(self._consumer.stop())

    def close(self) -> None:
        """Stop, and give back everything that is not settled."""
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
        """Add a message. Nobody sees it, and it is not safe, until the transaction is published."""
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
        """Add many messages: payloads, or drafts made by `draft`. Returns how many."""
        return self._portal.run(self._transaction.stage_many(queue, messages))

    def publish(self) -> wire.Transaction:
        """Make all of it visible in one step. To publish again is answered as the first time."""
        return self._portal.run(self._transaction.publish())

    def look(self) -> wire.Transaction:
        """How it stands: open, or published and remembered. `TransactionNotFound` if nothing was staged yet."""
        return self._portal.run(self._transaction.look())

    def abort(self) -> bool:
        """Remove what was staged. False: there was nothing."""
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
        self._portal.open()

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
        """Give back every message that is not settled, close the connections, end the thread."""
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
    ) -> list[SyncMessage]:
        """Lease up to `limit` messages; if there are none, wait so long for the first."""
        messages = self._portal.run(
            self._client.receive(queue, group=group, limit=limit, wait=wait, timeout=timeout, max_bytes=max_bytes)
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
    ) -> SyncConsumer:
        """Messages one after another, for ever: `for message in client.consume("jobs"):`."""
        consumer = self._client.consume(queue, group=group, prefetch=prefetch, lease=lease, hold=hold, stream=stream)
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
        """Take in stored items with where they come from. What was imported before, by its source, is not stored
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
    ) -> list[wire.Delivery]:
        """Lease deliveries without looking after them: nothing extends them or gives them back. See `receive`."""
        return self._portal.run(
            self._client.lease(
                queue, group=group, limit=limit, wait=wait, timeout=timeout, max_bytes=max_bytes, consumer=consumer
            )
        )

    def settle(self, queue: str, settlements: Iterable[wire.Settlement], *, group: str = "default") -> wire.Settled:
        """Settle deliveries by their ids and tokens, as one commit; the answer tells which were refused, and why."""
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
        """Keep a workflow state beside a delivery, under its lease; with `etag` only over the state that has it."""
        return self._portal.run(
            self._client.put_state(queue, message_id, data, lease_token=lease_token, group=group, etag=etag)
        )

    def clear_state(
        self, queue: str, message_id: str, *, lease_token: str, group: str = "default", etag: int | None = None
    ) -> None:
        """Keep no workflow state beside a delivery any more, under its lease; with `etag` only if the state has it."""
        self._portal.run(self._client.clear_state(queue, message_id, lease_token=lease_token, group=group, etag=etag))

    def message(self, queue: str, message_id: str) -> wire.MessageView:
        """One live message, and how it stands in each group."""
        return self._portal.run(self._client.message(queue, message_id))

    def edit(
        self, queue: str, message_id: str, *, priority: int | None = None, deliver_at: Instant | None = None
    ) -> wire.Message:
        """Change a message that waits."""
        return self._portal.run(self._client.edit(queue, message_id, priority=priority, deliver_at=deliver_at))

    def delete(self, queue: str, message_id: str) -> None:
        """Remove a message that waits, for all groups."""
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
        """Delete a queue with all it holds; how many messages went with it."""
        return self._portal.run(self._client.delete_queue(queue, missing_ok=missing_ok))

    def pause_queue(self, queue: str) -> Queue:
        """Give out no further messages; it still takes them."""
        return self._portal.run(self._client.pause_queue(queue))

    def resume_queue(self, queue: str) -> Queue:
        """Give out messages again."""
        return self._portal.run(self._client.resume_queue(queue))

    def purge_queue(
        self,
        queue: str,
    ) -> int:
        """Remove the messages that wait now; how many that were."""
        return self._portal.run(self._client.purge_queue(queue))

    def stats(
        self,
        queue: str,
    ) -> wire.QueueStats:
        """Figures of a queue and its groups."""
        return self._portal.run(self._client.stats(queue))

    def consumers(
        self,
        queue: str,
    ) -> wire.ConsumerList:
        """The push consumers of a queue, and how many lease requests wait."""
        return self._portal.run(self._client.consumers(queue))

    def overview(self) -> wire.Overview:
        """The node at a glance; its `namespace` is the one this client's credentials are for."""
        return self._portal.run(self._client.overview())

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
        """Create a group before it is used. Without `start` the first group of a queue has all that is stored, a later
        one only what comes after it."""
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
        """Delete a group; messages that only it had still to settle go with it."""
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
        """Read a partition as a log, as a cursor group: from sequence `first`, or from after what is committed."""
        return self._portal.run(self._client.read(queue, group, partition, first=first, limit=limit))

    def commit(
        self,
        queue: str,
        group: str,
        positions: Mapping[int, int],
    ) -> int:
        """A cursor group is done with everything up to these sequences, by partition; how many messages that were."""
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
        letter: str,
        *,
        to: str = "",
        group: str = "",
        all_groups: bool = False,
    ) -> wire.Retried:
        """Bring one dead letter back, to where it came from or to another queue. In its own queue it goes to the group
        in which it died, or to `group`, or to all."""
        return self._portal.run(self._client.retry_dead(queue, letter, to=to, group=group, all_groups=all_groups))

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
        """Start to bring dead letters back, in the order they died, at `rate` a second at most. In its own queue each
        goes to the group in which it died, or to `group`, or to all. `dry_run` only counts them."""
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
        """How far a redrive has come."""
        return self._portal.run(self._client.redrive_progress(queue, job))

    def cancel_redrive(
        self,
        queue: str,
        job: str,
    ) -> wire.RedriveJob:
        """End a redrive; what it has moved stays moved."""
        return self._portal.run(self._client.cancel_redrive(queue, job))

    def audited_redrive(
        self,
        queue: str,
        audit: str,
        letters: Mapping[str, bytes | None],
        *,
        to: str = "",
        note: str = "",
    ) -> list[wire.LetterFate]:
        """Bring dead letters back under an id, each once however often it is asked for; up to 1,000 at a time. A
        payload that is not None replaces the letter's own."""
        return self._portal.run(self._client.audited_redrive(queue, audit, letters, to=to, note=note))

    def redrive_audits(
        self,
        queue: str,
    ) -> list[wire.RedriveAudit]:
        """Redrives under an id of a queue's dead letters, newest first."""
        return self._portal.run(self._client.redrive_audits(queue))

    def redrive_audit(
        self,
        queue: str,
        audit: str,
    ) -> wire.RedriveAudit:
        """Who began a redrive, when and why, and how many letters it brought back."""
        return self._portal.run(self._client.redrive_audit(queue, audit))

    def redriven(
        self,
        queue: str,
        audit: str,
    ) -> Iterator[wire.LetterFate]:
        """The letters that were brought back under an id, and how their messages stand now."""
        return self._portal.iterate(self._client.redriven(queue, audit))

    def undo_redrive(
        self,
        queue: str,
        audit: str,
    ) -> Iterator[wire.LetterFate]:
        """Take back what was brought back under an id and nobody has consumed; what became of each letter."""
        return self._portal.iterate(self._client.undo_redrive(queue, audit))

    def purge_dead(
        self,
        queue: str,
        which: wire.DeadFilter = wire.DeadFilter(),
    ) -> int:
        """Throw dead letters of a queue away; how many that were."""
        return self._portal.run(self._client.purge_dead(queue, which))


async def _pulled(messages: Iterable[object], count: int) -> AsyncIterator[object]:
    """An ordinary iterable may block (a file, a pipe): it is read on a thread, a chunk at a time, not on the loop."""
    rest = iter(messages)
    while part := await asyncio.to_thread(lambda: list(islice(rest, max(count, 1)))):
        for message in part:
            yield message
