"""Redrive: dead letters are moved back to their source, or to another queue, or are discarded.

A dead letter is replaced by its message in one atomic batch: after a crash there is one or the other, never both and
never neither. The message keeps the dead letter's `source_id` and properties, so a redrive that is started again
continues with the dead letters that are left.

`redrive` is a generator: each step examines a bounded number of dead letters, moves those that match, and yields what
it did. The caller makes a step durable before it takes the next, and may stop after any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
from msgspec.structs import replace

from holdfast.core.audits import moved as moved_draft
from holdfast.core.audits import redriven
from holdfast.core.commands import Draft, Enqueued, GetStates, Peek, Withdraw
from holdfast.core.queue import GroupKind
from holdfast.core.records import Message
from holdfast.core.shard import Shard
from holdfast.core.states import DeliveryState, Reason
from holdfast.core.workflow import visible_state
from holdfast.engine.catalog import Queue, QueueName
from holdfast.engine.dead_letters import DeadLetterFilter, DeadLetterRef, by_death_time
from holdfast.engine.engine import Engine
from holdfast.engine.wake_ups import Clock
from holdfast.errors import GroupNotFound, HoldfastError, InvalidArgument, WrongGroupKind

STEP = 256  # dead letters examined in one step
STEP_NAMED = 32  # the same for dead letters that are named by id: each must be searched for
STEP_BYTES = 8 << 20  # and about how many bytes of payload
IDS_MAX = 10_000  # dead letters that can be named by id
PROTOCOL = "redrive"

Require = Callable[[str], object]
"""Raises an error if the caller may not move messages to, or out of, the queue of that name."""


class Redriven(msgspec.Struct):
    """What one step did. `moved` pairs the id of each dead letter with that of its new message, 0 if it was discarded
    or this is a dry run. `refused` has the error of each dead letter that matched and could not be moved; it stays."""

    looked: int = 0
    moved: list[tuple[int, int]] = []
    refused: dict[int, HoldfastError] = {}
    leased: int = 0  # that matched, but are leased to a consumer of the dead queue


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """Where dead letters go. By default each goes to its source queue, for the group in which it was dead-lettered."""

    queue: str = ""  # all go to this queue instead, for all groups
    group: str = ""  # for this group of the queue alone
    all_groups: bool = False  # for all groups, in the source queue too
    moving: bool = False  # no dead letters, but messages, which keep their delivery time and their time to live

    def of(self, dead_letter: Message) -> tuple[str, str]:
        """The queue and the group for a dead letter; an empty group means all groups."""
        origin = dead_letter.extra.origin
        queue = self.queue or (origin.source_queue if origin else "")
        if self.group or self.all_groups or self.queue or origin is None:
            return queue, self.group
        return queue, origin.source_group


TO_SOURCE = Destination()


def anywhere(queue: str) -> None:
    """No queue is forbidden."""


def redrive(
    engine: Engine,
    name: QueueName,
    which: DeadLetterFilter,
    clock: Clock,
    *,
    to: Destination = TO_SOURCE,
    step: int = STEP,
    limit: int = 0,
    dry_run: bool = False,
    discard: bool = False,
    require: Require = anywhere,
) -> Iterator[Redriven]:
    """Move the dead letters of the queue `name` that match, in the order of dead-lettering, at most `limit`.

    `require` refuses the queues that the caller may not send to; dead letters that would go there stay. With `discard`
    they are deleted instead. Dead letters that arrive during the redrive are not moved, so that a message that fails
    again immediately does not loop. `dry_run` changes nothing.
    """
    queue = engine.queue(name, clock())
    if len(which.ids) > IDS_MAX:
        raise InvalidArgument(field="ids", problem=f"are at most {IDS_MAX}; use a filter for more")
    if to.queue == name[1]:
        raise InvalidArgument(field="target", problem="is the queue itself; name another queue")
    if to.queue:
        engine.queue((name[0], to.queue), clock(), create=True)
    left = limit or 1 << 62
    refs = by_death_time(engine, queue, which, clock)
    step = min(step, STEP_NAMED if which.ids else STEP)
    while left > 0:
        seen, chosen, over = _take(refs, min(step, left))
        if (over and not seen) or engine.queues.get(name) is not queue or queue.record.closing:
            return
        done = Redriven(looked=len(seen))
        dead_letters = _load_dead_letters(engine, queue, chosen, done, clock())
        if not discard:
            dead_letters = _permitted(dead_letters, to, require, done)
        if dry_run:
            done.moved = [(dead_letter.id, 0) for _, dead_letter in dead_letters]
        elif dead_letters:
            _move(engine, queue, dead_letters, to, discard, done, clock())
        left -= len(done.moved)
        yield done
        if over:
            return


def _take(refs: Iterator[DeadLetterRef | None], limit: int) -> tuple[list[DeadLetterRef], list[DeadLetterRef], bool]:
    """The next dead letters: those examined, those of them to be moved, and whether there are no more. They may be none
    yet, where many must be read before the first is known."""
    seen: list[DeadLetterRef] = []
    chosen: list[DeadLetterRef] = []
    size_bytes = 0
    for ref in refs:
        if ref is None:
            return seen, chosen, False
        seen.append(ref)
        if ref.matches:
            chosen.append(ref)
            size_bytes += ref.size_bytes
        if len(chosen) >= limit or len(seen) >= STEP or size_bytes >= STEP_BYTES:
            return seen, chosen, False
    return seen, chosen, True


def _load_dead_letters(
    engine: Engine, queue: Queue, refs: list[DeadLetterRef], done: Redriven, now: int
) -> list[tuple[Shard, Message]]:
    """The dead letters that can be moved now, in the order of `refs`. Some may be deleted or leased by now."""
    found: dict[int, tuple[Shard, Message]] = {}
    by_partition: dict[int, list[int]] = {}
    for ref in refs:
        by_partition.setdefault(ref.partition, []).append(ref.seq)
    for partition, seqs in by_partition.items():
        shard = queue.shards[partition]
        reply = engine.step(queue, shard, Peek(seqs), now)
        for dead_letter, delivery_statuses in reply.messages:
            if any(delivery_status.state == DeliveryState.LEASED for delivery_status in delivery_statuses):
                done.leased += 1
            else:
                found[dead_letter.id] = (shard, dead_letter)
    return [found[ref.id] for ref in refs if ref.id in found]


def _permitted(
    dead_letters: list[tuple[Shard, Message]], to: Destination, require: Require, done: Redriven
) -> list[tuple[Shard, Message]]:
    """Those of the dead letters that may go where they are to go."""
    permitted: list[tuple[Shard, Message]] = []
    for shard, dead_letter in dead_letters:
        name, _ = to.of(dead_letter)
        try:
            if name:
                require(name)
            permitted.append((shard, dead_letter))
        except HoldfastError as error:
            done.refused[dead_letter.id] = error
    return permitted


def _move(
    engine: Engine,
    queue: Queue,
    dead_letters: list[tuple[Shard, Message]],
    to: Destination,
    discard: bool,
    done: Redriven,
    now: int,
) -> None:
    """For each destination: store the new messages and delete their dead letters in one batch."""
    if discard:
        withdraw(engine, queue, dead_letters, "", now)
        done.moved = [(dead_letter.id, 0) for _, dead_letter in dead_letters]
        return
    by_target: dict[tuple[str, str], list[tuple[Shard, Message]]] = {}
    for shard, dead_letter in with_newest_states(engine, queue, dead_letters, now):
        by_target.setdefault(to.of(dead_letter), []).append((shard, dead_letter))
    for (name, group), movable in by_target.items():
        target = destination(engine, queue, name, group, [dead_letter for _, dead_letter in movable], done.refused, now)
        if target is None:
            continue
        moved = _deliver(engine, queue, target, group, to, [dead_letter for _, dead_letter in movable], done, now)
        withdraw(engine, queue, [item for item in movable if item[1].id in moved], Reason.REDRIVEN, now)
        done.moved += moved.items()


def withdraw(engine: Engine, queue: Queue, dead_letters: list[tuple[Shard, Message]], reason: str, now: int) -> None:
    """Delete dead letters from their queue."""
    by_shard: dict[int, list[int]] = {}
    for shard, dead_letter in dead_letters:
        by_shard.setdefault(shard.partition, []).append(dead_letter.seq)
    for partition, seqs in by_shard.items():
        count = engine.step(queue, queue.shards[partition], Withdraw(seqs, reason), now)
        assert count == len(seqs), "a dead letter that was redriven did not exist any more"


def with_newest_states(
    engine: Engine, queue: Queue, dead_letters: list[tuple[Shard, Message]], now: int
) -> list[tuple[Shard, Message]]:
    """Dead letters of several shards with their newest workflow states, in the same order."""
    found: dict[int, Message] = {}
    for shard in {shard.number: shard for shard, _ in dead_letters}.values():
        here = [dead_letter for of, dead_letter in dead_letters if of is shard]
        found |= {dead_letter.id: dead_letter for dead_letter in with_states(engine, queue, shard, here, now)}
    return [(shard, found[dead_letter.id]) for shard, dead_letter in dead_letters]


def with_states(engine: Engine, queue: Queue, shard: Shard, dead_letters: list[Message], now: int) -> list[Message]:
    """Dead letters of one shard with their workflow states, which consumers of the dead queue may have changed."""
    states_by_id = {dead_letter.id: dead_letter.extra.state for dead_letter in dead_letters}
    for group in queue.record.groups:
        deliveries = shard.deliveries_of(group.name)
        delivered_ids = [dead_letter.id for dead_letter in dead_letters if dead_letter.id in deliveries]
        if not delivered_ids:
            continue
        command = GetStates(group.name, [(message_id, 0) for message_id in delivered_ids])
        states = engine.step(queue, shard, command, now)
        for message_id, state in zip(delivered_ids, states, strict=True):
            before = states_by_id[message_id]
            if state is not None and (before is None or state.etag > before.etag):
                states_by_id[message_id] = state
    return [
        replace(dead_letter, extra=replace(dead_letter.extra, state=visible_state(states_by_id[dead_letter.id])))
        for dead_letter in dead_letters
    ]


def destination(
    engine: Engine,
    queue: Queue,
    to: str,
    group: str,
    dead_letters: list[Message],
    refused: dict[int, HoldfastError],
    now: int,
) -> Queue | None:
    """The queue for these dead letters, created if it does not exist; None if that or the group is not possible."""
    try:
        if to in ("", queue.record.name):
            raise InvalidArgument(
                field="target", problem="must be named: the dead letter does not say where it came from"
            )
        target = engine.queue((queue.record.namespace, to), now, create=True)
        if group:
            _check_group(target, group)
    except HoldfastError as error:
        refused |= {dead_letter.id: error for dead_letter in dead_letters}
        return None
    return target


def _check_group(target: Queue, name: str) -> None:
    """The group must exist, unless the queue has none yet: then the message waits for the first, like any other."""
    group = target.find_group(name)
    if group is None and any(other.kind is GroupKind.LEASE for other in target.record.groups):
        raise GroupNotFound(group=name, queue=target.record.name)
    if group is not None and group.kind is not GroupKind.LEASE:
        raise WrongGroupKind(group=name, kind=group.kind.value, action="be sent messages of its own")


def enqueue_for(engine: Engine, target: Queue, group: str, drafts: list[Draft], now: int) -> Enqueued:
    """Store the messages of dead letters, for one group or for all; for all too if there is no group yet."""
    return engine.enqueue_in(target, drafts, PROTOCOL, now, group=group if target.find_group(group) is not None else "")


def _deliver(
    engine: Engine,
    dead: Queue,
    target: Queue,
    group: str,
    to: Destination,
    dead_letters: list[Message],
    done: Redriven,
    now: int,
) -> dict[int, int]:
    """Enqueue the messages of dead letters. The new ids by dead letter; a duplicate counts as moved."""
    source = dead.record.name
    drafts = [moved_draft(source, one, now) if to.moving else redriven(source, one) for one in dead_letters]
    reply = enqueue_for(engine, target, group, drafts, now)
    moved: dict[int, int] = {}
    for index, dead_letter in enumerate(dead_letters):
        if index in reply.errors:
            done.refused[dead_letter.id] = reply.errors[index]
        else:
            moved[dead_letter.id] = reply.ids[index]
    return moved
