"""A store with a network between that is away for a while: connections stay, and what was published is confirmed when
it is stored."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast.store.remote.simulated import SimulatedServer, SimulatedTable
from holdfast.store.remote.store import RemoteStore
from tests.mqtt.net.broker import Broker, config_for
from tests.mqtt.net.conftest import Run
from tests.waiting import PATIENCE_SECONDS


async def test_connections_stay_while_the_store_is_away(run: Run, tmp_path: Path) -> None:
    server = SimulatedServer()
    store = RemoteStore(SimulatedTable(server), patience_seconds=PATIENCE_SECONDS)
    broker = await run(Broker(config_for(tmp_path), lambda: store))
    reader = await broker.connect("reader", expiry=1_000)
    await reader.subscribe("t", qos=1)
    publisher = await broker.connect("publisher")
    assert await publisher.publish("t", b"before", 1, 1) == 0
    assert await reader.payloads(1) == [b"before"]
    server.away = True
    publishing = asyncio.ensure_future(publisher.publish("t", b"meanwhile", 1, 2))
    await broker.until(lambda: store.behind().writes > 0)
    idle = await broker.connect("idle")
    await idle.ping()
    assert not publishing.done(), "nothing is confirmed before it is stored"
    server.away = False
    assert await publishing == 0
    assert await reader.payloads(1) == [b"meanwhile"]
    await idle.ping()
