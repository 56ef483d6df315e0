"""Syncs that take as long as the test wants, on a thread as in production."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from holdfast.config.settings import StoreSettings
from holdfast.mqtt.codec import PubAck
from holdfast.store.memory import MemoryDisk, MemoryStore
from tests.mqtt.queues.rig import SPACE, Server, config_for, until
from tests.waiting import PATIENCE_SECONDS


async def test_nothing_is_answered_before_it_is_durable(tmp_path: Path) -> None:
    class Slow(MemoryStore):
        """A disk whose syncs take as long as the test wants."""

        may_sync = threading.Event()

        def sync(self) -> None:
            assert self.may_sync.wait(PATIENCE_SECONDS)
            super().sync()

    store = Slow(MemoryDisk())
    store.may_sync.set()
    server = Server(config_for(tmp_path, store=StoreSettings(sync_in_place_max=0)), store, in_process=False)
    await server.start()
    await server.create("meter", topics=["sensors/#"])
    await server.create("buffered", durability="buffered")
    producer = await server.client("p")
    witness = await server.client("w")
    store.may_sync.clear()
    packets = [
        producer.packet("$queue/jobs", b"x"),
        producer.packet("$queue/buffered", b"x"),
        producer.packet("sensors/1", b"x"),
        producer.packet("$admin/queue/create", b'{"name": "new"}'),
    ]
    producer.send(*packets)
    await until(lambda: (SPACE, "new") in server.node.cell.engine.queues and server.depth("meter") == 1)
    for _ in range(3):
        await witness.ping()  # others are answered
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(producer._read(), 0.05)
    assert producer.seen == []
    store.may_sync.set()
    assert [(await producer.expect(PubAck)).reason_code for _ in packets] == [0] * len(packets)
    await server.stop()
    store.close()
