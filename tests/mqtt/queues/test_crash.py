"""SIGKILL at random moments, as MQTT clients see it.

Every PUBACKed message is delivered in both groups, nothing whose ack was confirmed comes back, messages of a key come
in their order, and the journal has no hole.

Publishers keep a window of messages under way and send again what was not confirmed, under the same message-id. One
group settles explicitly, with a confirmed `$ack`, the other by PUBACK. At the end what is left is drained, and every
message must have been stored once and acked once in each group.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyarrow.parquet as pq
import pytest

from holdfast.broker.export_verify import verify
from holdfast.broker.node import Node
from holdfast.config import Config
from holdfast.config.settings import JournalSettings, NodeSettings
from holdfast.core.commands import Settlement
from holdfast.mqtt.codec import PubAck, Publish
from holdfast.store import open_store
from tests.mqtt.queues.rig import SPACE, Raw, told_of, until

KILLS = 21
WINDOW = 40
KEYS = 100
BACKLOG = 600
FIELDS = (
    b'{"partitions": 4, "delivery_timeout": "1s", "max_depth": 0, '
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


class Facts:
    """What clients know. A message is named `queue:key:number`; numbers of a key count up."""

    def __init__(self) -> None:
        self.next: Counter[tuple[str, int]] = Counter()
        self.unconfirmed: dict[str, dict[str, None]] = {queue: {} for queue in QUEUES}
        self.enqueued: set[str] = set()
        self.settled: dict[str, set[str]] = {group: set() for group in GROUPS}  # an ack was sent
        self.acked: set[str] = set()  # and, in the explicit group, confirmed
        self.deliveries = 0

    def new(self, queue: str, dice: random.Random) -> str:
        key = dice.randrange(KEYS)
        number = self.next[queue, key]
        self.next[queue, key] += 1
        name = f"{queue}:{key}:{number}"
        self.unconfirmed[queue][name] = None
        return name

    def delivered(self, group: str, name: str) -> None:
        self.deliveries += 1
        assert name not in self.acked or group != "explicit", f"{name} came back after its ack was confirmed"
        queue, key, number = name.split(":")
        if int(number):
            before = f"{queue}:{key}:{int(number) - 1}"
            assert before in self.settled[group], f"{name} came before {before} was settled in {group}"

    @property
    def events(self) -> int:
        """How much has happened."""
        return len(self.enqueued) + len(self.acked) + self.deliveries

    @property
    def backlog(self) -> int:
        return len(self.enqueued) - min(map(len, self.settled.values()))


# --- the clients ----------------------------------------------------------------------------------------------------


async def publish(port: int, queue: str, facts: Facts, dice: random.Random, clients: list[Raw]) -> None:
    """A window of messages under way; first those that were not confirmed before the crash."""
    client = await Raw.connect(port, f"publisher-{queue}")
    clients.append(client)
    under_way: dict[int, str] = {}
    waiting = list(facts.unconfirmed[queue])
    while True:
        while len(under_way) < WINDOW and (waiting or facts.backlog < BACKLOG):
            name = waiting.pop(0) if waiting else facts.new(queue, dice)
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
        facts.enqueued.add(name)
        del facts.unconfirmed[queue][name]


async def consume_explicitly(port: int, queue: str, facts: Facts, dice: random.Random, clients: list[Raw]) -> None:
    client = await Raw.connect(port, f"explicit-{queue}", clean=dice.random() < 0.5, expiry_s=600)
    clients.append(client)
    await client.subscribe(f"$queue/{queue}", consumer_group="explicit", prefetch="30")
    under_way: dict[int, str] = {}
    while True:
        packet = await client.expect(object, lambda one: isinstance(one, Publish | PubAck))
        if isinstance(packet, Publish):
            name = packet.payload.decode()
            facts.delivered("explicit", name)
            client.accept(packet)
            told = {"message-id": name, "lease-token": told_of(packet)["lease-token"]}
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
                facts.acked.add(settled)


async def consume_natively(port: int, queue: str, facts: Facts, dice: random.Random, clients: list[Raw]) -> None:
    client = await Raw.connect(port, f"native-{queue}", clean=dice.random() < 0.5, expiry_s=600)
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


# --- the server -----------------------------------------------------------------------------------------------------


class Servers:
    """Starts servers on one data directory, one after another."""

    def __init__(self, path: Path, zygote: subprocess.Popen[str]) -> None:
        self._path = path
        self._zygote = zygote
        self._count = 0
        (path / "config.toml").write_text(CONFIG.format(path=path / "data"))

    def start(self) -> tuple[int, int]:
        """Process id and port."""
        self._count += 1
        log = self._path / f"{self._count}.log"
        stdin, stdout = self._zygote.stdin, self._zygote.stdout
        assert stdin is not None
        assert stdout is not None
        _write(stdin, f"{log} --config {self._path / 'config.toml'} --log-format json\n")
        pid = int(stdout.readline())
        deadline = time.monotonic() + 60
        text = ""
        while time.monotonic() < deadline:
            text = log.read_text() if log.exists() else ""
            found = re.search(r'"address":\s*"127\.0\.0\.1:(\d+)"', text)
            if found:
                return pid, int(found[1])
            time.sleep(0.005)
        raise AssertionError(f"the server did not start: {text}")


def _write(stream: IO[str], text: str) -> None:
    stream.write(text)
    stream.flush()


@contextmanager
def servers(path: Path) -> Iterator[Servers]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.mqtt.queues.zygote"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    ) as zygote:
        yield Servers(path, zygote)
        assert zygote.stdin is not None
        zygote.stdin.close()


async def kill_after(pid: int, facts: Facts, events: int, most_seconds: float = 1.5) -> None:
    """When so much more has happened, on a machine of any speed."""
    end = facts.events + events
    deadline = time.monotonic() + most_seconds
    while facts.events < end and time.monotonic() < deadline:  # noqa: ASYNC110 - what happens, happens to many
        await asyncio.sleep(0.001)
    os.kill(pid, signal.SIGKILL)


async def create(port: int) -> None:
    admin = await Raw.connect(port, "admin")
    for queue in QUEUES:
        body = FIELDS[:-1] + b', "name": "' + queue.encode() + b'"}'
        assert (await admin.publish("$admin/queue/create", body)).reason_code == 0
        for group in GROUPS:  # both see everything from the start
            await admin.subscribe(f"$share/{group}/$queue/{queue}")
    await admin.disconnect()


# --- the end --------------------------------------------------------------------------------------------------------


async def drain(path: Path, facts: Facts) -> int:
    """Open what is left, ack all of it, and export. Returns the last lsn."""
    store = open_store("rocks", path / "data" / "store")
    config = Config(node=NodeSettings(data_dir=path / "data"), journal=JournalSettings(segment_age=3_600_000_000))
    node = Node(config, store)
    await node.start()
    for queue in QUEUES:
        for group in GROUPS:
            await _empty(node, queue, group, facts)
        await until(lambda queue=queue: node.figures((SPACE, queue)).depth == 0)  # type: ignore[misc]
    await node.export()
    lsn = node.engine.record.next_lsn - 1
    await node.stop()
    store.close()
    return lsn


async def _empty(node: Node, queue: str, group: str, facts: Facts) -> None:
    while True:
        stats = next(one for one in node.figures((SPACE, queue)).groups if one.name == group)
        if not stats.ready + stats.scheduled + stats.leased:
            return
        leased = await node.lease((SPACE, queue), group, 1000, wait=200_000)
        for item in leased:
            name = item.message.payload.decode()
            facts.delivered(group, name)
            facts.settled[group].add(name)
        settlements = [Settlement(item.message.id, item.token, partition=item.partition) for item in leased]
        await node.settle((SPACE, queue), group, settlements)


def check_lake(path: Path, facts: Facts, lsn: int) -> None:
    lake = path / "data" / "lake"
    assert verify(lake) == []
    columns = ["lsn", "event", "queue", "group", "message_id", "payload"]
    rows = pq.read_table(lake / "journal", columns=columns).to_pylist()
    assert sorted(row["lsn"] for row in rows) == list(range(1, lsn + 1)), "the lake has a hole or a double"
    names = {row["message_id"]: row["payload"].decode() for row in rows if row["event"] == "enqueued"}
    stored = Counter(names.values())
    assert facts.enqueued <= set(stored), "a confirmed message was not stored"
    assert set(stored.values()) == {1}, "a message was stored twice though it had its message-id"
    acked = Counter((row["group"], names[row["message_id"]]) for row in rows if row["event"] == "acked")
    assert set(acked.values()) == {1}, "a message was acked twice in a group"
    assert set(acked) == {(group, name) for group in GROUPS for name in stored}


@pytest.mark.crash
@pytest.mark.timeout(240)
async def test_kill_minus_nine_at_random_moments_as_mqtt_clients_see_it(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    record_property("seed", seed)
    dice = random.Random(seed)
    facts = Facts()
    with servers(tmp_path) as farm:
        for number in range(KILLS):
            pid, port = farm.start()
            if not number:
                await create(port)
            killer = asyncio.create_task(kill_after(pid, facts, dice.randrange(400)))
            await load(port, facts, dice)
            await killer
    lsn = await drain(tmp_path, facts)
    assert len(facts.acked) > 200, f"too little happened (seed {seed})"
    check_lake(tmp_path, facts, lsn)
