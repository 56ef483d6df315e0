"""Moving deliveries that have failed for good to the dead queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.core.codecs import read_state
from holdfast.core.commands import Command, DeadLettered, Draft, Enqueued
from holdfast.core.deadletter import make_dead_letter
from holdfast.core.effects import DeadLetterCandidate
from holdfast.core.leasing import attempts_of
from holdfast.core.queue import DEAD_QUEUE_CONFIG, dead_queue_of
from holdfast.core.records import FLAG_STATE, Table, delivery_key
from holdfast.core.shard import Shard
from holdfast.engine.catalog import Queue
from holdfast.engine.limits.circuit_breaker import count_dead_letters
from holdfast.engine.queues import add_queue

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine


PROTOCOL = "broker"
"""What the journal calls the producer of dead letters."""

Candidates = list[tuple[Shard, list[DeadLetterCandidate]]]
"""What shards of a queue have for its dead queue."""


class Alert(msgspec.Struct, frozen=True):
    """A new dead letter of a queue that has a webhook for them."""

    url: str
    namespace: str
    queue: str
    group: str
    message_id: int
    dead_queue: str
    dead_letter_id: int
    reason: str
    error: str
    attempts: int
    at: int


class FailedRequest(msgspec.Struct, frozen=True):
    """A message that asked for a reply and is dead: nobody will answer it."""

    namespace: str
    correlation_id: str
    reason: str
    error: str
    attempts: int


class DeadLettering:
    """See the module."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def move(self, queue: Queue, candidates: Candidates, now: int) -> None:
        """Move candidates of shards of a queue to its dead queue: the dead letter and the end of its source in one
        batch.

        If a crash could come between the two, a rejected message would be dead and be delivered again.
        """
        target_name = dead_queue_of(queue.record.name, queue.config)
        by_group: dict[str, Candidates] = {}
        for shard, items in candidates:
            own: dict[str, list[DeadLetterCandidate]] = {}
            for item in items:
                own.setdefault(item.group, []).append(item)
            for group, some in own.items():
                by_group.setdefault(group, []).append((shard, some))
        for group, parts in by_group.items():
            items = [item for _, some in parts for item in some]
            if target_name is None:
                self._engine.dropped += items
                dead_letter_ids = [0] * len(items)
            else:
                dead_letter_ids = self._deliver(queue, target_name, self._with_states(queue, group, parts), now)
            self._note_failed_requests(queue, items, dead_letter_ids)
            ids = iter(dead_letter_ids)
            steps: list[tuple[Queue, Shard, Command[None]]] = [
                (queue, shard, DeadLettered(group, {item.delivery.id: next(ids) for item in some}))
                for shard, some in parts
            ]
            self._engine.step_all(steps, now)
            died = [item for item, dead_letter_id in zip(items, dead_letter_ids, strict=True) if dead_letter_id >= 0]
            count_dead_letters(self._engine, queue, died, now)

    def _note_failed_requests(self, queue: Queue, items: list[DeadLetterCandidate], dead_letter_ids: list[int]) -> None:
        """Nobody will answer these any more. (Where there are several groups, another one may.)"""
        if len(queue.record.groups) == 1:
            self._engine.failed_requests += [
                FailedRequest(
                    queue.record.namespace,
                    item.message.extra.correlation_id or "",
                    str(item.reason),
                    item.delivery.error,
                    attempts_of(item.delivery),
                )
                for item, dead_letter_id in zip(items, dead_letter_ids, strict=True)
                if dead_letter_id >= 0 and item.message.extra.reply_to is not None
            ]

    def enqueue(self, target: Queue, drafts: list[Draft], protocol: str, now: int) -> Enqueued:
        """Store dead letters, whatever the depth of their queue."""
        engine = self._engine
        engine.mark_dirty(target.name)
        return engine.enqueue_routed(target, target.route_dead_letters(drafts), drafts, -1, protocol, now)

    def _with_states(self, queue: Queue, group: str, parts: Candidates) -> list[DeadLetterCandidate]:
        """Candidates with their workflow states, which the dead letters keep."""
        candidates = [item for _, some in parts for item in some]
        found = queue.find_group(group)
        if found is None or not any(item.delivery.flags & FLAG_STATE for item in candidates):
            return candidates
        keys = [delivery_key(shard.number, found.number, item.delivery.id) for shard, some in parts for item in some]
        values = self._engine.overlay.get_many(Table.STATES, keys)
        return [
            item._replace(state=read_state(value) if value is not None else None)
            for item, value in zip(candidates, values, strict=True)
        ]

    def _deliver(self, queue: Queue, target_name: str, candidates: list[DeadLetterCandidate], now: int) -> list[int]:
        """The ids of the dead letters, -1 where the dead queue could not take one."""
        target = self._dead_queue(queue, target_name, now)
        if target is None:
            return [-1] * len(candidates)
        drafts = [make_dead_letter(queue.record.name, item) for item in candidates]
        reply = self.enqueue(target, drafts, PROTOCOL, now)
        if queue.config.dlq.alert_webhook:
            self._engine.alerts += [
                _alert(queue, target_name, item, dead_letter_id, now)
                for item, dead_letter_id in zip(candidates, reply.ids, strict=True)
                if dead_letter_id
            ]
        return [dead_letter_id or -1 for dead_letter_id in reply.ids]

    def _dead_queue(self, queue: Queue, name: str, now: int) -> Queue | None:
        """The dead queue of a queue. An automatic one is created. One that is configured and deleted takes nothing, nor
        does one that would exceed the number of queues."""
        engine = self._engine
        full_name = (queue.record.namespace, name)
        target = engine.queues.get(full_name)
        if target is None and not queue.config.dlq.queue and len(engine.queues) < engine.limits.max_queues:
            target = add_queue(engine, full_name, DEAD_QUEUE_CONFIG, now, automatic=True)
        return None if target is None or target.record.closing else target


def _alert(queue: Queue, target: str, item: DeadLetterCandidate, dead_letter_id: int, now: int) -> Alert:
    return Alert(
        queue.config.dlq.alert_webhook,
        queue.record.namespace,
        queue.record.name,
        item.group,
        item.delivery.id,
        target,
        dead_letter_id,
        item.reason,
        item.delivery.error,
        attempts_of(item.delivery),
        now,
    )
