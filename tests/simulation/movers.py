"""What moves many messages at once: redrives of dead letters."""

from __future__ import annotations

from holdfast.broker.redrive import Letters, Redriven, redrive
from holdfast.core.commands import Draft, Enqueued
from holdfast.core.records import Extra, Origin
from holdfast.errors import HoldfastError, InvalidArgument, QueueNotFound
from tests.simulation.machine import NAMESPACE
from tests.simulation.mail import Mail, Queue, must
from tests.simulation.readers import Readers
from tests.simulation.world import NAMED_DEAD_QUEUE

REASONS = ("max_retries", "rejected", "expired", "total_timeout")


class Movers(Readers):
    """Long pieces of work, step by step, the model told after each."""

    def redrive(self, queue: Queue) -> None:
        machine, random = self.machine, self.random
        dead = [name for name in machine.model.queues if name.startswith("dlq/") or name == NAMED_DEAD_QUEUE]
        queue = machine.model.queues[random.choice(dead)]
        others = [name for name in machine.model.queues if name != queue.name]
        target = random.choice(("", "", random.choice(others))) if others else ""
        reasons = frozenset(random.sample(REASONS, random.choice((0, 0, 2))))
        ids = frozenset(random.sample(sorted(queue.mails), min(len(queue.mails), random.choice((0, 0, 2)))))
        discard = random.random() < 0.1
        matching = {m.id for m in queue.mails.values() if m.listed and (not ids or m.id in ids) and _fits(m, reasons)}
        leased = {message_id for message_id in matching if machine.model.leased_in(queue.mails[message_id])}
        work = redrive(
            machine.engine,
            (NAMESPACE, queue.name),
            Letters(ids=ids, reasons=reasons),
            lambda: machine.now,
            target=target,
            step=random.choice((1, 3, 100)),
            discard=discard,
        )
        tried: set[int] = set()
        held = 0
        for done in work:
            tried |= {letter for letter, _ in done.moved} | set(done.refused)
            held += done.leased
            self._moved(queue, done, target, discard)
            if random.random() < 0.3:
                machine.write()
        must(tried == matching - leased, f"{queue.name}: redrive tried {tried} of {matching} without {leased}")
        must(held == len(leased), f"{queue.name}: {held} leased, not {leased}")

    def _moved(self, queue: Queue, done: Redriven, target: str, discard: bool) -> None:
        model = self.machine.model
        by_target: dict[str, list[tuple[int, int | HoldfastError]]] = {}
        order: list[tuple[int, int | HoldfastError]] = [*done.moved, *done.refused.items()]
        for letter, became in sorted(order, key=lambda item: queue.mails[item[0]].seq):
            to = target or queue.mails[letter].source_queue
            by_target.setdefault(to, []).append((letter, became))
        for to, pairs in by_target.items():
            if discard:
                must(all(became == 0 for _, became in pairs), f"{queue.name}: thrown away to {pairs}")
            elif to not in model.queues or to == queue.name:
                nowhere = all(isinstance(became, (QueueNotFound, InvalidArgument)) for _, became in pairs)
                must(nowhere, f"{queue.name}: redriven to {to!r}, which is not there: {pairs}")
            else:
                self._arrived(queue, to, pairs)
        for letter, _ in done.moved:
            model.remove(queue, queue.mails[letter], "purged")

    def _arrived(self, queue: Queue, to: str, pairs: list[tuple[int, int | HoldfastError]]) -> None:
        model = self.machine.model
        drafts = [_draft(queue.name, queue.mails[letter]) for letter, _ in pairs]
        reply = Enqueued([0] * len(pairs))
        fresh: set[int] = set()
        for index, (letter, became) in enumerate(pairs):
            if isinstance(became, HoldfastError):
                reply.errors[index] = became
                continue
            reply.ids[index] = became
            if became in model.places or became in fresh:
                reply.duplicates[index] = became
            else:
                model.swaps.append((queue.name, letter, to, became))
            fresh.add(became)
        stored = self.machine.engine.queues[NAMESPACE, to]
        partitions = [stored._partition(draft) if len(stored.shards) > 1 else 0 for draft in drafts]
        model.enqueue(to, drafts, partitions, reply, self.machine.now)


def _fits(mail: Mail, reasons: frozenset[str]) -> bool:
    return not reasons or (mail.why is not None and mail.why[0] in reasons)


def _draft(dead_queue: str, mail: Mail) -> Draft:
    origin = Origin(mail.id, dead_queue, "")
    if mail.source is not None:
        reason, attempts = mail.why or ("", 0)
        origin = Origin(mail.source[0], mail.source_queue, mail.source[1], reason, "", attempts)
    states = [mail.seed, *(life.kept for life in mail.lives.values() if not life.over)]
    newest = max((state for state in states if state is not None), key=lambda state: state.etag, default=None)
    extra = Extra(key=mail.given_key, message_id=mail.message_id, origin=origin, state=newest)
    return Draft(b"x" * mail.size, mail.priority, extra=extra)
