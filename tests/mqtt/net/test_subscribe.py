"""SUBSCRIBE and UNSUBSCRIBE, their options, retained messages and shared subscriptions."""

from __future__ import annotations

import pytest

from holdfast.mqtt.codec import V5, V311, Properties, PubAck, Subscribe, Subscription, UnsubAck, Unsubscribe
from tests.mqtt.net.broker import Broker
from tests.mqtt.net.clauses import covers
from tests.mqtt.net.client import Client
from tests.mqtt.net.conftest import Start

BOTH = pytest.mark.parametrize("version", [V311, V5])


@BOTH
@covers(
    "3.8.4-5 3.8.4-6 3.8.4-7 3.9.3-1 3.9.3-2 4.7.1-1 4.7.1-2",
    v311="3.8.3-2 3.8.4-4 3.8.4-5 3.9.3-1 3.9.3-2 4.7.1-2 4.7.1-3",
)
async def test_every_filter_is_answered_in_its_place(start: Start, version: int) -> None:
    broker = await start(max_subscriptions=8)
    client = await broker.connect("c", version)
    deep = "/".join("a" * 300)
    filters = ("a", deep, "b/+/c", "#", "+", "a/#", "$share/g/a", "a")
    options = tuple(Subscription(one, number % 3) for number, one in enumerate(filters))
    await client.send(Subscribe(77, options))
    answer = await client.next()
    refused = 0x8F if version == V5 else 0x80
    assert answer.packet_id == 77  # type: ignore[union-attr]
    assert answer.reason_codes == (0, refused, 2, 0, 1, 2, 0, 1)  # type: ignore[union-attr]
    for number in range(6, 8):
        await client.subscribe(str(number))
    assert await client.subscribe("one", "too many") == ((0x97, 0x97) if version == V5 else (0x80, 0x80))
    assert await client.subscribe("a", qos=2) == (2,)  # it is there already


@BOTH
@covers("4.7.2-1 4.7.1-1 4.7.1-2", v311="4.7.2-1")
async def test_wildcards_match_whole_levels_and_never_dollar_topics(broker: Broker, version: int) -> None:
    matches = {
        "#": ["a", "a/b", "/", "/a"],
        "+": ["a"],
        "+/+": ["a/b", "/", "/a"],
        "a/#": ["a", "a/b"],
        "/+": ["/", "/a"],
        "$x/#": ["$x", "$x/a"],
        "$x/+": ["$x/a"],
    }
    publisher = await broker.connect("p", version)
    for topic_filter, expected in matches.items():
        client = await broker.connect("c", version)
        await client.subscribe(topic_filter)
        for topic in ("a", "a/b", "/", "/a", "$x", "$x/a"):
            await publisher.publish(topic)
        assert [one.topic for one in await client.publishes(len(expected))] == expected
        await client.silent()


@BOTH
@covers(
    "3.10.4-1 3.10.4-2 3.10.4-3 3.10.4-4 3.10.4-5 3.10.4-6 3.11.3-1 3.11.3-2",
    v311="3.10.4-1 3.10.4-2 3.10.4-3 3.10.4-4 3.10.4-5 3.10.4-6",
)
async def test_unsubscribing_stops_what_is_new_and_completes_what_was_sent(broker: Broker, version: int) -> None:
    expiry = 100 if version == V5 else None
    client = await broker.connect("c", version, clean=False, expiry=expiry)
    await client.subscribe("t", "a/+", qos=1)
    publisher = await broker.connect("p")
    await publisher.publish("t", b"before", 1)
    await client.send(Unsubscribe(5, ("t", "a/b", "a/+", "T")))
    before = await client.next_publish()
    codes = (0, 0x11, 0, 0x11) if version == V5 else ()
    await client.expect(UnsubAck(5, codes))
    await publisher.publish("t", b"after", 1)
    await publisher.publish("a/b", b"after", 1)
    await client.silent()
    client.cut()
    again = await broker.connect("c", version, clean=False, expiry=expiry)
    seen = await again.next_publish()
    assert (seen.payload, seen.packet_id, seen.dup) == (b"before", before.packet_id, True)
    await again.silent()


@BOTH
@covers("3.8.4-3 3.8.4-4", v311="3.8.4-3")
async def test_a_subscription_made_again_is_replaced_and_shown_what_is_retained_again(
    broker: Broker, version: int
) -> None:
    publisher = await broker.connect("p")
    await publisher.publish("t", b"retained", 1, retain=True)
    client = await broker.connect("c", version)
    for qos in (0, 1, 0):
        assert await client.subscribe("t", qos=qos) == (qos,)
        seen = await client.next_publish()
        assert (seen.payload, seen.retain, seen.qos) == (b"retained", True, qos)
        await client.acknowledge(seen)
    await publisher.publish("t", b"new", 1)
    assert (await client.next_publish()).qos == 0
    await client.silent()


@BOTH
@covers("3.3.4-2 3.3.4-3 3.3.4-4", v311="3.3.5-1")
async def test_overlapping_subscriptions_give_one_copy_at_the_highest_qos(broker: Broker, version: int) -> None:
    client = await broker.connect("c", version)
    five = version == V5
    await client.subscribe("t/#", qos=0, identifier=7 if five else 0)
    await client.subscribe("t/+", qos=2, identifier=268_435_455 if five else 0)
    await client.subscribe("t/1", qos=1)
    await (await broker.connect("p")).publish("t/1", b"x", 2)
    seen = await client.next_publish()
    assert seen.qos == 2
    assert set(seen.properties.subscription_ids) == ({7, 268_435_455} if five else set())
    await client.acknowledge(seen)
    await client.silent()


@covers("3.3.4-3")
async def test_an_identifier_is_changed_and_removed_with_its_subscription(broker: Broker) -> None:
    client = await broker.connect("c", expiry=100)
    publisher = await broker.connect("p")
    for identifier in (1, 2, 0):
        await client.subscribe("t", qos=1, identifier=identifier)
        await publisher.publish("t", b"x", 1)
        seen = await client.next_publish()
        assert seen.properties.subscription_ids == ((identifier,) if identifier else ())
        await client.acknowledge(seen)


@covers("3.8.3-3")
async def test_no_local_spares_the_publisher(broker: Broker) -> None:
    client = await broker.connect("c")
    other = await broker.connect("o")
    await client.subscribe("t", no_local=True)
    await other.subscribe("t", no_local=True)
    await client.publish("t", b"mine")
    assert await other.payloads(1) == [b"mine"]
    await client.silent()
    await other.publish("t", b"theirs")
    assert await client.payloads(1) == [b"theirs"]


# --- retained -------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("qos", [0, 1, 2])
@covers("3.3.1-5 3.3.1-6 3.3.1-7 3.3.1-8 3.3.1-9", v311="3.3.1-5 3.3.1-6 3.3.1-7 3.3.1-8 3.3.1-10 3.3.1-11 3.3.1-12")
async def test_the_last_retained_message_is_shown_to_new_subscribers(broker: Broker, version: int, qos: int) -> None:
    publisher = await broker.connect("p", version)
    await publisher.publish("t/1", b"old", qos, retain=True)
    await publisher.publish("t/1", b"new", qos, retain=True)
    await publisher.publish("t/1", b"passing", qos)
    await publisher.publish("t/2", b"gone", qos, retain=True)
    await publisher.publish("t/2", b"", qos, retain=True)
    client = await broker.connect("c", version)
    await client.subscribe("t/#", qos=2)
    seen = await client.next_publish()
    assert (seen.topic, seen.payload, seen.retain, seen.qos) == ("t/1", b"new", True, qos)
    await client.acknowledge(seen)
    await client.silent()


@BOTH
@covers("3.3.1-6 3.3.1-12", v311="3.3.1-9 3.3.1-10")
async def test_those_who_are_there_get_it_as_an_ordinary_message(broker: Broker, version: int) -> None:
    client = await broker.connect("c", version)
    await client.subscribe("t")
    publisher = await broker.connect("p", version)
    for payload in (b"x", b""):
        await publisher.publish("t", payload, retain=True)
        seen = await client.next_publish()
        assert (seen.payload, seen.retain) == (payload, False)


@pytest.mark.parametrize(("handling", "first", "second"), [(0, 1, 1), (1, 1, 0), (2, 0, 0)])
@covers("3.3.1-9 3.3.1-10 3.3.1-11")
async def test_retain_handling(broker: Broker, handling: int, first: int, second: int) -> None:
    await (await broker.connect("p")).publish("t", b"r", retain=True)
    client = await broker.connect("c")
    for count in (first, second):
        await client.subscribe("t", handling=handling)
        assert await client.payloads(count) == [b"r"] * count
        await client.silent()


@covers("3.3.1-12 3.3.1-13")
async def test_retain_as_published(broker: Broker) -> None:
    kept, plain = await broker.connect("k"), await broker.connect("n")
    await kept.subscribe("t", rap=True)
    await plain.subscribe("t")
    publisher = await broker.connect("p")
    for retain in (True, False):
        await publisher.publish("t", b"x", retain=retain)
        assert [(await one.next_publish()).retain for one in (kept, plain)] == [retain, False]


async def test_a_retained_message_expires(broker: Broker) -> None:
    publisher = await broker.connect("p")
    await publisher.publish("t", b"r", retain=True, properties=Properties(message_expiry_s=10))
    broker.pass_time(4)
    client = await broker.connect("c")
    await client.subscribe("t")
    assert (await client.next_publish()).properties.message_expiry_s in (5, 6)
    broker.pass_time(7)
    await client.subscribe("t")
    await client.silent()
    assert len(broker.hub.namespaces["default"].retained) == 0


async def test_many_retained_messages_are_all_shown_even_if_their_client_reads_slowly(start: Start) -> None:
    broker = await start(buffer_bytes=16 * 1024)
    publisher = await broker.connect("p")
    for number in range(60):
        await publisher.publish(f"t/{number}", b"x" * 50_000, retain=True)
    client = await broker.connect("c")
    assert await client.subscribe("t/#") == (0,)
    assert len({one.topic for one in await client.publishes(60)}) == 60
    await client.silent()


# --- shared subscriptions -------------------------------------------------------------------------------------------


async def members(broker: Broker, count: int, qos: int, version: int = V5, **connect: object) -> list[Client]:
    clients = [await broker.connect(f"m{number}", version, **connect) for number in range(count)]  # type: ignore[arg-type]
    for client in clients:
        assert await client.subscribe("$share/group/t/+", qos=qos) == (qos,)
    return clients


@BOTH
@pytest.mark.parametrize("qos", [0, 1, 2])
@covers("4.8.2-3")
async def test_a_shared_subscription_is_fair(broker: Broker, version: int, qos: int) -> None:
    clients = await members(broker, 3, qos, version)
    alone = await broker.connect("alone")
    await alone.subscribe("t/1", "$share/other/t/1", qos=qos)
    publisher = await broker.connect("p")
    for number in range(9):
        await publisher.publish("t/1", b"%d" % number, 2)
    got = [await client.publishes(3) for client in clients]
    assert sorted(one.payload for each in got for one in each) == [b"%d" % number for number in range(9)]
    assert {one.qos for each in got for one in each} == {qos}
    assert len(await alone.publishes(18)) == 18


@covers("4.8.2-4 4.8.2-5")
async def test_qos_2_that_was_sent_stays_with_its_member(broker: Broker) -> None:
    first, second = await members(broker, 2, 2, expiry=100)
    publisher = await broker.connect("p")
    await publisher.publish("t/1", b"1", 2)
    sent = await first.next_publish()
    first.cut()
    await second.silent()
    again = await broker.connect("m0", clean=False, expiry=100)
    seen = await again.next_publish()
    assert (seen.packet_id, seen.dup) == (sent.packet_id, True)
    await again.disconnect(0, Properties(session_expiry_s=0))
    await second.silent()


@pytest.mark.parametrize("expiry", [None, 100])
async def test_qos_1_that_a_member_left_unacknowledged_goes_to_another(broker: Broker, expiry: int | None) -> None:
    first, second = await members(broker, 2, 1, expiry=expiry)
    publisher = await broker.connect("p")
    for number in range(4):
        await publisher.publish("t/1", b"%d" % number, 1)
    mine = await first.publishes(2)
    theirs = await second.publishes(2)
    await first.acknowledge(mine[0])
    await first.ping()
    first.cut()
    extra = await second.next_publish()
    assert extra.payload == mine[1].payload
    assert {one.payload for one in (*mine, *theirs)} == {b"0", b"1", b"2", b"3"}
    await second.silent()


@covers("4.8.2-6")
async def test_what_a_member_refuses_goes_to_nobody_else(broker: Broker) -> None:
    first, second = await members(broker, 2, 1, expiry=100)
    await (await broker.connect("p")).publish("t/1", b"x", 1)
    refused = await first.next_publish()
    await first.send(PubAck(refused.packet_id, 0x83))
    await first.ping()
    first.cut()
    await second.silent()


async def test_a_shared_subscription_is_shown_nothing_retained(broker: Broker) -> None:
    await (await broker.connect("p")).publish("t/1", b"r", retain=True)
    [client] = await members(broker, 1, 0)
    await client.silent()
