"""Which delivery may go out next, going by the model: priority, age, keys, one at a time."""

from __future__ import annotations

from collections import Counter

from holdfast.core.commands import Leased
from holdfast.core.queue import Ordering
from tests.simulation.mail import Is, Life, Mail, Queue, must

SLACK_MS = 2  # a place after a retry is known to about a millisecond
_OUT = (Is.LEASED, Is.BACKING_OFF, Is.DEAD_LETTERING)


def before(one: Mail, other: Mail) -> bool:
    """Whether a message's own place is before another's, priority first."""
    if one.priority != other.priority:
        return one.priority < other.priority
    if one.order[0] != other.order[0]:
        return one.order[0] < other.order[0]
    if one.order[1] and other.order[1]:
        return one.order[1] < other.order[1]
    # They fell due in one event: within a partition in the order of their times, over partitions in any.
    due_both = not one.order[1] and not other.order[1] and one.partition == other.partition
    return due_both and (one.deliver_at, one.seq) < (other.deliver_at, other.seq)


def goes_before(one: Mail, other: Mail, group: str) -> bool:
    """Whether a message must go out before another one that may go out as well."""
    first, second = one.lives[group], other.lives[group]
    if one.priority == other.priority and (first.again_ms or second.again_ms):
        return (first.again_ms or one.ms) + SLACK_MS < (second.again_ms or other.ms)
    return before(one, other)


def candidates(queue: Queue, group: str, partitions: set[int], in_order: bool = True) -> list[Mail]:
    """All that may go out now, were each the only one. Not `in_order`: any one of a key that has nothing out."""
    mails = [m for m in queue.mails.values() if m.partition in partitions and m.listed and group in m.lives]
    ready = [m for m in mails if m.lives[group].state is Is.READY and not m.scheduled]
    if queue.config.ordering is Ordering.STRICT:
        if any(m.lives[group].state in _OUT for m in mails):
            return []
        return [m for m in ready if not any(before(other, m) for other in ready)]
    slots = queue.config.throttle.key_concurrency
    out = Counter(key_of(m) for m in mails if m.key is not None and m.lives[group].state in _OUT)
    by_key: dict[tuple[int, str | None], list[Mail]] = {}
    for mail in ready:
        by_key.setdefault(key_of(mail), []).append(mail)
    return [
        m
        for m in ready
        if m.key is None
        or out[key_of(m)] + (sum(before(other, m) for other in by_key[key_of(m)]) if in_order else 0) < slots
    ]


def key_of(mail: Mail) -> tuple[int, str | None]:
    """What must go one after another. Dead letters and imports of one key may lie in several partitions."""
    return (mail.partition, mail.key)


def check_lease(
    queue: Queue,
    group: str,
    partitions: set[int],
    leased: list[Leased],
    limit: int,
    deadline: int,
    consumer: str,
    in_key_order: bool,
    in_order: bool,
    all_there: bool,
) -> None:
    """The leased deliveries are the right ones in the right order, and none was left that should have come too."""
    rest = candidates(queue, group, partitions, in_key_order)
    strict = queue.config.ordering is Ordering.STRICT
    for item in leased:
        mail = queue.mails.get(item.message.id)
        name = f"{queue.name}/{group}: message {item.message.id}"
        must(mail is not None, f"{name} is leased, but is not stored")
        assert mail is not None
        life = mail.lives.get(group)
        must(life is not None, f"{name} is not for this group")
        assert life is not None
        rivals = [m for m in queue.mails.values() if m.key and key_of(m) == key_of(mail) and group in m.lives]
        must(mail in rest, f"{name} is leased, but may not go: {mail}, with {rivals}")
        if in_order and not strict:
            better = next((m for m in rest if goes_before(m, mail, group) and not _tied(m, rest)), None)
            must(better is None, f"{name} goes out: {mail}, before {better}")
        must(item.attempt == life.failures + 1, f"{name} has attempt {item.attempt}, not {life.failures + 1}")
        must(item.attempt <= queue.config.retry.max_retries + 1, f"{name} has attempt {item.attempt}")
        must(item.deadline == deadline, f"{name} has deadline {item.deadline}, not {deadline}")
        must(item.partition == mail.partition, f"{name} is said to be in partition {item.partition}")
        must(len(item.message.payload) == mail.size, f"{name} has another payload")
        rest = [] if strict else [m for m in rest if m is not mail and _go_together(queue, m, mail)]
        _take(life, item, consumer)
    must(len(leased) <= limit, f"{queue.name}/{group}: {len(leased)} leased, asked for {limit}")
    if all_there and len(leased) < limit:
        rest = [mail for mail in rest if not _tied(mail, rest)]
        must(not rest, f"{queue.name}/{group}: {len(leased)} of {limit} leased, left ready: {rest[:2]}")


def _go_together(queue: Queue, one: Mail, other: Mail) -> bool:
    """Whether both may be out at a time."""
    return other.key is None or key_of(one) != key_of(other) or queue.config.throttle.key_concurrency > 1


def _tied(mail: Mail, rest: list[Mail]) -> bool:
    """Whether another one of its key might as well be first: they became available in one event."""
    return mail.key is not None and any(m is not mail and key_of(m) == key_of(mail) for m in rest)


def _take(life: Life, item: Leased, consumer: str) -> None:
    life.state = Is.LEASED
    life.token = item.token
    life.deadline = item.deadline
    life.ready_at = 0
    life.consumer = consumer
