"""Clients with lasting sessions that are cut and come back under load, on a node whose syncs are slow."""

from __future__ import annotations

import asyncio
from itertools import count
from random import Random

import pytest

from tests.simulation.node.actors import QUEUES, Actors, Violations
from tests.simulation.node.driver import SECOND, Driver
from tests.simulation.node.ledger import Ledger
from tests.simulation.node.loop import SimulatedLoop, simulated_threads
from tests.simulation.node.mqtt_client import MqttSession
from tests.simulation.node.store import Faults, SimulatedDisk, SimulatedStore
from tests.simulation.node.work import WorkMeter

ROUNDS = 100


@pytest.mark.parametrize("seed", [1, 2])
def test_there_is_one_lease_at_a_time_and_no_acknowledgement_is_lost(seed: int) -> None:
    """The ledger says so with every packet that the clients get."""
    random = Random(f"cut {seed}")
    disk = SimulatedDisk()
    ledger = Ledger(disk, "default")
    violations = Violations()
    payloads = count(1)
    sessions = [
        MqttSession(name, ledger, payloads, QUEUES, native=name.startswith("native")) for name in ("native", "explicit")
    ]
    meter = WorkMeter()
    store = SimulatedStore(disk, Faults(random), meter)

    async def live(loop: SimulatedLoop) -> None:
        driver = Driver(loop, store, sync_in_place=False, segment_age=3600 * SECOND)
        await driver.start()
        for name in QUEUES:
            await driver.create_queue(name, {"partitions": 2, "delivery_timeout": "30s"})
        actors = Actors(random, driver, ledger, violations, payloads, mortal=False, bounded=False, wide=False)
        actors.spawn(actors._repeat(actors.produce, 0.05))
        for session in sessions:
            actors.spawn(session.live(loop, random, violations.guarded))
        while min(session.resumed for session in sessions) < ROUNDS and not violations.found:
            await asyncio.sleep(1.0)
            actors.check()
        actors.stop()
        for session in sessions:
            session.cut()
        await driver.stop()

    with simulated_threads():
        loop = SimulatedLoop(random, 0.0, store.thread_begins, meter)
        ledger.clock = loop.time
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(live(loop))
        finally:
            loop.kill()
            asyncio.set_event_loop(None)
    assert violations.found == []
    assert ledger.answers["lease"] > 500
