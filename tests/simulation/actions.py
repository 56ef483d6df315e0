"""What clients and administrators do, drawn from the seed. Each does it to the engine, then tells the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from holdfast.core.commands import Draft, HomogeneousDrafts, PutState, Settlement, Verb
from holdfast.core.queue import GroupKind
from holdfast.core.records import NO_EXTRA, Extra, Origin, WorkflowState
from holdfast.core.runs import BytesColumn
from holdfast.engine.groups import create_group, delete_group
from holdfast.engine.messages import delete_message, edit_message
from holdfast.engine.queues import purge_queue, reconfigure
from holdfast.errors import LeaseLost, MessageNotFound, MessageNotWaiting, StateChanged
from tests.simulation.limits import room, took
from tests.simulation.machine import NAMESPACE, Machine
from tests.simulation.mail import Is, Queue, must, state_of
from tests.simulation.order import check_lease
from tests.simulation.producers import Producers
from tests.simulation.readers import LIMITS
from tests.simulation.world import SECOND, SIZE_MAX

HANDLES_MAX = 60
GROUPS_MAX = 4


@dataclass(frozen=True, slots=True)
class Handle:
    """What a consumer holds in its hands: a lease, or what once was one."""

    queue: str
    group: str
    id: int
    token: int
    consumer: str
    partition: int


class Actions(Producers):
    """Random operations on a machine."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.handles: list[Handle] = []
        self._groups_made = 0
        self._kept = 0
        self.draft = self._draft
        self.all: list[tuple[int, Callable[[Queue], None]]] = [
            (28, self.enqueue),
            (26, self.lease),
            (26, self.settle),
            (5, self.keep),
            (3, self.add_group),
            (2, self.remove_group),
            (5, self.read),
            (5, self.commit),
            (1, self.purge),
            (3, self.edit),
            (2, self.delete),
            (2, self.pause),
            (2, self.browse_queue),
            (2, self.bring_in),
            (3, self.redrive),
            (6, self.stage),
            (4, self.publish),
            (1, self.abort),
        ]
        if machine.world.logged:
            leasing = (self.lease, self.settle, self.keep)
            self.all = [(weight, action) for weight, action in self.all if action not in leasing]
            self.all += [(20, self.commit), (20, self.read), (10, self.add_group)]

    def one(self) -> None:
        """Do something somewhere."""
        names = list(self.machine.model.queues)
        queue = self.machine.model.queues[self.random.choice(names)]
        weights = [weight for weight, _ in self.all]
        _, action = self.random.choices(self.all, weights)[0]
        action(queue)

    # --- producing --------------------------------------------------------------------------------------------------

    def enqueue(self, queue: Queue) -> None:
        drafts = [self._draft() for _ in range(self.random.choice((1, 1, 2, 5, 12)))]
        self._enqueue(queue, drafts)

    def bring_in(self, queue: Queue) -> None:
        """Import of stored items: some with a source that is here already."""
        drafts = []
        for _ in range(self.random.randint(1, 3)):
            origin = Origin(self.random.randint(1, 6), "elsewhere", self.random.choice(("", "g")))
            name = self.random.choice((None, f"m{self.random.randint(0, 12)}"))
            drafts.append(replace(self._draft(), extra=Extra(message_id=name, origin=origin)))
        self._enqueue(queue, drafts)

    def _enqueue(self, queue: Queue, drafts: list[Draft]) -> None:
        machine = self.machine
        given: Sequence[Draft] = drafts
        if len(drafts) != 2 and all(draft == Draft(draft.payload) for draft in drafts):
            given = HomogeneousDrafts(BytesColumn.of([draft.payload for draft in drafts]))
        reply = machine.engine.enqueue((NAMESPACE, queue.name), given, "sim", machine.now)
        stored = machine.engine.queues[NAMESPACE, queue.name]
        partitions = [stored._partition(draft) if len(stored.shards) > 1 else 0 for draft in drafts]
        machine.model.enqueue(queue.name, drafts, partitions, reply, machine.now)

    def _draft(self) -> Draft:
        random, now = self.random, self.machine.now
        if self.machine.world.plain and random.random() < 0.95:
            return Draft(b"x" * random.choice((0, 1, 10)))
        extra = NO_EXTRA
        if random.random() < 0.6:
            name = f"m{random.randint(0, 12)}" if random.random() < 0.4 else None
            key = f"k{random.choice((0, 0, 0, 1, 2, 3))}" if random.random() < 0.6 else None
            extra = Extra(key=key, message_id=name)
        delay = random.choice((0, 0, 0, 0, 1000, SECOND // 2, 3 * SECOND))
        return Draft(
            payload=b"x" * random.choice((0, 1, 10, 40, SIZE_MAX, SIZE_MAX + 1)),
            priority=random.choice((128, 128, 128, 0, 255, 5)),
            deliver_at=now + delay if delay else random.choice((0, now - SECOND)),
            ttl=random.choice((-1, -1, -1, 0, SECOND, 10 * SECOND)),
            extra=extra,
        )

    # --- consuming --------------------------------------------------------------------------------------------------

    def lease(self, queue: Queue) -> None:
        random = self.random
        group = self.some_group(queue, cursor=False)
        count = len(queue.next_seq)
        partitions = None
        if random.random() < 0.2:
            partitions = sorted(random.sample(range(count), random.randint(1, count)))
        name = group.name if group is not None else self.new_name(queue)
        limit = random.choice(LIMITS)
        max_bytes = random.choice((0, 0, 0, 0, 1, 60))
        self.lease_from(queue, name, limit, partitions, max_bytes)

    def new_name(self, queue: Queue) -> str:
        """A group that was never there: the journal tells groups apart by their names alone."""
        if (queue.name, 0) not in self.machine.model.names:
            return "default"
        self._groups_made += 1
        return f"default{self._groups_made}"

    def lease_from(
        self, queue: Queue, group: str, limit: int, partitions: list[int] | None = None, max_bytes: int = 0
    ) -> int:
        machine, now = self.machine, self.machine.now
        consumer = self.random.choice(("ann", "bob"))
        timeout = self.random.choice((-1, SECOND // 10, 3 * SECOND))
        if group not in queue.groups:
            number = machine.engine.queues[NAMESPACE, queue.name].record.groups_made
            machine.model.add_group(queue.name, group, number, cursor=False, earliest=not queue.groups)
        leased = machine.engine.lease(
            (NAMESPACE, queue.name), group, limit, timeout, consumer, "sim", now, partitions, max_bytes
        )
        chosen = set(range(len(queue.next_seq)) if partitions is None else partitions)
        machine.ticked((queue.name, partition) for partition in chosen)
        limit = room(queue, group, limit, now)
        if queue.config.paused:
            must(not leased, f"{queue.name} is paused and gave {leased}")
            return 0
        calm = not machine.world.bounded_retries and not machine.world.short_leases
        check_lease(
            queue,
            group,
            chosen,
            leased,
            limit,
            now + (timeout if timeout >= 0 else queue.config.delivery_timeout),
            consumer,
            in_key_order=not machine.world.bounded_retries,
            in_order=calm and not queue.config.throttle.fair,
            all_there=calm and not max_bytes,
        )
        took(queue, group, len(leased), now)
        for item in leased:
            machine.told(item.token)
            self.handles.append(Handle(queue.name, group, item.message.id, item.token, consumer, item.partition))
        del self.handles[:-HANDLES_MAX]
        return len(leased)

    def settle(self, queue: Queue) -> None:
        random = self.random
        group = self.some_group(queue, cursor=False)
        if group is None:
            return
        mine = [h for h in self.handles if (h.queue, h.group) == (queue.name, group.name)]
        if not mine:
            return
        held = [h for h in mine if self._holds(queue, h)]
        if held and random.random() < 0.3:  # as a consumer does that has worked off what it leased, or some of it
            done = random.sample(held, random.randint(1, len(held)))
            if random.random() < 0.5:  # in the order it was leased
                done = [handle for handle in held if handle in done]
            known = random.random() < 0.7
            settlements = [
                Settlement(handle.id, handle.token, partition=handle.partition if known else -1) for handle in done
            ]
            self.settle_with(queue, group.name, settlements)
            return
        chosen = random.choices(mine, k=random.choice((1, 1, 2, 4, 10)))
        self.settle_with(queue, group.name, [self._settlement(queue, handle) for handle in chosen])

    def _holds(self, queue: Queue, handle: Handle) -> bool:
        """Whether a lease is current, as far as the model knows."""
        mail = queue.mails.get(handle.id)
        life = mail.lives.get(handle.group) if mail is not None else None
        return life is not None and life.token == handle.token

    def settle_with(self, queue: Queue, group: str, settlements: list[Settlement]) -> None:
        machine, name = self.machine, (NAMESPACE, queue.name)
        partitions = {settlement.partition for settlement in settlements}
        acks = all(settlement.verb is Verb.ACK and settlement.token for settlement in settlements)
        if acks and len(partitions) == 1 and self.random.random() < 0.5:
            ids, tokens = [one.id for one in settlements], [one.token for one in settlements]
            results = machine.engine.ack(name, group, ids, tokens, machine.now, partitions.pop())
        else:
            results = machine.engine.settle(name, group, settlements, machine.now)
        machine.record_ids()
        machine.model.settle(queue.name, group, settlements, results, machine.now)
        machine.after()

    def _settlement(self, queue: Queue, handle: Handle) -> Settlement:
        random = self.random
        verb = random.choice((Verb.ACK, Verb.ACK, Verb.ACK, *Verb))
        token = handle.token
        consumer = ""
        luck = random.random()
        if luck < 0.05:
            token += 1
        elif luck < 0.1:
            token, consumer = 0, random.choice(("ann", "bob", ""))
        partition = random.choice((handle.partition, handle.partition, -1))
        if luck > 0.97:
            partition = random.randrange(len(queue.next_seq))
        return Settlement(
            handle.id,
            token,
            verb,
            delay=random.choice((-1, -1, 0, SECOND // 3)) if verb in (Verb.NACK, Verb.RELEASE) else -1,
            error=random.choice(("", "boom")),
            timeout=random.choice((-1, SECOND, 10 * SECOND)),
            consumer=consumer,
            partition=partition,
        )

    def keep(self, queue: Queue) -> None:
        """Put or drop a workflow state, with a lease or what once was one, over what is there or something else."""
        machine, random = self.machine, self.random
        mine = [h for h in self.handles if h.queue == queue.name and h.group in queue.groups]
        if not mine:
            return
        handle = random.choice(mine)
        mail = queue.mails.get(handle.id)
        life = mail.lives.get(handle.group) if mail is not None else None
        before = state_of(mail, handle.group) if mail is not None else None
        etag = before.etag if before is not None and before.data is not None else 0
        if_match = random.choice((None, etag, etag, etag + 1))
        self._kept += 1
        data = b"%d" % self._kept if random.random() < 0.8 else None
        command = PutState(handle.group, handle.id, handle.token, data, if_match)
        stored = machine.engine.queues[NAMESPACE, queue.name]
        what = f"{queue.name}/{handle.group}: {command} over {before} of {life}"
        held = life is not None and life.state is Is.LEASED and life.token == handle.token
        try:
            reply = machine.engine.step(stored, stored.shards[handle.partition], command, machine.now)
        except LeaseLost:
            must(not held, f"{what}: lease lost")
            return
        except StateChanged:
            must(held and if_match not in (None, etag), f"{what}: refused")
            return
        must(held and if_match in (None, etag), f"{what}: not refused")
        assert life is not None
        if data is None and not etag:
            return
        life.kept = WorkflowState(before.etag + 1 if before is not None else 1, data)
        must(reply == life.kept, f"{what}: {reply}")
        machine.model.facts.kept(handle.id, queue.groups[handle.group].number, life.kept.etag)

    # --- administration ---------------------------------------------------------------------------------------------

    def add_group(self, queue: Queue) -> None:
        if len(queue.groups) >= (1 if self.machine.world.plain else GROUPS_MAX):
            return
        random, machine = self.random, self.machine
        self._groups_made += 1
        cursor, earliest = random.random() < 0.4 or machine.world.logged, random.random() < 0.5
        lag = random.choice((0, 5)) if cursor else 0
        age = random.choice((0, 0, 4 * SECOND)) if cursor else 0
        name = f"{'log' if cursor else 'work'}{self._groups_made}"
        made = create_group(
            machine.engine,
            (NAMESPACE, queue.name),
            name,
            GroupKind.CURSOR if cursor else GroupKind.LEASE,
            machine.now,
            earliest,
            lag,
            age,
        )
        machine.model.add_group(queue.name, name, made.number, cursor, earliest, lag, age)

    def remove_group(self, queue: Queue) -> None:
        if not queue.groups:
            return
        machine = self.machine
        name = self.random.choice(list(queue.groups))
        work = delete_group(machine.engine, (NAMESPACE, queue.name), name, lambda: machine.now)
        machine.model.remove_group(queue.name, name)
        self.run(work)
        machine.ticked((queue.name, partition) for partition in range(len(queue.next_seq)))
        self.handles = [h for h in self.handles if (h.queue, h.group) != (queue.name, name)]

    def purge(self, queue: Queue) -> None:
        machine = self.machine
        self.run(purge_queue(machine.engine, (NAMESPACE, queue.name), lambda: machine.now))
        machine.model.purge(queue.name)

    def edit(self, queue: Queue) -> None:
        machine, random = self.machine, self.random
        mail = self.some_mail(queue)
        if mail is None:
            return
        priority = random.choice((None, 0, 7, 200))
        deliver_at = random.choice((None, 0, machine.now - SECOND, machine.now + SECOND))
        try:
            edit_message(machine.engine, (NAMESPACE, queue.name), mail.id, priority, deliver_at, machine.now)
        except MessageNotFound:
            must(not mail.listed, f"{queue.name}: {mail.id} not found to edit")
        except MessageNotWaiting:
            must(not machine.model.editable(mail), f"{queue.name}: refused to edit {mail}")
        else:
            must(mail.listed and machine.model.editable(mail), f"{queue.name}: edited {mail}")
            machine.record_ids()
            machine.model.edit(queue.name, mail.id, priority, deliver_at, machine.now)

    def delete(self, queue: Queue) -> None:
        machine = self.machine
        mail = self.some_mail(queue)
        if mail is None:
            return
        leased = mail.id % 3 == 0
        try:
            delete_message(machine.engine, (NAMESPACE, queue.name), mail.id, machine.now, leased=leased)
        except MessageNotFound:
            must(not mail.listed, f"{queue.name}: {mail.id} not found to delete")
        except MessageNotWaiting:
            must(not leased and machine.model.leased_in(mail), f"{queue.name}: refused to delete {mail}")
        else:
            may = leased or not machine.model.leased_in(mail)
            must(mail.listed and may, f"{queue.name}: deleted {mail}")
            machine.model.remove(queue, mail, "purged")

    def pause(self, queue: Queue) -> None:
        config = replace(queue.config, paused=not queue.config.paused and self.random.random() < 0.6)
        self.configure(queue, config.paused)

    def configure(self, queue: Queue, paused: bool) -> None:
        machine = self.machine
        queue.config = replace(queue.config, paused=paused)
        stored = machine.engine.queues[NAMESPACE, queue.name]
        reconfigure(machine.engine, stored, queue.config, machine.now)
