"""What the engine must do, said plainly: every message in memory, every rule a loop over all of them.

It follows the engine call by call. Where the rules leave no choice it predicts the answer and compares; where they do
(which of two equals goes first, what id a message gets) it checks that the answer is allowed and takes it over. It
shares no code with the core but the shapes of configuration and commands.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.commands import Draft, Enqueued, Settlement, Verb
from holdfast.core.ids import EPOCH_MS
from holdfast.core.queue import Ordering, QueueConfig
from holdfast.errors import HoldfastError, LeaseLost, MessageTooLarge, QueueFull
from tests.simulation.facts import Facts
from tests.simulation.mail import Group, Is, Life, Mail, Queue, must

ID_TIME_SHIFT = 22


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
        self.dead_letters: dict[tuple[int, str], int] = {}  # dead letters ever seen, by source
        self.places: dict[int, tuple[int, int]] = {}  # partition and sequence of every message ever stored
        self.names: dict[tuple[str, int], str] = {}  # groups ever made
        self.reasons: dict[str, int] = {}
        self.swaps: list[tuple[str, int, str, int]] = []  # letters that were redriven and not confirmed, and to what

    # --- messages come ----------------------------------------------------------------------------------------------

    def enqueue(self, name: str, drafts: list[Draft], partitions: list[int], reply: Enqueued, now: int) -> None:
        queue = self.queues[name]
        self.event += 1
        limit = queue.config.max_depth
        room = max(limit - queue.depth, 0) if limit else len(drafts)
        for partition, indexes in self._rounds(queue, drafts, partitions):
            for index in indexes:
                draft = drafts[index]
                first = self.known(queue, partition, draft, now, reply.duplicates.get(index, 0))
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
                    self.store(queue, partition, draft, reply.ids[index], now)
        self.last_id = max((self.last_id, *reply.ids))

    def _rounds(self, queue: Queue, drafts: list[Draft], partitions: list[int]) -> Iterator[tuple[int, list[int]]]:
        """The drafts by partition. Those whose producer's id an earlier one of the batch has come after all others."""
        left = list(range(len(drafts)))
        while left:
            names: set[str] = set()
            by_partition: dict[int, list[int]] = {}
            later: list[int] = []
            for index in left:
                name = self.name(queue, drafts[index])
                fits = len(drafts[index].payload) <= queue.config.max_message_size
                if name in names and fits:
                    later.append(index)
                else:
                    by_partition.setdefault(partitions[index], []).append(index)
                if name is not None:
                    names.add(name)
            yield from by_partition.items()
            left = later

    def name(self, queue: Queue, draft: Draft) -> str | None:
        """The id that a draft must not share with another: what has a source is known by that."""
        return draft.extra.message_id if queue.config.dedup_window and draft.extra.origin is None else None

    def _refused(self, reply: Enqueued, index: int, kind: type[HoldfastError]) -> None:
        must(isinstance(reply.errors.get(index), kind), f"draft {index} not refused with {kind.__name__}: {reply}")
        must(reply.ids[index] == 0, f"refused draft {index} has an id")

    def known(self, queue: Queue, partition: int, draft: Draft, now: int, known_id: int) -> int:
        extra = draft.extra
        name = self.name(queue, draft)
        if name is not None:
            first, end = queue.dedup.get(name, (0, 0))
            if first and end > now and (end > self.latest or known_id == first):
                return first  # else it was forgotten before the clock went back
        if extra.origin is not None:
            mail = queue.with_source(partition, (extra.origin.source_id, extra.origin.source_group))
            if mail is not None:
                return mail.id
        return 0

    def store(self, queue: Queue, partition: int, draft: Draft, message_id: int, now: int) -> Mail:
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
            source_queue=origin.source_queue if origin else "",
            seed=extra.state,
            given_key=extra.key,
            why=(origin.reason, origin.attempts) if origin else None,
            scheduled=draft.deliver_at > now,
            order=(self.event, message_id),
            ms=message_id >> ID_TIME_SHIFT,
        )
        queue.next_seq[partition] += 1
        self.places[message_id] = (partition, mail.seq)
        mail.lives = {group.name: Life() for group in queue.leasing()}
        queue.mails[message_id] = mail
        name = self.name(queue, draft)
        if name is not None:
            queue.dedup[name] = (message_id, now + config.dedup_window)
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

    def dead_reason(self, queue: Queue, mail: Mail, life: Life, failing: bool, now: int) -> str:
        retry = queue.config.retry
        if failing:
            if life.failures + 1 > retry.max_retries:
                return "max_retries"
            if retry.total_timeout and now - mail.enqueued_at > retry.total_timeout:
                return "total_timeout"
        return "expired" if mail.expires_at and mail.expires_at <= now else ""

    def fail(self, queue: Queue, mail: Mail, group: str, delay: int, now: int) -> None:
        life = mail.lives[group]
        end = self.dead_reason(queue, mail, life, True, now)
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
            if self.dead_reason(queue, mail, life, False, now):
                self.doom(queue, mail, group, "expired", life.failures + 1)
            else:
                self._release(life, settlement.delay, now)
        else:
            self.fail(queue, mail, group, settlement.delay if verb is Verb.NACK else -1, now)

    def _release(self, life: Life, delay: int, now: int) -> None:
        life.token = 0
        if delay > 0:
            life.state, life.ready_at = Is.BACKING_OFF, now + delay
            life.again_ms = max((now + delay) // 1000 - EPOCH_MS, self.ids_ms)
        else:
            life.state, life.again_ms = Is.READY, 0

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
            queue.dead_lettering_paused = {}
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
        purged = [mail for mail in queue.mails.values() if not self.leased_in(mail)]
        for mail in purged:
            self.remove(queue, mail, "purged")
        return len(purged)

    def leased_in(self, mail: Mail) -> bool:
        return any(life.state is Is.LEASED for life in mail.lives.values())

    def editable(self, mail: Mail) -> bool:
        return all(life.state is Is.READY and not life.failures and life.kept is None for life in mail.lives.values())

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
