"""The schedules of a cell: stored, woken by the clock, and their messages enqueued.

records.py has the records and the rule. Schedules and their states are in memory, their runs in the store. A turn in
which no schedule is due costs one comparison: `wake_at`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.core.effects import DeleteUntil, Op
from holdfast.core.records import Table
from holdfast.engine.messages import delete_message, find_live_message
from holdfast.engine.schedules.records import (
    CatchUp,
    Overlap,
    Run,
    Schedule,
    ScheduleState,
    TickOutcome,
    check_schedule,
    draft_of,
    due_at,
    last_tick,
    next_tick,
    next_ticks,
    read_run,
    read_schedule,
    read_state,
    run_key,
    runs_end,
    schedule_key,
    write_run,
    write_schedule,
    write_state,
)
from holdfast.errors import (
    HoldfastError,
    LimitExceeded,
    MessageNotFound,
    MessageNotWaiting,
    QueueNotFound,
    ScheduleNotFound,
    StoreError,
)
from holdfast.quotas import Quota
from holdfast.store.contract import Reader
from holdfast.timers import Timers
from holdfast.units import MINUTE, NEVER, SECOND

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

PROTOCOL = "schedule"
"""As the journal names who enqueued."""

SCHEDULES_MAX = 10_000  # of all namespaces: they are in memory, with messages of up to 16 KiB
TICKS_MAX = 64  # that one turn acts on: each is an enqueue, and perhaps a search for the message before
GRACE = MINUTE  # a tick that is later than this was missed. A restart takes seconds
RETRY = 10 * SECOND  # before a queue that took no message is tried again

ScheduleName = tuple[str, str]
"""Namespace and name."""


class Scheduled:
    """A schedule in memory. `tick` is the next one; it is NEVER while the schedule is paused, or when it has ended."""

    __slots__ = ("schedule", "state", "tick")

    def __init__(self, schedule: Schedule, state: ScheduleState) -> None:
        self.schedule = schedule
        self.state = state
        self.tick = NEVER
        self.find_tick()

    def find_tick(self) -> None:
        """Find the first tick that is not over."""
        paused = self.schedule.paused
        self.tick = NEVER if paused else next_tick(self.schedule.rule, self.state.anchor, self.state.ticked)

    def next_ticks(self, count: int) -> list[int]:
        """The next ticks, at most so many."""
        if self.tick == NEVER:
            return []
        return next_ticks(self.schedule.rule, self.state.anchor, self.tick - 1, count)


class Schedules:
    """See the module."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._scheduled: dict[ScheduleName, Scheduled] = {}
        self._counts: dict[str, int] = {}  # by namespace
        self._timers: Timers[ScheduleName] = Timers()
        self.wake_at = NEVER
        self.outcomes = dict.fromkeys(TickOutcome, 0)
        """Runs since the cell was opened, for the metrics."""
        self.admit: Callable[[str, int, int], None] = lambda _namespace, _size_bytes, _now: None
        """Asked before a message is enqueued: its namespace, its size, the time. The broker refuses by raising."""
        self.refusals: list[tuple[ScheduleName, HoldfastError]] = []  # of ticks; the broker logs them

    def open(self, store: Reader) -> None:
        self._scheduled.clear()
        self._counts.clear()
        self._timers = Timers()
        states = dict(store.scan(Table.SCHEDULE_STATES, b"", b"\xff" * 8, 1 << 30))
        for key, value in store.scan(Table.SCHEDULES, b"", b"\xff" * 8, 1 << 30):
            self._add(Scheduled(read_schedule(value), read_state(states[key])))
        self._set_wake_up()

    def _keep(self, name: ScheduleName) -> None:
        """The operation is about to change this schedule."""
        self._engine.operation.before_change(("schedule", name), partial(self._restore, name))

    def _restore(self, name: ScheduleName) -> None:
        """Have a schedule as it is stored."""
        if name in self._scheduled:
            self._remove(name)
        overlay, key = self._engine.overlay, schedule_key(*name)
        stored, state = overlay.get(Table.SCHEDULES, key), overlay.get(Table.SCHEDULE_STATES, key)
        if stored is not None and state is not None:
            self._add(Scheduled(read_schedule(stored), read_state(state)))
        self._set_wake_up()

    # --- queries ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._scheduled)

    def count(self, namespace: str) -> int:
        """How many schedules a namespace has."""
        return self._counts.get(namespace, 0)

    def find(self, name: ScheduleName) -> Scheduled | None:
        return self._scheduled.get(name)

    def get(self, name: ScheduleName) -> Scheduled:
        found = self.find(name)
        if found is None:
            raise ScheduleNotFound(schedule=name[1], namespace=name[0])
        return found

    def in_namespace(self, namespace: str, prefix: str = "", after: str = "") -> list[Scheduled]:
        """Schedules of a namespace by name."""
        names = [
            name for name in self._scheduled if name[0] == namespace and name[1].startswith(prefix) and name[1] > after
        ]
        return [self._scheduled[name] for name in sorted(names)]

    def runs(self, name: ScheduleName) -> list[Run]:
        """What became of the last ticks, newest first."""
        self.get(name)
        rows = self._engine.overlay.scan(Table.SCHEDULE_RUNS, run_key(*name, 0), runs_end(*name), 1 << 30)
        return sorted([read_run(value) for _, value in rows], key=lambda run: -run.number)

    # --- changes ----------------------------------------------------------------------------------------------------

    def put(self, schedule: Schedule, now: int) -> Scheduled:
        """Store a schedule: a new one, or another in the place of the one that has its name. If its rule stays the
        same, so do the ticks that are over. The ticks of a pause are over: catch-up is for those that nobody wanted to
        miss."""
        check_schedule(schedule, now)
        name = (schedule.namespace, schedule.name)
        self._keep(name)
        old = self._scheduled.get(name)
        if old is None:
            self._check_room(schedule.namespace)
            schedule = replace(schedule, created_at=now, changed_at=now)
            state = ScheduleState(anchor=schedule.rule.starts_at or now, ticked=now)
        else:
            schedule = replace(schedule, created_at=old.schedule.created_at, changed_at=now)
            state = old.state
            if schedule.rule != old.schedule.rule:
                state.anchor = schedule.rule.starts_at or now
            if schedule.rule != old.schedule.rule or old.schedule.paused:
                state.ticked = max(state.ticked, now)  # what no rule demanded is not caught up with
            self._remove(name)
        scheduled = Scheduled(schedule, state)
        self._add(scheduled)
        self._set_wake_up()
        key = schedule_key(*name)
        self._engine.add([(Table.SCHEDULES, key, write_schedule(schedule)), self._state_op(scheduled)])
        return scheduled

    def pause(self, name: ScheduleName, paused: bool, now: int) -> Scheduled:
        """Pause or resume a schedule."""
        found = self.get(name)
        if found.schedule.paused == paused:
            return found
        return self.put(replace(found.schedule, paused=paused), now)

    def delete(self, name: ScheduleName) -> None:
        """Delete a schedule. Messages that it enqueued stay."""
        self.get(name)
        self._keep(name)
        self._remove(name)
        self._set_wake_up()
        key = schedule_key(*name)
        runs: Op = (Table.SCHEDULE_RUNS, run_key(*name, 0), DeleteUntil(runs_end(*name)))
        self._engine.add([(Table.SCHEDULES, key, None), (Table.SCHEDULE_STATES, key, None), runs])

    def run(self, name: ScheduleName, now: int) -> Run:
        """Enqueue the message now, whether the schedule is paused or not, and whatever waits. Raises why the queue
        refuses it."""
        scheduled = self.get(name)
        self._keep(name)
        outcome, message = self._enqueue(scheduled, 0, now)
        return self._record(scheduled, 0, now, outcome, message)

    def _check_room(self, namespace: str) -> None:
        if len(self._scheduled) >= SCHEDULES_MAX:
            raise LimitExceeded(what="The number of schedules", limit=SCHEDULES_MAX, advice="Delete some")
        self._engine.limits.quotas.check(namespace, Quota.SCHEDULES, self.count(namespace))

    def _add(self, scheduled: Scheduled) -> None:
        schedule = scheduled.schedule
        self._scheduled[schedule.namespace, schedule.name] = scheduled
        self._counts[schedule.namespace] = self.count(schedule.namespace) + 1
        self._set_timer(scheduled)

    def _remove(self, name: ScheduleName) -> None:
        del self._scheduled[name]
        self._timers.cancel(name)
        self._counts[name[0]] -= 1
        if not self._counts[name[0]]:
            del self._counts[name[0]]

    def _state_op(self, scheduled: Scheduled) -> Op:
        schedule = scheduled.schedule
        key = schedule_key(schedule.namespace, schedule.name)
        return (Table.SCHEDULE_STATES, key, write_state(scheduled.state))

    # --- time -------------------------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Act on a bounded number of ticks that are due; `wake_at` has passed until none is left."""
        if self.wake_at > now:
            return
        for _ in range(TICKS_MAX):
            name = self._timers.pop(now)
            if name is None:
                break
            if self._engine.apart(name[1], partial(self._act, name, now), now) is None:
                self._timers.set(name, now + RETRY)
        self._set_wake_up()

    def _act(self, name: ScheduleName, now: int) -> bool:
        """Act on the next tick of a schedule that is due. Of several, catch-up says on which."""
        self._keep(name)
        scheduled = self._scheduled[name]
        schedule, tick = scheduled.schedule, scheduled.tick
        if schedule.catch_up is not CatchUp.ALL:
            tick = last_tick(schedule.rule, scheduled.state.anchor, tick, now - schedule.rule.jitter)
        error = ""
        message = 0
        if schedule.catch_up is CatchUp.SKIP and now - due_at(schedule, tick) > GRACE:
            outcome = TickOutcome.MISSED
        elif schedule.overlap is Overlap.SKIP and self._is_live(scheduled, now):
            outcome, message = TickOutcome.OVERLAP, scheduled.state.message
        else:
            try:
                outcome, message = self._enqueue(scheduled, tick, now)
            except StoreError:
                raise
            except HoldfastError as refusal:
                outcome, error = TickOutcome.REFUSED, f"{refusal.code}: {refusal}"
                self.refusals.append(((schedule.namespace, schedule.name), refusal))
        self._record(scheduled, tick, now, outcome, message, error)
        if outcome is TickOutcome.REFUSED:
            self._timers.set(name, now + RETRY)
        else:
            self._set_timer(scheduled)
        return True

    def _is_live(self, scheduled: Scheduled, now: int) -> bool:
        """Whether the last message is in its queue, for any group."""
        state = scheduled.state
        queue = self._engine.queues.get((scheduled.schedule.namespace, state.queue))
        return (
            queue is not None
            and bool(state.message)
            and find_live_message(self._engine, queue, state.message, now) is not None
        )

    def _enqueue(self, scheduled: Scheduled, tick: int, now: int) -> tuple[TickOutcome, int]:
        """Enqueue the message of a tick. Raises why that is refused; nothing is changed then but that the queue may be
        new."""
        schedule, state, engine = scheduled.schedule, scheduled.state, self._engine
        draft = draft_of(schedule, tick, now)
        self.admit(schedule.namespace, len(draft.payload), now)
        name = (schedule.namespace, schedule.queue)
        reply = engine.enqueue(name, [draft], PROTOCOL, now)
        for refusal in reply.errors.values():
            raise refusal
        (message,) = reply.ids
        if reply.duplicates:
            return TickOutcome.DUPLICATE, message
        if schedule.overlap is Overlap.REPLACE and tick and state.message:
            with suppress(MessageNotFound, MessageNotWaiting, QueueNotFound):  # it is done, or somebody works on it
                delete_message(engine, (schedule.namespace, state.queue), state.message, now)
        state.queue, state.message = schedule.queue, message
        return TickOutcome.ENQUEUED, message

    def _record(
        self, scheduled: Scheduled, tick: int, now: int, outcome: TickOutcome, message: int = 0, error: str = ""
    ) -> Run:
        """Add a run, and the state after it, to the batch."""
        schedule, state = scheduled.schedule, scheduled.state
        self.outcomes[outcome] += 1
        if not tick or state.retrying != tick:  # else it takes the place of the one that was refused
            state.runs += 1
        if outcome is TickOutcome.ENQUEUED:
            state.enqueued += 1
        state.retrying = tick if outcome is TickOutcome.REFUSED else 0
        if tick and not state.retrying:
            state.ticked = tick
            scheduled.find_tick()
        run = Run(state.runs, tick, now, outcome, message, error)
        key = run_key(schedule.namespace, schedule.name, run.number)
        self._engine.add([(Table.SCHEDULE_RUNS, key, write_run(run)), self._state_op(scheduled)])
        return run

    def _set_timer(self, scheduled: Scheduled) -> None:
        schedule = scheduled.schedule
        if scheduled.tick != NEVER:
            self._timers.set((schedule.namespace, schedule.name), due_at(schedule, scheduled.tick))

    def _set_wake_up(self) -> None:
        self.wake_at = NEVER if self._timers.due is None else self._timers.due
