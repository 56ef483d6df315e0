"""Consuming: groups, members, prefetch and the window, and what a delivery says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.config.settings import MemberSettings
from holdfast.core.commands import Draft
from holdfast.mqtt.codec import V5, V311, Publish
from holdfast.store import open_store
from holdfast.units import MILLISECOND
from tests.mqtt.queues.rig import SPACE, Raw, Server, config_for, until, user_properties_of


async def enqueue(server: Server, queue: str, *payloads: bytes, **user: str) -> None:
    producer = await server.client("producer")
    pairs = {name.replace("_", "-"): value for name, value in user.items()}
    for payload in payloads:
        assert (await producer.publish(f"$queue/{queue}", payload, user=pairs)).reason_code == 0
    await producer.disconnect()


async def drain(client: Raw, count: int) -> list[bytes]:
    return [(await client.take()).payload for _ in range(count)]


async def test_a_lone_message_reaches_a_consumer_that_waits(server: Server) -> None:
    consumer = await server.client("billing-1")
    await consumer.subscribe("$queue/jobs")
    await enqueue(server, "jobs", b"one")
    assert (await consumer.delivery()).payload == b"one"


async def test_a_delivery_says_all_there_is_to_say(server: Server) -> None:
    producer = await server.client("p")
    before = server._clock() // MILLISECOND
    await producer.publish(
        "$queue/tasks/image",
        b"x",
        user={"message-id": "m", "partition-key": "k", "correlation-id": "c", "priority": "9", "colour": "red"},
        content_type="text/plain",
        response_topic="$queue/replies",
        correlation_data=b"\x01",
        payload_format=1,
        message_expiry_s=100,
    )
    consumer = await server.client("w")
    await consumer.subscribe("$queue/tasks/image", consumer_group="g", subscription_id="77")
    delivery = await consumer.delivery()
    user_properties = user_properties_of(delivery)
    after = server._clock() // MILLISECOND
    assert (delivery.topic, delivery.payload, delivery.qos) == ("$queue/tasks/image", b"x", 1)
    assert not delivery.dup
    assert not delivery.retain
    assert before <= int(user_properties.pop("enqueued-at")) <= after
    assert before + 30_000 <= int(user_properties.pop("lease-deadline")) <= after + 30_000
    assert user_properties.pop("lease-token").isdigit()
    assert user_properties.pop("id").isdigit()
    assert user_properties == {
        "message-id": "m",
        "queue": "tasks/image",
        "consumer-group": "g",
        "attempt": "1",
        "partition-key": "k",
        "correlation-id": "c",
        "priority": "9",
        "colour": "red",
    }
    properties = delivery.properties
    assert properties.content_type == "text/plain"
    assert properties.response_topic == "$queue/replies"
    assert properties.correlation_data == b"\x01"
    assert properties.payload_format == 1
    assert properties.message_expiry_s in (99, 100)
    assert properties.subscription_ids == (77,)


async def test_a_delivery_passed_on_with_all_its_properties_has_a_token_of_its_own(server: Server) -> None:
    await enqueue(server, "first", b"x", colour="red")
    worker = await server.client("w")
    await worker.subscribe("$queue/first")
    await worker.subscribe("$queue/second")
    received = await worker.take()
    await worker.publish("$queue/second", received.payload, user=user_properties_of(received))
    passed = await worker.delivery()
    user_properties = user_properties_of(passed)
    assert user_properties["colour"] == "red"
    assert user_properties["queue"] == "second"
    assert len(passed.properties.user_properties) == len(user_properties)  # none of them twice
    assert user_properties["lease-token"] != user_properties_of(received)["lease-token"]
    assert (await worker.settle(passed)).reason_code == 0


# --- groups ---------------------------------------------------------------------------------------------------------


async def test_the_group_comes_from_a_property_a_share_or_the_client_identifier(server: Server) -> None:
    await server.create("jobs")
    by_property = await server.client("a-1")
    await by_property.subscribe("$queue/jobs", consumer_group="one")
    by_share = await server.client("b-1")
    await by_share.subscribe("$share/two/$queue/jobs", consumer_group="ignored")
    by_client = await server.client("three-1")
    await by_client.subscribe("$queue/jobs")
    old_share = await server.client("c-1", V311)
    await old_share.subscribe("$share/four/$queue/jobs")
    old_client = await server.client("five-1", V311)
    await old_client.subscribe("$queue/jobs")
    unnamed = await server.client("")
    await unnamed.subscribe("$queue/jobs")
    dash = await server.client("-x")
    await dash.subscribe("$queue/other")
    groups = {group.name for group in server.node.inspection.current_stats(("default", "jobs")).groups}
    assert groups == {"one", "two", "three", "four", "five", "default"}
    assert {group.name for group in server.node.inspection.current_stats(("default", "other")).groups} == {"default"}


@pytest.mark.parametrize("version", [V5, V311])
async def test_every_group_sees_every_message_and_members_share(server: Server, version: int) -> None:
    await server.create("jobs", ordering="none")
    ones = [await server.client(f"one-{n}", version) for n in range(2)]
    two = await server.client("two-1", version)
    for client in (*ones, two):
        await client.subscribe("$queue/jobs", **({"prefetch": "1"} if version == V5 else {}))
    await enqueue(server, "jobs", *[b"%d" % n for n in range(10)])
    seen: list[bytes] = []
    for _ in range(5):  # each member has one at a time in version 5, ten in 3.1.1
        for client in ones:
            delivery = await client.delivery()
            seen.append(delivery.payload)
            client.accept(delivery)
            if version == V5:
                await client.settle(delivery)
    assert sorted(seen) == [b"%d" % n for n in range(10)]
    assert [(await two.delivery()).payload for _ in range(1)] == [b"0"]


async def test_the_first_group_starts_with_what_is_stored_a_later_one_at_the_end(server: Server) -> None:
    await enqueue(server, "jobs", b"old")
    first = await server.client("first-1")
    await first.subscribe("$queue/jobs")
    assert (await first.delivery()).payload == b"old"
    later = await server.client("later-1")
    await later.subscribe("$queue/jobs")
    await enqueue(server, "jobs", b"new")
    assert (await later.delivery()).payload == b"new"


async def test_what_was_published_before_subscribing_in_one_write_was_before(server: Server) -> None:
    await server.create("jobs")
    first = await server.client("first-1")
    await first.subscribe("$queue/jobs")
    later = await server.client("later-1")
    publish = later.packet("$queue/jobs", b"before")
    later.send(publish)
    await later.subscribe("$queue/jobs")
    await later.publish("$queue/jobs", b"after")
    assert (await later.delivery()).payload == b"after"


@pytest.mark.parametrize(
    ("topic_filter", "terms", "code", "says"),
    [
        ("$queue/+", {}, 0x8F, "has a wildcard"),
        ("$queue/#", {}, 0x8F, "has a wildcard"),
        ("$share/g/$queue/#", {}, 0x8F, "has a wildcard"),
        ("$queue/a//b", {}, 0x8F, "is empty"),
        ("$queue/" + "x" * 60_000 + "/#", {}, 0x8F, "has a wildcard"),
        ("$admin/other", {}, 0x8F, "is nothing to subscribe to"),
        ("$queue/a", {"prefetch": "0"}, 0x83, "prefetch is 1 to 1000"),
        ("$queue/a", {"prefetch": "many"}, 0x83, "prefetch is 1 to 1000"),
        ("$queue/a", {"prefetch": "9" * 5_000}, 0x83, "prefetch is 1 to 1000"),
        ("$queue/a", {"ack_mode": "never"}, 0x83, "ack-mode is explicit or puback"),
        ("$queue/a", {"consumer_group": "a//b"}, 0x8F, "a level between '/' is empty"),
    ],
)
async def test_a_subscription_that_makes_no_sense_is_refused(
    quick: Server, topic_filter: str, terms: dict[str, str], code: int, says: str
) -> None:
    client = await quick.client("w")
    answer = await client.subscribe(topic_filter, **terms)
    assert answer.reason_codes == (code,)
    assert says in str(answer.properties.reason_string)
    old = await quick.client("old", V311)
    if not terms:
        assert (await old.subscribe(topic_filter)).reason_codes == (0x80,)


async def test_native_mode_needs_qos_1(quick: Server) -> None:
    client = await quick.client("w")
    answer = await client.subscribe("$queue/a", 0, ack_mode="puback")
    assert answer.reason_codes == (0x83,)
    assert "QoS 0 has no PUBACK" in str(answer.properties.reason_string)


async def test_two_filters_of_one_client_must_not_be_the_same_group_of_a_queue(quick: Server) -> None:
    client = await quick.client("g-1")
    await client.subscribe("$queue/jobs")
    refused = await client.subscribe("$share/g/$queue/jobs")
    assert refused.reason_codes == (0x83,)
    assert "use one of them" in str(refused.properties.reason_string)
    assert (await client.subscribe("$share/other/$queue/jobs")).reason_codes == (1,)
    await enqueue(quick, "jobs", b"x")
    groups = sorted([user_properties_of(await client.take())["consumer-group"] for _ in range(2)])
    assert groups == ["g", "other"]


async def test_a_cursor_group_cannot_be_consumed(quick: Server) -> None:
    from holdfast.core.queue import GroupKind

    await quick.create("jobs")
    await quick.node.groups.create(("default", "jobs"), "reader", GroupKind.CURSOR)
    client = await quick.client("w")
    answer = await client.subscribe("$queue/jobs", consumer_group="reader")
    assert answer.reason_codes == (0x83,)
    assert "is a cursor group" in str(answer.properties.reason_string)


# --- how much at a time ---------------------------------------------------------------------------------------------


async def in_flight(client: Raw, count: int) -> list[Publish]:
    found = [await client.delivery() for _ in range(count)]
    await client.nothing_more()
    return found


async def test_prefetch_bounds_what_is_not_settled(server: Server) -> None:
    client = await server.client("w")
    await client.subscribe("$queue/jobs", prefetch="3")
    await enqueue(server, "jobs", *[b"%d" % n for n in range(6)])
    found = await in_flight(client, 3)
    for delivery in found:
        client.accept(delivery)
    await client.nothing_more()  # a PUBACK settles nothing
    await client.settle(found[1])
    assert (await in_flight(client, 1))[0].payload == b"3"


async def test_the_default_prefetch_is_the_servers(server: Server) -> None:
    client = await server.client("w")
    await client.subscribe("$queue/jobs")
    await enqueue(server, "jobs", *[b"%d" % n for n in range(12)])
    await in_flight(client, 10)


async def test_receive_maximum_bounds_it_too_over_all_queues_and_ordinary_messages(server: Server) -> None:
    client = await server.client("w", window=2)
    await client.subscribe("$queue/a", ack_mode="puback")
    await client.subscribe("$queue/b", ack_mode="puback")
    await client.subscribe("plain", 1)
    await enqueue(server, "a", b"a1", b"a2", b"a3")
    await enqueue(server, "b", b"b1", b"b2", b"b3")
    producer = await server.client("p")
    await producer.publish("plain", b"p")
    seen: set[bytes] = set()
    found = await in_flight(client, 2)
    while found:
        delivery = found.pop(0)
        seen.add(delivery.payload)
        client.accept(delivery)
        if len(seen) + len(found) < 7:
            found += await in_flight(client, 1)
    assert seen == {b"a1", b"a2", b"a3", b"b1", b"b2", b"b3", b"p"}
    await until(lambda: server.depth("a") == server.depth("b") == 0)


async def test_a_lease_that_ends_while_it_waits_for_the_window_is_not_sent(server: Server) -> None:
    client = await server.client("w", window=1)
    await client.subscribe("$queue/a", prefetch="1")
    await client.subscribe("$queue/b", prefetch="1")
    await enqueue(server, "a", b"a")
    await enqueue(server, "b", b"b")
    first = await client.delivery()
    await until(lambda: server.group("b", "w").leased == 1)
    server.pass_time(31)
    await until(lambda: server.group("b", "w").leased == 0)
    client.accept(first)
    await client.nothing_more()


async def test_what_one_consumer_has_in_flight_is_bounded_in_bytes(server: Server) -> None:
    await server.create("big", max_message_size="1MiB")
    client = await server.client("w")
    await client.subscribe("$queue/big", prefetch="1000")
    producer = await server.client("p")
    payload = bytes(1 << 20)
    for _ in range(36):
        await producer.publish("$queue/big", payload)
    found = await in_flight(client, 32)
    for delivery in found[:3]:
        client.accept(delivery)
        await client.settle(delivery)
    await in_flight(client, 3)


async def test_a_delivery_too_large_for_the_client_fails_and_another_may_take_it(server: Server) -> None:
    await server.create("jobs", retry__initial_backoff="10s")
    small = await server.client("g-1", packet_bytes_max=400)
    await small.subscribe("$queue/jobs")
    await enqueue(server, "jobs", b"x" * 500, b"small")
    assert (await small.take()).payload == b"small"
    await until(lambda: server.group("jobs", "g").failures.get("nack", 0) >= 1)
    await small.disconnect()
    large = await server.client("g-2")
    await large.subscribe("$queue/jobs")
    server.pass_time(11)
    delivery = await large.delivery()
    assert (len(delivery.payload), user_properties_of(delivery)["attempt"]) == (500, "2")


async def test_a_delivery_of_qos_0_too_large_for_the_client_fails_too(quick: Server) -> None:
    small = await quick.client("g-1", packet_bytes_max=400)
    await small.subscribe("$queue/jobs", 0)
    await enqueue(quick, "jobs", b"x" * 500)
    await until(lambda: quick.group("jobs", "g").failures == {"nack": 1})
    await small.nothing_more()


async def test_a_group_takes_so_many_members_and_no_more(tmp_path: Path) -> None:
    store = open_store("memory", tmp_path / "store")
    server = Server(config_for(tmp_path, members=MemberSettings(max_members_per_group=1)), store)
    await server.start()
    first = await server.client("g-1")
    assert (await first.subscribe("$queue/jobs")).reason_codes == (1,)
    assert (await first.subscribe("$queue/jobs")).reason_codes == (1,)
    second = await server.client("g-2")
    refused = await second.subscribe("$queue/jobs")
    assert refused.reason_codes == (0x97,)
    assert "Use more groups or queues" in str(refused.properties.reason_string)
    await server.stop()
    store.close()


async def test_a_slow_reader_gets_no_more_than_its_prefetch_and_loses_nothing(server: Server) -> None:
    client = await server.client("w")
    await client.subscribe("$queue/jobs", 0, prefetch="30")
    await enqueue(server, "jobs", *[bytes(200_000) for _ in range(30)])
    for _ in range(30):
        delivery = await client.delivery()
        assert (await client.settle(delivery)).reason_code == 0
    assert server.depth("jobs") == 0


# --- order ----------------------------------------------------------------------------------------------------------


async def test_messages_of_a_key_come_one_after_another(server: Server) -> None:
    producer = await server.client("p")
    for n in range(3):
        for key in ("a", "b"):
            await producer.publish("$queue/jobs", f"{key}{n}".encode(), user={"partition-key": key})
    client = await server.client("w")
    await client.subscribe("$queue/jobs")
    first = await in_flight(client, 2)
    assert {one.payload for one in first} == {b"a0", b"b0"}
    for delivery in first:
        client.accept(delivery)
    a = next(one for one in first if one.payload == b"a0")
    await client.settle(a, "nack", delay="0s")
    again = await client.delivery()
    assert again.payload == b"a0"  # the failed one keeps its place in its key
    client.accept(again)
    await client.settle(again)
    assert (await in_flight(client, 1))[0].payload == b"a1"


async def test_strict_order_is_one_at_a_time(server: Server) -> None:
    await server.create("jobs", ordering="strict")
    await enqueue(server, "jobs", b"0", b"1", b"2")
    clients = [await server.client(f"g-{n}") for n in range(2)]
    for client in clients:
        await client.subscribe("$queue/jobs")
    await until(lambda: server.group("jobs", "g").leased == 1)
    for expected in (b"0", b"1", b"2"):
        holders: list[Raw] = []
        while not holders:
            for client in clients:
                await client.ping()
            holders = [client for client in clients if any(isinstance(one, Publish) for one in client.seen)]
        assert len(holders) == 1
        assert (await holders[0].take()).payload == expected


# --- request and response -------------------------------------------------------------------------------------------


async def test_a_request_is_answered_over_queues(server: Server) -> None:
    asker = await server.client("asker-1")
    await asker.subscribe("$queue/replies/asker-1")
    worker = await server.client("worker-1")
    await worker.subscribe("$queue/squares")
    await asker.publish("$queue/squares", b"7", response_topic="$queue/replies/asker-1", correlation_data=b"q1")
    request = await worker.delivery()
    worker.accept(request)
    properties = request.properties
    answer = await worker.publish(str(properties.response_topic), b"49", correlation_data=properties.correlation_data)
    assert answer.reason_code == 0
    await worker.settle(request)
    reply = await asker.take()
    assert (reply.payload, reply.properties.correlation_data) == (b"49", b"q1")


async def test_a_delivery_is_sent_in_the_turn_that_leased_it(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = await server.client("billing-1")
    await consumer.subscribe("$queue/jobs")
    commit = server.node.cell.commit
    await commit.durable()
    turns: list[int] = []
    run_turn = commit.run_turn

    def turn() -> None:
        turns.append(1)
        run_turn()

    monkeypatch.setattr(commit, "run_turn", turn)
    await server.node.messages.enqueue((SPACE, "jobs"), [Draft(b"one")])
    assert (await consumer.delivery()).payload == b"one"
    assert len(turns) == 1


@pytest.mark.parametrize("ends", [False, True])
async def test_deliveries_are_sent_as_far_as_a_connection_may_buffer_and_then_the_rest(
    server: Server, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    hub = server.mqtt._hub
    assert hub is not None
    steps: list[int] = []
    pump_unfinished = hub.pump_unfinished

    def counted(now: int) -> None:
        steps.append(len(steps))
        pump_unfinished(now)

    monkeypatch.setattr(hub, "pump_unfinished", counted)
    limit = hub.settings.buffer_bytes
    payloads = [b"%d" % number * (limit // 4) for number in range(10)]
    await enqueue(server, "jobs", *payloads[: 4 if ends else 10])
    consumer = await server.client("c")
    await consumer.subscribe("$queue/jobs", consumer_group="g", subscription_id="1")
    got = sorted(await drain(consumer, 4 if ends else 10))
    assert got == sorted(payloads[: 4 if ends else 10])
    assert bool(steps) != ends  # what is just as much as may be buffered is sent without another step
