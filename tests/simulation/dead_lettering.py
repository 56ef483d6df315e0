"""Dead letters in the model: what had to be buried was, once, with the right reason, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.core.commands import Draft
from holdfast.core.ids import fnv1a32
from holdfast.core.queue import DEAD_PREFIX, DEAD_QUEUE_CONFIG
from holdfast.core.records import Extra, Origin
from holdfast.core.workflow import visible_state
from tests.simulation.mail import Is, Mail, Queue, must, state_of
from tests.simulation.model import Model

DEAD_LETTER_BACKOFF = 5_000_000


@dataclass(frozen=True, slots=True)
class DeadLettering:
    """What the engine did with doomed deliveries of a queue: (group, id, reason, attempts) and the letter's id each."""

    queue: str
    target: str | None
    dead_letter_candidates: list[tuple[str, int, str, int]]
    dead_letters: list[int]


def check_dead_letters(model: Model, dead_letterings: Iterable[DeadLettering], now: int) -> None:
    """What the engine says it buried must be what had to be, with nothing left."""
    for dead_lettering in dead_letterings:
        queue = model.queues[dead_lettering.queue]
        for (group, message_id, reason, attempts), dead_letter in zip(
            dead_lettering.dead_letter_candidates, dead_lettering.dead_letters, strict=True
        ):
            what = (queue.name, group, message_id)
            expected = model.expected.pop(what, None) or model.allowed.pop(what, None)
            must(expected is not None, f"{queue.name}: {message_id} buried in {group!r} for {reason} without cause")
            must(expected == (reason, attempts), f"{queue.name}: {message_id} in {group!r} died of {expected}")
            mail = queue.mails[message_id]
            model.reasons[reason] = model.reasons.get(reason, 0) + 1
            if dead_letter < 0:
                _refused(model, queue, mail, group, reason, dead_lettering.target, now)
            else:
                _ended(model, queue, mail, group, (reason, attempts), dead_lettering.target, dead_letter, now)
    for (name, group, message_id), (reason, _) in list(model.expected.items()):
        queue = model.queues[name]
        if reason == "expired" and rests(queue, queue.mails[message_id].partition, now):
            del model.expected[name, group, message_id]
    must(not model.expected, f"not buried though dead: {model.expected}")
    model.allowed = {}


def rests(queue: Queue, partition: int, now: int) -> bool:
    """A dead queue that refused what no group needed is not asked again at once, and meanwhile expiry rests."""
    return now <= queue.dead_lettering_paused.get(partition, 0)


def _ended(
    model: Model,
    queue: Queue,
    mail: Mail,
    group: str,
    why: tuple[str, int],
    target: str | None,
    dead_letter: int,
    now: int,
) -> None:
    mail.scheduled = False
    kind = "dead" if dead_letter else "expired" if why[0] == "expired" else "dropped"
    if dead_letter:
        must(target is not None, f"{queue.name}: letter without a dead queue")
        _dead_letter_of(model, str(target), mail, group, why, dead_letter, now)
    else:
        must(not queue.config.dlq.enabled, f"{queue.name}: {mail.id} dropped though there is a dead queue")
    if group:
        model.end(queue, mail, group, kind)
    else:
        model.remove(queue, mail, kind)


def _refused(model: Model, queue: Queue, mail: Mail, group: str, reason: str, target: str | None, now: int) -> None:
    """A dead queue refuses a letter for its size only. The delivery stays, out of sight, and is tried again."""
    dead = model.queues.get(target or "")
    refusable = dead is not None and mail.size > dead.config.max_message_size
    must(refusable, f"{queue.name}: {target} refused dead letter of {mail.id} ({mail.size} bytes)")
    mail.scheduled = False
    if not group:
        queue.dead_lettering_paused[mail.partition] = now + DEAD_LETTER_BACKOFF
        model.allowed[queue.name, "", mail.id] = (reason, 0)
        return
    life = mail.lives[group]
    if life.state is Is.LEASED:
        life.failures += 1
    life.state, life.token, life.doom = Is.DEAD_LETTERING, 0, reason
    life.ready_at = now + DEAD_LETTER_BACKOFF


def _dead_letter_of(
    model: Model, target: str, mail: Mail, group: str, why: tuple[str, int], dead_letter: int, now: int
) -> None:
    if target not in model.queues:
        must(target.startswith(DEAD_PREFIX), f"dead queue {target} appeared")
        model.add_queue(target, DEAD_QUEUE_CONFIG)
    dead = model.queues[target]
    partition = fnv1a32(mail.id.to_bytes(8, "big")) % len(dead.next_seq)
    known = dead.with_source(partition, (mail.id, group))
    if known is not None:
        must(known.id == dead_letter, f"{target}: two letters of {mail.id} in {group!r}: {known.id}, {dead_letter}")
        return
    must((mail.id, group) not in model.dead_letters, f"{target}: {mail.id} in {group!r} buried again: {dead_letter}")
    origin = Origin(mail.id, mail.queue, group, why[0], "", why[1])
    state = visible_state(state_of(mail, group))
    extra = Extra(key=mail.given_key, message_id=mail.message_id, origin=origin, state=state)
    draft = Draft(b"x" * mail.size, mail.priority, extra=extra)
    model.store(dead, partition, draft, dead_letter, now)
    model.dead_letters[mail.id, group] = dead_letter
