"""Settling, in both ways and both versions, and what becomes of a delivery then."""

from __future__ import annotations

import json

import httpx
import pytest

from holdfast.broker.commit import group_commit
from holdfast.broker.commit.group_commit import COMMIT_ACKS_MIN
from holdfast.mqtt.codec import V5, V311, Disconnect, PubAck, PubComp, Publish, PubRec, Unsubscribe
from tests.mqtt.queues.rig import SPACE, Raw, Server, until, user_properties_of

LOST = 0x83


async def enqueue(server: Server, queue: str, *payloads: bytes, **user: str) -> None:
    producer = await server.client("producer")
    pairs = {name.replace("_", "-"): value for name, value in user.items()}
    for payload in payloads:
        assert (await producer.publish(f"$queue/{queue}", payload, user=pairs)).reason_code in (0, 0x10)
    await producer.disconnect()


async def consumer(server: Server, queue: str = "jobs", **terms: str) -> Raw:
    client = await server.client("worker-1")
    answer = await client.subscribe(f"$queue/{queue}", consumer_group="g", **terms)
    assert answer.reason_codes == (1,), answer
    return client


# --- explicit -------------------------------------------------------------------------------------------------------


async def test_an_ack_is_confirmed_and_the_message_is_gone(server: Server) -> None:
    client = await consumer(server)
    await enqueue(server, "jobs", b"one")
    await client.take("ack")
    assert server.depth("jobs") == 0
    assert server.group("jobs", "g").leased == 0


async def test_many_acks_have_a_turn_immediately(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "UNAWAITED_SECONDS", 3_600.0)
    client = await consumer(server, ack_mode="puback", prefetch="100")
    await enqueue(server, "jobs", *[b"m"] * COMMIT_ACKS_MIN)
    packet_ids = [(await client.delivery()).packet_id for _ in range(COMMIT_ACKS_MIN)]
    client.send(*map(PubAck, packet_ids))
    await until(lambda: not server.depth("jobs"))


async def test_a_puback_of_an_explicit_consumer_settles_nothing(server: Server) -> None:
    client = await consumer(server)
    await enqueue(server, "jobs", b"one")
    client.accept(await client.delivery())
    await client.ping()
    assert server.group("jobs", "g").leased == 1


@pytest.mark.parametrize("answer", [PubRec(1), PubComp(1)], ids=["PUBREC", "PUBCOMP"])
@pytest.mark.parametrize("ack_mode", ["explicit", "puback"])
async def test_an_acknowledgement_of_the_wrong_kind_ends_the_connection(
    server: Server, answer: PubRec | PubComp, ack_mode: str
) -> None:
    client = await consumer(server, ack_mode=ack_mode)
    await enqueue(server, "jobs", b"one")
    assert (await client.delivery()).packet_id == 1
    client.send(answer)
    assert (await client.expect(Disconnect)).reason_code == 0x82
    assert server.depth("jobs") == 1


async def test_what_was_acknowledged_before_a_wrong_acknowledgement_counts(server: Server) -> None:
    client = await consumer(server, ack_mode="puback")
    assert (await client.subscribe("plain", 2)).reason_codes == (2,)
    await enqueue(server, "jobs", b"one")
    first = await client.delivery()
    publisher = await server.client("publisher")
    await publisher.publish("plain", b"x", 2)
    second = await client.expect(Publish)
    client.send(PubAck(first.packet_id), PubAck(second.packet_id))
    assert (await client.expect(Disconnect)).reason_code == 0x82
    await until(lambda: server.depth("jobs") == 0)


async def test_a_nack_with_delay_and_error_comes_again_after_the_delay(server: Server) -> None:
    client = await consumer(server)
    await enqueue(server, "jobs", b"one")
    first = await client.take("nack", delay="1h", error="no stock")
    await client.nothing_more()
    [(_, _, [status])] = (await server.node.inspection.browse((SPACE, "jobs"))).messages
    assert (status.state, status.error) == ("scheduled", "no stock")
    server.pass_time(3601)
    again = await client.delivery()
    assert (user_properties_of(first)["attempt"], user_properties_of(again)["attempt"]) == ("1", "2")
    assert user_properties_of(first)["lease-token"] != user_properties_of(again)["lease-token"]


async def test_a_nack_without_delay_backs_off_as_the_queue_says(server: Server) -> None:
    await server.create("jobs", retry__initial_backoff="20s")
    client = await consumer(server)
    await enqueue(server, "jobs", b"one")
    await client.take("nack")
    server.pass_time(19)
    await client.nothing_more()
    server.pass_time(1.1)
    assert user_properties_of(await client.delivery())["attempt"] == "2"


async def test_a_reject_goes_to_the_dead_queue_with_its_story(server: Server) -> None:
    client = await consumer(server)
    await enqueue(server, "jobs", b"one", message_id="order-7", colour="red", partition_key="k")
    rejected = user_properties_of(await client.take("reject", error="cannot parse"))
    dlq_consumer = await server.client("ops-1")
    await dlq_consumer.subscribe("$queue/dlq/jobs")
    dead_letter = await dlq_consumer.delivery()
    user_properties = user_properties_of(dead_letter)
    assert dead_letter.payload == b"one"
    assert dead_letter.topic == "$queue/dlq/jobs"
    assert user_properties["source-queue"] == "jobs"
    assert user_properties["source-group"] == "g"
    assert user_properties["dead-reason"] == "rejected"
    assert user_properties["dead-error"] == "cannot parse"
    assert user_properties["dead-attempts"] == "1"
    assert user_properties["colour"] == "red"
    assert int(user_properties["first-attempt-at"]) <= int(user_properties["last-attempt-at"])
    assert user_properties["source-id"].isdigit()
    assert rejected["message-id"] == "order-7"
    assert server.depth("jobs") == 0


async def test_a_release_costs_no_attempt(server: Server) -> None:
    client = await consumer(server)
    await enqueue(server, "jobs", b"one")
    await client.take("release")
    assert user_properties_of(await client.delivery())["attempt"] == "1"


async def test_an_extended_lease_outlives_its_first_deadline(server: Server) -> None:
    client = await consumer(server)
    await enqueue(server, "jobs", b"one")
    delivery = await client.delivery()
    client.accept(delivery)
    assert (await client.settle(delivery, "extend", timeout="10m")).reason_code == 0
    server.pass_time(60)
    await client.nothing_more()
    assert (await client.settle(delivery, "extend")).reason_code == 0  # by the queue's own delivery_timeout
    server.pass_time(29)
    assert (await client.settle(delivery, "ack")).reason_code == 0


async def test_a_lease_that_passed_its_deadline_is_refused_and_changes_nothing(server: Server) -> None:
    await server.create("jobs", retry__initial_backoff="0s")
    client = await consumer(server)
    await enqueue(server, "jobs", b"one")
    first = await client.delivery()
    client.accept(first)
    server.pass_time(31)
    again = await client.delivery()
    client.accept(again)
    refused = await client.settle(first, "ack")
    assert refused.reason_code == LOST
    assert "no longer yours" in str(refused.properties.reason_string)
    assert server.depth("jobs") == 1
    assert (await client.settle(again, "ack")).reason_code == 0


@pytest.mark.parametrize("message_id", ["", "order-7"])
async def test_settled_twice_is_answered_as_the_first_time(server: Server, message_id: str) -> None:
    client = await consumer(server)
    await enqueue(server, "jobs", b"one", **({"message_id": message_id} if message_id else {}))
    delivery = await client.take("ack")
    assert (await client.settle(delivery, "ack")).reason_code == 0
    name = user_properties_of(delivery)["message-id"]
    assert (await client.publish("$queue/jobs/$ack", user={"message-id": name})).reason_code == 0
    assert (await client.settle(delivery, "nack")).reason_code == LOST


async def test_the_producers_or_the_brokers_identifier_settles(server: Server) -> None:
    client = await consumer(server, prefetch="1")
    await enqueue(server, "jobs", b"one", b"two", message_id="x")  # the second is a duplicate
    await enqueue(server, "jobs", b"three", message_id="y")
    assert user_properties_of(await client.take("release"))["message-id"] == "x"
    delivery = await client.delivery()
    client.accept(delivery)
    assert (await client.publish("$queue/jobs/$ack", user={"message-id": "x"})).reason_code == 0
    third = await client.delivery()
    assert third.payload == b"three"
    client.accept(third)
    [(_, message, _)] = (await server.node.inspection.browse((SPACE, "jobs"))).messages
    assert (await client.publish("$queue/jobs/$ack", user={"message-id": str(message.id)})).reason_code == 0
    assert server.depth("jobs") == 0


@pytest.mark.parametrize("by_token", [True, False])
async def test_messages_of_one_producers_identifier_are_settled_each(server: Server, by_token: bool) -> None:
    """As the dead letters of several groups are, or what was sent again after the window."""
    await server.create("jobs", dedup_window="0s")
    client = await consumer(server, prefetch="3")
    await enqueue(server, "jobs", b"one", b"two", b"three", message_id="order-1")
    deliveries = [await client.delivery() for _ in range(3)]
    assert [user_properties_of(delivery)["message-id"] for delivery in deliveries] == ["order-1"] * 3
    for delivery in deliveries:
        client.accept(delivery)
        token = {"lease-token": user_properties_of(delivery)["lease-token"]} if by_token else {}
        answer = await client.publish("$queue/jobs/$ack", user={"message-id": "order-1", **token})
        assert answer.reason_code == 0
    assert server.depth("jobs") == 0


async def test_a_json_payload_settles_and_so_does_a_list(server: Server) -> None:
    client = await consumer(server)
    await enqueue(server, "jobs", b"1", b"2", b"3", b"4")
    ids = []
    for _ in range(4):
        delivery = await client.delivery()
        client.accept(delivery)
        ids.append(user_properties_of(delivery)["message-id"])
    one = json.dumps({"message-id": ids[0], "delay": "1h", "error": "later"}).encode()
    assert (await client.publish("$queue/jobs/$nack", one)).reason_code == 0
    rest = json.dumps([{"message-id": int(ids[1])}, {"message-id": ids[2]}]).encode()
    assert (await client.publish("$queue/jobs/$ack", rest)).reason_code == 0
    assert (server.group("jobs", "g").leased, server.depth("jobs")) == (1, 2)
    partly = json.dumps([{"message-id": "unknown"}, {"message-id": ids[3]}]).encode()
    assert (await client.publish("$queue/jobs/$ack", partly)).reason_code == LOST
    assert (server.group("jobs", "g").leased, server.depth("jobs")) == (0, 1)


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"{", "is not JSON"),
        (b"[" * 5_000, "is not JSON"),
        (b'"\xff"', "is not JSON"),
        (b"3", "is not an object"),
        (b"[]", "is not an object"),
        (b'{"message-id": null}', "must be a text"),
        (b'{"message-id": true}', "must be a text"),
        (b'{"message-id": "1", "lease-token": "x"}', "lease-token is not one"),
        (b'{"message-id": "1", "lease-token": 1e3}', "must be a text"),
        (b'{"message-id": "1", "delay": "soon"}', "delay cannot be 'soon'"),
        (b'{"message-id": "1", "timeout": [1]}', "timeout cannot be '[1]'"),
        (b'{"message-id": "1", "error": 5}', "error must be a text"),
        (b'{"id": "1"}', "id is not known"),
        (b"", "message-id is missing"),
        (b'{"lease-token": "7"}', "message-id is missing"),
        ('{"message-id": "²"}'.encode(), "no longer yours"),
        (b'{"message-id": "' + b"9" * 5_000 + b'"}', "no longer yours"),
    ],
)
async def test_a_settlement_that_makes_no_sense_is_refused(quick: Server, payload: bytes, says: str) -> None:
    client = await consumer(quick)
    await enqueue(quick, "jobs", b"one")
    client.accept(await client.delivery())
    refused = await client.publish("$queue/jobs/$ack", payload)
    assert refused.reason_code == 0x83
    assert says in str(refused.properties.reason_string)
    assert quick.group("jobs", "g").leased == 1


async def test_who_does_not_hold_a_delivery_cannot_settle_it_without_its_token(server: Server) -> None:
    client = await consumer(server)
    await enqueue(server, "jobs", b"one")
    user_properties = user_properties_of(await client.delivery())
    thief = await server.client("thief")
    named = {"message-id": user_properties["message-id"], "consumer-group": "g"}
    assert (await thief.publish("$queue/jobs/$ack", user=named)).reason_code == LOST
    helper = {**named, "lease-token": user_properties["lease-token"]}
    assert (await thief.publish("$queue/jobs/$ack", user=helper)).reason_code == 0
    nobody = {"message-id": "5", "consumer-group": "unknown"}
    assert (await thief.publish("$queue/jobs/$ack", user=nobody)).reason_code == LOST


async def test_settling_on_a_queue_that_is_not_there_says_so(server: Server) -> None:
    client = await server.client("worker-1")
    refused = await client.publish("$queue/nowhere/$ack", user={"message-id": "1", "lease-token": "2"})
    assert refused.reason_code == 0x90
    assert "'nowhere' does not exist" in str(refused.properties.reason_string)


async def test_an_ack_and_goodbye_in_one_write_is_an_ack(server: Server) -> None:
    client = await consumer(server)
    await enqueue(server, "jobs", b"one")
    delivery = await client.delivery()
    user_properties = user_properties_of(delivery)
    ack = client.packet("$queue/jobs/$ack", user={"message-id": user_properties["message-id"]})
    await client.disconnect(PubAck(delivery.packet_id), ack)
    await until(lambda: server.depth("jobs") == 0)


async def test_an_ack_and_unsubscribe_in_one_write_is_an_ack(server: Server) -> None:
    client = await consumer(server)
    await enqueue(server, "jobs", b"one")
    user_properties = user_properties_of(await client.delivery())
    ack = client.packet("$queue/jobs/$ack", user={"message-id": user_properties["message-id"]})
    client.send(ack, Unsubscribe(client.next_id(), ("$queue/jobs",)))
    assert (await client.expect(PubAck)).reason_code == 0
    assert server.depth("jobs") == 0


async def test_an_ack_before_the_connection_breaks_is_an_ack(server: Server) -> None:
    client = await consumer(server)
    await enqueue(server, "jobs", b"one")
    user_properties = user_properties_of(await client.delivery())
    client.send(client.packet("$queue/jobs/$ack", qos=0, user={"message-id": user_properties["message-id"]}))
    await client.end()
    await until(lambda: server.depth("jobs") == 0)


async def test_what_a_client_holds_and_has_settled_is_remembered_for_a_while_only(quick: Server) -> None:
    client = await consumer(quick, prefetch="1")
    other = await quick.client("other")
    names = [f"m{n}" for n in range(45)]
    for name in names:
        await enqueue(quick, "jobs", b"", message_id=name)
    first = await client.take()
    for number in range(1, 45):
        delivery = await client.delivery()
        client.accept(delivery)
        user_properties = user_properties_of(delivery)
        assert user_properties["message-id"] == names[number]
        # Half of them are settled by somebody else, so that this client does not know.
        named = {
            "message-id": user_properties["id"],
            "lease-token": user_properties["lease-token"],
            "consumer-group": "g",
        }
        await (client if number % 2 else other).publish("$queue/jobs/$ack", user=named)
    assert (await client.publish("$queue/jobs/$ack", user={"message-id": names[0]})).reason_code == LOST
    assert (await client.settle(first)).reason_code == 0  # by its token the node remembers it longer


# --- native ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [V5, V311])
async def test_a_native_consumers_puback_is_the_ack(server: Server, version: int) -> None:
    client = await server.client("worker-1", version)
    terms = {"ack_mode": "puback"} if version == V5 else {}
    await client.subscribe("$queue/jobs", **terms)
    await enqueue(server, "jobs", b"one", b"two")
    for payload in (b"one", b"two"):
        delivery = await client.delivery()
        assert delivery.payload == payload
        client.accept(delivery)
    await until(lambda: server.depth("jobs") == 0)


async def test_several_pubacks_in_one_write_are_as_many_acks(server: Server) -> None:
    client = await server.client("worker-1")
    await client.subscribe("$queue/jobs", ack_mode="puback")
    await enqueue(server, "jobs", b"one", b"two", b"three")
    deliveries = [await client.delivery() for _ in range(3)]
    client.send(*(PubAck(delivery.packet_id) for delivery in deliveries))
    await until(lambda: server.depth("jobs") == 0)


@pytest.mark.parametrize("version", [V5, V311])
async def test_a_native_ack_and_goodbye_in_one_write_is_an_ack(server: Server, version: int) -> None:
    client = await server.client("worker-1", version)
    await client.subscribe("$queue/jobs", **({"ack_mode": "puback"} if version == V5 else {}))
    await enqueue(server, "jobs", b"one")
    delivery = await client.delivery()
    await client.disconnect(PubAck(delivery.packet_id))
    await until(lambda: server.depth("jobs") == 0)


async def test_a_puback_with_an_error_is_a_nack_and_its_reason_the_error(server: Server) -> None:
    client = await consumer(server, ack_mode="puback")
    await enqueue(server, "jobs", b"one", b"two")
    client.accept(await client.delivery(), 0x80, "out of stock")
    client.accept(await client.delivery(), 0x97)
    await until(lambda: server.group("jobs", "g").leased == 0)
    errors = [status.error for _, _, [status] in (await server.node.inspection.browse((SPACE, "jobs"))).messages]
    assert errors == ["out of stock", "PUBACK with reason code 0x97"]


async def test_a_puback_with_payload_format_invalid_is_a_reject(server: Server) -> None:
    client = await consumer(server, ack_mode="puback")
    await enqueue(server, "jobs", b"{")
    client.accept(await client.delivery(), 0x99, "not JSON")
    await until(lambda: server.depth("jobs") == 0)
    page = await server.node.inspection.browse((SPACE, "dlq/jobs"))
    origin = page.messages[0][1].extra.origin
    assert origin is not None
    assert (origin.reason, origin.error) == ("rejected", "not JSON")


async def test_a_native_consumer_may_settle_by_topic_first(server: Server) -> None:
    client = await consumer(server, ack_mode="puback")
    await enqueue(server, "jobs", b"one", message_id="mine")
    delivery = await client.delivery()
    assert (await client.publish("$queue/jobs/$extend", user={"message-id": "mine"})).reason_code == 0
    assert (await client.publish("$queue/jobs/$reject", user={"message-id": "mine"})).reason_code == 0
    client.accept(delivery)
    await client.ping()
    assert await server.payloads("dlq/jobs") == [b"one"]


async def test_a_3_1_1_client_settles_its_oldest_delivery_without_an_identifier(server: Server) -> None:
    client = await server.client("worker-1", V311)
    await client.subscribe("$queue/jobs")
    await enqueue(server, "jobs", b"one", b"two", b"three")
    first, second, third = [await client.delivery() for _ in range(3)]
    assert first.properties.user_properties == ()
    client.accept(first)  # acked: no longer the oldest
    await client.publish("$queue/jobs/$reject", b'{"error": "bad"}')
    await client.publish("$queue/jobs/$nack", b'{"delay": "1h"}')
    client.accept(second)
    client.accept(third)
    await client.ping()
    assert await server.payloads("dlq/jobs") == [b"two"]
    assert await server.payloads("jobs") == [b"three"]


async def test_in_3_1_1_a_refused_settlement_closes_the_connection(server: Server) -> None:
    client = await server.client("worker-1", V311)
    await client.subscribe("$queue/jobs")
    client.send(client.packet("$queue/jobs/$ack"))
    await client.closed()
    assert not client.seen


async def test_a_consumer_of_qos_0_in_3_1_1_is_served_at_most_once(server: Server) -> None:
    client = await server.client("worker-1", V311)
    assert (await client.subscribe("$queue/jobs", 0)).reason_codes == (0,)
    await enqueue(server, "jobs", b"one")
    delivery = await client.delivery()
    assert (delivery.payload, delivery.qos) == (b"one", 0)
    await until(lambda: server.depth("jobs") == 0)


async def test_a_consumer_of_qos_0_in_5_settles_by_topic(server: Server) -> None:
    client = await server.client("worker-1")
    assert (await client.subscribe("$queue/jobs", 0)).reason_codes == (0,)
    await enqueue(server, "jobs", b"one")
    delivery = await client.delivery()
    assert delivery.qos == 0
    assert server.depth("jobs") == 1
    assert (await client.settle(delivery)).reason_code == 0
    assert server.depth("jobs") == 0


# --- over two fronts ------------------------------------------------------------------------------------------------


async def test_received_over_mqtt_and_settled_over_http(server: Server, http: httpx.AsyncClient) -> None:
    client = await consumer(server)
    await enqueue(server, "jobs", b"one")
    user_properties = user_properties_of(await client.delivery())
    body = {
        "group": "g",
        "settlements": [
            {"id": user_properties["message-id"], "lease_token": user_properties["lease-token"], "action": "ack"}
        ],
    }
    answer = await http.post("/api/v1/queues/jobs/settle", json=body)
    assert answer.status_code == 200, answer.text
    assert server.depth("jobs") == 0
    await enqueue(server, "jobs", b"two")
    assert (await client.delivery()).payload == b"two"


async def test_received_over_http_and_settled_over_mqtt(server: Server, http: httpx.AsyncClient) -> None:
    await enqueue(server, "jobs", b"one")
    answer = await http.post("/api/v1/queues/jobs/leases", json={"group": "g", "limit": 1})
    assert answer.status_code == 200, answer.text
    [leased] = answer.json()["deliveries"]
    client = await server.client("somebody")
    named = {"message-id": leased["id"], "lease-token": leased["lease_token"], "consumer-group": "g"}
    assert (await client.publish("$queue/jobs/$ack", user=named)).reason_code == 0
    assert server.depth("jobs") == 0


async def test_a_message_with_an_identifier_of_its_own_is_settled_from_afar(
    server: Server, http: httpx.AsyncClient
) -> None:
    client = await consumer(server)
    await enqueue(server, "jobs", b"one", message_id="order-1")
    await enqueue(server, "jobs", b"two", message_id="order-2")
    first, second = [user_properties_of(await client.delivery()) for _ in range(2)]
    other = await server.client("other")
    named = {"message-id": "order-1", "lease-token": first["lease-token"], "consumer-group": "g"}
    assert (await other.publish("$queue/jobs/$ack", user=named)).reason_code == 0
    assert (await other.publish("$queue/jobs/$ack", user=named)).reason_code == 0  # as the first time
    assert (await other.publish("$queue/jobs/$nack", user=named)).reason_code == LOST
    assert (await other.publish("$queue/jobs/$ack", user={**named, "lease-token": "7"})).reason_code == LOST
    assert (await other.publish("$queue/jobs/$ack", user={**named, "consumer-group": "x"})).reason_code == LOST
    body = {"group": "g", "settlements": [{"id": second["id"], "lease_token": second["lease-token"]}]}
    answer = await http.post("/api/v1/queues/jobs/settle", json=body)
    assert answer.status_code == 200, answer.text
    assert server.depth("jobs") == 0
