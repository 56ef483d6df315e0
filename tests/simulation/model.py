"""What the engine must do, said plainly: every message in memory, every rule a loop over all of them.

It follows the engine call by call. Where the rules leave no choice it predicts the answer and compares; where they do
(which of two equals goes first, what id a message gets) it checks that the answer is allowed and takes it over. It
shares no code with the core but the shapes of configuration and commands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.core.commands import Draft, Enqueued, Settlement, Verb
from holdfast.core.ids import EPOCH_MS, fnv1a32
from holdfast.core.queue import DEAD_PREFIX, DEAD_QUEUE_CONFIG, Ordering, QueueConfig
from holdfast.core.records import Extra, Origin
from holdfast.errors import HoldfastError, LeaseLost, MessageTooLarge, QueueFull
from tests.simulation.facts import Facts
from tests.simulation.mail import Group, Is, Life, Mail, Queue, must

BURIAL_BACKOFF = 5_000_000
ID_TIME_SHIFT = 22


@dataclass(frozen=True, slots=True)
class Burial:
    """What the engine did with doomed deliveries of a queue: (group, id, reason, attempts) and the letter's id each."""

    queue: str
    target: str | None
    doomed: list[tuple[str, int, str, int]]
    letters: list[int]


class Model:
    """See the module."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.facts = Facts()
        self.event = 0
        self.last_id = 0
        self.latest = 0  # the latest time there was
        self.went_back = False
        self.ids_ms = 0  # about where the engine's ids stand
        self.expected: dict[tuple[str, str, int], tuple[str, int]] = {}  # what must be buried now: reason, attempts
        self.allowed: dict[tuple[str, str, int], tuple[str, int]] = {}  # what may be
        self.letters: dict[tuple[int, str], int] = {}  # dead letters ever seen, by source
        self.places: dict[int, tuple[int, int]] = {}  # partition and sequence of every message ever stored
        self.names: dict[tuple[str, int], str] = {}  # groups ever made
        self.reasons: dict[str, int] = {}

    # --- messages come ----------------------------------------------------------------------------------------------

    def enqueue(self, name: str, drafts: list[Draft], partitions: list[int], reply: Enqueued, now: int) -> None:
        queue = self.queues[name]
        self.event += 1
        limit = queue.config.max_depth
        room = max(limit - queue.depth, 0) if limit else len(drafts)
        by_partition: dict[int, list[int]] = {}
        for index, partition in enumerate(partitions):
            by_partition.setdefault(partition, []).append(index)
        for partition, indexes in by_partition.items():
            for index in indexes:
                draft = drafts[index]
                first = self._known(queue, partition, draft, now, reply.duplicates.get(index, 0))
                if len(draft.payload) > queue.config.max_message_size:
                    self._refused(reply, index, MessageTooLarge)
                elif first:
                    must(reply.duplicates.get(index) == first, f"{name}: duplicate of {first} answered {reply}")
                    must(reply.ids[index] == first, f"{name}: a duplicate has not the first one's id {first}: {reply}")
                elif room <= 0:
                    self._refused(reply, index, QueueFull)
                else:
                    room -= 1
                    must(index not in reply.errors, f"{name}: refused without cause: {reply.errors.get(index)}")
                    must(index not in reply.duplicates, f"{name}: draft {index} is no duplicate: {reply}")
                    self._store(queue, partition, draft, reply.ids[index], now)
        self.last_id = max((self.last_id, *reply.ids))

    def _refused(self, reply: Enqueued, index: int, kind: type[HoldfastError]) -> None:
        must(isinstance(reply.errors.get(index), kind), f"draft {index} not refused with {kind.__name__}: {reply}")
        must(reply.ids[index] == 0, f"refused draft {index} has an id")

    def _known(self, queue: Queue, partition: int, draft: Draft, now: int, told: int) -> int:
        extra = draft.extra
        if extra.message_id is not None and queue.config.dedup_window:
            first, end = queue.dedup[partition].get(extra.message_id, (0, 0))
            if first and end > now and (end > self.latest or told == first):
                return first  # else it was forgotten before the clock went back
        if extra.origin is not None:
            mail = queue.with_source(partition, (extra.origin.source_id, extra.origin.source_group))
            if mail is not None:
                return mail.id
        return 0

    def _store(self, queue: Queue, partition: int, draft: Draft, message_id: int, now: int) -> Mail:
        must(message_id > self.last_id, f"{queue.name}: id {message_id} after {self.last_id}")
        must(message_id not in self.places, f"{queue.name}: id {message_id} is given twice")
        config, extra = queue.config, draft.extra
        ttl = config.message_ttl if draft.ttl < 0 else draft.ttl
        origin = extra.origin
        mail = Mail(
            id=message_id,
            queue=queue.name,
            partition=partition,
            seq=queue.next_seq[partition],
            priority=128 if config.ordering is Ordering.STRICT else draft.priority,
            key=extra.key if config.ordering is Ordering.PARTITION else None,
            enqueued_at=now,
            deliver_at=draft.deliver_at if draft.deliver_at > now else 0,
            expires_at=now + ttl if ttl else 0,
            size=len(draft.payload),
            message_id=extra.message_id,
            source=(origin.source_id, origin.source_group) if origin else None,
            given_key=extra.key,
            scheduled=draft.deliver_at > now,
            order=(self.event, message_id),
            ms=message_id >> ID_TIME_SHIFT,
        )
        queue.next_seq[partition] += 1
        self.places[message_id] = (partition, mail.seq)
        mail.lives = {group.name: Life() for group in queue.leasing()}
        queue.mails[message_id] = mail
        if extra.message_id is not None and config.dedup_window:
            queue.dedup[partition][extra.message_id] = (message_id, now + config.dedup_window)
        self.facts.stored(queue.name, message_id)
        return mail

    # --- a life ends ------------------------------------------------------------------------------------------------

    def end(self, queue: Queue, mail: Mail, group: str, kind: str) -> None:
        """A leasing group needs a message no more."""
        life = mail.lives[group]
        must(not life.over, f"{queue.name}: message {mail.id} ends {kind} in {group} after {life.ended}")
        life.state, life.ended, life.token = Is.ENDED, kind, 0
        self.facts.ended(queue.name, mail.id, queue.groups[group].number, kind)
        if not mail.needed():
            mail.listed = False
            if not queue.kept(mail):
                del queue.mails[mail.id]
        mail.masked = True

    def remove(self, queue: Queue, mail: Mail, kind: str) -> None:
        """A message goes for everybody."""
        open_in = [name for name, life in mail.lives.items() if not life.over]
        for name in open_in:
            life = mail.lives[name]
            life.state, life.ended = Is.ENDED, kind
            self.facts.ended(queue.name, mail.id, queue.groups[name].number, kind)
        readers = [cursor for cursor in queue.cursors() if cursor.sees(mail)]
        for cursor in readers:
            self.facts.ended(queue.name, mail.id, cursor.number, kind)
        if not open_in and not readers:
            self.facts.ended(queue.name, mail.id, -1, kind)
        mail.listed = False
        del queue.mails[mail.id]
        self.facts.removed(mail.id)

    def verdict(self, queue: Queue, mail: Mail, life: Life, failing: bool, now: int) -> str:
        retry = queue.config.retry
        if failing:
            if life.failures + 1 > retry.max_retries:
                return "max_retries"
            if retry.total_timeout and now - mail.enqueued_at > retry.total_timeout:
                return "total_timeout"
        return "expired" if mail.expires_at and mail.expires_at <= now else ""

    def fail(self, queue: Queue, mail: Mail, group: str, delay: int, now: int) -> None:
        life = mail.lives[group]
        end = self.verdict(queue, mail, life, True, now)
        if end:
            self.doom(queue, mail, group, end, life.failures + 1)
            return
        life.failures += 1
        must(life.failures <= queue.config.retry.max_retries, f"message {mail.id} fails too often in {group}")
        retry = queue.config.retry
        policy = min(retry.initial_backoff * retry.multiplier ** (life.failures - 1), retry.max_backoff)
        wait = delay if delay >= 0 else int(policy)
        life.state = Is.BACKING_OFF if wait else Is.READY
        life.token = 0
        life.ready_at = now + wait
        life.again_ms = max((now + wait) // 1000 - EPOCH_MS, self.ids_ms)
        self.facts.failed(mail.id, queue.groups[group].number, life.failures)

    def doom(self, queue: Queue, mail: Mail, group: str, reason: str, attempts: int) -> None:
        """The engine must bury this before it answers."""
        self.expected[queue.name, group, mail.id] = (reason, attempts)

    def bury(self, burials: Iterable[Burial], now: int) -> None:
        """What the engine says it buried must be what had to be, with nothing left."""
        for burial in burials:
            queue = self.queues[burial.queue]
            for (group, message_id, reason, attempts), letter in zip(burial.doomed, burial.letters, strict=True):
                what = (queue.name, group, message_id)
                expected = self.expected.pop(what, None) or self.allowed.pop(what, None)
                must(expected is not None, f"{queue.name}: {message_id} buried in {group!r} for {reason} without cause")
                must(expected == (reason, attempts), f"{queue.name}: {message_id} in {group!r} died of {expected}")
                self._buried(queue, queue.mails[message_id], group, reason, burial.target, letter, now)
        for (name, group, message_id), (reason, _) in list(self.expected.items()):
            queue = self.queues[name]
            if reason == "expired" and self._rests(queue, queue.mails[message_id].partition, now):
                del self.expected[name, group, message_id]
        must(not self.expected, f"not buried though dead: {self.expected}")
        self.allowed = {}

    def _rests(self, queue: Queue, partition: int, now: int) -> bool:
        """A dead queue that refused what no group needed is not asked again at once, and meanwhile expiry rests."""
        return now <= queue.no_burials.get(partition, 0)

    def _buried(
        self, queue: Queue, mail: Mail, group: str, reason: str, target: str | None, letter: int, now: int
    ) -> None:
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        if letter < 0:
            dead = self.queues.get(target or "")
            refusable = dead is not None and mail.size > dead.config.max_message_size
            must(refusable, f"{queue.name}: {target} refused dead letter of {mail.id} ({mail.size} bytes)")
            self._wait_to_be_buried(queue, mail, group, reason, now)
            return
        mail.scheduled = False
        kind = "dead" if letter else "expired" if reason == "expired" else "dropped"
        if letter:
            must(target is not None, f"{queue.name}: letter without a dead queue")
            self._letter(str(target), mail, group, letter, now)
        else:
            must(not queue.config.dlq.enabled, f"{queue.name}: {mail.id} dropped though there is a dead queue")
        if group:
            self.end(queue, mail, group, kind)
        else:
            self.remove(queue, mail, kind)

    def _wait_to_be_buried(self, queue: Queue, mail: Mail, group: str, reason: str, now: int) -> None:
        mail.scheduled = False
        if not group:
            queue.no_burials[mail.partition] = now + BURIAL_BACKOFF
            self.allowed[queue.name, "", mail.id] = (reason, 0)
            return
        life = mail.lives[group]
        if life.state is Is.LEASED:
            life.failures += 1
        life.state, life.token, life.doom = Is.DOOMED, 0, reason
        life.ready_at = now + BURIAL_BACKOFF

    def _letter(self, target: str, mail: Mail, group: str, letter: int, now: int) -> None:
        if target not in self.queues:
            must(target.startswith(DEAD_PREFIX), f"dead queue {target} appeared")
            self.add_queue(target, DEAD_QUEUE_CONFIG)
        dead = self.queues[target]
        partition = fnv1a32(mail.id.to_bytes(8, "big")) % len(dead.next_seq)
        known = dead.with_source(partition, (mail.id, group))
        if known is not None:
            must(known.id == letter, f"{target}: two letters of {mail.id} in {group!r}: {known.id}, {letter}")
            return
        must((mail.id, group) not in self.letters, f"{target}: {mail.id} in {group!r} buried again: {letter}")
        origin = Origin(mail.id, mail.queue, group)
        draft = Draft(b"x" * mail.size, mail.priority, extra=Extra(key=mail.given_key, origin=origin))
        self._store(dead, partition, draft, letter, now)
        self.letters[mail.id, group] = letter

    # --- settling ---------------------------------------------------------------------------------------------------

    def settle(
        self,
        name: str,
        group: str,
        settlements: list[Settlement],
        results: list[int | HoldfastError | None],
        now: int,
    ) -> None:
        queue = self.queues[name]
        self.event += 1
        done: dict[int, tuple[Verb, int]] = {}
        for settlement, result in zip(settlements, results, strict=True):
            mail = queue.mails.get(settlement.id)
            life = mail.lives.get(group) if mail is not None else None
            if mail is not None and life is not None and self._holds(settlement, mail, life, done):
                must(not isinstance(result, HoldfastError), f"{name}: {settlement} refused: {result}")
                self._settle_one(queue, mail, group, life, settlement, result, done, now)
            elif settlement.token and self._repeated(queue.groups[group], settlement, done):
                must(result is None, f"{name}: {settlement} repeated, answered {result!r}")
            else:
                must(isinstance(result, LeaseLost), f"{name}: {settlement} of {life} in {group}: {result!r}")

    def _holds(self, settlement: Settlement, mail: Mail, life: Life, done: dict[int, tuple[Verb, int]]) -> bool:
        if life.state is not Is.LEASED or life.token in done or settlement.partition not in (-1, mail.partition):
            return False
        if settlement.token:
            return settlement.token == life.token
        return bool(settlement.consumer) and settlement.consumer == life.consumer

    def _repeated(self, group: Group, settlement: Settlement, done: dict[int, tuple[Verb, int]]) -> bool:
        known = done.get(settlement.token) or group.remembered.get(settlement.token)
        where = self.places.get(settlement.id, (-1, 0))[0]
        return known == (settlement.verb, settlement.id) and settlement.partition in (-1, where)

    def _settle_one(
        self,
        queue: Queue,
        mail: Mail,
        group: str,
        life: Life,
        settlement: Settlement,
        result: int | HoldfastError | None,
        done: dict[int, tuple[Verb, int]],
        now: int,
    ) -> None:
        verb = settlement.verb
        if verb is Verb.EXTEND:
            life.deadline = now + (settlement.timeout if settlement.timeout >= 0 else queue.config.delivery_timeout)
            must(isinstance(result, int), f"{queue.name}: extend answered {result!r}")
            return
        must(result is None, f"{queue.name}: {settlement} answered {result!r}")
        done[life.token] = (verb, mail.id)
        queue.groups[group].remembered[life.token] = (verb, mail.id)
        if verb is Verb.ACK:
            self.end(queue, mail, group, "acked")
        elif verb is Verb.REJECT:
            self.doom(queue, mail, group, "rejected", life.failures + 1)
        elif verb is Verb.RELEASE:
            if self.verdict(queue, mail, life, False, now):
                self.doom(queue, mail, group, "expired", life.failures + 1)
            else:
                life.state, life.token, life.again_ms = Is.READY, 0, 0
        else:
            self.fail(queue, mail, group, settlement.delay if verb is Verb.NACK else -1, now)

    # --- time -------------------------------------------------------------------------------------------------------

    def tick(self, name: str, partition: int, now: int) -> None:
        """All that is due by now in a partition. What falls due in one event is equal in age."""
        queue = self.queues[name]
        for mail in queue.in_partition(partition):
            for group, life in mail.lives.items():
                if life.state is Is.LEASED and life.deadline <= now:
                    self.fail(queue, mail, group, -1, now)
                elif life.state is Is.BACKING_OFF and life.ready_at <= now:
                    life.state = Is.READY
                elif life.state is Is.DOOMED and life.ready_at <= now:
                    self.doom(queue, mail, group, life.doom, life.failures)
            if mail.scheduled and mail.deliver_at <= now:
                mail.scheduled = False
                mail.order, mail.ms = (self.event, 0), self.ids_ms
            if mail.listed and mail.expires_at and mail.expires_at <= now:
                self._expire(queue, mail, now)
        if partition in queue.unneeded:
            queue.unneeded.discard(partition)
            self._drop_unneeded(queue, partition)

    def _expire(self, queue: Queue, mail: Mail, now: int) -> None:
        if not mail.lives and queue.kept(mail):
            return
        due = self.allowed if self._rests(queue, mail.partition, now) else self.expected
        for group, life in mail.lives.items():
            if life.state in (Is.READY, Is.BACKING_OFF) and (queue.name, group, mail.id) not in self.expected:
                due[queue.name, group, mail.id] = ("expired", life.failures)
        if not mail.lives:
            due[queue.name, "", mail.id] = ("expired", 0)

    def follow(self, queue: Queue, cursor: Group, partition: int, committed: int, now: int) -> None:
        """The engine may have moved a cursor on, if it held back too much."""
        if committed <= cursor.committed[partition]:
            return
        what = f"{queue.name}/{cursor.name}: moved on to {committed} of {queue.next_seq[partition]}"
        if committed > queue.next_seq[partition] - 1 - (cursor.max_lag_messages or committed):
            old = [mail for mail in queue.in_partition(partition) if cursor.sees(mail) and mail.seq <= committed]
            too_old = [mail.enqueued_at + cursor.max_lag_age <= now for mail in old]
            must(cursor.max_lag_age > 0 and all(too_old), f"{what} without cause: {old}")
        self.move_on(queue, cursor, partition, committed, "dropped")

    def lagging(self, now: int) -> list[tuple[Queue, Group, int, int]]:
        """Cursor groups that a tick must move on, by partition, at least to a sequence."""
        found: list[tuple[Queue, Group, int, int]] = []
        for queue in self.queues.values():
            for cursor in queue.cursors():
                for partition, high in enumerate(queue.next_seq):
                    target = high - 1 - cursor.max_lag_messages if cursor.max_lag_messages else 0
                    for mail in sorted(queue.in_partition(partition), key=lambda mail: mail.seq):
                        if cursor.max_lag_age and cursor.sees(mail) and not self.went_back:
                            if mail.enqueued_at + cursor.max_lag_age > now:
                                break
                            target = max(target, mail.seq)
                    if target > cursor.committed[partition]:
                        found.append((queue, cursor, partition, target))
        return found

    def move_on(self, queue: Queue, cursor: Group, partition: int, target: int, kind: str) -> None:
        """A cursor group needs nothing up to `target`."""
        passed = [mail for mail in queue.in_partition(partition) if cursor.sees(mail) and mail.seq <= target]
        cursor.committed[partition] = target
        if kind == "dropped":
            cursor.lost[partition] += [mail.seq for mail in passed]
        for mail in passed:
            self.facts.ended(queue.name, mail.id, cursor.number, kind)
            if not mail.needed() and not queue.kept(mail):
                del queue.mails[mail.id]

    def _drop_unneeded(self, queue: Queue, partition: int) -> None:
        for mail in queue.in_partition(partition):
            if queue.kept(mail):
                continue
            if mail.masked and not mail.needed():
                del queue.mails[mail.id]
            elif not any(life.over for life in mail.lives.values()):
                mail.masked = False  # only groups had settled it that are no more

    # --- administration ---------------------------------------------------------------------------------------------

    def add_queue(self, name: str, config: QueueConfig) -> None:
        self.queues[name] = Queue(name, config)

    def add_group(
        self, name: str, group: str, number: int, cursor: bool, earliest: bool, lag_messages: int = 0, lag_age: int = 0
    ) -> None:
        queue = self.queues[name]
        high = list(queue.next_seq)
        made = Group(
            name=group,
            number=number,
            cursor=cursor,
            starts=high if cursor or not earliest else [1] * len(high),
            committed=[0] * len(high) if earliest else [seq - 1 for seq in high],
            lost=[[] for _ in high],
            max_lag_messages=lag_messages,
            max_lag_age=lag_age,
        )
        if cursor and earliest:
            made.old = set(queue.mails)
        queue.groups[group] = made
        self.names[name, number] = group
        if not cursor and earliest:
            queue.no_burials = {}
            for mail in queue.mails.values():
                if mail.listed:
                    mail.lives[group] = Life()
        self.facts.group_added(name, number)

    def remove_group(self, name: str, group: str) -> None:
        queue = self.queues[name]
        self.facts.group_removed(name, queue.groups.pop(group).number)
        for mail in queue.mails.values():
            mail.lives.pop(group, None)
        queue.unneeded = set(range(len(queue.next_seq)))

    def purge(self, name: str) -> int:
        queue = self.queues[name]
        purged = [mail for mail in queue.mails.values() if mail.listed and not self.leased_in(mail)]
        for mail in purged:
            self.remove(queue, mail, "purged")
        return len(purged)

    def leased_in(self, mail: Mail) -> bool:
        return any(life.state is Is.LEASED for life in mail.lives.values())

    def editable(self, mail: Mail) -> bool:
        return all(life.state is Is.READY and not life.failures for life in mail.lives.values())

    def edit(self, name: str, message_id: int, priority: int | None, deliver_at: int | None, now: int) -> None:
        queue = self.queues[name]
        mail = queue.mails[message_id]
        self.event += 1
        if priority is not None and queue.config.ordering is not Ordering.STRICT:
            mail.priority = priority
        if deliver_at is not None and deliver_at > now:
            mail.deliver_at, mail.scheduled = deliver_at, True
        elif mail.scheduled and (deliver_at is not None or mail.deliver_at <= now):
            mail.deliver_at, mail.scheduled = now, False
            mail.order, mail.ms = (self.event, 0), self.ids_ms
