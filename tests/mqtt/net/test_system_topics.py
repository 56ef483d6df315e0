"""`$SYS/#` of a broker over the network: Mosquitto's topics with true values, for who may see the server."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from holdfast import __version__
from holdfast.mqtt.codec import V5, Connect, Publish
from holdfast.quotas import Quota
from holdfast.units import SECOND
from tests.auth import rig
from tests.mqtt.net.broker import config_for, memory_broker
from tests.mqtt.net.client import Client
from tests.mqtt.net.conftest import Run

PASSWORD = b"correct horse"


async def shown(client: Client, count: int) -> dict[str, str]:
    """The next values."""
    found: dict[str, str] = {}
    while len(found) < count:
        packet = await client.next_publish()
        found[packet.topic.removeprefix("$SYS/broker/")] = packet.payload.decode()
    return found


async def test_the_values_are_true(run: Run, tmp_path: Path) -> None:
    broker = await run(memory_broker(config_for(tmp_path)))
    away = await broker.connect("away", clean=False, expiry=100)
    await away.subscribe("a/#", "$share/g/b")
    await away.disconnect()
    held = broker.node.cell.quotas.held
    await broker.until(lambda: not held(Quota.CONNECTIONS, "default"))
    sender = await broker.connect("sender")
    await sender.publish("t", b"kept", 1, retain=True)
    client = await broker.connect("watcher")
    await client.subscribe("$SYS/#")
    values = await shown(client, 51)
    expected = {
        "version": f"holdfast version {__version__}",
        "clients/total": "3",
        "clients/connected": "2",
        "clients/disconnected": "1",
        "clients/maximum": "2",
        "subscriptions/count": "3",
        "shared_subscriptions/count": "1",
        "retained messages/count": "1",
        "store/messages/count": "1",
        "store/messages/bytes": "5",
        "publish/messages/received": "1",
        "publish/messages/dropped": "0",
    }
    assert {topic: values[topic] for topic in expected} == expected
    assert values["uptime"].endswith(" seconds")
    assert int(values["bytes/received"]) > int(values["messages/received"]) > 5
    assert float(values["load/sockets/1min"]) > float(values["load/sockets/15min"]) > 0
    assert int(values["heap/maximum"]) >= int(values["heap/current"]) > 1024 * 1024


async def test_changes_follow_at_the_interval(run: Run, tmp_path: Path) -> None:
    broker = await run(memory_broker(config_for(tmp_path, system_interval=SECOND)))
    client = await broker.connect("watcher")
    await client.subscribe("$SYS/broker/clients/connected")
    assert await shown(client, 1) == {"clients/connected": "1"}
    await broker.connect("another")
    while await shown(client, 1) != {"clients/connected": "2"}:
        pass


async def test_the_numbers_of_the_server_take_the_right_to_see_it(run: Run, tmp_path: Path) -> None:
    users = [
        rig.user("shop", PASSWORD.decode(), "consume:#", "consume:$SYS/#", "admin:#"),
        rig.user("operator", PASSWORD.decode(), "node"),
    ]
    settings = rig.settings(users_file=rig.write_users(tmp_path / "users.json", *users))
    broker = await run(memory_broker(replace(config_for(tmp_path), auth=settings)))
    codes = []
    for name in ("shop", "operator"):
        client = await broker.open()
        await client.connect(Connect(name, V5, username=name, password=PASSWORD))
        codes.append(await client.subscribe("$SYS/#", "$share/g/$SYS/broker/uptime", "$SYS"))
    assert codes == [(0x87, 0x87, 0x87), (0, 0, 0)]


async def test_they_can_be_switched_off(run: Run, tmp_path: Path) -> None:
    broker = await run(memory_broker(config_for(tmp_path, system_interval=0)))
    client = await broker.connect("watcher")
    await client.subscribe("$SYS/#", "t")
    await client.send(Publish("t", b"first"))
    assert (await client.next_publish()).topic == "t"  # nothing came before
