"""Request and response: a message is enqueued, and its sender waits for the reply.

The request carries `reply_to`, the topic of a response queue, and a correlation id. The consumer enqueues a reply
there with the same correlation id (over MQTT: the same Correlation Data). Each namespace has one response queue on a
node, `reply/node-<id>`, which appears with the first request. Its messages are consumed as they arrive; a reply whose
request has timed out is dropped and counted.

Waiting requests are in memory: a restart ends them, and replies that arrive afterwards are late.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from holdfast.broker.parts.messages import Messages
from holdfast.broker.parts.queues import Queues
from holdfast.broker.parts.subscriptions import Subscription, Subscriptions
from holdfast.core.commands import Draft, Leased, Settlement
from holdfast.core.records import Message
from holdfast.engine.catalog import QueueName
from holdfast.engine.dead_lettering import FailedRequest
from holdfast.errors import InvalidArgument, LimitExceeded, QueueExists, ReplyTimeout, RequestFailed
from holdfast.units import SECOND

PREFIX = "reply/"
TOPIC = "$queue/"
GROUP = "requests"
CREDIT = 1_000

# A reply is useful only while its request waits, and useless after a restart: it need not be synced, journalled,
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


class Requests:
    """The requests of the node `node_id` that wait for their replies, at most `waiting_max`."""

    def __init__(
        self, messages: Messages, queues: Queues, subscriptions: Subscriptions, node_id: int, waiting_max: int
    ) -> None:
        self.late = 0
        self._messages = messages
        self._queues = queues
        self._subscriptions = subscriptions
        self._node_id = node_id
        self._waiting_max = waiting_max
        self._waiting: dict[tuple[str, str], asyncio.Future[Message]] = {}
        self._listening: dict[str, Subscription] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def request(self, name: QueueName, draft: Draft, timeout: int, protocol: str = "") -> Answered:  # noqa: ASYNC109
        """Enqueue `draft` and wait for its reply."""
        limit = self._waiting_max
        if len(self._waiting) >= limit:
            raise LimitExceeded(what="The number of requests that wait", limit=limit, advice="Retry in a moment")
        correlation_id = draft.extra.correlation_id or secrets.token_hex(16)
        slot = (name[0], correlation_id)
        if slot in self._waiting:
            raise InvalidArgument(field="correlation_id", problem="is that of a request that still waits; use another")
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[slot] = future  # before anything is waited for: the next request counts this one
        try:
            async with asyncio.timeout(timeout / SECOND):
                response_queue = await self._listen(name[0])
                extra = replace(
                    draft.extra,
                    reply_to=TOPIC + response_queue[1],
                    correlation_id=correlation_id,
                    correlation_data=correlation_id.encode(),
                )
                receipt = await self._messages.enqueue(name, [replace(draft, extra=extra)], protocol)
                for error in receipt.errors.values():
                    raise error
                return Answered(receipt.ids[0], correlation_id, await future)
        except TimeoutError:
            raise ReplyTimeout(timeout_seconds=timeout / SECOND, correlation_id=correlation_id) from None
        finally:
            del self._waiting[slot]

    async def _listen(self, namespace: str) -> QueueName:
        """Consume the response queue of a namespace, from its first request on."""
        name = (namespace, f"{PREFIX}node-{self._node_id}")
        subscription = self._listening.get(namespace)
        if subscription is None or not subscription.joined or not self._queues.exists(name):
            with suppress(QueueExists):  # of an earlier life of this node
                await self._queues.create(name, CONFIG)
            self._listening[namespace] = await self._subscriptions.join(
                name, GROUP, "node", lambda leased: self._take(name, leased), credit=CREDIT, protocol="broker"
            )
        return name

    def _take(self, name: QueueName, leased: list[Leased]) -> None:
        """Replies have arrived. One that cannot be settled is delivered again, and late then."""
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
        self._messages.settle(name, GROUP, settlements, combined=True)

    def fail(self, dead: FailedRequest) -> None:
        """Nobody will answer a request: its caller need not wait until its timeout."""
        future = self._waiting.get((dead.namespace, dead.correlation_id))
        if future is not None and not future.done():
            future.set_exception(
                RequestFailed(reason=dead.reason, attempts=dead.attempts, error=dead.error or "no error was given")
            )
            future.exception()  # marks it as retrieved: the caller may have given up

    def stop(self) -> None:
        """Leave the response queues."""
        for subscription in self._listening.values():
            subscription.leave()
        self._listening.clear()
