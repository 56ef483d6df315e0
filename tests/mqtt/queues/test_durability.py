"""Syncs that take as long as the test wants, on a thread as in production."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.config import StoreSettings
from holdfast.core.commands import Draft
from holdfast.engine.engine import Engine
from holdfast.mqtt.codec import V311, PubAck, Publish, PubRec, reasons
from holdfast.mqtt.net.link import Link
from holdfast.store.memory import MemoryDisk, MemoryStore
from tests.mqtt.queues.rig import SPACE, Server, config_for, until
from tests.waiting import PATIENCE_SECONDS


class Slow(MemoryStore):
    """A disk whose syncs take as long as the test wants."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__(disk)
        self.may_sync = threading.Event()

    def sync(self) -> None:
        assert self.may_sync.wait(PATIENCE_SECONDS)
        super().sync()


async def test_nothing_is_answered_before_it_is_durable(tmp_path: Path) -> None:
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


PAYLOAD = b"at most once"


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens to deliveries: settled in memory, written, sent."""
    happened: list[str] = []
    settle, write, send = Engine.settle, Engine.write, Link.send

    def settled(engine: Engine, *args: Any, **fields: Any) -> Any:
        happened.append("settled")
        return settle(engine, *args, **fields)

    def written(engine: Engine) -> bool:
        if engine.pending:
            happened.append("written")
        return write(engine)

    def sent(link: Link, data: bytes, close: bool) -> None:
        if PAYLOAD in data:
            happened.append("sent")
        send(link, data, close)

    monkeypatch.setattr(Engine, "settle", settled)
    monkeypatch.setattr(Engine, "write", written)
    monkeypatch.setattr(Link, "send", sent)
    return happened


async def test_what_is_delivered_at_most_once_is_acked_on_disk_before_it_leaves(
    server: Server, steps: list[str]
) -> None:
    await server.create("jobs")
    worker = await server.client("old-1", V311)
    await worker.subscribe("$queue/jobs", 0)
    for _ in range(3):  # the first wait for the sync of the new group, the others for nothing
        steps.clear()
        await server.node.messages.enqueue((SPACE, "jobs"), [Draft(PAYLOAD)])
        await worker.delivery()
        sent = steps.index("sent")
        assert steps[sent - 2 : sent] == ["settled", "written"]
        assert server.group("jobs", "old").leased == 0


async def test_a_delivery_that_a_session_got_before_it_was_sent_is_acked_when_it_is_sent(
    server: Server, steps: list[str]
) -> None:
    await server.create("jobs")
    worker = await server.client("old-1", V311, clean=False)
    await worker.subscribe("$queue/jobs", 0)
    worker.vanish()
    await until(lambda: not server.mqtt._links)
    await server.node.messages.enqueue((SPACE, "jobs"), [Draft(PAYLOAD)])
    # The lease is on disk, and the crash came before its ack.
    await server.node.messages.lease((SPACE, "jobs"), "old", 1, consumer="old-1", protocol="mqtt")
    steps.clear()
    worker = await server.client("old-1", V311, clean=False)
    await worker.delivery()
    sent = steps.index("sent")
    assert steps[sent - 2 : sent] == ["settled", "written"]
    assert server.group("jobs", "old").leased == 0


async def test_more_than_a_connection_may_buffer_goes_on_without_further_turns(quick: Server) -> None:
    """Also where the first deliveries wait for a sync, as those after a start do."""
    size = quick.config.mqtt.buffer_bytes // 2
    await quick.create("jobs", delivery_timeout="1h")
    await quick.node.messages.enqueue((SPACE, "jobs"), [Draft(b"%d" % number + b"x" * size) for number in range(8)])
    worker = await quick.client("worker-1")
    await worker.subscribe("$queue/jobs")
    assert [(await worker.delivery()).payload[:1] for _ in range(8)] == [b"%d" % number for number in range(8)]


async def test_publishes_that_nobody_waits_for_share_the_turn_after_the_sync(tmp_path: Path) -> None:
    store = Slow(MemoryDisk())
    store.may_sync.set()
    server = Server(config_for(tmp_path, store=StoreSettings(sync_in_place_max=0)), store, in_process=False)
    await server.start()
    await server.create("jobs")
    await server.create("watched")
    producers = [await server.client(f"p-{number}") for number in range(3)]
    worker = await server.client("worker-1")
    await worker.subscribe("$queue/watched")
    commit = server.node.cell.commit
    await commit.durable()
    store.may_sync.clear()
    producers[0].send(producers[0].packet("$queue/jobs", b"0"))
    await until(lambda: server.depth("jobs") == 1)
    batches = commit.batches
    for producer in producers[1:]:
        producer.send(producer.packet("$queue/jobs", b"1"))
    await until(lambda: server.mqtt._traffic.received[Publish] == len(producers))
    assert (server.depth("jobs"), commit.batches) == (1, batches)
    producers[0].send(producers[0].packet("$queue/watched", b"now"))
    await until(lambda: server.depth("watched") == 1)  # which a consumer waits for
    assert (server.depth("jobs"), commit.batches) == (3, batches + 1)
    store.may_sync.set()
    for producer in [*producers, producers[0]]:
        await producer.expect(PubAck)
    await server.stop()
    store.close()


async def test_what_is_refused_after_its_connection_was_cut_is_not_taken_for_stored(tmp_path: Path) -> None:
    store = Slow(MemoryDisk())
    store.may_sync.set()
    server = Server(config_for(tmp_path, store=StoreSettings(sync_in_place_max=0)), store, in_process=False)
    await server.start()
    await server.create("full", max_depth=1)
    await server.create("other")
    await server.node.messages.enqueue((SPACE, "full"), [Draft(b"first")])
    producer = await server.client("p-1", clean=False, expiry_s=3600)
    other = await server.client("p-2")
    await server.node.cell.commit.durable()
    store.may_sync.clear()
    other.send(other.packet("$queue/other"))
    await until(lambda: server.depth("other") == 1)  # a sync is in progress, and what comes now waits for its end
    packet = producer.packet("$queue/full", b"second", qos=2)
    producer.send(packet)
    await until(lambda: server.mqtt._traffic.received[Publish] == 2)
    producer.vanish()
    await until(lambda: len(server.mqtt._links) == 1)
    store.may_sync.set()
    producer = await server.client("p-1", clean=False, expiry_s=3600)
    assert producer.connack.session_present
    producer.send(replace(packet, dup=True))
    assert (await producer.expect(PubRec)).reason_code == reasons.QUOTA_EXCEEDED
    await server.stop()
    store.close()
