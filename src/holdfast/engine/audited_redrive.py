"""Audited redrive: dead letters are redriven under an id, each once, with a new payload if given; and undone.

A dead letter is replaced by its message in one atomic batch, together with the record of it (audits.py). So a request
that is repeated, after any crash, redrives nothing twice and is answered with what the first one did.

What may concern many dead letters is a generator: the caller makes a step durable before it takes the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from holdfast.core.audits import OWN_PROPERTIES, Audit, Audited, redriven, restore_dead_letter
from holdfast.core.commands import Withdraw
from holdfast.core.queue import dead_queue_of
from holdfast.core.records import FLAG_CHOSEN, Message, Table, source_key
from holdfast.core.shard import Shard
from holdfast.core.states import DeliveryState, Reason
from holdfast.engine.catalog import Queue, QueueName
from holdfast.engine.dead_letters import DeadLetterFilter
from holdfast.engine.engine import Engine
from holdfast.engine.messages import find_live_message
from holdfast.engine.redrive import (
    STEP,
    Destination,
    Require,
    anywhere,
    destination,
    enqueue_for,
    with_newest_states,
    with_states,
    withdraw,
)
from holdfast.engine.wake_ups import Clock
from holdfast.errors import HoldfastError

PROTOCOL_UNDO = "undo"

Payloads = Mapping[int, bytes | None]
"""Dead letters by id, each with its new payload; None keeps its own."""


class Rights(NamedTuple):
    """What the caller may do, by the name of a queue."""

    put: Require  # move messages to it
    produce: Require  # send it messages of its own
    take: Require  # move messages out of it


ALL_RIGHTS = Rights(anywhere, anywhere, anywhere)


class RedriveStatus(StrEnum):
    """The result of redriving a dead letter, or the status of its message."""

    MOVED = "moved"
    REPEATED = "repeated"  # it was redriven under this id before
    LEASED = "leased"
    GONE = "gone"  # the message is settled or deleted; the dead letter does not exist
    REFUSED = "refused"
    UNDONE = "undone"
    WAITING = "waiting"
    PARTLY = "partly"  # settled in some groups, not in others
    DEAD = "dead"  # it was dead-lettered again


class RedriveResult(msgspec.Struct, frozen=True):
    """One dead letter. `again` is the new dead letter after an undo."""

    dead_letter: int
    status: RedriveStatus
    queue: str = ""
    message: int = 0
    again: int = 0
    error: HoldfastError | None = None


# --- status ---------------------------------------------------------------------------------------------------------


def redrive_results(
    engine: Engine, dead: QueueName, name: str, after: int, limit: int, now: int, source: str = ""
) -> list[RedriveResult]:
    """The dead letters that were redriven, in the order of ids after `after`, with the status of their messages."""
    audit = engine.audits.get(dead, name, source)
    return [_current_status(engine, audit, was, now)[0] for was in engine.audits.page(audit, after, limit)]


def _current_status(
    engine: Engine, audit: Audit, was: Audited, now: int
) -> tuple[RedriveResult, tuple[Queue, Shard, Message] | None]:
    """The status of a redriven message; with its place if it waits in every group."""
    if was.undone:
        return _undone(was), None
    queue = engine.queues.get((audit.namespace, was.queue))
    found = find_live_message(engine, queue, was.message, now) if queue is not None else None
    if queue is None or found is None:
        status = (
            RedriveStatus.DEAD
            if queue is not None and _has_dead_letter(engine, queue, was.message)
            else RedriveStatus.GONE
        )
        return RedriveResult(was.dead_letter, status, was.queue, was.message), None
    shard, message, delivery_statuses = found
    states = {delivery_status.state for delivery_status in delivery_statuses}
    if message.extra.flags & FLAG_CHOSEN:
        states.discard("settled")  # the message is for one group only; for the others it was never live
    status = (
        RedriveStatus.LEASED
        if DeliveryState.LEASED in states
        else RedriveStatus.PARTLY
        if "settled" in states
        else RedriveStatus.WAITING
    )
    results = RedriveResult(was.dead_letter, status, was.queue, was.message)
    return results, (queue, shard, message) if status is RedriveStatus.WAITING else None


def _undone(was: Audited) -> RedriveResult:
    return RedriveResult(was.dead_letter, RedriveStatus.UNDONE, was.queue, was.message, was.undone)


def _not_undone(was: Audited, error: HoldfastError) -> RedriveResult:
    return RedriveResult(was.dead_letter, RedriveStatus.REFUSED, was.queue, was.message, error=error)


def _has_dead_letter(engine: Engine, queue: Queue, message_id: int) -> bool:
    """Whether the dead queue of a message's queue has a dead letter of it."""
    name = dead_queue_of(queue.record.name, queue.config)
    dead = engine.queues.get((queue.record.namespace, name)) if name is not None else None
    if dead is None:
        return False
    for shard in dead.shards:
        low, high = source_key(shard.number, message_id, ""), source_key(shard.number, message_id + 1, "")
        if engine.overlay.scan(Table.SOURCES, low, high, 1):
            return True
    return False


# --- redriving ------------------------------------------------------------------------------------------------------


def move(
    engine: Engine,
    dead: QueueName,
    name: str,
    dead_letters: Payloads,
    *,
    to: str,
    by: str,
    note: str,
    clock: Clock,
    source: str = "",
    rights: Rights = ALL_RIGHTS,
) -> Iterator[list[RedriveResult]]:
    """Redrive dead letters, each once under this id: those of the queue `source`, or of any if it is empty."""
    ids = list(dead_letters)
    for first in range(0, len(ids) or 1, STEP):
        now = clock()
        queue = engine.queue(dead, now)  # by its name in each step: it may have been deleted since the last
        audit = engine.audits.begin(dead, name, to, by, note, now, source)
        step = {one: dead_letters[one] for one in ids[first : first + STEP]}
        yield _move(engine, audit, queue, source, step, rights, now)


def _move(
    engine: Engine, audit: Audit, queue: Queue, source: str, dead_letters: Payloads, rights: Rights, now: int
) -> list[RedriveResult]:
    which = DeadLetterFilter(source_queue=source)
    results: dict[int, RedriveResult] = {}
    movable: list[tuple[Shard, Message]] = []
    for dead_letter, was in zip(dead_letters, engine.audits.known(audit, dead_letters), strict=True):
        if was is not None:
            status = RedriveStatus.UNDONE if was.undone else RedriveStatus.REPEATED
            results[dead_letter] = RedriveResult(dead_letter, status, was.queue, was.message, was.undone)
            continue
        found = find_live_message(engine, queue, dead_letter, now)
        if found is None or not which.match(found[1]):
            results[dead_letter] = RedriveResult(dead_letter, RedriveStatus.GONE)
        elif any(delivery_status.state == DeliveryState.LEASED for delivery_status in found[2]):
            results[dead_letter] = RedriveResult(dead_letter, RedriveStatus.LEASED)
        else:
            movable.append(found[:2])
    results |= _redrive(engine, audit, queue, movable, dead_letters, rights, now)
    return [results[dead_letter] for dead_letter in dead_letters]


def _redrive(
    engine: Engine,
    audit: Audit,
    queue: Queue,
    dead_letters: list[tuple[Shard, Message]],
    payloads: Payloads,
    rights: Rights,
    now: int,
) -> dict[int, RedriveResult]:
    """For each destination: the new messages, the deletion of the dead letters and the audit records in one batch."""
    refused: dict[int, HoldfastError] = {}
    to = Destination(queue=audit.to)
    by_target: dict[tuple[str, str], list[tuple[Shard, Message]]] = {}
    for shard, dead_letter in with_newest_states(engine, queue, dead_letters, now):
        name, group = to.of(dead_letter)
        try:
            if name:
                rights.put(name)
            if payloads[dead_letter.id] is not None:
                rights.produce(name)
            by_target.setdefault((name, group), []).append((shard, dead_letter))
        except HoldfastError as error:
            refused[dead_letter.id] = error
    results: dict[int, RedriveResult] = {}
    for (name, group), movable in by_target.items():
        here = [dead_letter for _, dead_letter in movable]
        target = destination(engine, queue, name, group, here, refused, now)
        if target is None:
            continue
        moved = _deliver(engine, audit, queue, target, group, here, payloads, refused, now)
        if moved:
            withdraw(engine, queue, [item for item in movable if item[1].id in moved], Reason.REDRIVEN, now)
            audit.moved += len(moved)
            engine.audits.record(audit, moved.values(), now)
        results |= {one: RedriveResult(one, RedriveStatus.MOVED, was.queue, was.message) for one, was in moved.items()}
    return results | {one: RedriveResult(one, RedriveStatus.REFUSED, error=error) for one, error in refused.items()}


def _deliver(
    engine: Engine,
    audit: Audit,
    dead: Queue,
    target: Queue,
    group: str,
    dead_letters: list[Message],
    payloads: Payloads,
    refused: dict[int, HoldfastError],
    now: int,
) -> dict[int, Audited]:
    drafts = [redriven(dead.record.name, one, audit.id, payloads[one.id]) for one in dead_letters]
    reply = enqueue_for(engine, target, group, drafts, now)
    moved: dict[int, Audited] = {}
    for index, (dead_letter, draft) in enumerate(zip(dead_letters, drafts, strict=True)):
        if index in reply.errors:
            refused[dead_letter.id] = reply.errors[index]
            continue
        properties = dead_letter.extra.properties
        moved[dead_letter.id] = Audited(
            dead_letter.id,
            reply.ids[index],
            target.record.name,
            properties=properties if any(name in OWN_PROPERTIES for name, _ in properties) else None,
            payload=dead_letter.payload if draft.payload != dead_letter.payload else None,
        )
    return moved


# --- undoing --------------------------------------------------------------------------------------------------------


def undo(
    engine: Engine,
    dead: QueueName,
    name: str,
    after: int,
    limit: int,
    clock: Clock,
    *,
    source: str = "",
    rights: Rights = ALL_RIGHTS,
) -> Iterator[list[RedriveResult]]:
    """Turn messages that wait in every group into dead letters again, in the order of ids after `after`. The results
    name the others too."""
    while limit > 0:
        now = clock()
        audit = engine.audits.to_change(dead, name, source)
        queue = engine.queue(dead, now)  # by its name in each step: it may have been deleted since the last
        page = engine.audits.page(audit, after, min(limit, STEP))
        if not page:
            return
        yield _undo(engine, audit, queue, page, rights, now)
        after = page[-1].dead_letter
        limit -= len(page)


def _undo(
    engine: Engine, audit: Audit, dead: Queue, page: list[Audited], rights: Rights, now: int
) -> list[RedriveResult]:
    results: dict[int, RedriveResult] = {}
    by_shard: dict[int, tuple[Queue, Shard, list[tuple[Audited, Message]]]] = {}
    for was in page:
        results[was.dead_letter], place = _current_status(engine, audit, was, now)
        if place is None:
            continue
        try:
            rights.take(was.queue)
        except HoldfastError as error:
            results[was.dead_letter] = _not_undone(was, error)
            continue
        queue, shard, message = place
        by_shard.setdefault(shard.number, (queue, shard, []))[2].append((was, message))
    for queue, shard, waiting in by_shard.values():
        results |= _undo_in(engine, audit, dead, queue, shard, waiting, now)
    return [results[was.dead_letter] for was in page]


def _undo_in(
    engine: Engine,
    audit: Audit,
    dead: Queue,
    queue: Queue,
    shard: Shard,
    waiting: list[tuple[Audited, Message]],
    now: int,
) -> dict[int, RedriveResult]:
    """For messages of one shard: the dead letters, the deletion of the messages and the audit records in one batch."""
    messages = with_states(engine, queue, shard, [message for _, message in waiting], now)
    drafts = [restore_dead_letter(message, was) for (was, _), message in zip(waiting, messages, strict=True)]
    reply = engine.dead_lettering.enqueue(dead, drafts, PROTOCOL_UNDO, now)
    results: dict[int, RedriveResult] = {}
    undone: list[Audited] = []
    gone: list[int] = []
    for index, (was, message) in enumerate(waiting):
        if index in reply.errors:
            results[was.dead_letter] = _not_undone(was, reply.errors[index])
            continue
        gone.append(message.seq)
        again = Audited(was.dead_letter, was.message, was.queue, reply.ids[index])
        undone.append(again)
        results[was.dead_letter] = _undone(again)
    count = engine.step(queue, shard, Withdraw(gone, Reason.UNDONE), now)
    assert count == len(gone), "a message whose redrive was undone did not exist any more"
    audit.undone += len(gone)
    engine.audits.record(audit, undone, now)
    return results
