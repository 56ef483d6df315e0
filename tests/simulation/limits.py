"""How much a group may be given now, going by the model: what it holds, and its token bucket."""

from __future__ import annotations

from math import ceil

from tests.simulation.mail import Is, Queue

SECOND = 1_000_000


def room(queue: Queue, group: str, limit: int, now: int) -> int:
    """How many of `limit` deliveries a lease gives at most."""
    limits = queue.config.throttle
    if limits.concurrency:
        held = sum(group in mail.lives and mail.lives[group].state is Is.LEASED for mail in queue.mails.values())
        limit = min(limit, max(limits.concurrency - held, 0))
    return min(limit, _tokens(queue, group, now)) if limits.rate and limit else limit


def took(queue: Queue, group: str, count: int, now: int) -> None:
    """A group was given deliveries."""
    if queue.config.throttle.rate and count:
        queue.groups[group].asked[-1] = (now, count)


def _tokens(queue: Queue, group: str, now: int) -> int:
    """What is in the bucket: it is filled with the time, and each delivery since the beginning has emptied it."""
    limits = queue.config.throttle
    size = limits.burst or max(ceil(limits.rate), 1)
    queue.groups[group].asked.append((now, 0))
    tokens, before = float(size), 0
    for at, count in queue.groups[group].asked:
        tokens = min(tokens + max(at - before, 0) * limits.rate / SECOND, size) - count
        before = at  # also if the clock went back
    return int(tokens + 1e-6)
