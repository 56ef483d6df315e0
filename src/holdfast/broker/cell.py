"""A cell: one engine on one store, and everything asynchronous around it.

Group commit, the dispatcher of deliveries, the export of the journal, the timer, and what happens when the store fails.
A node runs one cell. The parts of the node (parts/) call a cell in one way: apply something to the engine under
`guard`, and return a `Submission` of it, which ends when the commit that holds it is durable or written. What cannot be
taken is refused by an error: too much is waiting (`Overloaded`), the disk is nearly full (`DiskFull`), the store failed
(`StoreUnavailable`), the node stops (`ShuttingDown`).

One timer wakes the cell when something is due; when nothing is due and no calls come, nothing runs.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import islice
from typing import Protocol, TypeVar

import structlog

from holdfast import threads
from holdfast.broker.commit.admission import DiskReserve, Inbox, StoredBytes
from holdfast.broker.commit.group_commit import DoneCallback, GroupCommit
from holdfast.broker.commit.guard import Guard, ReadGuard, UnattendedGuard
from holdfast.broker.dispatch.dispatcher import Dispatcher, Unclaimed
from holdfast.broker.dispatch.members import GroupName, Member
from holdfast.broker.export.scheduler import ExportScheduler
from holdfast.broker.lookout.lookout import Lookout
from holdfast.broker.lookout.unattended import UnattendedGroups
from holdfast.broker.rate_sampler import RateSampler
from holdfast.broker.submission import Moment, Submission
from holdfast.config import Config
from holdfast.core.commands import Settlement, Verb
from holdfast.core.effects import Op
from holdfast.core.queue import Durability
from holdfast.engine.audits import AuditLimits
from holdfast.engine.catalog import QueueName
from holdfast.engine.dead_lettering import Alert, FailedRequest
from holdfast.engine.engine import Engine, Limits
from holdfast.engine.limits.circuit_breaker import Tripped
from holdfast.engine.open_transaction import TransactionLimits
from holdfast.errors import (
    Fenced,
    GroupExists,
    GroupNotFound,
    HoldfastError,
    InternalError,
    QueueExists,
    QueueNotFound,
    ShuttingDown,
    StateChanged,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
    StoreWentBack,
    TransactionPublished,
    WrongGroupKind,
)
from holdfast.quotas import Quota, Quotas
from holdfast.store.contract import Store
from holdfast.units import NEVER, SECOND, format_duration

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

AWAY_PAUSE_SECONDS = 0.5  # before consumers are served again from a store that did not answer
REFUSED_PAUSE = SECOND  # before work that is due, and was refused, is tried again
LEAVING_DELIVERIES_MAX = 1_000
"""Deliveries that a turn takes from members that have left, or whose heartbeat is overdue: some 10 ms. A network that
fails silences all of them together; the others wait for the next turn."""

FAILED_PAUSE_SECONDS = 1.0  # before work that must come to its end, and failed by a bug, is begun again
RECOVERY_PAUSE_SECONDS = 1.0  # between attempts to open a store that failed
MAX_BEHIND_SECONDS = 1.0
"""A remote store that has confirmed nothing for so long may have another owner by now. What it has not confirmed for so
long stops leases; after a silence of nobody asking, leases are handed out when they are durable. So a node that was
frozen hands out nothing that its successor hands out too."""

T = TypeVar("T")


Leaving = tuple[GroupName, Verb, Iterator[tuple[int, tuple[int, int, int]]]]
"""What a member that has left still held, and how it is settled: message ids with token, partition and size."""


class TurnParticipant(Protocol):
    """A front that works inside the cell's turns: its requests are submitted, and its own records (sessions, say) are
    written, with the batch of the turn."""

    def collect_ops(self, now: int) -> list[Op]:
        """At the beginning of a turn: submit what was collected, and return the records to write. What is answered
        to it waits for the turn's sync (`GroupCommit.on_durable`)."""

    def written(self) -> None:
        """The turn's batch is in the store."""

    def delivered(self) -> None:
        """Deliveries were handed to members: send what they encoded. Comes after `written` of the same turn; if
        the turn has to be synced first, after that sync."""

    def failed(self, error: HoldfastError) -> None:
        """The store failed: what the participant has in memory is ahead of it, and must be discarded."""

    def load(self) -> None:
        """Read what the participant has stored, on the thread that opens the store again; nothing of it is used yet."""

    def opened(self) -> None:
        """The store works again: use what was loaded."""


NewEngine = Callable[[Store, int, Limits, Callable[[DoneCallback], None]], Engine]
"""Makes an engine on a store, for a cell of this number. What it is given at the end calls back when everything applied
so far is durable."""


def plain_engine(store: Store, cell: int, limits: Limits, _on_durable: Callable[[DoneCallback], None]) -> Engine:
    """An engine that is not traced."""
    return Engine(store, cell, limits)


class Cell:
    """See the module. `offer_alert` is called with each alert about a dead letter, or a queue that paused itself."""

    def __init__(
        self,
        config: Config,
        store: Store,
        clock: Callable[[], int],
        offer_alert: Callable[[Alert | Tripped], None],
        new_engine: NewEngine = plain_engine,
    ) -> None:
        limits = config.limits
        self.store = store
        self.clock = clock
        self.quotas = Quotas(
            {quota: getattr(config.quotas, quota.value) for quota in Quota}, config.quotas.principal_percent
        )
        self.stored_bytes = StoredBytes(self.quotas, self._stored_bytes_of)
        self.inbox = Inbox(limits.inbox_messages, limits.inbox_bytes)
        self.disk_reserve = DiskReserve(store, config.store.min_free_bytes, config.node.data_dir, self.inbox)
        self.dispatcher = Dispatcher(limits.lease_bytes)
        self.participants: list[TurnParticipant] = []
        self.on_request_failed: Callable[[FailedRequest], None] = lambda _request: None
        self.on_opened: list[Callable[[], None]] = []  # called when the engine is open: resume interrupted work
        self.guard = Guard(self)  # gives the engine for one operation
        self.read_guard = ReadGuard(self)  # for one that changes nothing
        self._unattended_guard = UnattendedGuard(self)
        self.broken: asyncio.Future[HoldfastError] | None = None  # done when the node cannot go on
        self.commit = GroupCommit(
            store,
            self._before_write,
            self._after_write,
            self._store_failed,
            config.store.sync_in_place_max / SECOND,
            config.store.slow_sync / SECOND,
        )
        self.export_scheduler = ExportScheduler(config, store, lambda: self.commit.engine, self.commit.durable, clock)
        self._config = config
        self._new_engine = new_engine
        self._offer_alert = offer_alert
        self.breaker_trips = 0
        """Queues that their circuit breakers have paused."""
        self._refusal: HoldfastError | None = ShuttingDown()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._leaving: deque[Leaving] = deque()
        self._not_before = 0  # what is due in the engine waits for this time
        # In the order of their coming, as everything that is gone through: a run can then be repeated.
        self._tasks: dict[asyncio.Task[object], None] = {}
        self._recovery: asyncio.Task[None] | None = None
        self._opening: asyncio.Future[Engine] | None = None  # the thread that reads a store that failed
        self._watchers: dict[QueueName, dict[asyncio.Event, None]] = {}
        self._awaits_answer = False  # leases stopped, because a remote store does not answer
        self._rate_sampler = RateSampler(lambda: self.commit.engine, clock)
        self.unattended = UnattendedGroups(lambda: self.commit.engine, self.dispatcher, clock)
        self.lookout = Lookout(self.disk_reserve, self.commit, clock)

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open what is stored and take calls."""
        self.broken = asyncio.get_running_loop().create_future()
        self.commit.start()
        self._use(await threads.run_in_thread("holdfast-open", self._open_engine))
        await self.export_scheduler.start()
        self.spawn(self.export_scheduler.run())
        self.spawn(self.export_scheduler.keep_lake())
        self.spawn(self.unattended.run())
        self.spawn(self.lookout.run())
        self._resume()

    def _open_engine(self) -> Engine:
        """Read what is stored: on a thread, since a remote store, or a large one, takes a while."""
        config = self._config
        limits = Limits(
            auto_create=config.queues.auto_create,
            max_queues=config.queues.max_queues,
            max_groups=config.queues.max_groups_per_queue,
            hot_bytes=config.limits.hot_cache_bytes,
            remembered_settlements=config.limits.remembered_settlements,
            settled_cache=config.limits.settled_cache,
            window_places=config.limits.window_places,
            transactions=TransactionLimits(
                **{name: getattr(config.transactions, name) for name in TransactionLimits.__struct_fields__}
            ),
            quotas=self.quotas,
            audits=AuditLimits(remember=config.redrives.remember, max_remembered=config.redrives.max_remembered),
        )
        engine = self._new_engine(self.store, config.node.node_id, limits, self.commit.on_durable)
        engine.schedules.admit = self._admit_scheduled
        started = time.perf_counter()
        engine.open(self.clock())
        log.info(
            "store opened",
            queues=len(engine.queues),
            messages=sum(queue.depth for queue in engine.queues.values()),
            seconds=round(time.perf_counter() - started, 3),
        )
        return engine

    def _use(self, engine: Engine) -> None:
        """Take calls with an engine that is open."""
        engine.mark_dirty(*engine.queues)
        self.commit.engine = engine
        self._refusal = None
        self.commit.schedule()

    def _admit_scheduled(self, namespace: str, size_bytes: int, now: int) -> None:
        """For a message that a schedule enqueues, what is checked for one that a producer sends."""
        self.disk_reserve.admit(now, 1, size_bytes)
        self.stored_bytes.admit(namespace, size_bytes, now)
        self.export_scheduler.add_payload_bytes(size_bytes)

    def _resume(self) -> None:
        for resume in self.on_opened:
            resume()

    async def stop(self) -> None:
        """Refuse new work, end long polls, release what push members hold, make everything durable, close."""
        self._refusal = ShuttingDown()
        self._finish_delivery(self.dispatcher.fail(self._refusal))
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._opening is not None:
            await asyncio.wait([self._opening])  # the store is closed after this
        if self.commit.engine is not None:
            for member in self.dispatcher.members.all_members():
                self.remove_member(member, Verb.RELEASE)
            while self._leaving:  # noqa: ASYNC110 - the next passes of the loop do it
                await asyncio.sleep(0)
            await self.commit.durable()
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, NEVER
        self._rate_sampler.stop()
        await self.export_scheduler.close()
        await self.commit.close()

    @property
    def engine(self) -> Engine:
        """The engine, if the cell can take calls."""
        if self._refusal is not None:
            raise self._refusal
        engine = self.commit.engine
        assert engine is not None
        return engine

    @property
    def open_engine(self) -> Engine | None:
        """The engine, None while the store is not open or has failed."""
        return self.commit.engine

    @property
    def refusal(self) -> HoldfastError | None:
        """Why the cell takes no calls, if it takes none."""
        return self._refusal

    def spawn(self, coroutine: Coroutine[object, object, T]) -> asyncio.Task[T]:
        """Run something until it is done or the cell stops."""
        task: asyncio.Task[T] = asyncio.ensure_future(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._task_done)
        return task

    async def wait_for(self, task: asyncio.Task[T]) -> T:
        """The result of a task of `spawn`, which goes on if the caller is cancelled."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise ShuttingDown from None
            raise

    def _task_done(self, task: asyncio.Task[T]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("a background task failed", exc_info=task.exception())

    def take_active(self) -> dict[QueueName, None]:
        """The queues in which something has happened since the last call; at the first one none."""
        active, self._rate_sampler.active = self._rate_sampler.active, {}
        return active or {}

    # --- submitting -------------------------------------------------------------------------------------------------

    def submission(
        self, result: T, durability: Durability = Durability.FSYNC, messages: int = 0, size_bytes: int = 0
    ) -> Submission[T]:
        """A submission of what was just applied."""
        if durability is Durability.FSYNC:
            return Submission(self.commit, self.inbox, result, Moment.DURABLE, messages, size_bytes)
        self.commit.sync_lazily()
        return Submission(self.commit, self.inbox, result, Moment.WRITTEN, messages, size_bytes)

    async def in_steps(self, work: Iterator[int]) -> int:
        """Do long work step by step, each durable before the next, with others' turns in between. Returns the sum."""
        total = 0
        first = self.engine
        while True:
            if self.engine is not first:
                raise StoreUnavailable(problem="it was opened again before this was done")
            with self.guard as engine:
                count = next(work, None)
            if engine.pending:
                await self.commit.durable()
            else:
                await asyncio.sleep(0)
            if count is None:
                return total
            total += count

    async def in_steps_to_the_end(self, begin: Callable[[], Iterator[int]]) -> int:
        """As `in_steps`, for work that was decided and must not stay half done: a bug is logged, and it is begun again.
        When the store is opened again, whoever resumes such work does that."""
        total = 0
        first = self.engine

        def counted() -> Iterator[int]:
            nonlocal total
            for count in begin():
                total += count
                yield count

        while True:
            try:
                await self.in_steps(counted())
                return total
            except InternalError:
                await asyncio.sleep(FAILED_PAUSE_SECONDS)
                if self.engine is not first:
                    raise

    async def read_in_steps(self, work: Iterator[T | None]) -> T:
        """Do a read of many steps, with others' turns in between. Returns its result."""
        first = self.engine
        while True:
            if self.engine is not first:
                raise StoreUnavailable(problem="it was opened again before this was done")
            with self.read_guard:
                result = next(work)
            if result is not None:
                return result
            await asyncio.sleep(0)

    async def wait_clean(self) -> None:
        """Wait until everything that a reader could have seen by now is durable.

        A sequence that a client has read must name the same message after a crash.
        """
        if not self.commit.clean:
            await self.commit.durable()

    @asynccontextmanager
    async def refusing_durably(self) -> AsyncIterator[None]:
        """A refusal that tells of a change (a queue exists, a state has another etag, a transaction is published) is
        given when that change is durable: its caller relies on it."""
        try:
            yield
        except (QueueExists, GroupExists, StateChanged, TransactionPublished):
            await self.wait_clean()
            raise

    def _stored_bytes_of(self, namespace: str) -> int:
        return sum([queue.size_bytes for name, queue in self.engine.queues.items() if name[0] == namespace])

    def write_records(self, ops: list[Op]) -> Submission[None]:
        """Records that a part of the broker has beside the queues'."""
        with self.guard as engine:
            engine.add(ops)
        return self.submission(None)

    async def probe(self) -> None:
        """Have the store sync, whether anything is to be synced or not: the proof that it can."""
        if self._refusal is not None:
            raise self._refusal
        await self.commit.durable()

    async def export(self) -> None:
        """Export the journal now, without waiting for a segment to fill or to grow old."""
        await self.export_scheduler.export()

    # --- the turn ---------------------------------------------------------------------------------------------------

    def _before_write(self) -> None:
        engine = self.commit.engine
        if engine is not None:
            now = self.clock()
            for participant in self.participants:
                ops = participant.collect_ops(now)
                if ops:
                    engine.add(ops)
            if self.commit.engine is not engine:  # the store failed meanwhile: nothing of it may be delivered
                return
            if self._watchers:
                for name in engine.dirty_queues:
                    for event in self._watchers.get(name, ()):
                        event.set()
            self._rate_sampler.changed(engine.dirty_queues)
            engine.unfinished.clear()
            if self.may_lease:
                self.dispatcher.lease(engine, now)
            if self.dispatcher.unread:
                unread, self.dispatcher.unread = self.dispatcher.unread, []
                asyncio.get_running_loop().call_later(AWAY_PAUSE_SECONDS, self._serve_again, unread)
            if self.dispatcher.refused:
                asyncio.get_running_loop().call_soon(self._remove_refused)
            if engine.unfinished:  # a search behind a hot key goes on after others have had their turn
                engine.mark_dirty(*sorted(engine.unfinished))
                self.commit.schedule()

    def _serve_again(self, names: list[QueueName]) -> None:
        """Look again for consumers of queues that could not be read."""
        engine = self.open_engine
        if engine is not None:
            engine.mark_dirty(*names)
            self.commit.schedule()

    @property
    def may_lease(self) -> bool:
        """Whether the store answers, so that this node still owns what it would lease. If not, leases go on when it has
        answered."""
        if not self.store.remote or self.store.behind().seconds <= MAX_BEHIND_SECONDS:
            return True
        if not self._awaits_answer:
            self._awaits_answer = True
            self.commit.on_durable(self._answered)
        return False

    def _answered(self, _error: HoldfastError | None) -> None:
        self._awaits_answer = False
        if self.commit.engine is not None:
            self.commit.engine.mark_dirty(*self.commit.engine.queues)
            self.commit.schedule()

    @property
    def lease_moment(self) -> Moment:
        """When a lease may be handed out: when it is written, unless the store was silent for long."""
        silent = self.store.remote and self.store.behind().silent_seconds > MAX_BEHIND_SECONDS
        return Moment.DURABLE if silent else Moment.WRITTEN

    @contextmanager
    def watch(self, name: QueueName) -> Iterator[asyncio.Event]:
        """An event that is set whenever something may have changed in a queue. Clear it before you look."""
        event = asyncio.Event()
        watchers = self._watchers.setdefault(name, {})
        watchers[event] = None
        try:
            yield event
        finally:
            del watchers[event]
            if not watchers and self._watchers.get(name) is watchers:
                del self._watchers[name]

    def mark_dirty(self, name: QueueName) -> None:
        """Look again whether a waiter or member can be served in a queue."""
        engine = self.open_engine
        if engine is not None:
            engine.mark_dirty(name)
            self.commit.schedule()

    @property
    def _hold_grants(self) -> bool:
        return self.dispatcher.has_granted and self.lease_moment is Moment.DURABLE

    def _after_write(self, must_sync: bool) -> None:
        engine = self.commit.engine
        if engine is None:  # the store failed in a callback
            return
        if must_sync or self.dispatcher.has_held or self._hold_grants:
            self.dispatcher.hold_until_synced()
            self.commit.on_durable(partial(self._deliver_held, engine))
            delivered = False
        else:
            delivered = self.dispatcher.has_granted
            self._finish_delivery(self.dispatcher.deliver_granted(engine))
        for participant in self.participants:
            participant.written()
        if delivered:
            self._delivered()
        self._arm_timer()
        self.export_scheduler.check_due()

    def _deliver_held(self, engine: Engine, error: HoldfastError | None) -> None:
        """What `engine` granted is durable. If the store has been opened again since, its grants are forgotten, and
        those that are held now wait for another sync."""
        if error is None and self.commit.engine is engine:
            self._finish_delivery(self.dispatcher.deliver_held(engine))
            self._delivered()

    def _delivered(self) -> None:
        for participant in self.participants:
            participant.delivered()

    def _finish_delivery(self, unclaimed: Unclaimed) -> None:
        """Deliveries were handed to their consumers: release the unclaimed ones, and report dead letters."""
        for (name, group), settlements in unclaimed:
            self.settle_unattended(name, group, settlements)
        engine = self.commit.engine
        if engine is None or not (engine.alerts or engine.failed_requests or engine.dropped or engine.tripped):
            return
        for alert in engine.alerts:
            self._offer_alert(alert)
        engine.alerts.clear()
        for request in engine.failed_requests:
            self.on_request_failed(request)
        engine.failed_requests.clear()
        for item in engine.dropped:
            log.warning(
                "message dropped: it is dead and its queue has no dead queue",
                message_id=item.message.id,
                group=item.group,
                reason=str(item.reason),
                error=item.delivery.error,
            )
        engine.dropped.clear()
        for tripped in engine.tripped:
            self._report_tripped(tripped)
        engine.tripped.clear()

    def _report_tripped(self, tripped: Tripped) -> None:
        self.breaker_trips += 1
        log.error(
            "queue paused by its circuit breaker: resume it when its consumers work again",
            namespace=tripped.namespace,
            queue=tripped.queue,
            dead_letters=tripped.dead_letters,
            window=format_duration(tripped.window),
            reason=tripped.reason,
            error=tripped.error,
        )
        if tripped.url:
            self._offer_alert(tripped)

    def settle_unattended(self, name: QueueName, group: str, settlements: list[Settlement]) -> None:
        """Settle on behalf of a consumer that has gone: no caller waits for the result."""
        if self.open_engine is None:
            return
        try:
            with self._unattended_guard as engine:
                results = engine.settle(name, group, settlements, self.clock())
        except (QueueNotFound, GroupNotFound, WrongGroupKind):
            return  # deleted meanwhile, and all its leases with it; perhaps another has its name now
        except (StoreError, InternalError):
            return  # the guard has reported it
        self.dispatcher.members.settled((name, group), settlements, results)
        self.commit.schedule()

    def remove_member(self, member: Member, verb: Verb | None) -> None:
        """A push member leaves its group. Its leases are settled with `verb`, or kept until their deadline (None)."""
        engine = self.open_engine
        queue = engine.queues.get(member.group[0]) if engine is not None else None
        if not self.dispatcher.members.leave(member, queue):
            return
        if verb is not None and member.in_flight:
            held = iter(member.in_flight.items())
            member.forget_all()
            self._leaving.append((member.group, verb, held))
            if len(self._leaving) == 1:
                self._settle_leaving()
        self.mark_dirty(member.group[0])

    def _settle_leaving(self) -> None:
        """Settle what members that have left held, as much as one turn can."""
        left = LEAVING_DELIVERIES_MAX
        try:
            while self._leaving and left > 0:
                group, verb, held = self._leaving[0]
                settlements = [
                    Settlement(message_id, token, verb, partition=partition)
                    for message_id, (token, partition, _) in islice(held, left)
                ]
                left -= len(settlements)
                if left > 0:
                    self._leaving.popleft()
                if settlements:
                    self.settle_unattended(*group, settlements)
        finally:
            if self._leaving:
                asyncio.get_running_loop().call_soon(self._settle_leaving)

    def _remove_refused(self) -> None:
        """Members whose group the last turn could not serve."""
        refused, self.dispatcher.refused = self.dispatcher.refused, []
        for member, error in refused:
            log.warning("member removed", member=member.name, queue=member.group[0][1], code=error.code)
            self.remove_member(member, None)
            member.removed()

    # --- time -------------------------------------------------------------------------------------------------------

    def _arm_timer(self) -> None:
        engine = self.commit.engine
        if engine is None:
            return
        at = self._due_at(engine)
        if at >= self._timer_at:  # when that fires, it is set again: leases are mostly acked long before they end
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        # A millisecond more, because the loop's timers may be early by less than one.
        delay = max(at - self.clock(), 0) / SECOND + 0.001
        self._timer = asyncio.get_running_loop().call_later(delay, self.run_due)

    def _due_at(self, engine: Engine) -> int:
        return min(max(engine.wake_at(), self._not_before), self.dispatcher.members.overdue_at)

    def run_due(self) -> None:
        """Act on what is due now: a delay, a deadline, an expiry, a silent member. The timer calls it, and
        so must code that sets the clock forward."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = NEVER
        engine = self.open_engine
        if engine is None or self._refusal is not None:
            return
        now = self.clock()
        if self._due_at(engine) > now:
            self._arm_timer()
            return
        try:
            with self.guard:
                engine.tick(now)
        except StoreError:
            if self.open_engine is None:
                return  # the guard has failed the commit, which reports it
            self._not_before = now + REFUSED_PAUSE  # the store does not answer
        except HoldfastError as refusal:  # and no caller to get it: the rest of what is due goes on
            if not isinstance(refusal, InternalError):  # which the guard has logged
                log.exception("work that was due was refused")
            self._not_before = now + REFUSED_PAUSE
        for where, bug in engine.failures:
            log.error("work that is due failed; it is undone, and tried again", where=where, exc_info=bug)
        engine.failures.clear()
        for (namespace, name), error in engine.schedules.refusals:
            log.warning("schedule refused", namespace=namespace, schedule=name, code=error.code, error=str(error))
        engine.schedules.refusals.clear()
        self._remove_silent(now)
        self.commit.schedule()

    def _remove_silent(self, now: int) -> None:
        """Remove members whose heartbeat is overdue, as many as one turn can."""
        members = self.dispatcher.members
        left = LEAVING_DELIVERIES_MAX
        while left > 0 and (member := members.next_timed_out(now)) is not None:
            left -= 1 + len(member.in_flight)
            log.warning("member removed: no heartbeat", member=member.name, queue=member.group[0][1])
            self.remove_member(member, Verb.DISCONNECT)

    # --- failure ----------------------------------------------------------------------------------------------------

    def _store_failed(self, error: StoreError) -> None:
        """What is in memory is ahead of the store: discard it, refuse calls, and open again when the store works."""
        log.error("the store failed; refusing work until it works again", code=error.code, error=str(error))
        self._refusal = error
        self.dispatcher.fail(error)
        for participant in self.participants:
            participant.failed(error)
        if isinstance(error, (Fenced, StoreCorrupt, StoreWentBack)):
            self._give_up(error)
            return
        if self._recovery is None or self._recovery.done():  # else this is the same failure: a sync that ended late
            self._recovery = self.spawn(self._recover())

    def _give_up(self, error: HoldfastError) -> None:
        """Report that the node cannot go on."""
        if self.broken is not None and not self.broken.done():
            self.broken.set_result(error)

    async def _recover(self) -> None:
        while self.broken is None or not self.broken.done():
            await asyncio.sleep(RECOVERY_PAUSE_SECONDS)
            try:
                await self._reopen()  # also on a disk that is nearly full: leases and settlements make room
            except StoreUnavailable as error:
                log.warning("the store still fails", code=error.code, error=str(error))
            except Exception as error:
                log.exception("the store cannot be opened again")
                unexpected = StoreUnavailable(problem=f"internal error: {error!r}")
                self._give_up(error if isinstance(error, HoldfastError) else unexpected)
            if self.commit.engine is not None:
                log.info("the store works again")
                return

    async def _reopen(self) -> None:
        """Open what is stored again. If a part of it fails, nothing of it stays open: the engine must take no work
        that the next one would confirm."""
        self._opening = asyncio.wrap_future(threads.start_thread("holdfast-open", self._read_again))
        self._use(await asyncio.shield(self._opening))
        try:
            self._resume()
            for participant in self.participants:
                participant.opened()
        except Exception as error:
            if self.commit.engine is not None:  # else the failure is known
                known = (
                    error if isinstance(error, StoreError) else StoreUnavailable(problem=f"internal error: {error!r}")
                )
                self.commit.fail(known)
            raise

    def _read_again(self) -> Engine:
        """Everything that is stored, read on a thread while calls are refused."""
        self.store.reopen()
        engine = self._open_engine()
        for participant in self.participants:
            participant.load()
        return engine
