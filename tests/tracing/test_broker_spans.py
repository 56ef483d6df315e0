"""Spans of the server, as a collector gets them: of every front, and through retries, dead letters and redrives."""

from __future__ import annotations

import asyncio
import io
import secrets
from typing import Any

import aiomqtt
import httpx
import pyarrow as pa
import pytest
from msgspec.structs import replace
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from holdfast.auth.gate import Gate
from holdfast.config.grpc_settings import GrpcSettings
from holdfast.grpc_api import GrpcFront
from holdfast.grpc_api.generated import queue_pb2 as pb
from tests.console.rig import Served
from tests.grpc_api.rig import calling, drafts
from tests.http_api.dialects.sqs.rig import Sqs
from tests.tracing.receiver import Collector
from tests.waiting import PATIENCE_SECONDS


def new_context() -> tuple[str, str]:
    """A trace's id, and the context of a span in it that is recorded."""
    trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
    return trace_id, f"00-{trace_id}-{span_id}-01"


async def flushed(served: Served) -> None:
    """Send what was recorded."""
    assert served.node.tracing is not None
    await asyncio.to_thread(served.node.tracing.flush)


async def test_a_message_has_one_trace_from_enqueue_to_settle(traced: Served, collector: Collector) -> None:
    trace_id, context = new_context()
    async with traced.client() as client:
        sent = await client.send("t/life", {"n": 1}, properties={"traceparent": context})
        [message] = await client.receive("t/life")
        assert message.properties == {"traceparent": context}
        await message.ack()
    await flushed(traced)
    names = ("enqueue t/life", "lease t/life", "settle t/life")
    enqueue, lease, settle = collector.named(*names, trace_id=trace_id)
    producer = context.split("-")[2]
    assert [span.parent_id for span in (enqueue, lease, settle)] == [producer] * 3
    assert (enqueue.links, lease.links, settle.links) == ([], [producer], [lease.span_id])
    assert {span.kind for span in (enqueue, lease, settle)} == {"SERVER"}
    assert {span.service for span in (enqueue, lease, settle)} == {"holdfast"}
    assert enqueue.start_ns < enqueue.end_ns <= settle.end_ns
    assert enqueue.attributes == {
        "messaging.system": "holdfast",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "t/life",
        "messaging.message.id": sent.id,
        "messaging.message.body.size": 7,
        "holdfast.namespace": "default",
        "holdfast.protocol": "http",
    }
    assert lease.attributes["messaging.operation.type"] == "receive"
    assert lease.attributes["messaging.consumer.group.name"] == "default"
    assert lease.attributes["holdfast.attempt"] == 1
    assert settle.attributes["messaging.operation.type"] == "settle"
    assert settle.attributes["holdfast.settlement"] == "ack"


async def test_retries_dead_letters_and_redrives_stay_in_the_trace(traced: Served, collector: Collector) -> None:
    trace_id, context = new_context()
    async with traced.client() as client:
        await client.create_queue("t/hard", {"retry.initial_backoff": "0s", "retry.max_retries": 1})
        await client.send("t/hard", "x", properties={"traceparent": context})
        for _ in range(2):
            [message] = await client.receive("t/hard", wait="60s")
            await message.nack(error="no")
        [dead] = [one async for one in client.dead_letters("t/hard")]
        assert dead.properties == {"traceparent": context}
        await client.retry_dead("t/hard", dead.id)
        [again] = await client.receive("t/hard", wait="60s")
        assert again.properties == {"traceparent": context}
        await again.ack()
    await flushed(traced)
    [moved] = collector.named("dead-letter dlq/t/hard", trace_id=trace_id)
    assert moved.attributes["messaging.operation.type"] == "send"
    mine = [one for one in collector.all_named("lease t/hard") if one.trace_id == trace_id]
    assert [one.attributes["holdfast.attempt"] for one in mine] == [1, 2, 1]
    enqueues = [one for one in collector.all_named("enqueue t/hard") if one.trace_id == trace_id]
    assert [one.attributes["holdfast.protocol"] for one in enqueues] == ["http", "redrive"]
    settled = [one for one in collector.all_named("settle t/hard") if one.trace_id == trace_id]
    assert [one.attributes["holdfast.settlement"] for one in settled] == ["nack", "nack", "ack"]


def arrow_stream(payloads: list[bytes]) -> bytes:
    table = pa.table({"payload": pa.array(payloads, pa.binary())})
    with io.BytesIO() as stream:
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)
        return stream.getvalue()


REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "arrow": (
        "/api/v1/queues/t%2Farrow/messages",
        {
            "content": arrow_stream([b"a", b"b"]),
            "headers": {"content-type": "application/vnd.apache.arrow.stream"},
        },
    ),
    "sqs": (
        "/",
        {
            "json": {"QueueUrl": "http://localhost/default/t-sqs", "MessageBody": "x"},
            "headers": {"content-type": "application/x-amz-json-1.0", "x-amz-target": "AmazonSQS.SendMessage"},
        },
    ),
    "json": ("/api/v1/queues/t%2Fjson/messages", {"json": {"messages": [{"payload": 1}, {"text": "b"}]}}),
    "raw": ("/api/v1/queues/t%2Fraw/messages", {"content": b"x", "headers": {"content-type": "text/plain"}}),
    "mqueue": ("/enqueue", {"json": [{"namespace": "default", "topic": "t/mqueue", "payload": "eA=="}]}),
    "lockd": (
        "/v1/queue/enqueue",
        {"files": {"meta": (None, '{"namespace":"default","queue":"t/lockd"}', "application/json"), "payload": b"x"}},
    ),
}


@pytest.mark.parametrize("dialect", REQUESTS)
async def test_the_headers_of_a_request_go_with_its_messages(
    traced: Served, collector: Collector, dialect: str
) -> None:
    path, body = REQUESTS[dialect]
    trace_id, context = new_context()
    queue = "t-sqs" if dialect == "sqs" else f"t/{dialect}"
    if dialect == "sqs":
        await traced.node.queues.create(("default", queue))
    async with httpx.AsyncClient(base_url=traced.url, timeout=PATIENCE_SECONDS) as http, traced.client() as client:
        headers = {**body.get("headers", {}), "traceparent": context, "tracestate": "shop=1"}
        answer = await http.post(path, **{**body, "headers": headers})
        assert answer.status_code == 200, answer.text
        for message in await client.receive(queue, limit=10):
            assert message.properties["traceparent"] == context
            assert message.properties["tracestate"] == "shop=1"
            await message.ack()
    await flushed(traced)
    [enqueue] = collector.named(f"enqueue {queue}", trace_id=trace_id)
    assert enqueue.attributes.get("messaging.batch.message_count", 1) == (2 if dialect in ("json", "arrow") else 1)


async def test_a_message_keeps_the_context_that_it_brings(traced: Served) -> None:
    (_, own), (_, other) = new_context(), new_context()
    body = {"messages": [{"payload": 1, "properties": {"traceparent": own}}, {"payload": 2}]}
    async with httpx.AsyncClient(base_url=traced.url, timeout=PATIENCE_SECONDS) as http, traced.client() as client:
        answer = await http.post("/api/v1/queues/t%2Fown/messages", json=body, headers={"traceparent": other})
        assert answer.status_code == 200
        found = await client.receive("t/own", limit=2)
        assert [message.properties["traceparent"] for message in found] == [own, other]


async def test_a_header_that_names_no_span_is_left_out(traced: Served) -> None:
    async with httpx.AsyncClient(base_url=traced.url, timeout=PATIENCE_SECONDS) as http, traced.client() as client:
        for wrong in ("", "00-0-0-01", f"00-{'0' * 32}-{'1' * 16}-01", f"ff-{'1' * 32}-{'1' * 16}-01"):
            body = {"messages": [{"payload": 1}]}
            answer = await http.post("/api/v1/queues/t%2Fwrong/messages", json=body, headers={"traceparent": wrong})
            assert answer.status_code == 200
            [message] = await client.receive("t/wrong")
            assert message.properties.get("traceparent") != wrong
            await message.ack()


async def test_an_mqtt_publisher_and_subscriber_share_a_trace(traced: Served, collector: Collector) -> None:
    trace_id, context = new_context()
    assert traced.console.mqtt is not None
    host, port = traced.console.mqtt.addresses[0]
    given = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    given.UserProperty = [("traceparent", context)]
    async with aiomqtt.Client(
        host, port, protocol=aiomqtt.ProtocolVersion.V5, identifier="m-1", timeout=PATIENCE_SECONDS
    ) as mqtt:
        await mqtt.subscribe("$queue/t/mqtt", qos=1)
        await mqtt.publish("$queue/t/mqtt", b"x", qos=1, properties=given)
        message = await anext(aiter(mqtt.messages))
        assert message.properties is not None
        carried = dict(message.properties.json()["UserProperty"])  # type: ignore[no-untyped-call]
        assert carried["traceparent"] == context
        settle = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        settle.UserProperty = [("message-id", carried["message-id"]), ("lease-token", carried["lease-token"])]
        await mqtt.publish("$queue/t/mqtt/$ack", b"", qos=1, properties=settle)
    await flushed(traced)
    enqueue, lease, settled = collector.named("enqueue t/mqtt", "lease t/mqtt", "settle t/mqtt", trace_id=trace_id)
    assert enqueue.attributes["holdfast.protocol"] == lease.attributes["holdfast.protocol"] == "mqtt"
    assert settled.links == [lease.span_id]


async def test_a_grpc_call_gives_its_context_to_messages(traced: Served, collector: Collector) -> None:
    trace_id, context = new_context()
    config = replace(traced.node.config, grpc=GrpcSettings(listen="127.0.0.1:0"))
    front = GrpcFront(config, traced.node, Gate(config, traced.node.clock))
    await front.start()
    try:
        async with calling(front) as api:
            metadata = (("traceparent", context), ("tracestate", "shop=1"))
            await api.Enqueue(pb.EnqueueRequest(queue="t/grpc", messages=drafts(b"x")), metadata=metadata)
            [delivery] = (await api.Lease(pb.LeaseRequest(queue="t/grpc"))).deliveries
            properties = {pair.name: pair.value for pair in delivery.message.properties}
            assert properties == {"traceparent": context, "tracestate": "shop=1"}
            settlement = pb.Settlement(
                id=delivery.message.id, lease_token=delivery.lease_token, action=pb.SETTLE_ACTION_ACK
            )
            await api.Settle(pb.SettleRequest(queue="t/grpc", settlements=[settlement]))
    finally:
        await front.stop()
    await flushed(traced)
    names = ("enqueue t/grpc", "lease t/grpc", "settle t/grpc")
    enqueue, lease, settle = collector.named(*names, trace_id=trace_id)
    assert (lease.links, settle.links) == ([context.split("-")[2]], [lease.span_id])
    assert {span.attributes["holdfast.protocol"] for span in (enqueue, lease)} == {"grpc"}


async def test_a_message_of_an_sqs_client_carries_its_attribute(traced: Served, collector: Collector) -> None:
    """OpenTelemetry's libraries for SQS put the context into message attributes."""
    trace_id, context = new_context()
    await traced.node.queues.create(("default", "t-attributes"))
    sqs = Sqs(traced.url)
    try:
        url = str((await sqs("GetQueueUrl", QueueName="t-attributes"))["QueueUrl"])
        await sqs.send(url, "x", MessageAttributes={"traceparent": {"DataType": "String", "StringValue": context}})
        message = await sqs.one(url, MessageAttributeNames=["All"])
        assert message["MessageAttributes"]["traceparent"]["StringValue"] == context
    finally:
        sqs.close()
    await flushed(traced)
    collector.named("enqueue t-attributes", "lease t-attributes", trace_id=trace_id)


async def test_a_message_without_a_context_begins_a_trace(traced: Served, collector: Collector) -> None:
    async with traced.client() as client:
        await client.send("t/new", "x", properties={"shop": "north"})
        [message] = await client.receive("t/new")
        await message.ack()
    await flushed(traced)
    enqueue, lease = collector.named("enqueue t/new", "lease t/new")
    assert enqueue.parent_id == ""
    assert message.properties["shop"] == "north"
    assert str(message.properties["traceparent"])[:53] == enqueue.traceparent[:53]
    assert (lease.trace_id, lease.parent_id) == (enqueue.trace_id, enqueue.span_id)


async def test_a_producer_that_does_not_record_is_not_recorded(traced: Served, collector: Collector) -> None:
    _, context = new_context()
    unsampled = context[:-2] + "00"
    async with traced.client() as client:
        await client.send("t/quiet", "x", properties={"traceparent": unsampled})
        [message] = await client.receive("t/quiet")
        assert message.properties == {"traceparent": unsampled}
        await message.ack()
        await client.send("t/loud", "x", properties={"traceparent": new_context()[1]})
    await flushed(traced)
    collector.named("enqueue t/loud")
    assert [collector.all_named(f"{name} t/quiet") for name in ("enqueue", "lease", "settle")] == [[], [], []]


async def test_what_is_refused_fails(traced: Served, collector: Collector) -> None:
    trace_id, context = new_context()
    async with traced.client() as client:
        await client.create_queue("t/small", {"max_message_size": 1024})
        result = await client.send_many("t/small", [b"x" * 2000], check=False)
        assert result.errors
        async with httpx.AsyncClient(base_url=traced.url, timeout=PATIENCE_SECONDS) as http:
            body = {"messages": [{"text": "x" * 2000}]}
            await http.post("/api/v1/queues/t%2Fsmall/messages", json=body, headers={"traceparent": context})
    await flushed(traced)
    [enqueue] = collector.named("enqueue t/small", trace_id=trace_id)
    assert enqueue.failed
    assert enqueue.attributes["error.type"] == "message_too_large"
