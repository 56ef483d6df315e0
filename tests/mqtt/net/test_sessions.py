"""How sessions and connections end: DISCONNECT, expiry, wills."""

from __future__ import annotations

import pytest

from holdfast.mqtt.codec import V5, V311, Disconnect, Properties, Will
from tests.mqtt.net.broker import Broker
from tests.mqtt.net.clauses import covers
from tests.mqtt.net.client import Client
from tests.mqtt.net.conftest import Start

BOTH = pytest.mark.parametrize("version", [V311, V5])


async def listening(broker: Broker, *filters: str) -> Client:
    listener = await broker.connect("listener")
    await listener.subscribe(*filters, qos=2)
    return listener


# --- sessions -------------------------------------------------------------------------------------------------------


@covers("4.1.0-2 3.1.2-23")
async def test_a_session_lives_as_long_as_was_agreed(broker: Broker) -> None:
    none = await broker.connect("none")
    ten = await broker.connect("ten", expiry=10)
    never = await broker.connect("never", expiry=0xFFFF_FFFF)
    broker.pass_time(100)  # connected they do not expire
    for client in (none, ten, never):
        await client.ping()
        await client.disconnect()
    assert set(broker.sessions()) == {"ten", "never"}
    broker.pass_time(9)
    again = await broker.connect("ten", clean=False, expiry=10)
    assert again.connack.session_present
    broker.pass_time(100)
    await again.disconnect()  # the time counts from here
    broker.pass_time(9)
    assert set(broker.sessions()) == {"ten", "never"}
    broker.pass_time(1)
    assert set(broker.sessions()) == {"never"}
    assert not (await broker.connect("ten", clean=False)).connack.session_present


@covers(v311="3.1.2-5 3.1.2-6 4.1.0-2")
async def test_a_3_1_1_session_is_kept_unless_it_is_clean(start: Start) -> None:
    broker = await start(session_expiry_max=1000_000_000)
    for name, clean in (("clean", True), ("kept", False)):
        client = await broker.connect(name, V311, clean=clean)
        await client.subscribe("t", qos=1)
        await client.disconnect()
    assert set(broker.sessions()) == {"kept"}
    broker.pass_time(999)
    assert set(broker.sessions()) == {"kept"}
    broker.pass_time(2)
    assert broker.sessions() == {}


@BOTH
@covers("4.1.0-2", v311="3.1.2-7")
async def test_what_is_retained_outlives_the_session_that_published_it(broker: Broker, version: int) -> None:
    publisher = await broker.connect("p", version)
    await publisher.publish("t", b"retained", 1, retain=True)
    await publisher.disconnect()
    assert broker.sessions() == {}
    client = await broker.connect("c", version)
    await client.subscribe("t")
    assert await client.payloads(1) == [b"retained"]


@covers("3.14.2-2")
async def test_the_longest_expiry_is_the_servers(start: Start) -> None:
    broker = await start(session_expiry_max=60_000_000)
    client = await broker.connect("c", expiry=0xFFFF_FFFF)
    assert client.connack.properties.session_expiry_s == 60
    await client.disconnect(0, Properties(session_expiry_s=1000))
    broker.pass_time(59)
    assert set(broker.sessions()) == {"c"}
    broker.pass_time(2)
    assert broker.sessions() == {}


async def test_disconnect_may_change_the_expiry_but_not_revive_a_session(broker: Broker) -> None:
    client = await broker.connect("c", expiry=100)
    await client.disconnect(0, Properties(session_expiry_s=0))
    assert broker.sessions() == {}
    client = await broker.connect("c")
    await client.send(Disconnect(0, Properties(session_expiry_s=10)))
    assert await client.refused() == 0x82
    assert broker.sessions() == {}


@BOTH
@covers("3.14.4-3 3.1.2-10", v311="3.14.4-1 3.14.4-2 3.14.4-3 3.1.2-10")
async def test_after_disconnect_the_server_closes_and_forgets_the_will(broker: Broker, version: int) -> None:
    listener = await broker.connect("listener", V311)
    await listener.subscribe("#")
    expiry = 100 if version == V5 else None
    client = await broker.connect("c", version, clean=False, expiry=expiry, will=Will("w", b"bye"))
    await client.send(Disconnect())
    assert await client.ended() == []
    await broker.until(lambda: len(broker.hub.connections) == 1)
    await listener.silent()
    broker.pass_time(8 * 86_400)
    await listener.silent()


# --- wills ----------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("retain", [False, True])
@covers("3.1.2-7 3.1.2-8 3.1.2-14 3.1.2-15 3.1.2-10", v311="3.1.2-8 3.1.2-9 3.1.2-16 3.1.2-17 3.1.2-10")
async def test_a_will_is_published_when_a_connection_breaks(broker: Broker, version: int, retain: bool) -> None:
    listener = await listening(broker, "w")
    client = await broker.connect("c", version, clean=False, expiry=None, will=Will("w", b"bye", 1, retain))
    client.cut()
    seen = await listener.next_publish()
    assert (seen.payload, seen.qos, seen.retain) == (b"bye", 1, False)
    await listener.acknowledge(seen)
    late = await broker.connect("late")
    await late.subscribe("w", qos=1)
    assert [one.retain for one in await late.publishes(int(retain))] == [True] * int(retain)
    again = await broker.connect("c", version, clean=False)
    again.cut()
    await broker.until(lambda: len(broker.hub.connections) == 2)
    await listener.silent()  # once, and the second connection had none


@BOTH
@pytest.mark.parametrize("why", ["protocol error", "keep alive", "server"])
@covers("3.1.2-8", v311="3.1.2-8")
async def test_a_will_is_published_whenever_the_server_closes(broker: Broker, version: int, why: str) -> None:
    listener = await broker.connect("listener", keep_alive=1000)
    await listener.subscribe("w")
    client = await broker.connect("c", version, keep_alive=10, will=Will("w", why.encode()))
    if why == "protocol error":
        await client.send_raw(b"\x00\x00")
    elif why == "keep alive":
        broker.pass_time(16)
    else:
        connection = broker.session("c").connection
        assert connection is not None
        broker.hub.close(connection, 0x98, "an administrator wants it", broker.clock())
        broker.node.cell.commit.schedule()
    await client.ended()
    assert await listener.payloads(1) == [why.encode()]


@pytest.mark.parametrize("code", [0x04, 0x80, 0x83, 0x99])
async def test_a_disconnect_with_another_reason_publishes_the_will(broker: Broker, code: int) -> None:
    listener = await listening(broker, "w")
    client = await broker.connect("c", will=Will("w", b"bye"))
    await client.send(Disconnect(code))
    assert await client.ended() == []
    assert await listener.payloads(1) == [b"bye"]


@covers("3.1.3-10")
async def test_a_will_carries_its_properties(broker: Broker) -> None:
    listener = await listening(broker, "w")
    carried = Properties(
        payload_format=1,
        message_expiry_s=50,
        content_type="text/plain",
        response_topic="r",
        correlation_data=b"\0",
        user_properties=(("b", "1"), ("a", "2"), ("b", "3")),
    )
    client = await broker.connect("c", will=Will("w", b"bye", properties=carried))
    client.cut()
    assert (await listener.next_publish()).properties == carried


@covers("3.1.2-8 3.1.3-9")
async def test_a_delayed_will_waits_and_is_not_sent_if_the_client_is_back(broker: Broker) -> None:
    listener = await listening(broker, "w")
    will = Will("w", b"bye", properties=Properties(will_delay_s=10))
    client = await broker.connect("c", expiry=100, will=will)
    client.cut()
    await broker.until(lambda: broker.session("c").connection is None)
    broker.pass_time(9)
    await listener.silent()
    again = await broker.connect("c", clean=False, expiry=100)
    broker.pass_time(20)
    await listener.silent()
    await again.disconnect()

    third = await broker.connect("c", clean=False, expiry=100, will=will)
    third.cut()
    await broker.until(lambda: broker.session("c").connection is None)
    broker.pass_time(10.1)
    assert await listener.payloads(1) == [b"bye"]
    broker.pass_time(100)
    await listener.silent()


@pytest.mark.parametrize("how", ["expired", "clean start", "taken over clean"])
@covers("3.1.2-8")
async def test_a_delayed_will_is_sent_when_the_session_ends_before(broker: Broker, how: str) -> None:
    listener = await listening(broker, "w")
    will = Will("w", how.encode(), properties=Properties(will_delay_s=1000))
    client = await broker.connect("c", expiry=10, will=will)
    if how != "taken over clean":
        client.cut()
        await broker.until(lambda: broker.session("c").connection is None)
    await listener.silent()
    if how == "expired":
        broker.pass_time(10.1)
    else:
        await broker.connect("c", clean=True)
    assert await listener.payloads(1) == [how.encode()]


async def test_a_will_without_a_session_knows_no_delay(broker: Broker) -> None:
    listener = await listening(broker, "w")
    client = await broker.connect("c", will=Will("w", b"bye", properties=Properties(will_delay_s=1000)))
    client.cut()
    assert await listener.payloads(1) == [b"bye"]


@pytest.mark.parametrize(("delay", "expected"), [(0, 1), (10, 0)])
async def test_the_will_of_a_connection_that_is_taken_over(broker: Broker, delay: int, expected: int) -> None:
    listener = await listening(broker, "w")
    will = Will("w", b"bye", properties=Properties(will_delay_s=delay))
    old = await broker.connect("c", expiry=100, will=will)
    await broker.connect("c", clean=False, expiry=100)
    await old.ended()
    assert len(await listener.publishes(expected)) == expected
    broker.pass_time(20)
    await listener.silent()


@covers("3.1.2-10", v311="3.1.2-12")
async def test_without_a_will_nothing_is_published(broker: Broker) -> None:
    listener = await listening(broker, "#")
    client = await broker.connect("c", V311)
    client.cut()
    await broker.until(lambda: len(broker.hub.connections) == 1)
    await listener.silent()
