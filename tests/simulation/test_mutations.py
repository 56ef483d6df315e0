"""The checker can see: the core broken on purpose, one way at a time, is caught within a few seeds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core import admin, cursors, enqueue, leasing
from holdfast.core import shard as shard_module
from holdfast.core.codecs import read_dedup
from holdfast.core.commands import Command, Draft, Enqueued, PublishStaged, RemoveGroup, Verb, Withdraw
from holdfast.core.deadletter import make_dead_letter
from holdfast.core.deliveries import Delivery
from holdfast.core.effects import DeadLetterCandidate, Effects, Op, Outcome, deletions
from holdfast.core.groups import LeaseGroup
from holdfast.core.ids import UNKEYED, IdGenerator
from holdfast.core.records import GroupHead, Listed, Place, Table, ready_key
from holdfast.core.shard import COMMANDS, PlaceColumns, Shard
from holdfast.core.states import Reason
from holdfast.core.transactions import Transaction, TransactionState
from holdfast.engine import dead_lettering, message_ids, redrive
from holdfast.engine import engine as engine_module
from holdfast.engine import transactions as transactions_module
from holdfast.engine.catalog import Queue
from holdfast.engine.dead_lettering import Candidates, DeadLettering
from holdfast.engine.open_transaction import OpenTransaction
from holdfast.engine.transactions import Transactions
from holdfast.token_buckets import TokenBucket
from holdfast.units import NEVER
from tests.simulation.mail import Violation
from tests.simulation.run import run

SEEDS = range(1, 71)

Break = Callable[[pytest.MonkeyPatch], None]


def frontiers_are_not_stored(patch: pytest.MonkeyPatch) -> None:
    def snapshot(self: LeaseGroup) -> GroupHead:
        return self.head

    patch.setattr(LeaseGroup, "snapshot", snapshot)


def an_acked_message_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shard, "mark_settled", lambda *_: None)


def one_retry_too_many(patch: pytest.MonkeyPatch) -> None:
    right = leasing.dead_reason

    def wrong(shard: Shard, delivery: Delivery, verb: Verb, now: int) -> str:
        found = right(shard, delivery, verb, now)
        spent = delivery.failures > shard.config.retry.max_retries
        return "" if found == Reason.MAX_RETRIES and not spent else found

    patch.setattr(leasing, "dead_reason", wrong)


def sources_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(enqueue, "_known", lambda *_: 0)


def failures_are_not_journalled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leasing, "journal_one", lambda *_: None)


def ids_are_not_reserved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engine_module, "IdGenerator", lambda cell, after=0: IdGenerator(cell))


def high_values_go_first(patch: pytest.MonkeyPatch) -> None:
    def loaded(self: LeaseGroup, priorities: dict[int, int]) -> Iterator[Place]:
        for priority in sorted(priorities, reverse=True):
            yield from self.window(priority).loaded

    patch.setattr(LeaseGroup, "loaded", loaded)


def a_key_holds_up_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaseGroup, "is_deliverable", lambda *_: True)


def the_last_of_a_key_is_next(patch: pytest.MonkeyPatch) -> None:
    right = leasing._first_skipped

    def wrong(
        shard: Shard, group: LeaseGroup, entries: list[tuple[int, int, int, int]], ending: set[int], wanted: int
    ) -> object:
        return right(shard, group, entries[::-1], ending, wanted)

    patch.setattr(leasing, "_first_skipped", wrong)


def a_release_spends_an_attempt(patch: pytest.MonkeyPatch) -> None:
    right = leasing.release

    def wrong(shard: Shard, group: LeaseGroup, delivery: Delivery, delay: int, now: int, effects: Effects) -> None:
        right(shard, group, delivery, delay, now, effects)
        delivery.failures += 1

    patch.setattr(leasing, "release", wrong)


def a_rate_is_no_limit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TokenBucket, "take", lambda *_: None)


def a_backoff_counts_as_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Queue, "leased", lambda self, group: sum(len(shard.deliveries_of(group)) for shard in self.shards))


def a_key_has_one_slot_more(patch: pytest.MonkeyPatch) -> None:
    right = LeaseGroup._slots_before
    patch.setattr(LeaseGroup, "_slots_before", lambda *arguments: right(*arguments) + 1)


def a_key_that_takes_turns_forgets_what_was_skipped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaseGroup, "skip", lambda *_: None)


def a_leased_key_is_free(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaseGroup, "hold", lambda *_: None)


def producers_ids_are_kept_beyond_their_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(enqueue, "read_dedup", lambda value: (read_dedup(value)[0], NEVER))


def a_redriven_message_repeats_the_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(message_ids, "dedup_name", lambda draft: draft.extra.message_id)


def a_dead_letter_forgets_the_message_id(patch: pytest.MonkeyPatch) -> None:
    def wrong(source_queue: str, candidate: DeadLetterCandidate) -> Draft:
        draft = make_dead_letter(source_queue, candidate)
        return replace(draft, extra=replace(draft.extra, message_id=None))

    patch.setattr(dead_lettering, "make_dead_letter", wrong)


def a_write_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The heads of shards are not written with the records they count."""
    patch.setattr(Shard, "flush", lambda *_: None)


def a_redrive_is_two_batches(patch: pytest.MonkeyPatch) -> None:
    def wrong(seqs: list[int], reason: str) -> Withdraw:
        frame = inspect.currentframe()
        assert frame is not None
        assert frame.f_back is not None
        engine = frame.f_back.f_locals["engine"]
        assert isinstance(engine, engine_module.Engine)
        engine.write()
        return Withdraw(seqs, reason)

    patch.setattr(redrive, "Withdraw", wrong)


def a_move_is_two_batches(patch: pytest.MonkeyPatch) -> None:
    """What was staged goes in one batch, what it became comes in the next."""
    right = Transactions._enqueue

    def wrong(self: Transactions, record: Transaction, *rest: object) -> int:
        self._engine.write()
        return right(self, record, *rest)  # type: ignore[arg-type]

    patch.setattr(Transactions, "_enqueue", wrong)


def a_decision_is_not_stored(patch: pytest.MonkeyPatch) -> None:
    right = Transactions._save

    def wrong(self: Transactions, found: OpenTransaction) -> None:
        if found.record.state is TransactionState.OPEN:
            right(self, found)

    patch.setattr(Transactions, "_save", wrong)


def every_attempt_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transactions_module, "choose", lambda name, staged_parts, parts: list(staged_parts))


def a_lease_that_is_over_comes_back(patch: pytest.MonkeyPatch) -> None:
    """Of leases that share a record it is not written which of them are over."""
    patch.setattr(shard_module, "write_bits", lambda _: b"")


def leases_outlive_their_group(patch: pytest.MonkeyPatch) -> None:
    right = admin.remove_group

    def wrong(shard: Shard, command: RemoveGroup, now: int, effects: Outcome[None]) -> None:
        right(shard, command, now, effects)
        effects.ops = [op for op in effects.ops if op[0] is not Table.LEASES]

    kind: type[Command[Any]] = RemoveGroup
    patch.setitem(shard_module.COMMANDS, kind, wrong)


def a_range_takes_one_more(patch: pytest.MonkeyPatch) -> None:
    right = deletions

    def wrong(table: Table, prefix: bytes, numbers: list[int], adjacent: bool = False) -> list[Op]:
        return right(table, prefix, [*numbers, max(numbers) + 1] if numbers else [], adjacent)

    patch.setattr(shard_module, "deletions", wrong)


def a_dead_letter_forgets_the_state(patch: pytest.MonkeyPatch) -> None:
    def wrong(_: object, _queue: Queue, _group: str, parts: Candidates) -> list[DeadLetterCandidate]:
        return [item for _, some in parts for item in some]

    patch.setattr(DeadLettering, "_with_states", wrong)


def a_redriven_message_is_for_everybody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(enqueue, "_only", lambda shard, command: None)


def a_group_comes_upon_what_is_for_another(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shard, "_not_for", lambda self, group, rows: set())


def a_commit_takes_what_lies_beyond(patch: pytest.MonkeyPatch) -> None:
    """Of the order of delivery, one more than the cursor has passed."""
    right = Shard.unlist

    def wrong(self: Shard, places: PlaceColumns, effects: Effects, adjacent: bool = False) -> None:
        right(self, places, effects, adjacent)
        if adjacent and places.seqs:
            effects.ops.append(
                (Table.READY, ready_key(self.number, places.priorities[-1], places.stamps[-1] + 1), None)
            )

    patch.setattr(Shard, "unlist", wrong)


def keys_outlive_a_commit(patch: pytest.MonkeyPatch) -> None:
    right = cursors._columns

    def wrong(rows: list[Listed]) -> PlaceColumns:
        return right(rows)._replace(keys=[UNKEYED] * len(rows))

    patch.setattr(cursors, "_columns", wrong)


def what_was_staged_is_in_no_window(patch: pytest.MonkeyPatch) -> None:
    right = enqueue.arrive

    def wrong(shard: Shard, arrivals: enqueue.Arrivals, only: LeaseGroup | None = None) -> None:
        right(shard, {priority: (arrived, []) for priority, (arrived, _) in arrivals.items()}, only)

    publish = COMMANDS[PublishStaged]

    def publish_wrong(shard: Shard, command: PublishStaged, now: int, effects: Outcome[Enqueued]) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(enqueue, "arrive", wrong)
            publish(shard, command, now, effects)

    handlers: dict[Any, Any] = COMMANDS
    patch.setitem(handlers, PublishStaged, publish_wrong)


def a_deletion_leaves_what_a_cursor_group_holds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admin, "_purge_kept", lambda *_: 0)


BREAKS: dict[Break, int] = {
    a_redriven_message_repeats_the_first: 3,
    a_dead_letter_forgets_the_message_id: 3,
    a_deletion_leaves_what_a_cursor_group_holds: 3,
    a_commit_takes_what_lies_beyond: 30,
    keys_outlive_a_commit: 6,
    what_was_staged_is_in_no_window: 26,
    a_redriven_message_is_for_everybody: 17,
    a_group_comes_upon_what_is_for_another: 19,
    a_dead_letter_forgets_the_state: 32,
    a_move_is_two_batches: 25,
    a_decision_is_not_stored: 27,
    every_attempt_counts: 25,
    a_lease_that_is_over_comes_back: 63,
    leases_outlive_their_group: 12,
    a_range_takes_one_more: 25,
    a_redrive_is_two_batches: 23,
    a_rate_is_no_limit: 2,
    a_backoff_counts_as_held: 45,
    a_key_has_one_slot_more: 1,
    a_key_that_takes_turns_forgets_what_was_skipped: 2,
    a_leased_key_is_free: 25,
    producers_ids_are_kept_beyond_their_window: 2,
    a_write_is_forgotten: 63,
    frontiers_are_not_stored: 63,
    an_acked_message_stays: 63,
    one_retry_too_many: 12,
    sources_are_forgotten: 1,
    failures_are_not_journalled: 25,
    ids_are_not_reserved: 25,
    high_values_go_first: 63,
    a_key_holds_up_nobody: 25,
    the_last_of_a_key_is_next: 25,
    a_release_spends_an_attempt: 12,
}
"""Each with a seed that saw it, which is tried first. What a seed does changes with the core: then others see it."""


@pytest.mark.parametrize("damage", BREAKS, ids=lambda damage: str(damage.__name__))
def test_a_broken_core_is_caught(damage: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    damage(monkeypatch)
    for seed in (BREAKS[damage], *SEEDS):
        try:
            run(seed)
        except (Violation, AssertionError, LookupError):  # the checker's word, or the core's own
            return
    pytest.fail(f"{damage.__name__} went unseen in {len(SEEDS)} seeds")
