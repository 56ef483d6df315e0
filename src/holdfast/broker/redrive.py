"""Redrive: dead letters go back to where they came from, or elsewhere, some or all; or they are thrown away.

A letter and the message made of it change places in one atomic batch: a kill leaves the one or the other, never both
and never none. The new message keeps the letter's `source_id` and all that it carries, so a redrive that is begun again
goes on with the letters that are left.

`redrive` is a generator: each step looks at a bounded number of letters, moves what matches, and tells what it did. The
caller makes a step durable before it takes the next, and may stop after any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
from msgspec.structs import replace

from holdfast.broker.admin import find
from holdfast.broker.catalog import Queue, QueueName
from holdfast.broker.engine import Engine
from holdfast.core.audits import redriven
from holdfast.core.commands import Browse, Browsed, GetStates, Withdraw
from holdfast.core.records import Message
from holdfast.core.shard import Shard
from holdfast.core.states import Reason, State
from holdfast.errors import HoldfastError, InvalidArgument, MessageNotFound

STEP = 256  # letters looked at in one step
STEP_BYTES = 8 << 20  # and about how many bytes of payload
IDS_MAX = 10_000  # letters that can be named one by one
PROTOCOL = "redrive"

Clock = Callable[[], int]


class Letters(msgspec.Struct, frozen=True, kw_only=True):
    """Which letters: all that meet every condition that is set."""

    ids: frozenset[int] = frozenset()
    reasons: frozenset[str] = frozenset()
    error: str = ""  # a part of the last error's text, in whatever case
    source_queue: str = ""
    source_group: str = ""
    after: int = 0  # died at or after this instant
    before: int = 0  # died before this instant
    properties: tuple[tuple[str, str], ...] = ()

    def match(self, letter: Message) -> bool:
        origin = letter.extra.origin
        if origin is None:
            if self.reasons or self.error or self.source_queue or self.source_group:
                return False
        elif (
            (self.reasons and origin.reason not in self.reasons)
            or (self.error and self.error.casefold() not in origin.error.casefold())
            or (self.source_queue and origin.source_queue != self.source_queue)
            or (self.source_group and origin.source_group != self.source_group)
        ):
            return False
        return (
            letter.enqueued_at >= self.after
            and not (self.before and letter.enqueued_at >= self.before)
            and set(self.properties) <= set(letter.extra.properties)
        )


class Redriven(msgspec.Struct):
    """What one step did. `moved` pairs each letter's id with its new message's, 0 if it was thrown away or is a dry
    run. `refused` has the error for each letter that matched and could not go; it stays where it is."""

    looked: int = 0
    moved: list[tuple[int, int]] = []
    refused: dict[int, HoldfastError] = {}
    leased: int = 0  # matched, but a consumer of the dead queue has it


def redrive(
    engine: Engine,
    name: QueueName,
    which: Letters,
    clock: Clock,
    *,
    target: str = "",
    step: int = STEP,
    limit: int = 0,
    dry_run: bool = False,
    discard: bool = False,
) -> Iterator[Redriven]:
    """Move the letters of the dead queue `name` that match, oldest first in each partition, at most `limit`.

    They go to the queue they came from, or all to `target`; with `discard` nowhere. Letters that arrive meanwhile are
    left alone, so that what dies again at once is not driven in a circle. `dry_run` changes nothing.
    """
    queue = engine.queue(name, clock())
    if len(which.ids) > IDS_MAX:
        raise InvalidArgument(field="ids", problem=f"are at most {IDS_MAX}; use a filter for more")
    if target == name[1]:
        raise InvalidArgument(field="target", problem="is the dead queue itself; name another queue")
    if target:
        engine.queue((name[0], target), clock(), create=True)
    left = limit or 1 << 62
    for shard, letters, leased in _chunks(engine, queue, which, min(step, STEP), clock):
        if name not in engine.queues or queue.record.closing:
            return
        matching = [letter for letter in letters if which.match(letter)]
        done = Redriven(looked=len(letters), leased=sum(1 for letter in matching if letter.id in leased))
        matching = [letter for letter in matching if letter.id not in leased][:left]
        if dry_run:
            done.moved = [(letter.id, 0) for letter in matching]
        elif matching:
            _move(engine, queue, shard, matching, target, discard, done, clock())
        left -= len(done.moved)
        yield done
        if left <= 0:
            return


def _chunks(
    engine: Engine, queue: Queue, which: Letters, step: int, clock: Clock
) -> Iterator[tuple[Shard, list[Message], set[int]]]:
    """The letters there are now, a few of one partition at a time, with the ids of those that are leased."""
    if which.ids:
        for message_id in sorted(which.ids):
            try:
                partition, letter, standings = find(engine, queue.name, message_id, clock())
            except MessageNotFound:
                continue
            leased = any(standing.state == State.LEASED for standing in standings)
            yield queue.shards[partition], [letter], {letter.id} if leased else set()
        return
    ends = [(shard, shard.head.next_seq) for shard in queue.shards]
    for shard, end in ends:
        at = 1
        while 0 < at < end:
            reply = engine.step(queue, shard, Browse(at, step, STEP_BYTES), clock())
            assert isinstance(reply, Browsed)
            at = reply.next_seq
            found = [(letter, standings) for letter, standings in reply.messages if letter.seq < end]
            held = {letter.id for letter, standings in found if any(s.state == State.LEASED for s in standings)}
            if found:
                yield shard, [letter for letter, _ in found], held


def _move(
    engine: Engine,
    queue: Queue,
    shard: Shard,
    letters: list[Message],
    target: str,
    discard: bool,
    done: Redriven,
    now: int,
) -> None:
    """Move letters of one shard, the new messages and the end of the letters in one batch."""
    moved: dict[int, int] = {}
    if discard:
        moved = {letter.id: 0 for letter in letters}
    else:
        by_target: dict[str, list[Message]] = {}
        for letter in with_states(engine, queue, shard, letters, now):
            origin = letter.extra.origin
            by_target.setdefault(target or (origin.source_queue if origin else ""), []).append(letter)
        targets = {to: destination(engine, queue, to, going, done.refused, now) for to, going in by_target.items()}
        # Nothing may have to be written early from here on: that would tear the batch in two.
        engine.write_early()
        for to, found in targets.items():
            if found is not None:
                moved |= _deliver(engine, queue, found, by_target[to], done, now)
    gone = [letter.seq for letter in letters if letter.id in moved]
    if gone:
        count = engine.step(queue, shard, Withdraw(gone, "" if discard else Reason.REDRIVEN), now)
        assert count == len(gone), "a letter that was redriven was not there any more"
    done.moved = list(moved.items())


def with_states(engine: Engine, queue: Queue, shard: Shard, letters: list[Message], now: int) -> list[Message]:
    """Letters with their newest workflow states: consumers of the dead queue may have changed them."""
    newest = {letter.id: letter.extra.state for letter in letters}
    for name, group in shard.groups.items():
        touched = [letter.id for letter in letters if letter.id in group.deliveries]
        if not touched:
            continue
        states = engine.step(queue, shard, GetStates(name, [(message_id, 0) for message_id in touched]), now)
        assert isinstance(states, list)
        for message_id, state in zip(touched, states, strict=True):
            before = newest[message_id]
            if state is not None and (before is None or state.etag > before.etag):
                newest[message_id] = state
    return [replace(letter, extra=replace(letter.extra, state=newest[letter.id])) for letter in letters]


def destination(
    engine: Engine, queue: Queue, to: str, letters: list[Message], refused: dict[int, HoldfastError], now: int
) -> Queue | None:
    """The queue that takes these letters, made if it is not there; None if there can be none."""
    try:
        if to in ("", queue.record.name):
            raise InvalidArgument(field="target", problem="must be named: the letter does not say where it came from")
        return engine.queue((queue.record.namespace, to), now, create=True)
    except HoldfastError as error:
        refused |= {letter.id: error for letter in letters}
        return None


def _deliver(
    engine: Engine, dead: Queue, target: Queue, letters: list[Message], done: Redriven, now: int
) -> dict[int, int]:
    """Enqueue what letters stand for. Returns the new ids by letter; one that is there already counts as moved."""
    drafts = [redriven(dead.record.name, letter) for letter in letters]
    reply = engine.enqueue_in(target, drafts, PROTOCOL, now)
    moved: dict[int, int] = {}
    for index, letter in enumerate(letters):
        if index in reply.errors:
            done.refused[letter.id] = reply.errors[index]
        else:
            moved[letter.id] = reply.ids[index]
    return moved
