"""Transactions: messages for any queues that become visible together, or never.

    async with client.transaction() as transaction:
        await transaction.stage("orders", {"id": 7})
        await transaction.stage("emails", {"to": "a@example.com"})

Leaving the block publishes, unless an exception leaves it: then everything that was staged is removed.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from holdfast import wire
from holdfast.client import calls
from holdfast.client.drafts import Properties, chunks, draft, size_of
from holdfast.client.times import Duration, Instant
from holdfast.errors import HoldfastError, InvalidArgument

if TYPE_CHECKING:
    from holdfast.client.client import Client

log = logging.getLogger("holdfast.client")

CHUNK_MESSAGES = 1_000  # staged in one request
CHUNK_BYTES = 4 << 20


class Transaction:
    """See the module. Messages are buffered here and staged in chunks; `publish` stages the rest first.

    The chunks are numbered, so a request that is repeated after a lost response stages nothing twice. With an `id` of
    your own the same holds when a whole job is run again: the same messages, given in the same order, are staged once.
    Staging more under an id that was published raises `TransactionPublished`: that job is already done.
    """

    def __init__(self, client: Client, transaction_id: str = "") -> None:
        self.id = transaction_id or secrets.token_hex(16)
        self._client = client
        self._pending: dict[str, list[wire.Draft]] = {}
        self._messages = 0
        self._bytes = 0
        self._chunk = 0
        self._over = False

    async def stage(
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
        await self._add(queue, [message])

    async def stage_many(self, queue: str, messages: Iterable[object] | AsyncIterable[object]) -> int:
        """Stage many messages: payloads, or drafts made by `draft`. Returns how many."""
        count = 0
        async for part in chunks(messages, CHUNK_MESSAGES, CHUNK_BYTES):
            await self._add(queue, part)
            count += len(part)
        return count

    async def publish(self) -> wire.Transaction:
        """Make all staged messages visible in one step. Publishing again returns the same result."""
        if not self._over:
            await self._flush()
        found = await self._client.call(calls.publish(self.id))
        self._over = True
        return found

    async def look(self) -> wire.Transaction:
        """The transaction's status: open or published. `TransactionNotFound` if nothing was staged yet."""
        return await self._client.call(calls.transaction(self.id))

    async def abort(self) -> bool:
        """Abort: delete what was staged. Returns False if there was nothing."""
        self._over = True
        self._pending.clear()
        return (await self._client.call(calls.abort(self.id))).aborted

    async def _add(self, queue: str, messages: list[wire.Draft]) -> None:
        if self._over:
            raise InvalidArgument(field="transaction", problem=f"{self.id} is over; begin another")
        self._pending.setdefault(queue, []).extend(messages)
        self._messages += len(messages)
        self._bytes += sum(map(size_of, messages))
        if self._messages >= CHUNK_MESSAGES or self._bytes >= CHUNK_BYTES:
            await self._flush()

    async def _flush(self) -> None:
        if not self._messages:
            return
        batches = [wire.StageBatch(queue, _staged(messages)) for queue, messages in self._pending.items()]
        await self._client.call(calls.stage(self.id, wire.Stage(batches=batches, chunk=self._chunk)))
        # Only now: if staging fails, these messages must not be missing from what is published.
        self._pending, self._messages, self._bytes = {}, 0, 0
        self._chunk += 1

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._over:
            return
        if error is None:
            await self.publish()
            return
        try:
            await self.abort()
        except HoldfastError as problem:
            log.warning("transaction %s could not be aborted; it expires by itself: %s", self.id, problem)


def _staged(messages: list[wire.Draft]) -> list[wire.StagedMessage]:
    """On the wire a draft is a staged message without a source."""
    return cast("list[wire.StagedMessage]", messages)
