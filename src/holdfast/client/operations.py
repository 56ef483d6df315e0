"""What who operates a server does now and then: watch a queue, move its messages to another one, end connections.

job = await client.operations.move("orders", "orders-slow", wire.MoveFilter(older_than="1h"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import wire
from holdfast.client import calls
from holdfast.client.portal import Portal
from holdfast.client.times import Instant, instant

if TYPE_CHECKING:
    from holdfast.client.client import Client


class Operations:
    """`client.operations`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def move(
        self,
        queue: str,
        to: str,
        which: wire.MoveFilter | None = None,
        *,
        rate: float = 0,
        limit: int = 0,
        dry_run: bool = False,
    ) -> wire.MoveJob:
        """Begin to move the messages of a queue that wait to another one, at most `rate` a second. It goes on in the
        server."""
        request = wire.Move(to=to, filter=which or wire.MoveFilter(), rate=rate, limit=limit, dry_run=dry_run)
        return await self._client.call(calls.move(queue, request))

    async def moves(self, queue: str) -> list[wire.MoveJob]:
        """Moves of a queue's messages, newest first: those under way and the last that ended."""
        return (await self._client.call(calls.moves(queue))).moves

    async def move_progress(self, queue: str, job: str) -> wire.MoveJob:
        """How far a move has come."""
        return await self._client.call(calls.move_progress(queue, job))

    async def cancel_move(self, queue: str, job: str) -> wire.MoveJob:
        """Cancel a move; what it has moved stays moved."""
        return await self._client.call(calls.cancel_move(queue, job))

    async def disconnect(self, queue: str, consumer: str, *, group: str = "") -> int:
        """End the connections of a push consumer, in one group or in all; how many there were. It may come again."""
        which = wire.ConsumerEnd(consumer=consumer, group=group)
        return (await self._client.call(calls.end_consumer(queue, which))).disconnected

    async def partitions(self, queue: str, *, since: Instant | None = None) -> list[wire.Partition]:
        """Between which sequences each partition of a queue has messages, or those that were enqueued since."""
        return (await self._client.call(calls.partitions(queue, instant(since) or ""))).partitions

    async def ends(self, queue: str, group: str) -> list[wire.CursorEnd]:
        """What a cursor group can read now, by partition."""
        return (await self._client.call(calls.cursor_ends(queue, group))).partitions

    async def range(
        self, queue: str, partition: int, first: int, *, limit: int = 1000, gone: bool = False
    ) -> wire.MessageRange:
        """Messages of one partition from a sequence on; nothing is leased. `gone`: also those that nobody needs any
        more, as long as the journal has not taken them."""
        return await self._client.call(calls.browse_partition(queue, partition, first, limit, gone=gone))


class SyncOperations:
    """The same for programs without an event loop."""

    def __init__(self, operations: Operations, portal: Portal) -> None:
        self._operations = operations
        self._portal = portal

    def move(
        self,
        queue: str,
        to: str,
        which: wire.MoveFilter | None = None,
        *,
        rate: float = 0,
        limit: int = 0,
        dry_run: bool = False,
    ) -> wire.MoveJob:
        """Begin to move the messages of a queue that wait to another one, at most `rate` a second. It goes on in the
        server."""
        return self._portal.run(self._operations.move(queue, to, which, rate=rate, limit=limit, dry_run=dry_run))

    def moves(self, queue: str) -> list[wire.MoveJob]:
        """Moves of a queue's messages, newest first: those under way and the last that ended."""
        return self._portal.run(self._operations.moves(queue))

    def move_progress(self, queue: str, job: str) -> wire.MoveJob:
        """How far a move has come."""
        return self._portal.run(self._operations.move_progress(queue, job))

    def cancel_move(self, queue: str, job: str) -> wire.MoveJob:
        """Cancel a move; what it has moved stays moved."""
        return self._portal.run(self._operations.cancel_move(queue, job))

    def disconnect(self, queue: str, consumer: str, *, group: str = "") -> int:
        """End the connections of a push consumer, in one group or in all; how many there were. It may come again."""
        return self._portal.run(self._operations.disconnect(queue, consumer, group=group))

    def partitions(self, queue: str, *, since: Instant | None = None) -> list[wire.Partition]:
        """Between which sequences each partition of a queue has messages, or those that were enqueued since."""
        return self._portal.run(self._operations.partitions(queue, since=since))

    def ends(self, queue: str, group: str) -> list[wire.CursorEnd]:
        """What a cursor group can read now, by partition."""
        return self._portal.run(self._operations.ends(queue, group))

    def range(
        self, queue: str, partition: int, first: int, *, limit: int = 1000, gone: bool = False
    ) -> wire.MessageRange:
        """Messages of one partition from a sequence on; nothing is leased. `gone`: also those that nobody needs any
        more, as long as the journal has not taken them."""
        return self._portal.run(self._operations.range(queue, partition, first, limit=limit, gone=gone))
