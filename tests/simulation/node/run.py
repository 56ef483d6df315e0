"""One run: several lives of a process on one disk, each ended by a power cut, and a last one that drains everything."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from itertools import count
from random import Random

from structlog.testing import capture_logs

from holdfast.core.commands import Leased, Settlement
from holdfast.errors import HoldfastError
from tests.simulation.mail import Violation, must
from tests.simulation.node.actors import QUEUES, TEMPORARY, Actors, Violations
from tests.simulation.node.driver import SECOND, START, Driver, before_steps
from tests.simulation.node.ledger import Ledger
from tests.simulation.node.loop import PowerCut, SimulatedLoop, simulated_threads
from tests.simulation.node.mqtt_client import MqttSession
from tests.simulation.node.quiet import check_quiet
from tests.simulation.node.store import INTERNAL, Faults, SimulatedDisk, SimulatedStore
from tests.simulation.node.work import WorkMeter, measured_callbacks
from tests.simulation.picture import Picture
from tests.simulation.world import _constants, small

LIVES = 3
LIFE_SECONDS = 4.0
CHECK_SECONDS = 0.25
DRAIN_ROUNDS = 60
RESUME_SECONDS = 10.0
REPORTS = (
    "an operation failed; it is undone",
    "an operation could not be undone",
    "consumers could not be served; what was done for them is undone",
    "work that is due failed; it is undone, and tried again",
    "a turn failed",
    "journal export failed; it will be tried again",
)
"""What the node logs of an error that is no answer."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run met, to see that it met something."""

    seed: int
    answers: dict[str, int]
    refusals: int
    failures: int
    cuts: int
    messages: int
    most_work: int


class Run:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = Random(f"node {seed}")
        self._disk = SimulatedDisk()
        self._ledger = Ledger(self._disk, "default")
        self._violations = Violations()
        self._payloads = count(1)
        self._sessions = [
            MqttSession(name, self._ledger, self._payloads, QUEUES, native=native)
            for name, native in (("client1", False), ("client2", True))
        ]
        self._now = 0.0
        self._refusals = self._failures = self._cuts = self._most_work = 0
        self._bounded = self._random.random() < 0.3
        self._wide = seed % 10 == 5
        self._constants = _constants(self._random)
        self._constants.pop("TICK_DELIVERIES_MAX", None)  # that no turn exceeds its bound is seen here
        if self._wide:
            self._constants.pop("SWEEP_CHUNK", None)  # the bound is reckoned in it
        self._sync_in_place = self._random.random() < 0.3
        self._segment_age = self._random.choice((SECOND, 10 * SECOND, 3600 * SECOND))

    def run(self) -> Outcome:
        random = self._random
        with simulated_threads(), small(self._constants), capture_logs() as logs:
            for life in range(LIVES):
                faults = self._faults() if life < LIVES - 1 else Faults(random)
                faults.on_internal = self._ledger.met_a_bug
                self._live(faults, last=life == LIVES - 1)
                for entry in logs:
                    error = entry.get("exc_info")
                    internal = entry["event"] in REPORTS and INTERNAL in faults.injected
                    if error and not isinstance(error, HoldfastError) and not internal:
                        raise Violation(f"{entry['event']}: {error!r}")
                logs.clear()
        answers = dict(sorted(self._ledger.answers.items()))
        counts = (self._refusals, self._failures, self._cuts, len(self._ledger.confirmed), self._most_work)
        return Outcome(self._seed, answers, *counts)

    def _faults(self) -> Faults:
        """What goes wrong in a life. Some lives are free of all but their end."""
        random = self._random
        rate = random.choice((0.0, 0.0, 0.005, 0.03))
        return Faults(
            random,
            write_rate=rate,
            sync_rate=rate * random.choice((1, 5)),
            reopen_rate=0.3,
            read_rate=rate * random.choice((0, 0.3)),
            step_rate=random.choice((0.0, 0.01)),
            cut_rate=random.choice((0.0, 0.002, 0.01)),
            full_rate=random.choice((0.0, 0.0, 0.1)),
        )

    def _live(self, faults: Faults, *, last: bool) -> None:
        """One process, from its start to its end."""
        random = self._random
        meter = WorkMeter()
        store = SimulatedStore(self._disk, faults, meter)
        loop = SimulatedLoop(random, self._now, store.thread_begins, meter)
        self._ledger.clock = loop.time
        asyncio.set_event_loop(loop)
        try:
            with before_steps(faults.step, meter.add), measured_callbacks(meter):
                loop.run_until_complete(self._life(loop, store, faults, last=last))
        except PowerCut:
            self._cuts += 1
        finally:
            self._now = loop.time()
            loop.kill()
            asyncio.set_event_loop(None)
        must(not loop.problems, f"the loop was told of {loop.problems[:3]}")
        must(not meter.exceeded, f"{meter.exceeded[:3]}")
        self._most_work = max(self._most_work, meter.most)
        if self._violations.found:
            raise self._violations.found[0]
        kept = random.choice((self._disk.unsynced, random.randint(0, self._disk.unsynced)))  # only the process may die
        self._disk.crash(kept)
        self._ledger.check_image(self._clock())
        self._now += random.choice((0.0, 0.5, 5.0))

    def _clock(self) -> int:
        return START + round(self._now * SECOND)

    async def _life(self, loop: SimulatedLoop, store: SimulatedStore, faults: Faults, *, last: bool) -> None:
        random = self._random
        driver = Driver(loop, store, sync_in_place=self._sync_in_place, segment_age=self._segment_age)
        await driver.start()
        await self._make_queues(driver)
        if self._ledger.written.closing(TEMPORARY):
            await asyncio.sleep(RESUME_SECONDS)
            must(not self._ledger.written.closing(TEMPORARY), "the deletion of a queue is not resumed by a start")
        faults.armed = loop.meter.armed = True
        actors = Actors(
            random,
            driver,
            self._ledger,
            self._violations,
            self._payloads,
            mortal=not last,
            bounded=self._bounded,
            wide=self._wide,
        )
        actors.start()
        for session in self._sessions:
            actors.spawn(session.live(loop, random, self._violations.guarded))
        ends = loop.time() + random.random() * LIFE_SECONDS
        while loop.time() < ends:
            await asyncio.sleep(CHECK_SECONDS)
            self._check(driver, actors)
        self._refusals += actors.refusals
        self._failures += len(driver.failures)
        if last:
            actors.stop()
            for session in self._sessions:
                session.cut()
            await asyncio.sleep(5.0)  # callers that were answered meanwhile; members that leave
            self._check(driver, actors)
            faults.full_rate = 0.0
            await self._drain(driver)
            must(not self._ledger.written.closing(TEMPORARY), "the deletion of a queue was begun and does not end")
            await check_quiet(driver, self._ledger, "jobs", "logs")
            await driver.stop()

    def _check(self, driver: Driver, actors: Actors) -> None:
        actors.check()
        self._ledger.check_buffered()
        if self._violations.found:
            raise self._violations.found[0]
        must(not driver.torn, f"written in the middle of {driver.torn[:3]}")
        must(driver.ended is None, f"the node ended by itself: {driver.ended!r}")
        for failure in driver.failures:
            must("simulated" in str(failure), f"the node took this for a failed store: {failure!r}")

    async def _make_queues(self, driver: Driver) -> None:
        random = self._random
        for name in QUEUES:
            if self._ledger.durable.queue(name) is not None:
                continue
            fields = {
                "partitions": random.choice((1, 2, 3)),
                "ordering": random.choice(("none", "partition")),
                "durability": "buffered" if name == "logs" else "fsync",
                "delivery_timeout": random.choice(("1s", "10s")),
                "retry.max_retries": random.choice((1, 5)),
                "retry.initial_backoff": "200ms",
                "dedup_window": random.choice(("0s", "5s", "5s", "5s")),
            }
            await driver.create_queue(name, fields)

    async def _drain(self, driver: Driver) -> None:
        """Everything that a group still needs is delivered, by long polls, and acked."""
        for name in QUEUES:
            # What a cursor group has not read counts as depth.
            await driver.update_queue(name, {"paused": False, "max_depth": 0})
        for _ in range(DRAIN_ROUNDS):
            left = self._left()
            if not left:
                break
            for queue, group in sorted(left):
                while leased := await driver.lease(
                    queue, group, 100, wait=SECOND // 5, lease_timeout=-1, consumer="drain"
                ):
                    await self._ack(driver, queue, group, leased)
            await asyncio.sleep(1.0)
        must(not self._left(), f"not drained: {self._left()}")

    async def _ack(self, driver: Driver, queue: str, group: str, leased: list[Leased]) -> None:
        self._ledger.leased(group, leased)
        settlements = [Settlement(item.message.id, item.token) for item in leased]
        answer = await driver.settle(queue, group, settlements)
        self._ledger.settled(queue, group, settlements, answer.results, durable=answer.durable)

    def _left(self) -> Counter[tuple[str, str]]:
        """Messages that groups still need, by queue and group."""
        picture = Picture(self._ledger.written.store, self._clock(), 0, self._clock())
        return Counter(
            (name, group)
            for name, queue in picture.queues.items()
            if not self._ledger.written.closing(name)
            for mail in queue.mails.values()
            for group, life in mail.lives.items()
            if mail.listed and not life.over
        )


def run(seed: int) -> Outcome:
    """Run a seed; raises what it finds wrong."""
    return Run(seed).run()
