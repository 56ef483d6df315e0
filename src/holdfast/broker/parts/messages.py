"""Messages: enqueue, lease, settle, and changes of a single waiting message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from holdfast.broker.cell import Cell
from holdfast.broker.commit.group_commit import UNAWAITED_SECONDS
from holdfast.broker.dispatch.dispatcher import releases
from holdfast.broker.dispatch.members import GroupName
from holdfast.broker.dispatch.waiters import LeaseRequest, Waiter
from holdfast.broker.submission import Moment, Submission
from holdfast.config.settings import LimitSettings
from holdfast.core.commands import Draft, Leased, Settlement, Verb, payload_bytes
from holdfast.core.queue import Durability
from holdfast.core.records import Message
from holdfast.engine.catalog import QueueName
from holdfast.engine.engine import SettleResult
from holdfast.engine.messages import delete_message, edit_message, find_steps
from holdfast.errors import HoldfastError, InvalidArgument, LimitExceeded, Overloaded
from holdfast.units import SECOND

T = TypeVar("T")


class Receipt(msgspec.Struct, frozen=True):
    """What became of an enqueue: ids in order (0 where refused), duplicates and errors by index, and the durability of
    the queue."""

    ids: list[int]
    duplicates: dict[int, int]
    errors: dict[int, HoldfastError]
    durability: Durability


class LeaseSubmission(Submission[list[Leased]]):
    """Leases of messages that were ready."""

    __slots__ = ("_cell", "_group")

    def __init__(self, cell: Cell, group: GroupName, found: list[Leased]) -> None:
        super().__init__(cell.commit, cell.inbox, found, cell.lease_moment)
        self._cell = cell
        self._group = group

    def release(self) -> None:
        """Release what was leased: the consumer has gone."""
        if self.result:
            self._cell.settle_unattended(*self._group, releases(self.result))


class Messages:
    """See the module."""

    def __init__(self, cell: Cell, limits: LimitSettings) -> None:
        self._cell = cell
        self._limits = limits

    def enqueue(
        self,
        name: QueueName,
        drafts: Sequence[Draft],
        protocol: str = "",
        *,
        atomic: bool = False,
        combined: bool = False,
    ) -> Submission[Receipt]:
        """Store messages. `atomic`: all, or none if one errs. `combined`: they come from several requests, so that the
        limit of one request does not apply."""
        cell = self._cell
        engine = cell.engine
        if not combined:
            self.check_enqueue_count(len(drafts))
        if not drafts:
            return self._nothing_done(Receipt([], {}, {}, Durability.FSYNC))
        size_bytes = payload_bytes(drafts)
        now = cell.clock()
        cell.inbox.admit(len(drafts), size_bytes)
        cell.disk_reserve.admit(now, len(drafts), size_bytes)
        cell.stored_bytes.admit(name[0], size_bytes, now)
        cell.export_scheduler.add_payload_bytes(size_bytes)
        with cell.guard:
            reply = engine.enqueue(name, drafts, protocol, now, atomic)
        durability = engine.queues[name].config.durability
        receipt = Receipt(reply.ids, reply.duplicates, reply.errors, durability)
        if len(reply.errors) == len(drafts):
            return self._nothing_done(receipt)
        return cell.submission(receipt, durability, len(drafts), size_bytes)

    def _nothing_done(self, result: T) -> Submission[T]:
        """A submission with nothing to sync. There may be something to write: the queue may be new."""
        return Submission(self._cell.commit, self._cell.inbox, result, Moment.WRITTEN)

    async def edit(
        self, name: QueueName, message_id: int, *, priority: int | None = None, deliver_at: int | None = None
    ) -> Message:
        """Change a waiting message."""
        cell = self._cell
        partition, _, _ = await cell.read_in_steps(find_steps(cell.engine, name, message_id, cell.clock))
        with cell.guard as engine:
            message = edit_message(engine, name, message_id, priority, deliver_at, cell.clock(), partition)
        return await cell.submission(message)

    async def delete(self, name: QueueName, message_id: int, *, leased: bool = False) -> None:
        """Remove one waiting message; with `leased` also one that consumers hold, who lose it."""
        cell = self._cell
        partition, _, _ = await cell.read_in_steps(find_steps(cell.engine, name, message_id, cell.clock))
        with cell.guard as engine:
            delete_message(engine, name, message_id, cell.clock(), partition, leased)
        await cell.submission(None)

    # --- leasing ----------------------------------------------------------------------------------------------------

    async def lease(
        self,
        name: QueueName,
        group: str,
        limit: int = 1,
        *,
        timeout: int = -1,  # noqa: ASYNC109 - how long the lease is for, not how long to wait for it
        wait: int = 0,
        consumer: str = "",
        protocol: str = "",
        max_bytes: int = 0,
        create: bool = True,
    ) -> list[Leased]:
        """Lease up to `limit` deliveries; if none is ready, wait up to `wait` microseconds for the first. With
        `create` a group that does not exist is created, and so is its queue."""
        cell = self._cell
        waiters = cell.dispatcher.waiters
        self._check_lease(limit, timeout, wait)
        if not create:
            self._check_group(name, group)
        size_limit = self._lease_bytes(max_bytes)
        target = (name, group)
        cell.dispatcher.activity.seen(target, consumer, cell.clock())
        found: list[Leased] = []
        if not (wait and waiters.in_group(target)):  # those that wait already come first
            found = self._lease(name, group, limit, timeout, consumer, protocol, size_limit)
            while not found and name in cell.engine.unfinished:
                await asyncio.sleep(0)  # a long search behind a hot key: others have their turn
                found = self._lease(name, group, limit, timeout, consumer, protocol, size_limit)
        if found or (not wait and cell.engine.pending):
            submission = LeaseSubmission(cell, target, found)
            try:
                return await submission
            except asyncio.CancelledError:
                submission.release()
                raise
        if not wait:
            return found
        if waiters.count >= self._limits.max_waiters:
            raise Overloaded(waiting=waiters.count)
        return await self._wait(LeaseRequest(target, limit, timeout, size_limit, consumer, protocol), wait)

    def lease_ready(
        self,
        name: QueueName,
        group: str,
        limit: int = 1,
        *,
        timeout: int = -1,
        wait: int = 0,
        consumer: str = "",
        protocol: str = "",
        max_bytes: int = 0,
        create: bool = True,
    ) -> LeaseSubmission | None:
        """As `lease`, for what is ready now. None: there is something to wait for, or more to search; use `lease`."""
        cell = self._cell
        self._check_lease(limit, timeout, wait)
        if not create:
            self._check_group(name, group)
        target = (name, group)
        cell.dispatcher.activity.seen(target, consumer, cell.clock())
        if wait and cell.dispatcher.waiters.in_group(target):
            return None
        found = self._lease(name, group, limit, timeout, consumer, protocol, self._lease_bytes(max_bytes))
        if not found and (wait or name in cell.engine.unfinished):
            return None
        return LeaseSubmission(cell, target, found)

    def _check_lease(self, limit: int, timeout: int, wait: int) -> None:
        limits = self._limits
        if not 1 <= limit <= limits.lease_max:
            raise InvalidArgument(field="limit", problem=f"is 1 to {limits.lease_max}, not {limit}")
        self.check_lease_timeout(timeout)
        if wait > limits.max_wait:
            raise InvalidArgument(field="wait", problem=f"is at most {limits.max_wait // SECOND} s")

    def _check_group(self, name: QueueName, group: str) -> None:
        """Raise if the queue or the group does not exist."""
        self._cell.engine.queue(name, self._cell.clock()).group(group)

    def _lease_bytes(self, max_bytes: int) -> int:
        return min(max_bytes or self._limits.lease_bytes, self._limits.lease_bytes)

    def _lease(
        self, name: QueueName, group: str, limit: int, timeout: int, consumer: str, protocol: str, max_bytes: int
    ) -> list[Leased]:
        cell = self._cell
        if not cell.may_lease:
            return []
        with cell.guard as engine:
            return engine.lease(name, group, limit, timeout, consumer, protocol, cell.clock(), None, max_bytes)

    async def _wait(self, request: LeaseRequest, wait: int) -> list[Leased]:
        cell = self._cell
        loop = asyncio.get_running_loop()
        waiter = Waiter(request, loop.create_future())
        cell.dispatcher.waiters.add(waiter)
        if cell.open_engine is not None and cell.open_engine.pending:
            cell.commit.schedule()  # the group may have appeared with this call
        timer = loop.call_later(wait / SECOND, _end_poll, waiter.future)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.future.done() and not waiter.future.cancelled() and waiter.future.exception() is None:
                cell.settle_unattended(*request.group, releases(waiter.future.result()))
            raise
        finally:
            timer.cancel()
            cell.dispatcher.waiters.remove(waiter)

    def check_lease_timeout(self, timeout: int) -> None:
        """Raise if a lease may not last so long; negative means the queue's own. One that ends immediately would waste
        an attempt."""
        most = self._limits.max_lease_timeout
        if timeout == 0 or timeout > most:
            raise InvalidArgument(field="timeout", problem=f"is more than 0 and at most {most // SECOND} s")

    # --- settling ---------------------------------------------------------------------------------------------------

    def settle(
        self, name: QueueName, group: str, settlements: list[Settlement], *, combined: bool = False
    ) -> Submission[list[SettleResult]]:
        """Settle deliveries: for each a result in order. `combined`: they come from several requests, so that the
        limits of one request do not apply, and nothing is refused because too much is waiting."""
        cell = self._cell
        engine = cell.engine
        if not settlements:
            return self._nothing_done([])
        if not combined:
            self._check_settle(len(settlements))
        refused: dict[int, HoldfastError] = {}
        for index, settlement in enumerate(settlements):
            if settlement.verb is Verb.EXTEND:
                try:
                    self.check_lease_timeout(settlement.timeout)
                except InvalidArgument as error:  # of this one alone
                    refused[index] = error
        results: list[SettleResult]
        with cell.guard:
            if not refused:
                results = engine.settle(name, group, settlements, cell.clock())
            else:
                rest = [settlement for index, settlement in enumerate(settlements) if index not in refused]
                done = iter(engine.settle(name, group, rest, cell.clock()))
                results = [refused[index] if index in refused else next(done) for index in range(len(settlements))]
        cell.dispatcher.members.settled((name, group), settlements, results)
        return self._settled(results, engine.queues[name].config.durability)

    def ack(
        self, name: QueueName, group: str, ids: list[int], tokens: list[int], partition: int = -1
    ) -> Submission[list[SettleResult]]:
        """As `settle`, for at least one, where all are acked by their tokens. `partition`: that of all, if known."""
        cell = self._cell
        engine = cell.engine
        self._check_settle(len(ids))
        with cell.guard:
            results = engine.ack(name, group, ids, tokens, cell.clock(), partition)
        cell.dispatcher.members.acked((name, group), ids, results)
        return self._settled(results, engine.queues[name].config.durability)

    def waits_for_settlements(self, name: QueueName, group: str) -> bool:
        """Whether a settlement of a group's must not wait for the next turn: a delivery may wait for the credit or the
        key that it frees, a message for room in the queue; or its lease may end before that turn."""
        engine = self._cell.open_engine
        queue = engine.queues.get(name) if engine is not None else None
        if engine is None or queue is None:
            return False
        if queue.has_next(group) or 0 <= queue.room() < queue.depth:
            return True
        return engine.wake_at() <= self._cell.clock() + UNAWAITED_SECONDS * SECOND

    def _check_settle(self, count: int) -> None:
        self.check_settle_count(count)
        self._cell.inbox.admit(count, 0)

    def check_enqueue_count(self, count: int) -> None:
        """Refuse more messages than one call may enqueue: for a front, before it reads each."""
        most = self._limits.enqueue_max
        if count > most:
            raise LimitExceeded(what="One enqueue", limit=f"{most} messages", advice="Send several")

    def check_settle_count(self, count: int) -> None:
        """Refuse more settlements than one call may have: for a front, before it reads each."""
        most = self._limits.settle_max
        if count > most:
            raise LimitExceeded(what="One settle", limit=f"{most} settlements", advice="Send several")

    def _settled(self, results: list[SettleResult], durability: Durability) -> Submission[list[SettleResult]]:
        if None not in results and all(isinstance(result, HoldfastError) for result in results):
            return self._nothing_done(results)
        return self._cell.submission(results, durability, len(results))


def _end_poll(future: asyncio.Future[list[Leased]]) -> None:
    if not future.done():
        future.set_result([])
