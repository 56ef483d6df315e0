"""Request and response: a message is enqueued, and its sender waits for the reply.

The request carries `reply_to`, the topic of a response queue, and a correlation id. Whoever works on it enqueues a
reply there with the same correlation id (over MQTT: the same Correlation Data). Each namespace has one response queue
on a node, `reply/node-<id>`, which appears with the first request. Its messages are taken out as they come; one that
nobody waits for, because its request has timed out, is dropped and counted.

What waits is in memory: a restart ends it, and the replies that come afterwards are late.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from holdfast.core.commands import Draft, Leased, Settlement
from holdfast.core.records import Message
from holdfast.engine.catalog import QueueName
from holdfast.errors import InvalidArgument, LimitExceeded, QueueExists, ReplyTimeout
from holdfast.units import SECOND

if TYPE_CHECKING:
    from holdfast.broker.node import Node
    from holdfast.broker.parts.subscriptions import Subscription

PREFIX = "reply/"
TOPIC = "$queue/"
GROUP = "requests"
CREDIT = 1_000

# A reply is of use for as long as its request waits, and of none after a restart: it need not be synced, journalled,
# retried or kept.
CONFIG: dict[str, object] = {
    "partitions": 1,
    "ordering": "none",
    "message_ttl": "15m",
    "journal": "off",
    "durability": "buffered",
    "dlq.enabled": False,
}


class Answered(msgspec.Struct, frozen=True):
    """A reply, with the id of the request it is for."""

    request_id: int
    correlation_id: str
    reply: Message


class Replies:
    """The requests of a node that wait for their replies."""

    def __init__(self, node: Node) -> None:
        self.late = 0
        self._node = node
        self._waiting: dict[tuple[str, str], asyncio.Future[Message]] = {}
        self._listening: dict[str, Subscription] = {}
        self._settling: set[asyncio.Task[object]] = set()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def request(self, name: QueueName, draft: Draft, timeout: int, protocol: str = "") -> Answered:  # noqa: ASYNC109
        """Enqueue `draft` and wait for its reply."""
        limit = self._node.config.limits.max_waiters
        if len(self._waiting) >= limit:
            raise LimitExceeded(what="The number of requests that wait", limit=limit, advice="Retry in a moment")
        correlation_id = draft.extra.correlation_id or secrets.token_hex(16)
        slot = (name[0], correlation_id)
        if slot in self._waiting:
            raise InvalidArgument(field="correlation_id", problem="is that of a request that still waits; use another")
        response_queue = await self._listen(name[0])
        extra = replace(
            draft.extra,
            reply_to=TOPIC + response_queue[1],
            correlation_id=correlation_id,
            correlation_data=correlation_id.encode(),
        )
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[slot] = future
        try:
            async with asyncio.timeout(timeout / SECOND):
                receipt = await self._node.enqueue(name, [replace(draft, extra=extra)], protocol)
                for error in receipt.errors.values():
                    raise error
                return Answered(receipt.ids[0], correlation_id, await future)
        except TimeoutError:
            raise ReplyTimeout(timeout_seconds=timeout / SECOND, correlation_id=correlation_id) from None
        finally:
            del self._waiting[slot]

    async def _listen(self, namespace: str) -> QueueName:
        """See that replies of a namespace are taken out of their queue."""
        name = (namespace, f"{PREFIX}node-{self._node.config.node.node_id}")
        subscription = self._listening.get(namespace)
        if subscription is None or not subscription.joined or name not in self._node.engine.queues:
            with suppress(QueueExists):  # of an earlier life of this node
                await self._node.create_queue(name, CONFIG)
            self._listening[namespace] = await self._node.subscribe(
                name, GROUP, "node", lambda leased: self._take(name, leased), credit=CREDIT, protocol="broker"
            )
        return name

    def _take(self, name: QueueName, leased: list[Leased]) -> None:
        """Replies have come."""
        for item in leased:
            extra = item.message.extra
            names = [extra.correlation_id or "", (extra.correlation_data or b"").decode(errors="replace")]
            futures = [self._waiting.get((name[0], known)) for known in names]
            future = next((found for found in futures if found is not None and not found.done()), None)
            if future is None:
                self.late += 1
            else:
                future.set_result(item.message)
        settlements = [Settlement(item.message.id, item.token, partition=item.partition) for item in leased]
        task: asyncio.Task[object] = asyncio.ensure_future(self._node.settle(name, GROUP, settlements))
        self._settling.add(task)
        task.add_done_callback(self._settled)

    def _settled(self, task: asyncio.Task[object]) -> None:
        self._settling.discard(task)
        if not task.cancelled():
            task.exception()  # a reply that could not be settled comes again, and is late then

    async def stop(self) -> None:
        """Leave the response queues, once what was taken is settled."""
        if self._settling:
            await asyncio.wait(self._settling)
        for subscription in self._listening.values():
            subscription.leave()
        self._listening.clear()
