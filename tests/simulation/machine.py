"""The thing under test and what surrounds it: engine, store, clock, power cuts and full disks."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeVar

from holdfast.core.commands import Command, Enqueue, Enqueued, PublishStaged, Tick
from holdfast.core.effects import DeadLetterCandidate
from holdfast.core.queue import dead_queue_of
from holdfast.core.shard import Shard
from holdfast.engine.catalog import Queue as BrokerQueue
from holdfast.engine.dead_lettering import Candidates, DeadLettering
from holdfast.engine.engine import Engine, Limits, Step
from holdfast.engine.queues import add_queue
from holdfast.errors import StoreUnavailable
from holdfast.store import Remote, open_store
from holdfast.store.contract import Store
from holdfast.store.faulty import FaultyStore, scattered
from holdfast.store.memory import MemoryDisk, MemoryStore
from holdfast.store.remote.simulated import SimulatedServer, SimulatedTable
from holdfast.store.remote.store import RemoteStore
from holdfast.store.rocks import RocksStore
from tests import postgres
from tests.simulation.compare import adopt, came_through, check_same
from tests.simulation.dead_lettering import DeadLettering as Moved
from tests.simulation.dead_lettering import check_dead_letters
from tests.simulation.mail import must
from tests.simulation.model import ID_TIME_SHIFT, Model
from tests.simulation.passing import follow, lagging, tick
from tests.simulation.picture import Picture, check_records
from tests.simulation.rows import Journal
from tests.simulation.staging import Arrival, Staging
from tests.simulation.world import SECOND, START, World
from tests.waiting import PATIENCE_SECONDS

R = TypeVar("R")

NAMESPACE = "default"
READ_TIME = 1_000  # of a store that is far away
TRACE = bool(os.environ.get("TRACE"))


class TracedEngine(Engine):
    """An engine that tells what it buried."""

    def __init__(self, store: Store, limits: Limits) -> None:
        super().__init__(store, 0, limits)
        self.dead_letterings: list[Moved] = []
        self.arrivals: list[Arrival] = []
        self.dead_lettering = TracedDeadLettering(self)

    def step(self, queue: BrokerQueue, shard: Shard, command: Command[R], now: int) -> R:
        """As the engine, told on stderr if asked for: what a failed seed is read with."""
        reply = super().step(queue, shard, command, now)
        self._trace(queue, shard, command, reply, now)
        return reply

    def step_all(self, steps: Sequence[Step[R]], now: int) -> list[R]:
        """The same."""
        replies = super().step_all(steps, now)
        if len(steps) > 1:
            for one, reply in zip(steps, replies, strict=True):
                self._trace(*one, reply, now)
        return replies

    def _trace(self, queue: BrokerQueue, shard: Shard, command: Command[R], reply: R, now: int) -> None:
        if isinstance(command, PublishStaged) or (isinstance(command, Enqueue) and command.validated):
            assert isinstance(reply, Enqueued)
            drafts = command.messages.drafts() if isinstance(command, PublishStaged) else list(command.drafts)
            self.arrivals.append(Arrival(queue.record.name, shard.partition, drafts, reply))
        if TRACE and (reply or type(command) is not Tick):
            sys.stderr.write(f"{now - START:>12} {queue.record.name}#{shard.partition} {command} -> {reply}\n")


class TracedDeadLettering(DeadLettering):
    """Dead-lettering that tells what it moved."""

    def __init__(self, engine: TracedEngine) -> None:
        super().__init__(engine)
        self._traced = engine
        self._dead_letters: dict[tuple[str, int], int] = {}

    def move(self, queue: BrokerQueue, parts: Candidates, now: int) -> None:
        candidates = [item for _, some in parts for item in some]
        groups = list(dict.fromkeys(item.group for item in candidates))
        candidates = sorted(candidates, key=lambda item: groups.index(item.group))  # the order in which they are moved
        expected = [
            (item.group, item.delivery.id, str(item.reason), item.delivery.failures + (item.delivery.token != 0))
            for item in candidates
        ]
        self._dead_letters = {}
        super().move(queue, parts, now)
        dead_letters = [self._dead_letters.get((item.group, item.delivery.id), 0) for item in candidates]
        target = dead_queue_of(queue.record.name, queue.config)
        self._traced.dead_letterings.append(Moved(queue.record.name, target, expected, dead_letters))

    def _deliver(
        self, queue: BrokerQueue, target_name: str, candidates: list[DeadLetterCandidate], now: int
    ) -> list[int]:
        dead_letters = super()._deliver(queue, target_name, candidates, now)
        for item, dead_letter in zip(candidates, dead_letters, strict=True):
            self._dead_letters[item.group, item.delivery.id] = dead_letter
        return dead_letters


def _database() -> Remote:
    """A cell of its own in the database of this process."""
    return Remote(postgres.url(postgres.own_database()), postgres.new_cell(), PATIENCE_SECONDS, PATIENCE_SECONDS)


class Machine:
    """One node over its restarts, with the model that watches it."""

    def __init__(self, world: World, store_kind: str = "memory") -> None:
        self.world = world
        self.random = Random(f"machine {world.seed}")
        self.now = START
        self.model = Model()
        transactions = world.transactions
        self.staging = Staging(transactions.timeout, transactions.remember, transactions.max_remembered)
        self.journal = Journal()
        self.restarts = 0
        self.tokens: set[int] = set()  # tokens that consumers were told
        self._new_tokens: set[int] = set()
        self._unsafe = False  # written, but ids are not yet durably reserved
        self._disk = MemoryDisk() if store_kind == "memory" else None
        self._directory = tempfile.mkdtemp(prefix="holdfast-simulation-") if self._disk is None else ""
        self._remote = _database() if store_kind == "postgres" else None
        self._far = SimulatedServer() if store_kind == "far" else None
        self._read_time = 0  # that reads of the store that is far away have taken since time last passed
        self.engine = self._start()
        for name, config in world.queues.items():
            add_queue(self.engine, (NAMESPACE, name), config, self.now)
            self.model.add_queue(name, config)
        self.write()
        self.sync()
        self.crash()

    def _start(self) -> TracedEngine:
        inner = self._open_store()
        rate = self.world.fault_rate if 0 < self.restarts < 30 else 0.0
        self.store = FaultyStore(inner, write=scattered(self.random, rate), sync=scattered(self.random, rate))
        limits = Limits(
            auto_create=False,
            hot_bytes=self.world.hot_bytes,
            window_places=self.world.window_places,
            transactions=self.world.transactions,
        )
        engine = TracedEngine(self.store, limits)
        engine.open(self.now)
        return engine

    def _open_store(self) -> Store:
        if self._disk is not None:
            return MemoryStore(self._disk)
        if self._remote is not None:
            return open_store("postgres", self._directory, remote=self._remote)
        if self._far is not None:
            return RemoteStore(SimulatedTable(self._far, before_read=self._read_takes_time))
        return RocksStore(Path(self._directory))

    def close(self) -> None:
        self.store.close()
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)

    # --- time and the turn ------------------------------------------------------------------------------------------

    def advance(self, by: int) -> None:
        self.now = max(self.now + by + self._read_time, START)
        self._read_time = 0
        self.model.latest = max(self.model.latest, self.now)
        self.model.went_back |= by < 0

    def _read_takes_time(self) -> None:
        self._read_time += READ_TIME

    def after(self) -> None:
        """An operation was answered: the model hears what was buried."""
        self.record_ids()
        dead_letterings, self.engine.dead_letterings = self.engine.dead_letterings, []
        check_dead_letters(self.model, dead_letterings, self.now)
        for name, queue in self.model.queues.items():
            for cursor in queue.cursors():
                for shard in self.engine.queues[NAMESPACE, name].shards:
                    committed = shard.cursors[cursor.name].head.committed
                    follow(self.model, queue, cursor, shard.partition, committed, self.now)

    def tick(self) -> None:
        """Everything that is due by now, on the engine and on the model."""
        behind = lagging(self.model, self.now)
        self.engine.tick(self.now)
        self.staging.tick(self.now)
        everywhere = [(name, at) for name, queue in self.model.queues.items() for at in range(len(queue.next_seq))]
        self.ticked(everywhere)
        for queue, cursor, partition, target in behind:
            at = cursor.committed
            must(at[partition] >= target, f"{queue.name}/{cursor.name}: at {at}, must be at {target} in {partition}")

    def ticked(self, where: Iterable[tuple[str, int]]) -> None:
        """The engine has done what was due in these partitions: so does the model."""
        self.record_ids()
        self.model.event += 1
        for name, partition in where:
            tick(self.model, name, partition, self.now)
        self.after()

    def record_ids(self) -> None:
        self.model.ids_ms = self.engine.ids.floor >> ID_TIME_SHIFT

    def told(self, token: int) -> None:
        """A lease was made; its consumer hears of it after the write."""
        if token in self.tokens or token in self._new_tokens:
            raise AssertionError(f"token {token} was given twice")
        self._new_tokens.add(token)

    def write(self) -> None:
        """End the turn. Leases are answered by this, unless the ids in use are not yet reserved."""
        self._unsafe |= self.engine.write()
        if not self._unsafe:
            self.tokens |= self._new_tokens
            self._new_tokens = set()

    def sync(self) -> None:
        self.store.sync()
        self.tokens |= self._new_tokens
        self._new_tokens = set()
        self._unsafe = False
        self.model.facts.confirm()
        self.staging.confirm()
        self.model.swaps = []

    def check(self) -> None:
        """What is stored is what the model says, and every record fits."""
        self.write()
        picture = Picture(self.store, self.now, self.model.event, self.model.latest)
        check_records(picture)
        check_same(self.model, picture)
        self.staging.check(self.store)

    # --- misfortune -------------------------------------------------------------------------------------------------

    def crash(self, doubt: bool = False) -> None:
        """Everything in memory is lost, and of what was written and not synced, a tail."""
        if self._disk is not None:
            self._disk.crash(self.random.randint(0, self._disk.unsynced))
        self._restart(doubt)

    def fail_over(self) -> None:
        """A write or sync failed: nobody knows whether it was done. The store is reopened, the engine starts anew."""
        if self._disk is not None and self.random.random() < 0.5:
            self.crash(doubt=True)
        else:
            self._restart(doubt=True)

    def _restart(self, doubt: bool) -> None:
        self.restarts += 1
        self.advance(self.random.choice((0, 0, 1000, SECOND)))
        inner = self.store.inner
        inner.close()
        while True:
            try:
                self.engine = self._start()
                break
            except StoreUnavailable:
                self.store.inner.close()
        self._new_tokens = set()
        self._unsafe = False
        picture = Picture(self.store, self.now, self.model.event, self.model.latest)
        check_records(picture)
        # What was promised of messages is looked at first, while the model still knows where they were put.
        self.staging.adopt(self.store, partial(came_through, self.model, picture), doubt)
        adopt(self.model, picture, doubt)
        ids = [max(self.model.facts.ids, default=0), max(self.tokens, default=0)]
        self.model.last_id = max(ids)
