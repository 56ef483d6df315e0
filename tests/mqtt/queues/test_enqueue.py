"""Enqueueing: every property, every refusal, and copies of ordinary messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.config.settings import QueueSettings, RateSettings
from holdfast.core.records import Message
from holdfast.mqtt.codec import V5, V311, Properties, Publish, PubRec, PubRel, Will
from holdfast.mqtt.queues import bridge
from holdfast.store import open_store
from holdfast.units import MINUTE, SECOND
from tests.mqtt.queues.rig import SPACE, Server, config_for, until, user_properties_of


async def stored(server: Server, queue: str) -> list[Message]:
    return [message for _, message, _ in (await server.node.inspection.browse((SPACE, queue), 1000)).messages]


# --- what is stored -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [V5, V311])
async def test_a_publish_is_an_enqueue(server: Server, version: int, qos: int) -> None:
    producer = await server.client("p", version)
    assert (await producer.publish("$queue/tasks/image", b"\x00\xff", qos)).reason_code == 0
    await until(lambda: server.depth("tasks/image") == 1)
    assert await server.payloads("tasks/image") == [b"\x00\xff"]


async def test_properties_say_how_a_message_is_to_be_kept(server: Server) -> None:
    producer = await server.client("p")
    before = server._clock()
    user = {
        "message-id": "m-1",
        "partition-key": "k",
        "priority": "3",
        "delay": "1h",
        "ttl": "2h",
        "correlation-id": "c",
    }
    answer = await producer.publish(
        "$queue/jobs",
        b"x",
        user={**user, "colour": "red"},
        content_type="text/plain",
        response_topic="$queue/replies",
        correlation_data=b"\x01\x02",
        payload_format=1,
        message_expiry_s=60,
    )
    assert answer.reason_code == 0
    [message] = await stored(server, "jobs")
    extra = message.extra
    assert message.priority == 3
    assert before + 60 * MINUTE <= message.deliver_at <= server._clock() + 60 * MINUTE
    assert 119 * MINUTE <= message.expires_at - message.enqueued_at <= 121 * MINUTE  # ttl goes before Message Expiry
    assert (extra.message_id, extra.key, extra.correlation_id) == ("m-1", "k", "c")
    assert extra.properties == (("colour", "red"),)
    assert (extra.content_type, extra.reply_to, extra.correlation_data) == ("text/plain", "$queue/replies", b"\x01\x02")
    assert extra.utf8


async def test_deliver_at_and_message_expiry(server: Server) -> None:
    producer = await server.client("p")
    at = (server._clock() + MINUTE) // 1000
    await producer.publish("$queue/jobs", user={"deliver-at": str(at)}, message_expiry_s=90)
    [message] = await stored(server, "jobs")
    assert message.deliver_at == at * 1000
    assert message.expires_at - message.enqueued_at == 90 * SECOND


async def test_more_topics_than_are_remembered_mean_the_same(quick: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "ROUTES_CACHED_MAX", 2)
    producer = await quick.client("p")
    for _ in range(2):
        for name in ("a", "b", "c"):
            assert (await producer.publish(f"$queue/{name}", b"x")).reason_code == 0
    assert [quick.depth(name) for name in ("a", "b", "c")] == [2, 2, 2]


async def test_a_message_id_is_stored_once(server: Server) -> None:
    producer = await server.client("p")
    for payload in (b"one", b"two"):
        assert (await producer.publish("$queue/jobs", payload, user={"message-id": "m"})).reason_code == 0
    assert await server.payloads("jobs") == [b"one"]


async def test_qos_2_is_stored_once_though_it_is_sent_twice(server: Server) -> None:
    producer = await server.client("p", expiry_s=60)
    packet = producer.packet("$queue/jobs", b"one", 2)
    producer.send(packet)
    await producer.expect(PubRec)
    producer.vanish()
    again = await server.client("p", clean=False, expiry_s=60)
    again.send(replace(packet, dup=True))
    await again.expect(PubRec)
    again.send(PubRel(packet.packet_id))
    await again.ping()
    assert await server.payloads("jobs") == [b"one"]


async def test_a_delay_holds_a_message_back(server: Server) -> None:
    consumer = await server.client("w")
    await consumer.subscribe("$queue/jobs")
    await consumer.publish("$queue/jobs", b"later", user={"delay": "10m"})
    await consumer.publish("$queue/jobs", b"now")
    assert (await consumer.take()).payload == b"now"
    await consumer.nothing_more()
    server.pass_time(601)
    assert (await consumer.delivery()).payload == b"later"


async def test_priority_goes_before_age(server: Server) -> None:
    producer = await server.client("p")
    for payload, priority in ((b"b", "9"), (b"c", "200"), (b"a", "1"), (b"b2", "9")):
        await producer.publish("$queue/jobs", payload, user={"priority": priority})
    consumer = await server.client("w")
    await consumer.subscribe("$queue/jobs")
    assert [(await consumer.take()).payload for _ in range(4)] == [b"a", b"b", b"b2", b"c"]


async def test_a_message_that_expired_goes_to_the_dead_queue(server: Server) -> None:
    producer = await server.client("p")
    await producer.publish("$queue/jobs", b"old", message_expiry_s=5)
    server.pass_time(6)
    await until(lambda: server.depth("jobs") == 0)
    assert await server.payloads("dlq/jobs") == [b"old"]


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "says"),
    [
        ({"priority": "high"}, "user property priority cannot be 'high': it must be a whole number"),
        ({"priority": "256"}, "it is 0 to 255"),
        ({"priority": "9" * 5_000}, "it must be a whole number"),
        ({"delay": "soon"}, "write 250ms, 5s, 2m, 1h, 7d or a number of seconds"),
        ({"deliver-at": "tomorrow"}, "is not an instant"),
        ({"delay": "1s", "deliver-at": "1999999999999"}, "cannot stand beside deliver-at"),
        ({"ttl": "-1"}, "user property ttl cannot be '-1'"),
        ({"partition-key": "k" * 2_000}, "key is at most 1024 bytes"),
        ({"message-id": "m" * 2_000}, "message_id is at most 1024 bytes"),
        ({"delay": "9" * 60_000}, "is not a duration"),
    ],
)
async def test_a_property_that_makes_no_sense_is_refused_and_nothing_stored(
    quick: Server, user: dict[str, str], says: str
) -> None:
    producer = await quick.client("p")
    await producer.publish("$queue/jobs", b"first")
    for qos in (1, 2):
        refused = await producer.publish("$queue/jobs", b"x", qos, user=user)
        assert refused.reason_code == 0x83
        assert says in str(refused.properties.reason_string)
    assert await quick.payloads("jobs") == [b"first"]
    assert (await producer.publish("$queue/jobs", b"second")).reason_code == 0


@pytest.mark.parametrize(
    ("topic", "says"),
    [
        ("$queue/a//b", "a level between '/' is empty"),
        ("$queue/a/$b", "a level starts with '$'"),
        ("$queue/", "it is empty"),
        ("$queue/$ack", "it is empty"),
        ("$queue/" + "x" * 300, "it is longer than 255 bytes"),
        ("$queue/" + "x" * 65_000, "it is longer than 255 bytes"),
    ],
)
async def test_a_topic_that_names_no_queue_is_refused(quick: Server, topic: str, says: str) -> None:
    producer = await quick.client("p")
    refused = await producer.publish(topic, b"x")
    assert refused.reason_code == 0x90
    assert says in str(refused.properties.reason_string)


async def test_what_is_too_large_or_too_much_is_refused_by_quota(server: Server) -> None:
    await server.create("small", max_message_size="64", max_depth=2)
    producer = await server.client("p")
    large = await producer.publish("$queue/small", b"x" * 65)
    assert large.reason_code == 0x97
    assert "64" in str(large.properties.reason_string)
    packets = [producer.packet("$queue/small", b"%d" % n) for n in range(3)]
    producer.send(*packets)
    answers = {packet.packet_id: await producer.expect(type(large)) for packet in packets}
    assert [answer.reason_code for answer in answers.values()] == [0, 0, 0x97]
    assert await server.payloads("small") == [b"0", b"1"]


async def test_in_3_1_1_a_refused_message_closes_the_connection(server: Server) -> None:
    await server.create("small", max_depth=1)
    producer = await server.client("p", V311)
    producer.send(*[producer.packet("$queue/small", b"%d" % n) for n in range(3)])
    await producer.closed()
    assert len(producer.seen) == 1  # the PUBACK of the first
    quiet = await server.client("q", V311)
    await quiet.publish("$queue/small", b"x", 0)  # QoS 0 promises nothing: it stays open
    assert server.depth("small") == 1


async def test_a_queue_that_must_be_made_first(tmp_path: Path) -> None:
    store = open_store("memory", tmp_path / "store")
    server = Server(config_for(tmp_path, queues=QueueSettings(auto_create=False)), store)
    await server.start()
    client = await server.client("p")
    refused = await client.publish("$queue/new", b"x")
    assert refused.reason_code == 0x90
    assert "Create it first" in str(refused.properties.reason_string)
    answer = await client.subscribe("$queue/new")
    assert answer.reason_codes == (0x8F,)
    assert "Create it first" in str(answer.properties.reason_string)
    await server.stop()
    store.close()


async def test_a_namespace_over_its_rate_is_refused_by_quota(tmp_path: Path) -> None:
    store = open_store("memory", tmp_path / "store")
    server = Server(config_for(tmp_path, rates=RateSettings(messages_per_second=1, burst=SECOND)), store)
    await server.start()
    client = await server.client("p")
    codes = [(await client.publish("$queue/jobs", b"x")).reason_code for _ in range(4)]
    assert codes[0] == 0
    assert 0x97 in codes
    await server.stop()
    store.close()


async def test_a_dead_queue_can_be_consumed_before_there_is_one(server: Server) -> None:
    consumer = await server.client("ops")
    assert (await consumer.subscribe("$queue/dlq/jobs")).reason_codes == (1,)
    worker = await server.client("w")
    await worker.subscribe("$queue/jobs")
    await worker.publish("$queue/jobs", b"bad")
    await worker.take("reject")
    assert (await consumer.take()).payload == b"bad"


# --- wills ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [V5, V311])
async def test_a_will_may_be_a_message_for_a_queue(server: Server, version: int) -> None:
    client = await server.client("c", version, will=Will("$queue/obituaries", b"gone", 1))
    client.vanish()
    await until(lambda: ("default", "obituaries") in server.node.cell.engine.queues)
    await until(lambda: server.depth("obituaries") == 1)
    assert await server.payloads("obituaries") == [b"gone"]


async def test_a_will_that_no_queue_takes_is_logged_and_harms_nobody(server: Server) -> None:
    await server.create("small", max_message_size="10")
    properties = Properties(user_properties=(("priority", "high"),))
    wills = [
        Will("$queue/small", b"x" * 100, 1),
        Will("$queue/small", b"x", 1, properties=properties),
        Will("$queue/small/$ack", b"x", 1),
        Will("$queue/a//b", b"x", 1),
    ]
    for number, will in enumerate(wills):
        client = await server.client(f"c{number}", will=will)
        client.vanish()
    watcher = await server.client("w")
    assert (await watcher.publish("$queue/small", b"fine")).reason_code == 0
    await until(lambda: len(server.mqtt._links) == 1)
    assert await server.payloads("small") == [b"fine"]


# --- capture --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_queue_takes_ordinary_messages_and_their_subscribers_get_them_too(server: Server, qos: int) -> None:
    await server.create("meter", topics=["sensors/+/temperature", "sensors/#"])
    listener = await server.client("l")
    await listener.subscribe("sensors/#", qos)
    producer = await server.client("p")
    answer = await producer.publish("sensors/1/temperature", b"21", qos, user={"unit": "C", "priority": "7"})
    assert answer.reason_code == 0
    received = await listener.delivery()
    assert (received.payload, received.qos, user_properties_of(received)) == (
        b"21",
        qos,
        {"unit": "C", "priority": "7"},
    )
    await until(lambda: server.depth("meter") == 1)
    consumer = await server.client("w")
    await consumer.subscribe("$queue/meter")
    delivery = await consumer.delivery()
    assert delivery.payload == b"21"
    user_properties = user_properties_of(delivery)
    assert (user_properties["mqtt-topic"], user_properties["unit"], user_properties["priority"]) == (
        "sensors/1/temperature",
        "C",
        "7",
    )


async def test_a_captured_message_keeps_properties_that_make_no_sense_to_a_queue(quick: Server) -> None:
    await quick.create("meter", topics=["sensors/#"])
    producer = await quick.client("p")
    assert (await producer.publish("sensors/1", b"x", user={"priority": "high", "ttl": "?"})).reason_code == 0
    [message] = await stored(quick, "meter")
    assert set(message.extra.properties) == {("priority", "high"), ("ttl", "?"), ("mqtt-topic", "sensors/1")}


async def test_two_queues_may_capture_the_same_and_one_may_refuse(server: Server) -> None:
    await server.create("all", topics=["#"])
    await server.create("some", topics=["a/+"], max_depth=1)
    producer = await server.client("p")
    codes = [(await producer.publish("a/b", b"%d" % n)).reason_code for n in range(2)]
    assert codes == [0, 0x97]
    assert (await producer.publish("c", b"c")).reason_code == 0
    assert await server.payloads("all") == [b"0", b"1", b"c"]
    assert await server.payloads("some") == [b"0"]


async def test_captured_messages_with_bad_lengths_are_refused(quick: Server) -> None:
    await quick.create("all", topics=["#"])
    producer = await quick.client("p")
    refused = await producer.publish("a", b"", user={"message-id": "m" * 2_000})
    assert refused.reason_code == 0x83


async def test_wills_and_retained_messages_are_captured_too(server: Server) -> None:
    await server.create("all", topics=["status/#"])
    client = await server.client("c", will=Will("status/c", b"gone", 1, retain=True))
    client.send(Publish("status/c", b"here", 1, 9, retain=True))
    await client.ping()
    client.vanish()
    await until(lambda: server.depth("all") == 2)
    assert await server.payloads("all") == [b"here", b"gone"]
    late = await server.client("l")
    await late.subscribe("status/c")
    assert (await late.delivery()).payload == b"gone"


async def test_what_a_queue_captures_can_be_changed(server: Server) -> None:
    await server.create("all", topics=["a"])
    producer = await server.client("p")
    await producer.publish("a", b"1")
    await server.node.queues.update((SPACE, "all"), {"topics": ["b"]})
    await producer.publish("a", b"2")
    await producer.publish("b", b"3")
    await server.node.queues.update((SPACE, "all"), {"topics": []})
    await producer.publish("b", b"4")
    assert await server.payloads("all") == [b"1", b"3"]
