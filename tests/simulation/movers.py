"""What moves many messages at once: redrives of dead letters."""

from __future__ import annotations

from holdfast.core.commands import Draft, Enqueued
from holdfast.core.records import Extra, Origin
from holdfast.core.workflow import visible_state
from holdfast.engine.dead_letters import DeadLetterFilter
from holdfast.engine.redrive import Destination, Redriven, redrive
from holdfast.errors import GroupNotFound, HoldfastError, InvalidArgument, QueueNotFound, WrongGroupKind
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
        to = Destination(queue=target, all_groups=random.random() < 0.3)
        order = sorted(ids) if ids else _by_death(queue)
        matching = {m.id for m in queue.mails.values() if m.listed and (not ids or m.id in ids) and _fits(m, reasons)}
        leased = {message_id for message_id in matching if machine.model.leased_in(queue.mails[message_id])}
        work = redrive(
            machine.engine,
            (NAMESPACE, queue.name),
            DeadLetterFilter(ids=ids, reasons=reasons),
            lambda: machine.now,
            to=to,
            step=random.choice((1, 3, 100)),
            discard=discard,
        )
        tried: set[int] = set()
        held = 0
        for done in work:
            tried |= {dead_letter for dead_letter, _ in done.moved} | set(done.refused)
            held += done.leased
            self._moved(queue, done, to, order, discard)
            if random.random() < 0.3:
                machine.write()
        must(tried == matching - leased, f"{queue.name}: redrive tried {tried} of {matching} without {leased}")
        must(held == len(leased), f"{queue.name}: {held} leased, not {leased}")

    def _moved(self, queue: Queue, done: Redriven, to: Destination, order: list[int], discard: bool) -> None:
        model = self.machine.model
        by_target: dict[tuple[str, str], list[tuple[int, int | HoldfastError]]] = {}
        became = dict(done.moved) | done.refused
        for dead_letter in sorted(became, key=order.index):
            mail = queue.mails[dead_letter]
            home = mail.source is not None and not to.queue and not to.all_groups
            group = mail.source[1] if mail.source is not None and home else ""
            by_target.setdefault((to.queue or mail.source_queue, group), []).append((dead_letter, became[dead_letter]))
        for (name, group), pairs in by_target.items():
            if discard:
                must(all(became == 0 for _, became in pairs), f"{queue.name}: thrown away to {pairs}")
            elif name not in model.queues or name == queue.name:
                nowhere = all(isinstance(became, (QueueNotFound, InvalidArgument)) for _, became in pairs)
                must(nowhere, f"{queue.name}: redriven to {name!r}, which is not there: {pairs}")
            elif group and not _takes(model.queues[name], group):
                nobody = all(isinstance(became, (GroupNotFound, WrongGroupKind)) for _, became in pairs)
                must(nobody, f"{queue.name}: redriven to group {group!r}, which is not there: {pairs}")
            else:
                self._arrived(queue, name, group, pairs)
        for dead_letter, _ in done.moved:
            model.remove(queue, queue.mails[dead_letter], "purged")

    def _arrived(self, queue: Queue, to: str, group: str, pairs: list[tuple[int, int | HoldfastError]]) -> None:
        model = self.machine.model
        drafts = [_draft(queue.name, queue.mails[dead_letter]) for dead_letter, _ in pairs]
        reply = Enqueued([0] * len(pairs))
        fresh: set[int] = set()
        for index, (dead_letter, became) in enumerate(pairs):
            if isinstance(became, HoldfastError):
                reply.errors[index] = became
                continue
            reply.ids[index] = became
            if became in model.places or became in fresh:
                reply.duplicates[index] = became
            else:
                model.swaps.append((queue.name, dead_letter, to, became))
            fresh.add(became)
        stored = self.machine.engine.queues[NAMESPACE, to]
        partitions = [stored._partition(draft) if len(stored.shards) > 1 else 0 for draft in drafts]
        model.enqueue(to, drafts, partitions, reply, self.machine.now)
        target = model.queues[to]
        for index, message_id in enumerate(reply.ids):
            if group and message_id and index not in reply.duplicates:
                for other in target.leasing():
                    if other.name != group and group in target.groups:
                        model.end(target, target.mails[message_id], other.name, "purged")


def _by_death(queue: Queue) -> list[int]:
    """Ids of letters as they died: by time, letters of one time by their sources."""
    died: list[tuple[int, int, int]] = []
    for partition in range(len(queue.next_seq)):
        latest = 0
        for mail in sorted(queue.in_partition(partition), key=lambda mail: mail.seq):
            if mail.listed:
                latest = max(latest, mail.enqueued_at)
                died.append((latest, mail.source[0] if mail.source is not None else mail.id, mail.id))
    return [message_id for _, _, message_id in sorted(died)]


def _takes(queue: Queue, group: str) -> bool:
    """Whether a letter can be for this group: it is there, or none is, and the first to come will have it."""
    found = queue.groups.get(group)
    return not found.cursor if found is not None else not queue.leasing()


def _fits(mail: Mail, reasons: frozenset[str]) -> bool:
    return not reasons or (mail.why is not None and mail.why[0] in reasons)


def _draft(dead_queue: str, mail: Mail) -> Draft:
    origin = Origin(mail.id, dead_queue, "")
    if mail.source is not None:
        reason, attempts = mail.why or ("", 0)
        origin = Origin(mail.source[0], mail.source_queue, mail.source[1], reason, "", attempts)
    states = [mail.seed, *(life.kept for life in mail.lives.values() if not life.over)]
    newest = max((state for state in states if state is not None), key=lambda state: state.etag, default=None)
    extra = Extra(key=mail.given_key, message_id=mail.message_id, origin=origin, state=visible_state(newest))
    return Draft(b"x" * mail.size, mail.priority, extra=extra)
