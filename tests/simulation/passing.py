"""What time does in the model: deadlines, backoffs, delays, expiry, cursors that lag, what a removed group leaves."""

from __future__ import annotations

from tests.simulation.dead_lettering import rests
from tests.simulation.mail import Group, Is, Mail, Queue, must
from tests.simulation.model import Model


def tick(model: Model, name: str, partition: int, now: int) -> None:
    """All that is due by now in a partition. What falls due in one event is equal in age."""
    queue = model.queues[name]
    for mail in queue.in_partition(partition):
        for group, life in mail.lives.items():
            if life.state is Is.LEASED and life.deadline <= now:
                model.fail(queue, mail, group, -1, now)
            elif life.state is Is.BACKING_OFF and life.ready_at <= now:
                life.state = Is.READY
            elif life.state is Is.DEAD_LETTERING and life.ready_at <= now:
                model.doom(queue, mail, group, life.doom, life.failures)
        if mail.scheduled and mail.deliver_at <= now:
            mail.scheduled = False
            mail.order, mail.ms = (model.event, 0), model.ids_ms
        if mail.listed and mail.expires_at and mail.expires_at <= now:
            _expire(model, queue, mail, now)
    if partition in queue.unneeded:
        queue.unneeded.discard(partition)
        _drop_unneeded(queue, partition)


def _expire(model: Model, queue: Queue, mail: Mail, now: int) -> None:
    if not mail.lives and queue.kept(mail):
        return
    due = model.allowed if rests(queue, mail.partition, now) else model.expected
    for group, life in mail.lives.items():
        if life.state in (Is.READY, Is.BACKING_OFF) and (queue.name, group, mail.id) not in model.expected:
            due[queue.name, group, mail.id] = ("expired", life.failures)
    if not mail.lives:
        due[queue.name, "", mail.id] = ("expired", 0)


def _drop_unneeded(queue: Queue, partition: int) -> None:
    for mail in queue.in_partition(partition):
        if queue.kept(mail):
            continue
        if mail.masked and not mail.needed():
            del queue.mails[mail.id]
        elif not any(life.over for life in mail.lives.values()):
            mail.masked = False  # only groups had settled it that are no more


def follow(model: Model, queue: Queue, cursor: Group, partition: int, committed: int, now: int) -> None:
    """The engine may have moved a cursor on, if it held back too much."""
    if committed <= cursor.committed[partition]:
        return
    what = f"{queue.name}/{cursor.name}: moved on to {committed} of {queue.next_seq[partition]}"
    lagged = queue.next_seq[partition] - 1 - cursor.max_lag_messages if cursor.max_lag_messages else 0
    passed = [m for m in queue.in_partition(partition) if cursor.sees(m) and lagged < m.seq <= committed]
    too_old = [cursor.max_lag_age > 0 and mail.enqueued_at + cursor.max_lag_age <= now for mail in passed]
    must(all(too_old), f"{what} without cause: {passed}")
    advance_cursor(model, queue, cursor, partition, committed, "dropped")


def lagging(model: Model, now: int) -> list[tuple[Queue, Group, int, int]]:
    """Cursor groups that a tick must move on, by partition, at least to a sequence."""
    found: list[tuple[Queue, Group, int, int]] = []
    for queue in model.queues.values():
        for cursor in queue.cursors():
            for partition, high in enumerate(queue.next_seq):
                target = high - 1 - cursor.max_lag_messages if cursor.max_lag_messages else 0
                if cursor.max_lag_age and not model.went_back:
                    target = max(target, _too_old(queue, cursor, partition, now))
                if target > cursor.committed[partition]:
                    found.append((queue, cursor, partition, target))
    return found


def _too_old(queue: Queue, cursor: Group, partition: int, now: int) -> int:
    """The last of the oldest messages that a cursor group has kept for longer than it may; 0 if none is."""
    target = 0
    for mail in sorted(queue.in_partition(partition), key=lambda mail: mail.seq):
        if cursor.sees(mail):
            if mail.enqueued_at + cursor.max_lag_age > now:
                break
            target = mail.seq
    return target


def advance_cursor(model: Model, queue: Queue, cursor: Group, partition: int, target: int, kind: str) -> None:
    """A cursor group needs nothing up to `target`."""
    passed = [mail for mail in queue.in_partition(partition) if cursor.sees(mail) and mail.seq <= target]
    cursor.committed[partition] = target
    if kind == "dropped":
        cursor.lost[partition] += [mail.seq for mail in passed]
    for mail in passed:
        model.facts.ended(queue.name, mail.id, cursor.number, kind)
        if not mail.needed() and not queue.kept(mail):
            del queue.mails[mail.id]
