"""What was confirmed is there after a stop, after SIGKILL, and after the store has failed; and nothing is confirmed
before it is synced."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.broker import cell
from holdfast.core.records import Table
from holdfast.errors import StoreUnavailable
from holdfast.mqtt.codec import V5, V311, Connect, Properties, PubAck, PubComp, Publish, PubRec, PubRel, Will
from holdfast.mqtt.net.link import Link
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.faulty import Fault, FaultyStore
from holdfast.store.memory import MemoryDisk, MemoryStore
from tests.mqtt.net.broker import Broker, config_for
from tests.mqtt.net.clauses import covers
from tests.mqtt.net.client import Client, Ended
from tests.mqtt.net.conftest import Run
from tests.waiting import PATIENCE_SECONDS

BOTH = pytest.mark.parametrize("version", [V311, V5])
KEPT = 1000


# --- a stop and a start ---------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "rocks"])
def open_again(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    if request.param == "rocks":
        return lambda: open_store("rocks", tmp_path / "store")
    disk = MemoryDisk()
    return lambda: MemoryStore(disk)


async def leave_traces(connect: Callable[..., Awaitable[Client]]) -> dict[str, Publish]:
    """Sessions with everything in them. Returns what is in flight, by session."""
    reader = await connect("reader", expiry=KEPT)
    await reader.subscribe("t/+", qos=2, identifier=7, rap=True)
    await reader.subscribe("other", qos=1, no_local=True)
    publisher = await connect("publisher", expiry=KEPT)
    carried = Properties(content_type="x", user_properties=(("b", "1"), ("a", "2")), message_expiry_s=900)
    assert await publisher.publish("t/1", b"received", 2, 1) == 0
    received = await reader.next_publish()
    await reader.send(PubRec(received.packet_id))
    await reader.expect(PubRel(received.packet_id))
    assert await publisher.publish("t/1", b"one", 1, 1, properties=carried) == 0
    assert await publisher.publish("t/2", b"two", 2, 2) == 0
    one, two = await reader.publishes(2)
    reader.cut()
    away = await connect("away", V311, clean=False)
    await away.subscribe("t/#", qos=1)
    await away.disconnect()
    assert await publisher.publish("t/3", b"three", 1, 1, retain=True, properties=carried) == 0
    assert await publisher.publish("t/4", b"four", 2, 2) == 0
    assert await publisher.publish("t/5", b"gone", 1, 1, retain=True) == 0
    assert await publisher.publish("t/5", b"", 1, 1, retain=True) == 0
    await publisher.send(Publish("t/6", b"half way", 2, 9))
    await publisher.expect(PubRec(9))
    willing = await connect("willing", expiry=KEPT, will=Will("t/will", b"bye", 1))
    await willing.ping()
    return {"received": received, "one": one, "two": two}


async def find_traces(connect: Callable[..., Awaitable[Client]], left: dict[str, Publish]) -> None:
    """All of it is there again."""
    reader = await connect("reader", clean=False, expiry=KEPT)
    assert reader.connack.session_present
    await reader.expect(PubRel(left["received"].packet_id))
    await reader.send(PubComp(left["received"].packet_id))
    seen = await reader.publishes(8)
    assert [(one.packet_id, one.payload, one.dup) for one in seen[:2]] == [
        (left["one"].packet_id, b"one", True),
        (left["two"].packet_id, b"two", True),
    ]
    assert [one.payload for one in seen[2:]] == [b"three", b"four", b"gone", b"", b"half way", b"bye"]
    assert [one.dup for one in seen[2:]] == [False] * 6
    assert [one.retain for one in seen[2:]] == [True, False, True, True, False, False]
    assert {one.properties.subscription_ids for one in seen} == {(7,)}
    assert seen[0].properties.user_properties == (("b", "1"), ("a", "2"))
    assert (seen[0].properties.message_expiry_s or 0) in range(800, 901)
    for one in seen:
        await reader.acknowledge(one)
    await reader.silent()
    away = await connect("away", V311, clean=False)
    assert away.connack.session_present
    seen = await away.publishes(6)
    assert [one.payload for one in seen] == [b"three", b"four", b"gone", b"", b"half way", b"bye"]
    for one in seen:
        await away.acknowledge(one)
    publisher = await connect("publisher", clean=False, expiry=KEPT)
    await publisher.send(Publish("t/6", b"half way", 2, 9, dup=True))
    await publisher.expect(PubRec(9))  # known: it is not published a second time
    await away.silent()
    await publisher.send(PubRel(9))
    await publisher.expect(PubComp(9))
    late = await connect("late", V311)
    await late.subscribe("t/#")
    assert [(one.topic, one.payload, one.retain) for one in await late.publishes(1)] == [("t/3", b"three", True)]
    await late.silent()


@covers("4.1.0-1 3.1.2-7 3.1.2-23", v311="4.1.0-1 3.1.2-5")
async def test_everything_kept_is_there_after_a_restart(
    run: Run, tmp_path: Path, open_again: Callable[[], Store]
) -> None:
    broker = await run(Broker(config_for(tmp_path), open_again))
    left = await leave_traces(broker.connect)
    await broker.stop()
    await broker.start()
    await find_traces(broker.connect, left)


async def test_what_ended_stays_ended_after_a_restart(
    run: Run, tmp_path: Path, open_again: Callable[[], Store]
) -> None:
    broker = await run(Broker(config_for(tmp_path), open_again))
    client = await broker.connect("c", expiry=KEPT)
    await client.subscribe("t", "u", qos=1)
    await client.disconnect(0, Properties(session_expiry_s=0))
    transient = await broker.connect("transient")
    await transient.subscribe("t")
    short = await broker.connect("short", expiry=10)
    await short.subscribe("t", qos=1)
    await short.disconnect()
    await broker.stop()
    broker._ahead += 11_000_000
    await broker.start()
    await broker.until(lambda: broker.sessions() == {})
    await broker.stop()
    store = open_again()
    left = {table.name: store.scan(table, b"", b"\xff" * 16, 10) for table in Table if table.name.startswith("MQTT_")}
    store.close()
    await broker.start()
    assert {name: rows for name, rows in left.items() if rows} == {}


# --- SIGKILL --------------------------------------------------------------------------------------------------------


class Process:
    """`holdfast serve` on rocks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._child: asyncio.subprocess.Process | None = None
        self._clients: list[Client] = []
        self.address = ("", 0)

    async def start(self) -> None:
        environ = {**os.environ, "HOLDFAST_HTTP_ENABLED": "false"}
        self._child = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).parent / "holdfast"),
            *("serve", "--data-dir", str(self._path), "--mqtt", "127.0.0.1:0", "--log-format", "json"),
            env=environ,
            stderr=subprocess.PIPE,
        )
        assert self._child.stderr is not None
        while True:
            line = await self._child.stderr.readline()
            assert line, "the server ended"
            said = json.loads(line)
            if said["event"] == "MQTT is listening":
                host, port = said["address"].split(":")
                self.address = (host, int(port))
            if said["event"] == "holdfast is running":
                return

    def signal(self, number: signal.Signals) -> None:
        assert self._child is not None
        self._child.send_signal(number)

    async def kill(self) -> None:
        assert self._child is not None
        self.signal(signal.SIGKILL)
        await self._child.communicate()
        for client in self._clients:
            client.cut()

    async def connect(
        self,
        client_id: str,
        version: int = V5,
        *,
        clean: bool = True,
        expiry: int | None = None,
        keep_alive: int = 0,
        will: Will | None = None,
    ) -> Client:
        client = await Client.open(*self.address, version)
        self._clients.append(client)
        properties = Properties(session_expiry_s=expiry)
        await client.connect(Connect(client_id, version, clean, keep_alive, will=will, properties=properties))
        assert client.connack.reason_code == 0
        return client


@asynccontextmanager
async def serving(path: Path) -> AsyncIterator[Process]:
    process = Process(path)
    await process.start()
    try:
        yield process
    finally:
        await process.kill()


STREAMED = range(1, 400)


async def stream(client: Client, qos: int, confirmed: set[int], received: set[int]) -> None:
    """Publish until the server is gone."""
    for number in STREAMED:
        await client.send(Publish(f"s/{qos}", b"%d" % number, qos, number))
    try:
        while True:
            answer = await client.next()
            if isinstance(answer, PubRec):
                received.add(answer.packet_id)
                await client.send(PubRel(answer.packet_id))
            elif isinstance(answer, (PubAck, PubComp)):
                confirmed.add(answer.packet_id)
    except Ended:
        return


async def drain(client: Client, enough: Callable[[dict[int, list[int]]], bool]) -> dict[int, list[int]]:
    """What the session holds, by QoS."""
    seen: dict[int, list[int]] = {1: [], 2: []}
    while not enough(seen):
        packet = await client.next()
        if isinstance(packet, PubRel):
            await client.send(PubComp(packet.packet_id))
            continue
        assert isinstance(packet, Publish)
        seen[packet.qos].append(int(packet.payload))
        await client.send(PubAck(packet.packet_id) if packet.qos == 1 else PubRec(packet.packet_id))
    return seen


@pytest.mark.crash
async def test_everything_confirmed_is_there_after_sigkill(tmp_path: Path) -> None:
    """Killed in the middle of a stream at both levels: nothing confirmed is missing, and nothing at QoS 2 comes twice
    once the publisher has sent again what was not."""
    async with serving(tmp_path) as server:
        left = await leave_traces(server.connect)
        away = await server.connect("streamed", expiry=KEPT)
        await away.subscribe("s/#", qos=2)
        await away.disconnect()
        confirmed: dict[int, set[int]] = {1: set(), 2: set()}

        async def kill() -> None:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not (confirmed[1] and confirmed[2]):  # noqa: ASYNC110 - seen by another task
                    await asyncio.sleep(0)
            await server.kill()

        one, two = await server.connect("p1", expiry=KEPT), await server.connect("p2", expiry=KEPT)
        received: set[int] = set()
        await asyncio.gather(stream(one, 1, confirmed[1], set()), stream(two, 2, confirmed[2], received), kill())
        await server.start()
        await find_traces(server.connect, left)

        again = await server.connect("p2", clean=False, expiry=KEPT)
        for number in sorted(received - confirmed[2]):
            await again.send(PubRel(number))
            assert isinstance(await again.next(), PubComp)
        for number in sorted(set(STREAMED) - received):
            await again.publish("s/2", b"%d" % number, 2, number, dup=True)
        back = await server.connect("streamed", clean=False, expiry=KEPT)
        seen = await drain(back, lambda seen: set(seen[1]) >= confirmed[1] and len(seen[2]) >= len(STREAMED))
        assert sorted(seen[2]) == list(STREAMED)
        assert seen[1] == sorted(set(seen[1]))


# --- a sync that takes its time -------------------------------------------------------------------------------------


class Gated(FaultyStore):
    """A store whose sync waits until it is let through."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.gate = threading.Event()
        self.gate.set()

    def sync(self) -> None:
        assert self.gate.wait(PATIENCE_SECONDS)
        super().sync()


@pytest.fixture
async def gated(run: Run, tmp_path: Path) -> AsyncIterator[tuple[Broker, Gated]]:
    store = Gated(MemoryStore(MemoryDisk()))
    broker = await run(Broker(config_for(tmp_path), lambda: store))
    yield broker, store
    store.gate.set()


async def nothing_came(broker: Broker, client: Client) -> None:
    """Others are served meanwhile, many times over, and the client has not been sent a byte."""
    bystander = await broker.connect("bystander", V311)
    for _ in range(20):
        await bystander.ping()
    assert client.unread() == 0


@BOTH
async def test_puback_waits_for_the_sync_also_when_the_message_comes_again(
    gated: tuple[Broker, Gated], version: int
) -> None:
    broker, store = gated
    away = await broker.connect("away", expiry=KEPT)
    await away.subscribe("t", qos=1)
    await away.disconnect()
    publisher = await broker.connect("p", version)
    store.gate.clear()
    await publisher.send(Publish("t", b"1", 1, 5))
    await broker.until(lambda: len(broker.session("away").queue) == 1)
    await nothing_came(broker, publisher)
    await publisher.send(Publish("t", b"1", 1, 5, dup=True))
    await broker.until(lambda: len(broker.session("away").queue) == 2)
    await nothing_came(broker, publisher)
    store.gate.set()
    await publisher.expect(PubAck(5), PubAck(5))


@BOTH
async def test_pubrec_waits_for_the_sync_also_when_the_message_comes_again(
    gated: tuple[Broker, Gated], version: int
) -> None:
    broker, store = gated
    expiry = KEPT if version == V5 else None
    publisher = await broker.connect("p", version, clean=False, expiry=expiry)
    store.gate.clear()
    await publisher.send(Publish("t", b"1", 2, 5), Publish("t", b"1", 2, 5, dup=True))
    await broker.until(lambda: 5 in broker.session("p").incoming)
    await nothing_came(broker, publisher)
    publisher.cut()
    again = await broker.open(version)
    hello = Connect("p", version, False, properties=Properties(session_expiry_s=expiry))
    await again.send(hello, Publish("t", b"1", 2, 5, dup=True))
    await broker.until(lambda: broker.session("p").connection is not None)
    await nothing_came(broker, again)
    store.gate.set()
    await again.next()
    await again.expect(PubRec(5))


@BOTH
async def test_pubcomp_waits_for_the_sync_also_when_pubrel_comes_again(
    gated: tuple[Broker, Gated], version: int
) -> None:
    broker, store = gated
    publisher = await broker.connect("p", version, clean=False, expiry=KEPT if version == V5 else None)
    await publisher.send(Publish("t", b"1", 2, 5))
    await publisher.next()
    store.gate.clear()
    await publisher.send(PubRel(5), PubRel(5))
    await broker.until(lambda: not broker.session("p").incoming)
    await nothing_came(broker, publisher)
    store.gate.set()
    await publisher.expect(PubComp(5), PubComp(5, 0x92 if version == V5 else 0))


@BOTH
async def test_pubrel_waits_for_the_sync_also_when_pubrec_comes_again(
    gated: tuple[Broker, Gated], version: int
) -> None:
    broker, store = gated
    client = await broker.connect("c", version, clean=False, expiry=KEPT if version == V5 else None)
    await client.subscribe("t", qos=2)
    await (await broker.connect("p")).publish("t", b"1", 2)
    seen = await client.next_publish()
    store.gate.clear()
    await client.send(PubRec(seen.packet_id), PubRec(seen.packet_id))
    await broker.until(lambda: broker.session("c").inflight[seen.packet_id].message is None)
    await nothing_came(broker, client)
    store.gate.set()
    await client.expect(PubRel(seen.packet_id), PubRel(seen.packet_id))


@BOTH
async def test_connack_and_suback_of_a_kept_session_wait_for_the_sync(
    gated: tuple[Broker, Gated], version: int
) -> None:
    broker, store = gated
    store.gate.clear()
    client = await broker.open(version)
    expiry = KEPT if version == V5 else None
    await client.send(Connect("c", version, False, properties=Properties(session_expiry_s=expiry)))
    await broker.until(lambda: "c" in broker.sessions())
    await nothing_came(broker, client)
    store.gate.set()
    await client.next()


async def test_what_nobody_keeps_waits_for_nothing(gated: tuple[Broker, Gated]) -> None:
    broker, store = gated
    store.gate.clear()
    listener = await broker.connect("l")
    await listener.subscribe("t", qos=2)
    publisher = await broker.connect("p")
    assert [await publisher.publish("t", b"%d" % qos, qos) for qos in (0, 1, 2)] == [0, 0, 0]
    assert await listener.payloads(3) == [b"0", b"1", b"2"]


async def test_a_3_1_1_client_that_is_faster_than_the_disk_is_made_to_wait(gated: tuple[Broker, Gated]) -> None:
    broker, store = gated
    away = await broker.connect("away", expiry=KEPT)
    await away.subscribe("t", qos=1)
    await away.disconnect()
    publisher = await broker.connect("p", V311)
    connection = broker.session("p").connection
    assert connection is not None
    link = connection.tag
    assert isinstance(link, Link)
    store.gate.clear()
    payload = b"x" * 1000
    sending = asyncio.create_task(publisher.send(*(Publish("t", payload, 1, number) for number in range(1, 6001))))
    await broker.until(lambda: "answers" in link._holds)
    held = connection.held_acks
    await nothing_came(broker, publisher)
    assert connection.held_acks == held < 6000  # the rest waits with its sender
    store.gate.set()
    await sending
    await publisher.expect(*(PubAck(number) for number in range(1, 6001)))
    assert len(broker.session("away").queue) == 6000


# --- a store that fails ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("when", ["write", "sync"])
@covers(v311="4.8.0-2")
async def test_when_the_store_fails_connections_are_cut_and_sessions_loaded_again(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, after: bool
) -> None:
    monkeypatch.setattr(cell, "RECOVERY_PAUSE_SECONDS", 0.01)
    faults: list[Fault] = []
    disk = MemoryDisk()

    def plan() -> Fault | None:
        return faults.pop() if faults else None

    store = FaultyStore(MemoryStore(disk), **{when: plan})
    broker = await run(Broker(config_for(tmp_path), lambda: store))
    away = await broker.connect("away", expiry=KEPT)
    await away.subscribe("t", qos=1)
    await away.disconnect()
    bystander = await broker.connect("bystander", will=Will("t", b"bye"))
    publisher = await broker.connect("p", expiry=KEPT)
    assert await publisher.publish("t", b"safe", 1) == 0
    old = broker.hub
    faults.append(Fault(StoreUnavailable(problem="simulated"), after=after))
    await publisher.send(Publish("t", b"doubtful", 1, 2))
    assert await publisher.ended() == []  # neither confirmed nor denied
    assert await bystander.ended() == []
    await broker.until(lambda: broker.front._hub not in (None, old))
    assert not broker.front._links
    again = await broker.connect("p", clean=False, expiry=KEPT)
    assert again.connack.session_present
    assert await again.publish("t", b"doubtful", 1, 2, dup=True) == 0
    back = await broker.connect("away", clean=False, expiry=KEPT)
    seen = [await back.next_publish()]
    while seen[-1].payload != b"doubtful" or len(seen) < 2:
        seen.append(await back.next_publish())
    assert [one.payload for one in seen[:2]] == [b"safe", b"doubtful"]
    for one in seen:
        await back.acknowledge(one)


async def test_while_the_store_is_down_nobody_is_let_in(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell, "RECOVERY_PAUSE_SECONDS", 0.01)
    down = threading.Event()
    down.set()

    def broken() -> Fault | None:
        return Fault(StoreUnavailable(problem="simulated")) if down.is_set() else None

    faults = [Fault(StoreUnavailable(problem="simulated"))]
    store = FaultyStore(MemoryStore(MemoryDisk()), sync=lambda: faults.pop() if faults else None, reopen=broken)
    broker = await run(Broker(config_for(tmp_path), lambda: store))
    client = await broker.open()
    await client.send(Connect("c", properties=Properties(session_expiry_s=KEPT)))
    assert await client.ended() == []
    for _ in range(5):
        late = await broker.open()
        assert await late.ended() == []
    down.clear()
    await broker.until(lambda: broker.front._hub is not None)
    await broker.connect("c", expiry=KEPT)
