"""Transactions: stage messages, then publish all of them together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from holdfast.broker.cell import Cell
from holdfast.core.commands import Draft
from holdfast.core.transactions import StagedPart, Transaction, TransactionName, TransactionState
from holdfast.engine.transactions import StageResult
from holdfast.errors import LimitExceeded


class PartSummary(msgspec.Struct, frozen=True):
    """What one attempt of a part has staged."""

    part: str
    attempt: str
    chunks: int
    messages: int
    size_bytes: int


class TransactionView(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction. Once it is published: how many messages were published, how many of them were duplicates (by their
    `message_id` or their source), and how many were dropped because their queue was deleted meanwhile."""

    id: str
    state: TransactionState
    created_at: int
    ends_at: int  # when it expires, or is forgotten once it is published
    messages: int
    size_bytes: int
    parts: list[PartSummary] = []
    queues: list[str] = []  # while it is open: for which it has messages
    published_at: int = 0
    published: int = 0
    duplicates: int = 0
    dropped: int = 0
    repeated: bool = False  # this call published nothing: an earlier one had


class StagedTotals(msgspec.Struct, frozen=True):
    """How much is staged and not published."""

    transactions: int = 0
    messages: int = 0
    size_bytes: int = 0


class Transactions:
    """See the module. `enqueue_max` bounds the messages of one stage."""

    def __init__(self, cell: Cell, enqueue_max: int) -> None:
        self._cell = cell
        self._enqueue_max = enqueue_max
        self._moves: dict[TransactionName, asyncio.Task[None]] = {}

    def staged(self, namespace: str | None = None, identity: str | None = None) -> StagedTotals:
        """What open transactions hold: of one namespace or of all, of somebody in it or of everybody; nothing while the
        store is failed."""
        engine = self._cell.open_engine
        found = [] if engine is None else [one.record for one in engine.transactions.live.values()]
        here = [one for one in found if namespace in (None, one.namespace) and identity in (None, one.identity)]
        return StagedTotals(
            len(here), sum(record.messages for record in here), sum(record.size_bytes for record in here)
        )

    async def stage(
        self,
        name: TransactionName,
        batches: Sequence[tuple[str, list[Draft]]],
        *,
        part: str = "",
        attempt: str = "",
        chunk: int = 0,
    ) -> StageResult:
        """Store messages that stay invisible until the transaction `name` is published.

        `batches` are (queue, drafts) within the namespace. A chunk of a part and attempt that was staged before is not
        stored again; chunks are counted from 0. All of a chunk is stored, or nothing and the stage result has the
        errors.
        """
        count = sum(len(drafts) for _, drafts in batches)
        limit = self._enqueue_max
        if count > limit:
            raise LimitExceeded(what="One stage", limit=f"{limit} messages", advice="Stage several chunks")
        now = self._cell.clock()
        size_bytes = sum(len(draft.payload) for _, drafts in batches for draft in drafts)
        self._cell.inbox.admit(count, size_bytes)
        self._cell.disk_reserve.admit(now, count, size_bytes)
        async with self._cell.refusing_durably():
            with self._cell.guard as engine:
                result = engine.transactions.stage(name, batches, part, attempt, chunk, now)
        return await self._cell.submission(result, messages=count, size_bytes=size_bytes)

    async def publish(
        self, name: TransactionName, parts: Mapping[str, str] | None = None, *, protocol: str = ""
    ) -> TransactionView:
        """Make everything that was staged visible, once. `parts` names for each part the attempt that counts; the rest
        of what was staged is deleted. Without it every part counts, and each must have been staged by one attempt.

        Returns when all of it is in its queues and durable. A repeated call returns the same result; one during the
        publish waits for it.
        """
        now = self._cell.clock()
        self._cell.disk_reserve.admit(now)
        with self._cell.guard as engine:
            record, decided = engine.transactions.publish(name, parts, protocol, now)
        if decided:
            self._cell.export_scheduler.add_payload_bytes(record.size_bytes)
        moving = self._move(record.name) if record.state is TransactionState.PUBLISHING else None
        await self._cell.commit.durable()
        if moving is not None:
            await self._cell.wait_for(moving)
        return _view(record, [], repeated=not decided)

    def _move(self, name: TransactionName) -> asyncio.Task[None]:
        """The task that moves a transaction to its end."""
        task = self._moves.get(name)
        if task is None:
            task = self._moves[name] = self._cell.spawn(self._move_all(name))
            task.add_done_callback(lambda _: self._moves.pop(name, None))
        return task

    async def _move_all(self, name: TransactionName) -> None:
        engine = self._cell.engine

        def work() -> Iterator[int]:
            while engine.transactions.move(name, self._cell.clock()):
                yield 0

        await self._cell.in_steps_to_the_end(work)

    def resume(self) -> None:
        """Resume publishes that a crash or a failure of the store interrupted."""
        for name in self._cell.engine.transactions.unfinished_moves():
            self._move(name)

    async def abort(self, name: TransactionName) -> bool:
        """Delete what was staged; the id may be used again. False if there was nothing."""
        async with self._cell.refusing_durably():
            with self._cell.guard as engine:
                found = engine.transactions.abort(name)
        return await self._cell.submission(found)

    async def get(self, name: TransactionName) -> TransactionView:
        """A transaction that is open, or was published and is remembered."""
        view = self.view(name)
        await self._cell.wait_clean()
        return view

    def view(self, name: TransactionName) -> TransactionView:
        """As `get`, for the server itself: what it says may not be durable yet, and is not to be given to a client."""
        with self._cell.guard as engine:
            return _view(*engine.transactions.describe(name))


def _view(record: Transaction, staged_parts: list[StagedPart], repeated: bool = False) -> TransactionView:
    return TransactionView(
        id=record.id,
        state=record.state,
        created_at=record.created_at,
        ends_at=record.ends_at,
        messages=record.messages,
        size_bytes=record.size_bytes,
        queues=sorted(
            {shard_part.queue for staged_part in staged_parts for shard_part in staged_part.shard_parts.values()}
        ),
        parts=[
            PartSummary(
                staged_part.part, staged_part.attempt, staged_part.chunks, staged_part.messages, staged_part.size_bytes
            )
            for staged_part in staged_parts
        ],
        published_at=record.published_at,
        published=record.published,
        duplicates=record.duplicates,
        dropped=record.dropped,
        repeated=repeated,
    )
