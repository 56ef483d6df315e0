"""Schedules over crashes, failing stores and a clock that jumps, drawn from a seed.

Queues forget producers' ids at once here, so that no deduplication hides a tick that is enqueued twice; and the journal
is not exported, so that the store has every message there ever was.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from holdfast.core.codecs import read_message
from holdfast.core.commands import Settlement
from holdfast.core.queue import QueueConfig
from holdfast.core.records import Message, Table, seq_of
from holdfast.engine.engine import Engine, Limits
from holdfast.engine.queues import add_queue, update_queue
from holdfast.engine.schedules import schedules
from holdfast.engine.schedules.records import CatchUp, Overlap, Rule, Schedule, due_at, next_tick
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.store.faulty import FaultyStore, scattered
from holdfast.store.memory import MemoryDisk, MemoryStore
from holdfast.units import MINUTE, SECOND, parse_instant
from tests.simulation.mail import must

STEPS = 150
NAMESPACE = "default"
STARTS = ("2026-03-29T00:40:00Z", "2026-10-25T00:10:00Z", "2026-06-01T12:00:00Z")
"""Before both changes of Berlin's clock, and far from them."""


@dataclass
class Outcome:
    """What a run met, to see that it met something."""

    enqueued: int = 0
    restarts: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)


class Simulation:
    """One engine over its restarts, and what was confirmed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"schedules {seed}")
        self.start = self.now = parse_instant(self.random.choice(STARTS))
        self.met = Outcome()
        self._disk = MemoryDisk()
        self._fault_rate = self.random.choice((0.0, 0.03))
        self._pausing = self.random.random() < 0.3
        self._confirmed: set[int] = set()
        self.engine = self._open()
        depth = self.random.choice((0, 0, 3))
        config = QueueConfig(partitions=self.random.choice((1, 3)), dedup_window=0, max_depth=depth)
        add_queue(self.engine, (NAMESPACE, "tasks"), config, self.now)
        self.stored = {one.name: one for one in (self._schedule(f"s{number}") for number in range(3))}
        for one in self.stored.values():
            self.engine.schedules.put(one, self.now)
        self.engine.write()
        self._store.sync()
        self.anchors = {name: self.engine.schedules.get((NAMESPACE, name)).state.anchor for name in self.stored}
        self.paused: set[str] = set()  # those that ever were: they owe nobody a tick

    def _schedule(self, name: str) -> Schedule:
        random = self.random
        starts_at = random.choice((0, 0, self.now - 30 * SECOND, self.now + 90 * SECOND))
        ends_at = random.choice((0, 0, 0, self.now + 10 * MINUTE))
        jitter = random.choice((0, 0, 5 * SECOND, 2 * MINUTE))
        every = random.choice((3 * SECOND, 7 * SECOND, MINUTE))
        cron = random.choice(("", "* * * * *", "*/3 2 * * *", "50 2 * * *"))
        rule = Rule(cron, 0 if cron else every, "Europe/Berlin", starts_at, ends_at, jitter)
        catch_up, overlap = random.choice(list(CatchUp)), random.choice(list(Overlap))
        return Schedule(NAMESPACE, name, "tasks", rule, b"x", 128, -1, catch_up=catch_up, overlap=overlap)

    def _open(self) -> Engine:
        plan = scattered(self.random, self._fault_rate if self.met.restarts else 0.0)
        self._store = FaultyStore(MemoryStore(self._disk), write=plan, sync=plan)
        engine = Engine(self._store, cell=1, limits=Limits(auto_create=False))
        engine.open(self.now)
        return engine

    # --- steps ------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        random = self.random
        self.now += random.choice((0, 1000, SECOND, 3 * SECOND, 30 * SECOND, 3 * MINUTE))
        if random.random() < 0.05:
            self.now = max(self.now - random.choice((SECOND, 2 * MINUTE)), self.start)
        try:
            self.engine.tick(self.now)
            random.choice((self._consume, self._consume, self._run, self._pause, lambda: None))()
            self.engine.write()
            if random.random() < 0.5:
                self._store.sync()
                self._confirmed = {message.id for message in self.messages()}
        except StoreUnavailable:
            self._restart()
        if random.random() < 0.08:
            self._disk.crash(random.randint(0, self._disk.unsynced))
            self._restart()

    def _restart(self) -> None:
        self.met.outcomes.update({outcome.value: count for outcome, count in self.engine.schedules.outcomes.items()})
        self.met.restarts += 1
        self._store.inner.close()
        self.engine = self._open()
        lost = self._confirmed - {message.id for message in self.messages()}
        must(not lost, f"confirmed and lost: {lost}")

    def _consume(self) -> None:
        leased = self.engine.lease((NAMESPACE, "tasks"), "g", self.random.choice((1, 5, 50)), -1, "", "sim", self.now)
        if leased and self.random.random() < 0.8:
            settlements = [Settlement(one.message.id, one.token, partition=one.partition) for one in leased]
            self.engine.settle((NAMESPACE, "tasks"), "g", settlements, self.now)

    def _run(self) -> None:
        try:
            self.engine.schedules.run((NAMESPACE, self.random.choice(list(self.stored))), self.now)
        except StoreUnavailable:
            raise
        except HoldfastError as error:
            must(error.code == "queue_full", f"refused: {error}")

    def _pause(self) -> None:
        if not self._pausing:
            return
        name = self.random.choice(list(self.stored))
        self.paused.add(name)
        self.engine.schedules.pause((NAMESPACE, name), self.random.random() < 0.3, self.now)

    # --- what must hold ---------------------------------------------------------------------------------------------

    def messages(self) -> list[Message]:
        """Every message there ever was, by id."""
        rows = self._store.scan(Table.MESSAGES, b"", b"\xff" * 16, 1 << 30)
        return sorted([read_message(seq_of(key), value) for key, value in rows], key=lambda message: message.id)

    def check(self) -> None:
        """Each tick has one message at the most, in order; the state counts them; nothing is owed."""
        by_name: dict[str, list[str]] = {name: [] for name in self.stored}
        asked: Counter[str] = Counter()
        for message in self.messages():
            properties = dict(message.extra.properties)
            name = properties["holdfast-schedule"]
            if (message.extra.message_id or "").endswith("/asked"):
                asked[name] += 1
            else:
                by_name[name].append(properties["holdfast-tick"])
        for name, one in self.stored.items():
            found = self.engine.schedules.get((NAMESPACE, name))
            ticks = [parse_instant(tick) for tick in by_name[name]]
            must(ticks == sorted(set(ticks)), f"{name}: out of order or twice: {by_name[name]}")
            must(
                found.state.enqueued == len(ticks) + asked[name],
                f"{name}: {found.state.enqueued} counted, {len(ticks)} ticks and {asked[name]} asked for",
            )
            every = self._ticks_until(name, found.state.ticked)
            must(set(ticks) <= set(every), f"{name}: no ticks of its rule: {set(ticks) - set(every)}")
            must(max(ticks, default=0) <= found.state.ticked, f"{name}: enqueued, and not over: {by_name[name][-1:]}")
            if one.catch_up is CatchUp.ALL and one.overlap is not Overlap.SKIP and name not in self.paused:
                owed = set(every) - set(ticks)
                must(not owed, f"{name}: never enqueued: {sorted(owed)[:3]}")

    def _ticks_until(self, name: str, until: int) -> list[int]:
        """All ticks of a rule since it was stored."""
        found: list[int] = []
        tick = self.start
        while (tick := next_tick(self.stored[name].rule, self.anchors[name], tick)) <= until:
            found.append(tick)
        return found

    def finish(self) -> None:
        """When the queue has room again, everything that is due is enqueued."""
        self._fault_rate = 0.0
        self._restart()
        update_queue(self.engine, (NAMESPACE, "tasks"), {"max_depth": 0}, self.now)
        self.now += schedules.RETRY
        while self.engine.schedules.wake_at <= self.now:
            self.engine.tick(self.now)
            self.engine.write()
        for name, one in self.stored.items():
            found = self.engine.schedules.get((NAMESPACE, name))
            must(due_at(one, found.tick) > self.now, f"{name}: due and not done: {found.tick}")


def run(seed: int, steps: int = STEPS) -> Outcome:
    """Run a seed; raises what it finds wrong."""
    simulation = Simulation(seed)
    for step in range(steps):
        simulation.step()
        if step % 10 == 0:
            simulation.check()
    simulation.finish()
    simulation.check()
    simulation.met.enqueued = len(simulation.messages())
    return simulation.met
