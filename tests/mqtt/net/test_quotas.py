"""What a namespace has over MQTT is bounded, and strangers have a share of their own, small in number and bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from holdfast.config.audit_settings import AuditSettings
from holdfast.config.settings import QuotaSettings
from holdfast.errors import RateLimited
from holdfast.mqtt.codec import V5, V311, Connect, PubAck, Publish, PubRec, encode
from holdfast.quotas import Quota
from holdfast.units import SECOND
from tests.auth import rig
from tests.mqtt.net.broker import Broker, config_for, memory_broker
from tests.mqtt.net.conftest import Run
from tests.waiting import PATIENCE_SECONDS

PASSWORD = b"correct horse"
KIB = 1024


async def guarded(run: Run, path: Path, quotas: QuotaSettings, **mqtt: object) -> Broker:
    """A broker with users `shop` and `other` of one namespace."""
    users = [rig.user(name, PASSWORD.decode(), "consume:#", "produce:#") for name in ("shop", "other")]
    config = config_for(path, **mqtt)
    settings = rig.settings(users_file=rig.write_users(path / "users.json", *users))
    http = replace(config.http, enabled=True)
    return await run(
        memory_broker(replace(config, auth=settings, audit=AuditSettings(enabled=False), quotas=quotas, http=http))
    )


async def test_connections_are_counted_by_namespace_and_principal(run: Run, tmp_path: Path) -> None:
    broker = await guarded(run, tmp_path, QuotaSettings(connections=2, principal_percent=50))
    first = await broker.connect("a", username="shop", password=PASSWORD)
    client = await broker.open()
    answer = await client.connect(Connect("b", V5, username="shop", password=PASSWORD))
    assert answer.reason_code == 0x97
    assert "quota connections of 1" in (answer.properties.reason_string or "")
    await broker.connect("c", username="other", password=PASSWORD)
    quotas = broker.node.cell.quotas
    assert quotas.held(Quota.CONNECTIONS, "default") == 2
    await first.disconnect()
    await broker.until(lambda: quotas.held(Quota.CONNECTIONS, "default") == 1)
    await broker.connect("b", username="shop", password=PASSWORD)
    shown = broker.node.quotas.show("default")
    assert (shown["connections"].used, shown["sessions"].used) == (2, 2)


class Stopped:
    """The clock of a broker's publishers, which a test moves."""

    def __init__(self, broker: Broker) -> None:
        self.now = broker.clock()
        broker.front._rates._clock = lambda: self.now


async def test_reads_beyond_the_quota_are_refused_or_dropped(run: Run, tmp_path: Path) -> None:
    broker = await guarded(run, tmp_path, QuotaSettings(requests_per_second=1), queues=True)
    client, other, old = [
        await broker.connect(name, version, username="shop", password=PASSWORD)
        for name, version in (("c", V5), ("other", V5), ("old", V311))
    ]
    clock = Stopped(broker)
    # One write, which is read at once: the messages of a read are one request.
    await client.send(*(Publish(topic, b"x", 1, number) for number, topic in enumerate(("t", "$queue/q") * 5, 1)))
    answers = [await client.next() for _ in range(10)]
    assert {one.reason_code for one in answers if isinstance(one, PubAck)} == {0, 0x10}
    assert await other.publish("t", b"x", 1) == 0x97
    await other.send(Publish("$queue/q", b"x", 2, 8))
    refused = await other.next()
    assert isinstance(refused, PubRec)
    assert refused.reason_code == 0x97
    assert "quota requests_per_second of 1" in (refused.properties.reason_string or "")
    await other.send(Publish("t", b"x"), Publish("t", b"x"))
    await other.ping()
    assert broker.hub.dropped["rate"] == 2
    await old.send(Publish("t", b"x", 1, 9))
    assert await old.ended() == []
    quotas = broker.node.cell.quotas
    assert quotas.refused[Quota.REQUESTS_PER_SECOND] >= 5
    clock.now += SECOND
    assert await other.publish("$queue/q", b"x", 1) == 0


@pytest.mark.parametrize("topic", ["t", "$queue/q"])
async def test_each_publish_of_a_read_counts(run: Run, tmp_path: Path, topic: str) -> None:
    quotas = QuotaSettings(publishes_per_second=10, principal_percent=50)
    broker = await guarded(run, tmp_path, quotas, queues=True)
    client = await broker.connect("c", username="shop", password=PASSWORD)
    other = await broker.connect("o", username="other", password=PASSWORD)
    Stopped(broker)
    await client.send(*(Publish(topic, b"x", 1, number) for number in range(1, 8)))
    answers = [await client.next() for _ in range(7)]
    codes = [one.reason_code for one in answers if isinstance(one, PubAck)]
    # Those of a queue are one batch, which is taken whole and owed; the others come one by one.
    assert codes == ([0x10] * 5 + [0x97] * 2 if topic == "t" else [0] * 7)
    await client.send(Publish(topic, b"x", 2, 8))
    refused = await client.next()
    assert isinstance(refused, PubRec)
    assert "Principal 'user:shop' in namespace 'default'" in (refused.properties.reason_string or "")
    assert "quota publishes_per_second of 5" in (refused.properties.reason_string or "")
    assert await other.publish(topic, b"x", 1) in (0, 0x10)


async def test_without_credentials_a_quota_holds_if_it_was_set(run: Run, tmp_path: Path) -> None:
    quotas = QuotaSettings(connections=1, publishes_per_second=1)
    broker = await run(memory_broker(replace(config_for(tmp_path), quotas=quotas)))
    first = await broker.connect("a")
    await broker.connect("b")
    for _ in range(5):
        assert await first.publish("t", b"x", 1) == 0x10
    await broker.node.quotas.change("default", {"connections": 2, "publishes_per_second": 1})
    client = await broker.open()
    answer = await client.connect(Connect("c", V5))
    assert answer.reason_code == 0x97
    assert "quota connections of 2" in (answer.properties.reason_string or "")
    Stopped(broker)
    assert [await first.publish("t", b"x", 1) for _ in range(2)] == [0x10, 0x97]


@pytest.mark.parametrize("topic", ["t", "$queue/q"])
async def test_bytes_are_paid_for_by_the_next_read_and_the_next_request(run: Run, tmp_path: Path, topic: str) -> None:
    broker = await guarded(run, tmp_path, QuotaSettings(bytes_per_second=100), queues=True)
    client = await broker.connect("c", username="shop", password=PASSWORD)
    clock = Stopped(broker)
    assert await client.publish(topic, b"x" * 300, 1) in (0, 0x10)
    await client.send(Publish(topic, b"x", 2, 8))
    refused = await client.next()
    assert isinstance(refused, PubRec)
    assert refused.reason_code == 0x97
    assert "quota bytes_per_second of 100" in (refused.properties.reason_string or "")
    with pytest.raises(RateLimited):
        broker.front._gate.request_rates(broker.node.cell.quotas).take("default", "user:other", clock.now)
    clock.now += 3 * SECOND
    assert await client.publish(topic, b"x", 1) in (0, 0x10)


async def test_strangers_make_room_for_each_other_and_never_keep_users_out(run: Run, tmp_path: Path) -> None:
    broker = await guarded(run, tmp_path, QuotaSettings(), max_unauthenticated=3, max_connections=2)
    user = await broker.connect("a", username="shop", password=PASSWORD)
    strangers = [await broker.open() for _ in range(20)]
    assert await strangers[0].ended() == []
    await broker.connect("b", username="shop", password=PASSWORD)
    await user.publish("t", b"still here", 1)
    assert len(broker.front._strangers) <= 3


async def test_a_stranger_over_websocket_can_send_no_more_than_a_connect(run: Run, tmp_path: Path) -> None:
    broker = await guarded(run, tmp_path, QuotaSettings(), max_connect_bytes=64 * KIB)
    assert broker.http is not None
    url = broker.http.url.replace("http", "ws", 1) + "/mqtt"
    options = {"subprotocols": ["mqtt"], "compression": None, "open_timeout": PATIENCE_SECONDS}
    async with connect(url, **options) as stranger:  # type: ignore[arg-type]
        await stranger.send(b"\x10" + b"x" * (65 * KIB))
        with pytest.raises(ConnectionClosed):
            await stranger.recv()
        assert stranger.close_code == 1009
    async with connect(url, **options) as user:  # type: ignore[arg-type]
        await user.send(encode(Connect("a", V5, username="shop", password=PASSWORD), V5))
        await user.recv()
        await user.send(encode(Publish("t", b"x" * (200 * KIB), 1, 7), V5))
        answer = await user.recv()
        assert answer[:1] == b"\x40"
