"""The running node: the asyncio shell around the engine, and the in-process API that fronts call.

Every call is for a batch. It changes the engine at once and is answered when the group commit that holds the change is
durable (enqueue, settle, administration) or written (lease). Calls that cannot be taken are refused at once: too much
waiting (`Overloaded`), a store that failed (`StoreUnavailable`), shutting down (`ShuttingDown`).

One timer wakes the node when something is due; when nothing is due and nobody calls, nothing runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import msgspec
import structlog

from holdfast.broker.commit.group_commit import DoneCallback, GroupCommit
from holdfast.broker.commit.guard import Guard
from holdfast.broker.dispatch.dispatcher import Dispatcher, Waiter, releases
from holdfast.broker.dispatch.members import GroupName
from holdfast.broker.dispatch.replies import Replies
from holdfast.broker.export.scheduler import ExportScheduler
from holdfast.broker.health import Health
from holdfast.broker.lake_reader import LakeReads
from holdfast.broker.meters import MetricSource
from holdfast.broker.parts.cursors import LogCalls
from holdfast.broker.parts.dead_letters import DeadLetterCalls
from holdfast.broker.parts.inspection import ReadCalls
from holdfast.broker.parts.queues import AdminCalls
from holdfast.broker.parts.transactions import TransactionCalls
from holdfast.broker.parts.workflow_state import StateCalls
from holdfast.broker.redrive_jobs import Redrives
from holdfast.broker.snapshots import Snapshots
from holdfast.broker.webhooks import Webhooks
from holdfast.config import Config
from holdfast.core.commands import Draft, Enqueued, Leased, Settlement, Verb, payload_bytes
from holdfast.core.effects import Op
from holdfast.core.groups import NEVER
from holdfast.core.queue import Durability
from holdfast.engine.audits import AuditLimits
from holdfast.engine.catalog import QueueName
from holdfast.engine.engine import Engine, Limits
from holdfast.engine.stats import RateWindow
from holdfast.engine.transactions import TransactionLimits
from holdfast.errors import (
    DiskFull,
    Fenced,
    GroupNotFound,
    HoldfastError,
    InvalidArgument,
    LimitExceeded,
    Overloaded,
    QueueNotFound,
    ShuttingDown,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
)
from holdfast.store.contract import Store
from holdfast.units import SECOND

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

ROOM_CHECK_EVERY = SECOND
RECOVERY_PAUSE_SECONDS = 1.0  # between attempts to open a store that failed
LAZY_SYNC_SECONDS = 1.0  # what is answered before its sync is synced at most this much later
"""Queues with durability `buffered` lose at most this much when the machine dies (nothing when the process does)."""


def wall_clock() -> int:
    """Now, in epoch microseconds."""
    return time.time_ns() // 1000


class CommitParticipant(Protocol):
    """A front that has records of its own (sessions, say). They share the node's batches and syncs."""

    def collect_ops(self, now: int) -> list[Op]:
        """First thing in a turn: do what was put off until now, and give the records to write."""

    def written(self) -> None:
        """The turn's batch is in the store."""

    def failed(self, error: HoldfastError) -> None:
        """The store failed: what the companion has in memory is ahead of it, and must go."""

    def opened(self) -> None:
        """The store works again."""


class EnqueueResult(msgspec.Struct, frozen=True):
    """What became of an enqueue: ids in order (0 where refused), what was unusual by index, and how safe it is."""

    ids: list[int]
    duplicates: dict[int, int]
    errors: dict[int, HoldfastError]
    durability: Durability
    size_bytes: int = 0  # of what was asked for


class Node(AdminCalls, DeadLetterCalls, LogCalls, ReadCalls, StateCalls, TransactionCalls):
    """See the module."""

    def __init__(
        self,
        config: Config,
        store: Store,
        clock: Callable[[], int] = wall_clock,
        webhooks: Webhooks | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.store = store
        self.clock = clock
        self.dispatcher = Dispatcher(config.limits.lease_bytes)
        self.webhooks = webhooks or Webhooks(config.webhooks)
        self.broken: asyncio.Future[HoldfastError] | None = None
        self.participants: list[CommitParticipant] = []
        self.meters: list[MetricSource] = []
        self.redrives = Redrives(self)
        self.replies = Replies(self)
        self.health = Health(self)
        self.snapshots = Snapshots(store, config.node.data_dir / "snapshots", config.node.node_id, clock)
        self.started_at = 0
        self._commit: GroupCommit | None = None
        self._lake_reads = LakeReads(config)
        self._rates: dict[QueueName, RateWindow] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._lazy_sync: asyncio.TimerHandle | None = None
        self._refusal: HoldfastError | None = ShuttingDown()
        self._shared_guard = Guard(self)
        self._inbox_messages = 0
        self._inbox_bytes = 0
        self._unsynced = (
            0  # messages and settlements of `enqueue_in_commit` and `settle_in_commit` whose sync is still to come
        )
        self._unsynced_bytes = 0
        self._room: int | None = None
        self._room_checked = 0
        self._export_scheduler: ExportScheduler | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._watchers: dict[QueueName, set[asyncio.Event]] = {}

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open what is stored and take calls."""
        loop = asyncio.get_running_loop()
        self.broken = loop.create_future()
        self.started_at = self.clock()
        self.snapshots.clear()
        self.health.lag.start()
        self._commit = GroupCommit(
            self.store,
            self._before_write,
            self._after_write,
            self._store_failed,
            self.config.store.sync_in_place_max / SECOND,
        )
        await self.webhooks.start()
        self._export_scheduler = ExportScheduler(self.config, self.store, self._open, self._durable)
        self._open_engine()
        await self.export_scheduler.recover()
        self._spawn(self.export_scheduler.run())
        self._resume()
        self.redrives.resume()

    def _open_engine(self) -> None:
        config = self.config
        limits = Limits(
            auto_create=config.queues.auto_create,
            max_queues=config.queues.max_queues,
            max_groups=config.queues.max_groups_per_queue,
            hot_bytes=config.limits.hot_cache_bytes,
            transactions=TransactionLimits(
                **{name: getattr(config.transactions, name) for name in TransactionLimits.__struct_fields__}
            ),
            audits=AuditLimits(remember=config.redrives.remember, max_remembered=config.redrives.max_remembered),
        )
        engine = Engine(self.store, config.node.node_id, limits)
        started = time.perf_counter()
        engine.open(self.clock())
        engine.dirty_queues.update(engine.queues)
        self.commit.engine = engine
        self._refusal = None
        self.commit.schedule()
        log.info(
            "store opened",
            queues=len(engine.queues),
            messages=sum(queue.depth for queue in engine.queues.values()),
            seconds=round(time.perf_counter() - started, 3),
        )

    def _resume(self) -> None:
        """Take up what a crash or a failure interrupted: queues being deleted, transactions being published."""
        for queue in [queue for queue in self.engine.queues.values() if queue.record.closing]:
            self._spawn(self._finish_deletion(queue))
        self._resume_moves()

    async def stop(self) -> None:
        """Refuse new work, end long polls, release what push members hold, make everything durable, close."""
        await self.redrives.stop()
        await self.replies.stop()
        self.health.lag.stop()
        engine = self.commit.engine
        self._refusal = ShuttingDown()
        self.dispatcher.fail(self._refusal)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if engine is not None:
            for member in self.dispatcher.members.all_members():
                self.remove_member(member, Verb.RELEASE)
            await self.commit.until_durable()
        for timer in (self._timer, self._lazy_sync):
            if timer is not None:
                timer.cancel()
        self._timer, self._timer_at, self._lazy_sync = None, NEVER, None
        await self.export_scheduler.close()
        await self.commit.close()
        await self.webhooks.stop()

    @property
    def commit(self) -> GroupCommit:
        assert self._commit is not None, "the node has not been started"
        return self._commit

    @property
    def export_scheduler(self) -> ExportScheduler:
        assert self._export_scheduler is not None, "the node has not been started"
        return self._export_scheduler

    def _open(self) -> Engine | None:
        return self._commit.engine if self._commit is not None else None

    @property
    def engine(self) -> Engine:
        """The engine, if the node can take calls."""
        if self._refusal is not None:
            raise self._refusal
        engine = self.commit.engine
        assert engine is not None
        return engine

    def _spawn(self, coroutine: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a background task failed", exc_info=task.exception())

    # --- the turn ---------------------------------------------------------------------------------------------------

    def _before_write(self) -> None:
        engine = self.commit.engine
        if engine is not None:
            now = self.clock()
            for participant in self.participants:
                engine.add(participant.collect_ops(now))
            for name in engine.dirty_queues:
                for event in self._watchers.get(name, ()):
                    event.set()
                queue = engine.queues.get(name)
                if queue is not None:
                    self._rates.setdefault(name, RateWindow()).sample(queue, now)
            engine.unfinished.clear()
            self.dispatcher.lease(engine, now)
            if engine.unfinished:  # somebody waits behind a hot key: look on after others have had their turn
                engine.dirty_queues |= engine.unfinished
                self.commit.schedule()

    @contextmanager
    def watch(self, name: QueueName) -> Iterator[asyncio.Event]:
        """An event that is set whenever something may have changed in a queue. Clear it before you look."""
        event = asyncio.Event()
        watchers = self._watchers.setdefault(name, set())
        watchers.add(event)
        try:
            yield event
        finally:
            watchers.discard(event)
            if not watchers and self._watchers.get(name) is watchers:
                del self._watchers[name]

    def _after_write(self, must_sync: bool) -> None:
        if must_sync or self.dispatcher.has_held:
            self.dispatcher.hold_until_synced()
            self.commit.when_synced(lambda: self._finish_delivery(self.dispatcher.deliver_held()))
        else:
            self._finish_delivery(self.dispatcher.deliver_granted())
        for participant in self.participants:
            participant.written()
        self._arm_timer()
        self.export_scheduler.check_due()

    def _finish_delivery(self, unclaimed: list[tuple[GroupName, list[Settlement]]]) -> None:
        """What was leased went out; nobody was there to take the rest."""
        engine = self.commit.engine
        if engine is None:
            return
        for (name, group), settlements in unclaimed:
            self._settle_ignoring_missing(name, group, settlements)
        for alert in engine.alerts:
            self.webhooks.offer(alert)
        engine.alerts.clear()
        for item in engine.dropped:
            log.warning(
                "message dropped: it is dead and its queue has no dead queue",
                message_id=item.message.id,
                group=item.group,
                reason=str(item.reason),
                error=item.delivery.error,
            )
        engine.dropped.clear()

    def _settle_ignoring_missing(self, name: QueueName, group: str, settlements: list[Settlement]) -> None:
        """Settle for somebody who is no longer there to hear of it."""
        engine = self.commit.engine
        if engine is None:
            return
        try:
            results = engine.settle(name, group, settlements, self.clock())
        except (QueueNotFound, GroupNotFound):
            return  # deleted meanwhile, and all its leases with it
        self.dispatcher.members.settled((name, group), settlements, results)
        self.commit.schedule()

    def _arm_timer(self) -> None:
        engine = self.commit.engine
        if engine is None:
            return
        at = min(engine.wake_at(), self.dispatcher.members.wake_at())
        if at == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = at
        if at != NEVER:
            # A millisecond more, because the loop's timers may be early by less than one.
            delay = max(at - self.clock(), 0) / SECOND + 0.001
            self._timer = asyncio.get_running_loop().call_later(delay, self._due)

    def run_due(self) -> None:
        """Act on what is due now. The node's timer does it in time; whoever sets the clock forward calls it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due()

    def _due(self) -> None:
        """Something is due: a delay, a deadline, an expiry, a silent member."""
        self._timer_at = NEVER
        engine = self.commit.engine
        if engine is None:
            return
        now = self.clock()
        try:
            with self._guard():
                engine.tick(now)
        except HoldfastError:
            return  # the guard has seen to it
        for member in self.dispatcher.members.timed_out(now):
            log.warning("member removed: no heartbeat", member=member.name, queue=member.group[0][1])
            self.remove_member(member, Verb.DISCONNECT)
        self.commit.schedule()

    async def _durable(self, durability: Durability = Durability.FSYNC) -> None:
        """Wait until what was just done is as safe as it must be."""
        if durability is Durability.FSYNC:
            await self.commit.until_durable()
        else:
            await self.commit.until_written()
            self._ensure_sync()

    def _ensure_sync(self) -> None:
        """Something is answered before its sync: that is to come, if late."""
        if self._lazy_sync is None:
            self._lazy_sync = asyncio.get_running_loop().call_later(LAZY_SYNC_SECONDS, self._sync_lazily)

    def _sync_lazily(self) -> None:
        self._lazy_sync = None
        if self.commit.engine is not None:
            self.commit.durable()

    @property
    def refusal(self) -> HoldfastError | None:
        """Why it takes no calls, if it takes none."""
        return self._refusal

    async def probe(self) -> None:
        """Have the store sync, whether anything is to be synced or not: the proof that it can."""
        if self._refusal is not None:
            raise self._refusal
        await self.commit.until_durable()

    # --- failure ----------------------------------------------------------------------------------------------------

    def _store_failed(self, error: HoldfastError) -> None:
        """What is in memory is ahead of the store: forget it, refuse calls, and open again when the store works."""
        log.error("the store failed; refusing work until it works again", code=error.code, error=str(error))
        self._refusal = error if isinstance(error, StoreError) else StoreUnavailable(problem=str(error))
        self.dispatcher.fail(self._refusal)
        self._unsynced = self._unsynced_bytes = 0
        for participant in self.participants:
            participant.failed(self._refusal)
        if isinstance(error, (Fenced, StoreCorrupt)) or not isinstance(error, StoreError):
            if self.broken is not None and not self.broken.done():
                self.broken.set_result(error)
            return
        self._spawn(self._recover())

    async def _recover(self) -> None:
        while True:
            await asyncio.sleep(RECOVERY_PAUSE_SECONDS)
            try:
                room = self.store.room()
                if room is not None and room < self.config.store.min_free_bytes:
                    continue
                self.store.reopen()
                self._open_engine()
                self._resume()
                for participant in self.participants:
                    participant.opened()
            except StoreUnavailable as error:
                log.warning("the store still fails", code=error.code, error=str(error))
                continue
            log.info("the store works again")
            return

    # --- refusing ---------------------------------------------------------------------------------------------------

    def _admit(self, messages: int, size_bytes: int) -> None:
        limits = self.config.limits
        waiting = self._inbox_messages + self._unsynced
        if waiting and (
            waiting + messages > limits.inbox_messages
            or self._inbox_bytes + self._unsynced_bytes + size_bytes > limits.inbox_bytes
        ):
            raise Overloaded(waiting=waiting)

    @contextmanager
    def _admission(self, messages: int, size_bytes: int) -> Iterator[None]:
        """Refuse if too much is waiting; while it lasts, this waits too."""
        self._admit(messages, size_bytes)
        self._inbox_messages += messages
        self._inbox_bytes += size_bytes
        try:
            yield
        finally:
            self._inbox_messages -= messages
            self._inbox_bytes -= size_bytes

    def _count_journal_bytes(self, size_bytes: int) -> None:
        self.export_scheduler.add_payload_bytes(size_bytes)

    def _check_room(self, now: int) -> None:
        """Stop taking messages before the disk is full: settling must still be possible then."""
        if not 0 <= now - self._room_checked < ROOM_CHECK_EVERY:
            self._room_checked = now
            self._room = self.store.room()
        if self._room is not None and self._room < self.config.store.min_free_bytes:
            raise DiskFull(path=self.config.node.data_dir)

    # --- messages ---------------------------------------------------------------------------------------------------

    async def enqueue(
        self, name: QueueName, drafts: Sequence[Draft], protocol: str = "", *, atomic: bool = False
    ) -> EnqueueResult:
        """Store messages. Answered when they are as durable as the queue says. `atomic`: all, or none if one errs."""
        result = self.enqueue_nowait(name, drafts, protocol, atomic=atomic)
        if drafts:
            await self.wait_durable(result.durability, len(drafts), result.size_bytes)
        return result

    def enqueue_nowait(
        self, name: QueueName, drafts: Sequence[Draft], protocol: str = "", *, atomic: bool = False
    ) -> EnqueueResult:
        """As `enqueue`, for one who waits in his own way: nothing is stored before `wait_durable` or
        `call_when_durable` says so."""
        engine = self.engine
        if len(drafts) > self.config.limits.enqueue_max:
            raise LimitExceeded(
                what="One enqueue", limit=f"{self.config.limits.enqueue_max} messages", advice="Send several"
            )
        if not drafts:
            return EnqueueResult([], {}, {}, Durability.FSYNC)
        size_bytes = payload_bytes(drafts)
        now = self.clock()
        self._admit(len(drafts), size_bytes)
        self._check_room(now)
        self.export_scheduler.add_payload_bytes(size_bytes)
        with self._shared_guard:
            reply = engine.enqueue(name, drafts, protocol, now, atomic)
        if reply.errors:  # perhaps nobody waits, and yet the queue may be new
            self.commit.schedule()
        return EnqueueResult(
            reply.ids, reply.duplicates, reply.errors, engine.queues[name].config.durability, size_bytes
        )

    async def wait_durable(
        self,
        durability: Durability,
        messages: int,
        size_bytes: int = 0,
        while_syncing: Callable[[], None] | None = None,
    ) -> None:
        """Wait until what was just done is as safe as it must be. So many messages and bytes wait meanwhile. What is to
        be done then anyway is called while the disk works."""
        self._inbox_messages += messages
        self._inbox_bytes += size_bytes
        try:
            if while_syncing is not None:
                durable = self.commit.until_durable() if durability is Durability.FSYNC else None
                await self.commit.until_written()
                while_syncing()
                if durable is not None:
                    await durable
                    return
            await self._durable(durability)
        finally:
            self.release_inbox(messages, size_bytes)

    def call_when_durable(
        self, durability: Durability | None, callback: DoneCallback, messages: int, size_bytes: int = 0
    ) -> None:
        """As `wait_durable`, with a callback, which calls `release_inbox`. Without durability: when it is in the
        store, as a lease."""
        self._inbox_messages += messages
        self._inbox_bytes += size_bytes
        if durability is Durability.FSYNC:
            self.commit.on_durable(callback)
        else:
            self.commit.on_written(callback)
            if durability is not None:
                self._ensure_sync()

    def release_inbox(self, messages: int, size_bytes: int) -> None:
        """So much waits no more."""
        self._inbox_messages -= messages
        self._inbox_bytes -= size_bytes

    def enqueue_in_commit(self, name: QueueName, drafts: Sequence[Draft], protocol: str = "") -> Enqueued:
        """As `enqueue`, for a companion inside its `collect_ops`: nothing may be answered before the turn is synced."""
        engine = self.engine
        size_bytes = payload_bytes(drafts)
        now = self.clock()
        self._admit(len(drafts), size_bytes)
        self._check_room(now)
        self.export_scheduler.add_payload_bytes(size_bytes)
        with self._guard():
            reply = engine.enqueue(name, drafts, protocol, now)
        self._count_unsynced(len(drafts), size_bytes)
        return reply

    def settle_in_commit(
        self, name: QueueName, group: str, settlements: list[Settlement]
    ) -> list[int | HoldfastError | None]:
        """As `settle`, for a companion inside its `collect_ops`: nothing may be answered before the turn is synced."""
        results = self._settle(name, group, settlements)
        self._count_unsynced(len(settlements), 0)
        return results

    def _count_unsynced(self, messages: int, size_bytes: int) -> None:
        self._unsynced += messages
        self._unsynced_bytes += size_bytes

        def synced() -> None:
            self._unsynced = max(self._unsynced - messages, 0)
            self._unsynced_bytes = max(self._unsynced_bytes - size_bytes, 0)

        self.commit.when_synced(synced)

    def _guard(self) -> Guard:
        return self._shared_guard

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
    ) -> list[Leased]:
        """Lease up to `limit` deliveries; if there is none, wait up to `wait` microseconds for the first."""
        engine = self.engine
        limits = self.config.limits
        self._check_lease(limit, timeout, wait)
        max_bytes = min(max_bytes or limits.lease_bytes, limits.lease_bytes)
        target = (name, group)
        found: list[Leased] = []
        if not (wait and self.dispatcher.has_waiters(target)):
            with self._guard():
                found = engine.lease(name, group, limit, timeout, consumer, protocol, self.clock(), None, max_bytes)
            while not found and name in engine.unfinished:
                await asyncio.sleep(0)  # a long search behind a hot key: others have their turn
                with self._guard() as engine:
                    found = engine.lease(name, group, limit, timeout, consumer, protocol, self.clock(), None, max_bytes)
        if found or not wait:
            if found or engine.pending:
                await self._written_or_released(target, found)
            return found
        if self.dispatcher.waiting >= limits.max_waiters:
            raise Overloaded(waiting=self.dispatcher.waiting)
        return await self._wait(Waiter(target, limit, timeout, max_bytes, consumer, protocol, _future()), wait)

    def lease_nowait(
        self,
        name: QueueName,
        group: str,
        limit: int,
        *,
        timeout: int,
        wait: int,
        consumer: str,
        protocol: str,
        max_bytes: int,
    ) -> list[Leased] | None:
        """As `lease`, for one who waits in his own way: until it is written. None: there is more to wait for."""
        engine = self.engine
        limits = self.config.limits
        self._check_lease(limit, timeout, wait)
        max_bytes = min(max_bytes or limits.lease_bytes, limits.lease_bytes)
        if wait and self.dispatcher.has_waiters((name, group)):
            return None
        with self._shared_guard:
            found = engine.lease(name, group, limit, timeout, consumer, protocol, self.clock(), None, max_bytes)
        return found if found or not (wait or name in engine.unfinished) else None

    def release_nowait(self, name: QueueName, group: str, found: list[Leased]) -> None:
        """Give back what was leased for somebody who has gone."""
        self._settle_ignoring_missing(name, group, releases(found))

    def _check_lease(self, limit: int, timeout: int, wait: int) -> None:
        limits = self.config.limits
        if not 1 <= limit <= limits.lease_max:
            raise InvalidArgument(field="limit", problem=f"is 1 to {limits.lease_max}, not {limit}")
        self.check_lease_timeout(timeout)
        if wait > limits.max_wait:
            raise InvalidArgument(field="wait", problem=f"is at most {limits.max_wait // SECOND} s")

    def check_lease_timeout(self, timeout: int) -> None:
        """Whether a lease may last so long; negative: as the queue says. One that ends at once would spend an attempt
        for nothing."""
        most = self.config.limits.max_lease_timeout
        if timeout == 0 or timeout > most:
            raise InvalidArgument(field="timeout", problem=f"is more than 0 and at most {most // SECOND} s")

    def _settle(self, name: QueueName, group: str, settlements: list[Settlement]) -> list[int | HoldfastError | None]:
        """Settle those that may be. Extensions that may not last so long are refused, each for itself."""
        engine = self.engine
        refused: dict[int, HoldfastError] = {}
        for index, settlement in enumerate(settlements):
            if settlement.verb is Verb.EXTEND:
                try:
                    self.check_lease_timeout(settlement.timeout)
                except InvalidArgument as error:
                    refused[index] = error
        with self._shared_guard:
            if not refused:
                results = engine.settle(name, group, settlements, self.clock())
            else:
                rest = [settlement for index, settlement in enumerate(settlements) if index not in refused]
                done = iter(engine.settle(name, group, rest, self.clock()))
                results = [refused[index] if index in refused else next(done) for index in range(len(settlements))]
        self.dispatcher.members.settled((name, group), settlements, results)
        return results

    async def _written_or_released(self, group: GroupName, found: list[Leased]) -> None:
        try:
            await self.commit.until_written()
        except asyncio.CancelledError:
            self._settle_ignoring_missing(*group, releases(found))
            raise

    async def _wait(self, waiter: Waiter, wait: int) -> list[Leased]:
        self.dispatcher.add(waiter)
        if self.commit.engine is not None and self.commit.engine.pending:
            self.commit.schedule()  # the group may have appeared with this call
        timer = asyncio.get_running_loop().call_later(wait / SECOND, _end_poll, waiter.future)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.future.done() and not waiter.future.cancelled() and waiter.future.exception() is None:
                self._settle_ignoring_missing(*waiter.group, releases(waiter.future.result()))
            raise
        finally:
            timer.cancel()
            self.dispatcher.remove(waiter)

    async def settle(
        self, name: QueueName, group: str, settlements: list[Settlement]
    ) -> list[int | HoldfastError | None]:
        """Settle deliveries. For each None, the new deadline of an extended lease, or the error that refused it."""
        results, durability = self.settle_nowait(name, group, settlements)
        if settlements:
            await self.wait_durable(durability, len(settlements))
        return results

    def settle_nowait(
        self, name: QueueName, group: str, settlements: list[Settlement]
    ) -> tuple[list[int | HoldfastError | None], Durability]:
        """As `settle`, for one who waits in his own way: until it is as durable as is said beside the results."""
        engine = self.engine
        if not settlements:
            return [], Durability.FSYNC
        self._check_settle(len(settlements))
        results = self._settle(name, group, settlements)
        self.commit.schedule()
        return results, engine.queues[name].config.durability

    def ack_nowait(
        self, name: QueueName, group: str, ids: list[int], tokens: list[int], partition: int = -1
    ) -> tuple[list[int | HoldfastError | None], Durability]:
        """As `settle_nowait`, for at least one, where all are acked by their tokens. `partition`: that of all, if it is
        known."""
        engine = self.engine
        self._check_settle(len(ids))
        with self._shared_guard:
            results = engine.ack(name, group, ids, tokens, self.clock(), partition)
        self.dispatcher.members.acked((name, group), ids, results)
        self.commit.schedule()
        return results, engine.queues[name].config.durability

    def _check_settle(self, count: int) -> None:
        if count > self.config.limits.settle_max:
            raise LimitExceeded(
                what="One settle", limit=f"{self.config.limits.settle_max} settlements", advice="Send several"
            )
        self._admit(count, 0)

    async def export(self) -> None:
        """Export the journal now, without waiting for a segment to fill or to grow old."""
        await self.export_scheduler.export()


def _future() -> asyncio.Future[list[Leased]]:
    return asyncio.get_running_loop().create_future()


def _end_poll(future: asyncio.Future[list[Leased]]) -> None:
    if not future.done():
        future.set_result([])
