"""SIGKILL at random moments, as MQTT clients see it.

Every PUBACKed message is delivered in both groups, nothing whose ack was confirmed comes back, messages of a key come
in their order, and the journal has no hole.

Publishers keep a window of messages under way and send again what was not confirmed, under the same message-id. One
group settles explicitly, with a confirmed `$ack`, the other by PUBACK. At the end what is left is drained, and every
message must have been stored once and acked once in each group.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.mqtt.codec import PubAck, Publish
from tests.crash.facts import ACKED_MIN, Facts, check_lake, drain
from tests.crash.farm import MQTT_ADDRESS, kill_after, servers
from tests.mqtt.queues.rig import Raw, dial, user_properties_of

KILLS = 21
WINDOW = 40
KEYS = range(100)
BACKLOG = 600
FIELDS = (
    b'{"partitions": 4, "delivery_timeout": "5s", "max_depth": 0, '
    b'"retry": {"max_retries": 1000, "initial_backoff": "1ms", "max_backoff": "5ms"}}'
)
GROUPS = ("explicit", "native")
QUEUES = ("orders", "mails")
CONFIG = """
[node]
data_dir = "{path}"
[mqtt]
listen = "127.0.0.1:0"
[http]
enabled = false
[journal]
segment_age = "300ms"
[store]
write_buffer_bytes = "2MiB"
"""


# --- the clients ----------------------------------------------------------------------------------------------------


async def publish(port: int, queue: str, facts: Facts, dice: random.Random, clients: list[Raw]) -> None:
    """A window of messages under way; first those that were not confirmed before the crash."""
    client = await Raw.connect(await dial(port), f"publisher-{queue}")
    clients.append(client)
    under_way: dict[int, str] = {}
    waiting = list(facts.unconfirmed[queue])
    while True:
        while len(under_way) < WINDOW and (waiting or facts.backlog < BACKLOG):
            name = waiting.pop(0) if waiting else facts.new(queue, queue, KEYS, dice)
            packet = client.packet(
                f"$queue/{queue}", name.encode(), user={"message-id": name, "partition-key": name.split(":")[1]}
            )
            client.send(packet)
            under_way[packet.packet_id] = name
        if not under_way:
            await asyncio.sleep(0.005)
            continue
        answer = await client.expect(PubAck)
        assert answer.reason_code == 0, answer
        name = under_way.pop(answer.packet_id)
        facts.confirmed(queue, name)


async def consume_explicitly(port: int, queue: str, facts: Facts, dice: random.Random, clients: list[Raw]) -> None:
    client = await Raw.connect(await dial(port), f"explicit-{queue}", clean=dice.random() < 0.5, expiry_s=600)
    clients.append(client)
    await client.subscribe(f"$queue/{queue}", consumer_group="explicit", prefetch="30")
    under_way: dict[int, str] = {}
    while True:
        packet = await client.expect(object, lambda one: isinstance(one, Publish | PubAck))
        if isinstance(packet, Publish):
            name = packet.payload.decode()
            facts.delivered("explicit", name)
            client.accept(packet)
            told = {"message-id": name, "lease-token": user_properties_of(packet)["lease-token"]}
            if dice.random() < 0.05:
                client.send(client.packet(f"$queue/{queue}/$nack", user={**told, "delay": "0s"}))
            else:
                ack = client.packet(f"$queue/{queue}/$ack", user=told)
                under_way[ack.packet_id] = name
                facts.settled["explicit"].add(name)
                client.send(ack)
        elif isinstance(packet, PubAck):
            settled = under_way.pop(packet.packet_id, None)
            if settled is not None and packet.reason_code == 0:
                facts.acked["explicit"].add(settled)


async def consume_natively(port: int, queue: str, facts: Facts, dice: random.Random, clients: list[Raw]) -> None:
    client = await Raw.connect(await dial(port), f"native-{queue}", clean=dice.random() < 0.5, expiry_s=600)
    clients.append(client)
    await client.subscribe(f"$share/native/$queue/{queue}", ack_mode="puback", prefetch="30")
    while True:
        delivery = await client.delivery()
        name = delivery.payload.decode()
        facts.delivered("native", name)
        if dice.random() < 0.05:
            client.accept(delivery, 0x80, "no")
        else:
            facts.settled["native"].add(name)
            client.accept(delivery)


async def load(port: int, facts: Facts, dice: random.Random) -> None:
    """Everybody at once, until the server is gone."""
    clients: list[Raw] = []
    tasks = [
        asyncio.create_task(work(port, queue, facts, dice, clients))
        for queue in QUEUES
        for work in (publish, consume_explicitly, consume_natively)
    ]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    for client in clients:
        await client.end()
    for task in done:
        error = task.exception()
        if not isinstance(error, ConnectionError):
            raise error or AssertionError("a client ended by itself")


async def create(port: int) -> None:
    admin = await Raw.connect(await dial(port), "admin")
    for queue in QUEUES:
        body = FIELDS[:-1] + b', "name": "' + queue.encode() + b'"}'
        assert (await admin.publish("$admin/queue/create", body)).reason_code == 0
        for group in GROUPS:  # both see everything from the start
            await admin.subscribe(f"$share/{group}/$queue/{queue}")
    await admin.disconnect()


@pytest.mark.crash
async def test_kill_minus_nine_at_random_moments_as_mqtt_clients_see_it(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    record_property("seed", seed)
    dice = random.Random(seed)
    facts = Facts(QUEUES, GROUPS)
    with servers(tmp_path, CONFIG) as farm:
        for number in facts.rounds(KILLS, "explicit"):
            pid, port = farm.start(MQTT_ADDRESS)
            if not number:
                await create(port)
            killer = asyncio.create_task(kill_after(pid, facts.events, dice.randrange(400)))
            await load(port, facts, dice)
            await killer
    lsn = await drain(tmp_path, QUEUES, facts)
    assert len(facts.acked["explicit"]) > ACKED_MIN, f"too little happened (seed {seed})"
    check_lake(tmp_path, facts, lsn)
