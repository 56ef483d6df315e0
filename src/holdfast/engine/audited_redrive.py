"""Audited redrive: letters brought back under an id, once each, perhaps with another payload; and taken back again.

A letter and the message made of it change places in one atomic batch, with the record of it (audits.py). So a request
that is repeated, after whatever kill, brings nothing back twice and is told what the first one did.

What may touch many letters is a generator: the caller makes a step durable before it takes the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum

import msgspec

from holdfast.core.audits import OWN_PROPERTIES, Audit, Audited, redriven, restore_dead_letter
from holdfast.core.commands import Withdraw
from holdfast.core.queue import dead_queue_of
from holdfast.core.records import FLAG_CHOSEN, Message, Table, source_key
from holdfast.core.shard import Shard
from holdfast.core.states import DeliveryState, Reason
from holdfast.engine.catalog import Queue, QueueName
from holdfast.engine.engine import Engine
from holdfast.engine.messages import find_live_message
from holdfast.engine.redrive import STEP, Destination, destination, enqueue_for, newest, with_states, withdraw
from holdfast.errors import HoldfastError

PROTOCOL_UNDO = "undo"

Payloads = Mapping[int, bytes | None]
"""Letters, each with the payload that it is to have; None: its own."""

Require = Callable[[str], object]
"""Raises an error if messages of the caller's own making may not be sent to a queue."""


class RedriveStatus(StrEnum):
    """What became of a letter, or how the message stands that was made of it."""

    MOVED = "moved"
    REPEATED = "repeated"  # it had been brought back under this id before
    LEASED = "leased"
    GONE = "gone"  # done, or taken away; of a letter: nobody knows it
    REFUSED = "refused"
    UNDONE = "undone"
    WAITING = "waiting"
    PARTLY = "partly"  # done in some groups, not in others
    DEAD = "dead"  # a dead letter of it waits


class RedriveResult(msgspec.Struct, frozen=True):
    """One letter. `again` is the dead letter that it is once more."""

    letter: int
    fate: RedriveStatus
    queue: str = ""
    message: int = 0
    again: int = 0
    error: HoldfastError | None = None


# --- looking --------------------------------------------------------------------------------------------------------


def redrive_results(
    engine: Engine, dead: QueueName, name: str, after: int, limit: int, now: int
) -> list[RedriveResult]:
    """The letters that were brought back, by their ids, from after one on, and how their messages stand now."""
    audit = engine.audits.get(dead, name)
    return [_current_status(engine, audit, was, now)[0] for was in engine.audits.page(audit, after, limit)]


def _current_status(
    engine: Engine, audit: Audit, was: Audited, now: int
) -> tuple[RedriveResult, tuple[Queue, Shard, Message] | None]:
    """How a message stands; with its place if it waits in every group."""
    if was.undone:
        return RedriveResult(was.letter, RedriveStatus.UNDONE, was.queue, was.message, was.undone), None
    queue = engine.queues.get((audit.namespace, was.queue))
    found = find_live_message(engine, queue, was.message, now) if queue is not None else None
    if queue is None or found is None:
        fate = (
            RedriveStatus.DEAD
            if queue is not None and _has_dead_letter(engine, queue, was.message)
            else RedriveStatus.GONE
        )
        return RedriveResult(was.letter, fate, was.queue, was.message), None
    shard, message, delivery_statuses = found
    states = {delivery_status.state for delivery_status in delivery_statuses}
    if message.extra.flags & FLAG_CHOSEN:
        states.discard("settled")  # for the other groups it never was
    fate = (
        RedriveStatus.LEASED
        if DeliveryState.LEASED in states
        else RedriveStatus.PARTLY
        if "settled" in states
        else RedriveStatus.WAITING
    )
    results = RedriveResult(was.letter, fate, was.queue, was.message)
    return results, (queue, shard, message) if fate is RedriveStatus.WAITING else None


def _has_dead_letter(engine: Engine, queue: Queue, message_id: int) -> bool:
    """Whether a dead letter of a message waits in its queue's dead queue."""
    name = dead_queue_of(queue.record.name, queue.config)
    dead = engine.queues.get((queue.record.namespace, name)) if name is not None else None
    if dead is None:
        return False
    engine.write_early()
    for shard in dead.shards:
        low, high = source_key(shard.number, message_id, ""), source_key(shard.number, message_id + 1, "")
        if engine.store.scan(Table.SOURCES, low, high, 1):
            return True
    return False


# --- bringing letters back ------------------------------------------------------------------------------------------


def move(
    engine: Engine,
    dead: QueueName,
    name: str,
    dead_letters: Payloads,
    *,
    to: str,
    by: str,
    note: str,
    require: Require,
    now: int,
) -> Iterator[list[RedriveResult]]:
    """Bring letters back, each once under this id."""
    queue = engine.queue(dead, now)
    audit = engine.audits.begin(dead, name, to, by, note, now)
    ids = list(dead_letters)
    for first in range(0, len(ids), STEP):
        yield _move(engine, audit, queue, {one: dead_letters[one] for one in ids[first : first + STEP]}, require, now)


def _move(
    engine: Engine, audit: Audit, queue: Queue, dead_letters: Payloads, require: Require, now: int
) -> list[RedriveResult]:
    results: dict[int, RedriveResult] = {}
    movable: list[tuple[Shard, Message]] = []
    for letter, was in zip(dead_letters, engine.audits.known(audit, dead_letters), strict=True):
        if was is not None:
            fate = RedriveStatus.UNDONE if was.undone else RedriveStatus.REPEATED
            results[letter] = RedriveResult(letter, fate, was.queue, was.message, was.undone)
            continue
        found = find_live_message(engine, queue, letter, now)
        if found is None:
            results[letter] = RedriveResult(letter, RedriveStatus.GONE)
        elif any(delivery_status.state == DeliveryState.LEASED for delivery_status in found[2]):
            results[letter] = RedriveResult(letter, RedriveStatus.LEASED)
        else:
            movable.append(found[:2])
    results |= _redrive(engine, audit, queue, movable, dead_letters, require, now)
    return [results[letter] for letter in dead_letters]


def _redrive(
    engine: Engine,
    audit: Audit,
    queue: Queue,
    dead_letters: list[tuple[Shard, Message]],
    payloads: Payloads,
    require: Require,
    now: int,
) -> dict[int, RedriveResult]:
    """For each destination: the new messages, the end of the letters and the records of it in one batch."""
    refused: dict[int, HoldfastError] = {}
    to = Destination(queue=audit.to)
    by_target: dict[tuple[str, str], list[tuple[Shard, Message]]] = {}
    for shard, letter in newest(engine, queue, dead_letters, now):
        name, group = to.of(letter)
        try:
            if payloads[letter.id] is not None:
                require(name)
            by_target.setdefault((name, group), []).append((shard, letter))
        except HoldfastError as error:
            refused[letter.id] = error
    results: dict[int, RedriveResult] = {}
    for (name, group), movable in by_target.items():
        here = [letter for _, letter in movable]
        target = destination(engine, queue, name, group, here, refused, now)
        if target is None:
            continue
        engine.write_early()  # nothing may have to be written before all of it is gathered
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
    drafts = [redriven(dead.record.name, letter, audit.id, payloads[letter.id]) for letter in dead_letters]
    reply = enqueue_for(engine, target, group, drafts, now)
    moved: dict[int, Audited] = {}
    for index, (letter, draft) in enumerate(zip(dead_letters, drafts, strict=True)):
        if index in reply.errors:
            refused[letter.id] = reply.errors[index]
            continue
        properties = letter.extra.properties
        moved[letter.id] = Audited(
            letter.id,
            reply.ids[index],
            target.record.name,
            properties=properties if any(name in OWN_PROPERTIES for name, _ in properties) else None,
            payload=letter.payload if draft.payload != letter.payload else None,
        )
    return moved


# --- and taking them back -------------------------------------------------------------------------------------------


def undo(engine: Engine, dead: QueueName, name: str, after: int, limit: int, now: int) -> Iterator[list[RedriveResult]]:
    """Make dead letters again of messages that wait in every group, from after a letter on. The others are told."""
    audit = engine.audits.get(dead, name)
    queue = engine.queue(dead, now)
    while limit > 0 and (page := engine.audits.page(audit, after, min(limit, STEP))):
        yield _undo(engine, audit, queue, page, now)
        after = page[-1].letter
        limit -= len(page)


def _undo(engine: Engine, audit: Audit, dead: Queue, page: list[Audited], now: int) -> list[RedriveResult]:
    results: dict[int, RedriveResult] = {}
    by_shard: dict[int, tuple[Queue, Shard, list[tuple[Audited, Message]]]] = {}
    for was in page:
        results[was.letter], place = _current_status(engine, audit, was, now)
        if place is not None:
            queue, shard, message = place
            by_shard.setdefault(shard.number, (queue, shard, []))[2].append((was, message))
    for queue, shard, waiting in by_shard.values():
        results |= _undo_in(engine, audit, dead, queue, shard, waiting, now)
    return [results[was.letter] for was in page]


def _undo_in(
    engine: Engine,
    audit: Audit,
    dead: Queue,
    queue: Queue,
    shard: Shard,
    waiting: list[tuple[Audited, Message]],
    now: int,
) -> dict[int, RedriveResult]:
    """Messages of one shard: the letters, the end of the messages and the records of it in one batch."""
    messages = with_states(engine, queue, shard, [message for _, message in waiting], now)
    drafts = [restore_dead_letter(message, was) for (was, _), message in zip(waiting, messages, strict=True)]
    engine.write_early()
    reply = engine.dead_lettering.enqueue(dead, drafts, PROTOCOL_UNDO, now)
    results: dict[int, RedriveResult] = {}
    undone: list[Audited] = []
    gone: list[int] = []
    for index, (was, message) in enumerate(waiting):
        if index in reply.errors:
            results[was.letter] = RedriveResult(
                was.letter, RedriveStatus.REFUSED, was.queue, was.message, error=reply.errors[index]
            )
            continue
        gone.append(message.seq)
        undone.append(Audited(was.letter, was.message, was.queue, reply.ids[index]))
        results[was.letter] = RedriveResult(was.letter, RedriveStatus.UNDONE, was.queue, was.message, reply.ids[index])
    count = engine.step(queue, shard, Withdraw(gone, Reason.UNDONE), now)
    assert count == len(gone), "a message whose redrive was undone was not there any more"
    audit.undone += len(gone)
    engine.audits.record(audit, undone, now)
    return results
