"""`$admin` topics, who may do what, and the switch that turns queues off."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.config import AuditSettings
from holdfast.core.commands import Draft
from holdfast.core.queue import FIELDS
from holdfast.mqtt.codec import V5, V311, Properties, Publish
from holdfast.store import open_store
from tests.auth.rig import settings, user, write_users
from tests.mqtt.queues.rig import SPACE, Raw, Server, config_for, until
from tests.numbers import WILD_NUMBERS


async def test_a_queue_is_made_and_changed_by_publishing(server: Server) -> None:
    admin = await server.client("ops")
    body = json.dumps({"name": "tasks/image", "partitions": 2, "retry": {"max_retries": 3}}).encode()
    assert (await admin.publish("$admin/queue/create", body)).reason_code == 0
    config = server.node.queues.get((SPACE, "tasks/image")).config
    assert (config.partitions, config.retry.max_retries) == (2, 3)
    assert (await admin.publish("$admin/queue/tasks/image/config", b'{"paused": true}')).reason_code == 0
    assert server.node.queues.get((SPACE, "tasks/image")).config.paused


@pytest.mark.parametrize(
    ("topic", "payload", "code", "says"),
    [
        ("$admin/queue/create", b"{", 0x83, "must be a JSON object"),
        ("$admin/queue/create", b"[]", 0x83, "must be a JSON object"),
        ("$admin/queue/create", b'{"a":' * 3_000, 0x83, "must be a JSON object"),
        ("$admin/queue/create", b"{}", 0x83, "name is missing"),
        ("$admin/queue/create", b'{"name": "a//b"}', 0x90, "a level between '/' is empty"),
        ("$admin/queue/create", b'{"name": "there"}', 0x83, "exists already"),
        ("$admin/queue/create", b'{"name": "new", "color": 1}', 0x83, "there is no such setting"),
        ("$admin/queue/there/config", b'{"partitions": 1}', 0x83, "it can grow, not shrink"),
        ("$admin/queue/missing/config", b"{}", 0x90, "does not exist"),
        ("$admin/queue//config", b"{}", 0x90, "is empty"),
        ("$admin/queue/there", b"{}", 0x90, "is nothing to publish on"),
        ("$admin/other", b"{}", 0x90, "is nothing to publish on"),
    ],
)
async def test_what_cannot_be_is_refused(quick: Server, topic: str, payload: bytes, code: int, says: str) -> None:
    await quick.create("there")
    admin = await quick.client("ops")
    refused = await admin.publish(topic, payload)
    assert refused.reason_code == code
    assert says in str(refused.properties.reason_string)


@pytest.mark.parametrize("number", WILD_NUMBERS, ids=lambda text: text[:20])
async def test_no_number_is_too_much(quick: Server, number: str) -> None:
    """In JSON of administration, in settlements, in user properties: each is taken or refused, and the node goes on."""
    await quick.create("there")
    engine = quick.node.cell.engine
    admin = await quick.client("ops")
    for name in FIELDS:
        for topic in ("$admin/queue/there/config", "$admin/queue/create"):
            payload = f'{{"name": "other", "{name}": {number}}}' if "create" in topic else f'{{"{name}": {number}}}'
            await admin.publish(topic, payload.encode())
    for name in ("priority", "delay", "deliver-at", "ttl"):
        await admin.publish("$queue/there", b"m", user={name: number})
    for name in ("message-id", "lease-token", "delay", "timeout"):
        for verb in ("$ack", "$nack", "$extend"):
            await admin.publish(f"$queue/there/{verb}", b"", user={name: number})
            await admin.publish(f"$queue/there/{verb}", f'{{"{name}": {number}}}'.encode())
    assert quick.node.cell.engine is engine, "the store was opened again"
    assert (await admin.publish("$queue/after", b"m")).reason_code == 0


@pytest.mark.parametrize("version", [V5, V311])
async def test_stats_of_a_queue_come_as_a_stream(server: Server, version: int) -> None:
    await server.create("jobs")
    admin = await server.client("ops", version)
    identifier = {"subscription_id": "7"} if version == V5 else {}
    assert (await admin.subscribe("$admin/queue/jobs/stats", 1, **identifier)).reason_codes == (0,)
    first = await admin.delivery()
    assert json.loads(first.payload)["depth"] == 0
    assert first.properties.subscription_ids == ((7,) if version == V5 else ())
    await admin.publish("$queue/jobs", b"x")
    await admin.expect(Publish, lambda one: json.loads(one.payload)["depth"] == 1)
    await admin.unsubscribe("$admin/queue/jobs/stats")
    admin.seen.clear()
    await server.mqtt._show_stats()
    await admin.nothing_more()


async def test_stats_too_large_for_a_client_or_of_a_queue_that_is_gone_are_left_out(quick: Server) -> None:
    await quick.create("jobs")
    small = await quick.client("small", packet_bytes_max=100)
    await small.subscribe("$admin/queue/jobs/stats")
    admin = await quick.client("ops")
    await admin.subscribe("$admin/queue/jobs/stats")
    await admin.delivery()
    await small.nothing_more()
    await quick.node.queues.delete((SPACE, "jobs"))
    await admin.ping()
    admin.seen.clear()
    await quick.mqtt._show_stats()
    await admin.nothing_more()
    assert (await admin.subscribe("$admin/queue/jobs/stats")).reason_codes == (0x8F,)


async def test_stats_of_many_queues_are_collected_one_in_a_pass_of_the_loop(
    quick: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"jobs-{number}" for number in range(5)]
    admin = await quick.client("ops")
    for name in names:
        await quick.create(name)
        await admin.subscribe(f"$admin/queue/{name}/stats")
    passes = [0]
    collected: list[int] = []
    task = asyncio.current_task()  # the server shows stats by itself too
    stats = quick.node.inspection.stats

    async def noted(name: tuple[str, str]) -> object:
        if asyncio.current_task() is task:
            collected.append(passes[0])
        return await stats(name)

    def count() -> None:
        passes[0] += 1
        if len(collected) < len(names):
            asyncio.get_running_loop().call_soon(count)

    monkeypatch.setattr(quick.node.inspection, "stats", noted)
    count()
    await quick.mqtt._show_stats()
    assert len(collected) == len(set(collected)) == len(names)


async def test_who_goes_watches_no_more(quick: Server) -> None:
    await quick.create("jobs")
    admin = await quick.client("ops")
    await admin.subscribe("$admin/queue/jobs/stats")
    admin.vanish()
    bridge = quick.mqtt._bridge
    assert bridge is not None
    await until(lambda: not bridge.watchers)


# --- rights ---------------------------------------------------------------------------------------------------------


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Server]:
    """A server that knows a producer, a consumer and an administrator of `jobs/#`."""
    users = write_users(
        tmp_path / "users.json",
        user("producer", "pw", "produce:jobs/#", "produce:plain"),
        user("consumer", "pw", "consume:jobs/#"),
        user("ops", "pw", "admin:jobs/#"),
        user("root", "pw", "admin:#", "produce:#", "consume:#"),
    )
    store = open_store("memory", tmp_path / "store")
    config = config_for(tmp_path, auth=settings(users_file=users), audit=AuditSettings(enabled=False))
    server = Server(config, store)
    await server.start()
    yield server
    await server.stop()
    store.close()


async def login(server: Server, name: str, client_id: str = "") -> Raw:
    return await server.client(client_id or f"{name}-1", username=name, password=b"pw")


async def test_each_may_do_what_its_scopes_say(guarded: Server) -> None:
    producer = await login(guarded, "producer")
    consumer = await login(guarded, "consumer")
    assert (await producer.publish("$queue/jobs/a", b"x")).reason_code == 0
    assert (await producer.publish("$queue/other", b"x")).reason_code == 0x87
    assert (await producer.publish("$queue/" + "x" * 65_000, b"x")).reason_code == 0x90
    assert (await producer.publish("y" * 65_000, b"x")).reason_code == 0x87
    assert (await producer.publish("$queue/jobs/a/$ack", user={"message-id": "1"})).reason_code == 0x87
    assert (await producer.subscribe("$queue/jobs/a")).reason_codes == (0x87,)
    assert (await consumer.subscribe("$queue/jobs/a")).reason_codes == (1,)
    assert (await consumer.subscribe("$share/g/$queue/other")).reason_codes == (0x87,)
    assert (await consumer.subscribe("$queue/jobs/#")).reason_codes == (0x8F,)
    assert (await consumer.publish("$queue/jobs/a", b"x")).reason_code == 0x87
    assert (await consumer.take()).payload == b"x"


async def test_administration_is_for_administrators(guarded: Server) -> None:
    producer = await login(guarded, "producer")
    ops = await login(guarded, "ops")
    root = await login(guarded, "root")
    create = b'{"name": "jobs/new"}'
    assert (await producer.publish("$admin/queue/create", create)).reason_code == 0x87
    assert (await root.publish("$admin/queue/create", create)).reason_code == 0
    assert (await ops.publish("$admin/queue/jobs/new/config", b'{"paused": true}')).reason_code == 0
    assert (await producer.publish("$admin/queue/jobs/new/config", b"{}")).reason_code == 0x87
    assert (await ops.subscribe("$admin/queue/jobs/new/stats")).reason_codes == (0,)
    assert (await producer.subscribe("$admin/queue/jobs/new/stats")).reason_codes == (0x87,)


# --- the audit log ---------------------------------------------------------------------------------------------------


async def test_an_act_is_answered_when_its_line_in_the_audit_log_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store("memory", tmp_path / "store")
    server = Server(config_for(tmp_path), store)
    await server.start()
    ops, other = await server.client("ops"), await server.client("other")
    reached, free = threading.Event(), threading.Event()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino == (tmp_path / "audit.log").stat().st_ino:
            reached.set()
            assert free.wait(60)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    try:
        act = asyncio.create_task(ops.publish("$admin/queue/create", b'{"name": "jobs"}'))
        await until(reached.is_set)
        await server.node.messages.enqueue(
            (SPACE, "jobs"), [Draft(b"x")], "http"
        )  # durable, as the records of the act are
        assert json.loads((tmp_path / "audit.log").read_text())["act"] == "queue.create"
        later = asyncio.create_task(other.publish("$queue/jobs", b"y"))
        await until(lambda: server.depth("jobs") == 2)
        await server.node.messages.enqueue((SPACE, "jobs"), [Draft(b"z")], "http")
        third = await server.client("third")
        await third.ping()
        assert not act.done()
        assert not later.done()  # its answer is behind
    finally:
        free.set()
    assert (await act).reason_code == 0
    assert (await later).reason_code == 0
    await server.stop()
    store.close()


# --- switched off ---------------------------------------------------------------------------------------------------


async def test_with_queues_switched_off_it_is_an_ordinary_broker(tmp_path: Path) -> None:
    store = open_store("memory", tmp_path / "store")
    config = config_for(tmp_path)
    server = Server(replace(config, mqtt=replace(config.mqtt, queues=False)), store)
    await server.start()
    client = await server.client("c")
    assert (await client.subscribe("$queue/+/x", 2)).reason_codes == (2,)
    assert (await client.publish("$queue/a/x", b"plain", 1)).reason_code == 0
    received = await client.delivery()
    assert (received.payload, received.properties) == (b"plain", Properties())
    assert server.node.queues.in_namespace(SPACE) == []
    await server.stop()
    store.close()
