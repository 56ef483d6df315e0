"""The simulation can see: the shell broken on purpose, one way at a time, is caught within few seeds."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

import pytest

from holdfast.broker.cell import Cell
from holdfast.broker.commit import group_commit
from holdfast.broker.commit.admission import Inbox
from holdfast.broker.commit.group_commit import DoneCallback, GroupCommit, notify
from holdfast.broker.commit.guard import Guard
from holdfast.broker.commit.syncer import Syncer
from holdfast.broker.dispatch.dispatcher import Dispatcher
from holdfast.broker.dispatch.members import Member
from holdfast.broker.parts.messages import LeaseSubmission
from holdfast.broker.parts.queues import Queues
from holdfast.broker.submission import Moment, Submission
from holdfast.core.commands import Leased
from holdfast.core.effects import Op, Read
from holdfast.core.shard import Shard
from holdfast.engine import engine, queues
from holdfast.engine.engine import Engine
from holdfast.errors import HoldfastError, StoreError, StoreUnavailable
from holdfast.mqtt.net import MqttFront
from tests.simulation.mail import Violation
from tests.simulation.node.run import run

SEEDS = range(1, 81)

Break = Callable[[pytest.MonkeyPatch], None]


def written_is_durable(patch: pytest.MonkeyPatch) -> None:
    def wrong(
        self: Submission[object],
        commit: GroupCommit,
        inbox: Inbox,
        result: object,
        moment: Moment = Moment.DURABLE,
        *sizes: int,
    ) -> None:
        right(self, commit, inbox, result, Moment.WRITTEN, *sizes)
        self.moment = moment
        commit.sync_lazily()

    right = Submission.__init__
    patch.setattr(Submission, "__init__", wrong)


def a_sync_under_way_counts(patch: pytest.MonkeyPatch) -> None:
    right = GroupCommit.on_durable

    def wrong(self: GroupCommit, callback: DoneCallback) -> None:
        if self._syncing and not self._delivering:
            self._running[-1].callbacks.append(callback)
            self.schedule()
        else:
            right(self, callback)

    patch.setattr(GroupCommit, "on_durable", wrong)


def what_is_applied_after_the_write_counts(patch: pytest.MonkeyPatch) -> None:
    """A callback that is asked for in a turn, after its write, waits for the sync of that turn."""
    right = GroupCommit.on_durable

    def wrong(self: GroupCommit, callback: DoneCallback) -> None:
        if self._delivering and self.engine is not None and self.engine.pending:
            self._on_next_sync.append(callback)
            self.schedule()
        else:
            right(self, callback)

    patch.setattr(GroupCommit, "on_durable", wrong)


def no_batch_requires_a_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupCommit, "_must_sync", lambda self, engine, required: False)


def only_the_batch_itself_requires_a_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupCommit, "_must_sync", lambda self, engine, required: required)


def deliveries_do_not_wait_for_the_sync(patch: pytest.MonkeyPatch) -> None:
    right = Cell._after_write
    patch.setattr(Cell, "_after_write", lambda self, must_sync: right(self, False))


def buffered_queues_are_never_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupCommit, "sync_lazily", lambda self: None)


def half_a_step_is_kept(patch: pytest.MonkeyPatch) -> None:
    def wrong(
        self: Guard, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, HoldfastError):
            raise StoreUnavailable(problem=repr(error)) from error

    patch.setattr(Guard, "__exit__", wrong)


def refusals_are_failures(patch: pytest.MonkeyPatch) -> None:
    right = Guard.__exit__

    def wrong(
        self: Guard, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, HoldfastError):
            self._owner.commit.fail(StoreUnavailable(problem=str(error)))
        right(self, kind, error, trace)

    patch.setattr(Guard, "__exit__", wrong)


def callbacks_come_before_the_write(patch: pytest.MonkeyPatch) -> None:
    right = GroupCommit._run_turn

    def wrong(self: GroupCommit, of: Engine) -> None:
        callbacks, self._on_written = self._on_written, []
        notify(callbacks, None)
        right(self, of)

    patch.setattr(GroupCommit, "_run_turn", wrong)


def a_failed_sync_is_a_good_one(patch: pytest.MonkeyPatch) -> None:
    right = GroupCommit._synced
    patch.setattr(GroupCommit, "_synced", lambda self, error, seconds: right(self, None, seconds))


def a_failure_is_good_news(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(group_commit, "notify", lambda callbacks, error: notify(callbacks, None))


def nothing_is_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Syncer, "_sync", lambda self: (None, 0.0))


def every_failure_starts_a_recovery(patch: pytest.MonkeyPatch) -> None:
    right = Cell._store_failed

    def wrong(self: Cell, error: StoreError) -> None:
        self._recovery = None
        right(self, error)

    patch.setattr(Cell, "_store_failed", wrong)


def the_engine_outlives_a_failure(patch: pytest.MonkeyPatch) -> None:
    right = Cell._open_engine

    def wrong(self: Cell) -> Engine:
        kept: Engine | None = self.__dict__.setdefault("kept", None)
        opened = right(self)
        if kept is not None:
            kept.epoch = opened.epoch
            opened = kept
        self.__dict__["kept"] = opened
        return opened

    patch.setattr(Cell, "_open_engine", wrong)


def cursors_read_what_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    async def wrong(self: Cell) -> None:
        pass

    patch.setattr(Cell, "wait_clean", wrong)


def mqtt_answers_when_it_is_written(patch: pytest.MonkeyPatch) -> None:
    right = MqttFront.collect_ops

    def wrong(self: MqttFront, now: int) -> list[Op]:
        commit = self._node.cell.commit
        durable, commit.on_durable = commit.on_durable, commit.on_written  # type: ignore[method-assign]
        try:
            return right(self, now)
        finally:
            commit.on_durable = durable  # type: ignore[method-assign]

    patch.setattr(MqttFront, "collect_ops", wrong)


def a_deletion_is_not_resumed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Queues, "resume", lambda self: None)


def a_lease_is_kept_for_a_caller_that_gave_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaseSubmission, "release", lambda self: None)


def nobody_is_woken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dispatcher, "lease", lambda self, engine, now: engine.dirty_queues.clear())


def time_does_not_wake_the_cell(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cell, "_arm_timer", lambda self: None)


def a_turn_writes_before_it_reads(patch: pytest.MonkeyPatch) -> None:
    """A read of what the turn has changed writes the batch first: what a call or a front stores is written in parts."""
    right = Engine._supply

    def wrong(self: Engine, asked: list[tuple[Shard, list[Read]]]) -> None:
        if any(self._batch.changes(shard) for shard, _ in asked):
            must_sync = self.write()
            self._batch.must_sync = must_sync
        right(self, asked)

    patch.setattr(Engine, "_supply", wrong)


def what_is_held_belongs_to_the_old_connection(patch: pytest.MonkeyPatch) -> None:
    """A session that resumes while its leases wait for a sync is sent them, and they are released after the sync."""

    def wrong(
        self: Dispatcher, engine: Engine, taker: Member, leased: list[Leased]
    ) -> tuple[Member | None, list[Leased]]:
        return (taker if self.members.get(taker.group, taker.name) is taker else None), leased

    patch.setattr(Dispatcher, "held_tokens", lambda self, group, name: set())
    patch.setattr(Dispatcher, "_receiver", wrong)


def a_tick_does_all_that_is_due(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engine, "TICK_DELIVERIES_MAX", 1 << 30)


def a_queue_grows_in_one_step(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(queues, "GROUP_STARTS_MAX", 1 << 30)


def growth_ends_after_a_step(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Queues, "_grow", lambda self, queue: None)


BREAKS: dict[Break, int] = {
    written_is_durable: 1,
    a_sync_under_way_counts: 1,
    what_is_applied_after_the_write_counts: 1,
    no_batch_requires_a_sync: 1,
    only_the_batch_itself_requires_a_sync: 1,
    deliveries_do_not_wait_for_the_sync: 1,
    buffered_queues_are_never_synced: 3,
    half_a_step_is_kept: 14,
    refusals_are_failures: 1,
    callbacks_come_before_the_write: 1,
    a_failed_sync_is_a_good_one: 9,
    a_failure_is_good_news: 1,
    nothing_is_synced: 1,
    every_failure_starts_a_recovery: 101,
    the_engine_outlives_a_failure: 1,
    cursors_read_what_is_not_durable: 1,
    mqtt_answers_when_it_is_written: 1,
    a_deletion_is_not_resumed: 6,
    a_lease_is_kept_for_a_caller_that_gave_up: 1,
    nobody_is_woken: 1,
    time_does_not_wake_the_cell: 1,
    a_turn_writes_before_it_reads: 1,
    what_is_held_belongs_to_the_old_connection: 6,
    a_tick_does_all_that_is_due: 5,
    a_queue_grows_in_one_step: 15,
    growth_ends_after_a_step: 15,
}
"""Each with a seed that caught it, which is tried first. What a seed does changes with the code: then others do."""


@pytest.mark.parametrize("damage", BREAKS, ids=lambda damage: str(damage.__name__))
def test_a_broken_shell_is_caught(damage: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    damage(monkeypatch)
    for seed in (BREAKS[damage], *SEEDS):
        try:
            run(seed)
        except (Violation, AssertionError, HoldfastError):  # the checker's word, or the node refused its last drain
            return
    pytest.fail(f"{damage.__name__} went unseen in {len(SEEDS)} seeds")
