"""One run: a seed's world, so many steps of it, then a drain or the deletion of all queues, after which nothing may be
left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as changed

from msgspec.structs import replace

from holdfast.core.commands import Settlement
from holdfast.core.queue import JournalMode
from holdfast.core.records import Table
from holdfast.engine.queues import delete_queue, reconfigure
from holdfast.errors import QueueInUse, StoreUnavailable
from tests.simulation.actions import Actions
from tests.simulation.machine import NAMESPACE, Machine
from tests.simulation.mail import must
from tests.simulation.model import Model
from tests.simulation.picture import EVERYTHING
from tests.simulation.rows import Open, check_every_end, check_journal
from tests.simulation.world import SECOND, SIZE_MAX, make_world, small

STEPS = 120
CHECK_EVERY = 12
DRAIN_ROUNDS = 200
DELETING = 3  # each so many seeds do not drain their queues, but delete them as they are
LEFT_BEHIND = {Table.META, Table.QUEUES, Table.SHARDS, Table.GROUPS}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run met, to see that it met something."""

    seed: int
    messages: int
    restarts: int
    rows: int
    reasons: dict[str, int]


def run(seed: int, steps: int = STEPS, store: str = "memory") -> Outcome:
    """Run a seed; raises what it finds wrong."""
    world = make_world(seed)
    with small(world.constants):
        machine = Machine(world, store)
        try:
            actions = Actions(machine)
            for step in range(steps):
                _turn(machine, actions)
                if step % CHECK_EVERY == 0:
                    _guarded(machine, machine.check)
            if seed % DELETING == 0:
                _delete_all(machine, actions)
            else:
                _drain(machine, actions)
                check_journal(machine.journal, machine.model)
            return Outcome(
                seed, len(machine.model.facts.ids), machine.restarts, machine.journal.last, machine.model.reasons
            )
        finally:
            machine.close()


def _turn(machine: Machine, actions: Actions) -> None:
    random = machine.random
    machine.advance(_time_passes(machine))

    def work() -> None:
        if random.random() < 0.6:
            machine.tick()
        for _ in range(random.choice((1, 1, 2, 4))):
            actions.one()
        machine.write()
        if random.random() < 0.5:
            machine.sync()
            if random.random() < 0.1:
                machine.journal.export(machine.engine, machine.store, random.randint(1, 20))

    _guarded(machine, work)
    if random.random() < machine.world.crash_rate:
        machine.crash()
    actions.handles = [h for h in actions.handles if h.token in machine.tokens or machine.restarts == 0]


def _guarded(machine: Machine, work: Callable[[], None]) -> None:
    try:
        work()
    except StoreUnavailable:
        machine.fail_over()


def _time_passes(machine: Machine) -> int:
    random = machine.random
    by = random.choice((0, 1, 700, 5_000, 100_000, SECOND // 2, 2 * SECOND))
    if machine.world.wild_clock and random.random() < 0.1:
        return random.choice((-500, -SECOND, -30 * SECOND, 30 * SECOND, 600 * SECOND))
    return by


def _drain(machine: Machine, actions: Actions) -> None:
    """Everything is resumed, read, leased and acked until nothing is left; then the store must be empty."""
    machine.world = changed(machine.world, fault_rate=0.0)
    machine.crash()
    actions.move_on_all(to_the_end=True)
    for name, queue in machine.model.queues.items():
        limits = replace(queue.config.throttle, concurrency=0, rate=0.0)
        queue.config = replace(queue.config, paused=False, max_message_size=SIZE_MAX + 1, throttle=limits)
        reconfigure(machine.engine, machine.engine.queues[NAMESPACE, name], queue.config, machine.now)
    for _ in range(DRAIN_ROUNDS):
        _drain_once(machine, actions)  # also if nothing is left: cursor groups commit what was purged before them
        if not any(queue.mails for queue in machine.model.queues.values()):
            break
    left = {name: list(queue.mails.values())[:2] for name, queue in machine.model.queues.items() if queue.mails}
    must(not left, f"not drained: {left}")
    machine.check()
    machine.advance(24 * 3600 * SECOND)
    machine.tick()
    _export_all(machine)
    machine.check()
    _must_be_empty(machine, set(Table) - LEFT_BEHIND)


def _delete_all(machine: Machine, actions: Actions) -> None:
    """Every queue is deleted with what it holds, step by step, while time goes on: nothing may be left of it."""
    random = machine.random
    machine.world = changed(machine.world, fault_rate=0.0)
    machine.crash()
    actions.move_on_all(to_the_end=True)
    engine = machine.engine
    unsettled = _unsettled(machine.model)
    while engine.queues:
        for namespace, name in list(engine.queues):
            try:
                for _ in delete_queue(engine, (namespace, name), lambda: machine.now):
                    if random.random() < 0.5:
                        engine.write()
                        machine.now += random.choice((0, 1000, SECOND))
                        engine.tick(machine.now)
            except QueueInUse:
                continue  # a dead queue goes after those that use it
    machine.now += 24 * 3600 * SECOND
    engine.tick(machine.now)
    _export_all(machine)
    _must_be_empty(machine, set(Table) - {Table.META})
    check_every_end(machine.journal, unsettled)


def _unsettled(model: Model) -> Open:
    found: Open = set()
    for queue in model.queues.values():
        if queue.config.journal is not JournalMode.OFF:
            for mail in queue.mails.values():
                found |= {(queue.name, mail.id, group) for group, life in mail.lives.items() if not life.over}
                found |= {(queue.name, mail.id, cursor.name) for cursor in queue.cursors() if cursor.sees(mail)}
    return found


def _export_all(machine: Machine) -> None:
    for _ in range(2):
        machine.write()
        machine.sync()
        machine.journal.export(machine.engine, machine.store, 1 << 30)
    machine.write()
    machine.sync()


def _must_be_empty(machine: Machine, tables: set[Table]) -> None:
    for table in tables:
        rows = machine.store.scan(table, b"", EVERYTHING, 3)
        must(not rows, f"{table.name} is not empty at the end: {rows}")


def _drain_once(machine: Machine, actions: Actions) -> None:
    machine.advance(SECOND)
    machine.tick()
    for name in list(machine.model.queues):
        queue = machine.model.queues[name]
        for group in [group.name for group in queue.leasing()] or [actions.new_name(queue)]:
            while actions.lease_from(queue, group, 100):
                held = [
                    Settlement(mail.id, life.token)
                    for mail in queue.mails.values()
                    if group in mail.lives and (life := mail.lives[group]).token
                ]
                actions.settle_with(queue, group, held)
        for cursor in queue.cursors():
            for partition, high in enumerate(queue.next_seq):
                actions.commit_to(queue, cursor, partition, high - 1)
        if not any(mail.needed() for mail in queue.mails.values()):
            actions.purge(queue)
    machine.write()
    machine.sync()
